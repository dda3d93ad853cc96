#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the real FlashInfer take a cache of ours, and serve exactly what is in it?

usage: real.py (--cache FILE | --store DIRECTORY) --expect True|False
               [--environment FILE | --look-alike] [--problem NAME=VALUE,...] [--tokens N,...]
       real.py --show [--environment FILE | --look-alike]    prints the metadata a cache must carry here

Runs inside an environment with flashinfer-python (venv.sh). With --environment (JSON: gpu, cuda_version, ...) or
--look-alike, the GPU and the versions are stubs of those names; without, they are what this machine has. Compiled
kernels are always a stub, since a call ends when its tactic is chosen. Every stub is named in the output.

--cache: AutoTuner.load_configs must answer what is expected. --store: autotune_v2(mode="replay") must find this
environment's directory, or not. Then the real operation is called, not tuning, with every bucket's number of
tokens and numbers between; what its tuner chooses must be the entry under the key it built, or the fallback (-1)
if there is none or the cache was to be refused. Where it was to be taken, each of its entries for the operation
must have been served.

Prints a JSON object a line, the last one with the verdict. Exit status 0 ok, 1 not.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
# Nothing of a user's caches is read or written.
scratch = tempfile.TemporaryDirectory(prefix="flashinfer-")
os.environ.update(FLASHINFER_WORKSPACE_BASE=scratch.name, FLASHINFER_LOGGING_LEVEL="error")

import lookalike  # noqa: E402
import stubs  # noqa: E402

BEYOND = 20000  # tokens above the last bucket of any problem here
RECORDS = 1 << 20


def say(**fields):
    print(json.dumps(fields), flush=True)


def parse():
    parser = argparse.ArgumentParser(description="the real FlashInfer on a cache of ours")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--cache", type=pathlib.Path)
    which.add_argument("--store", type=pathlib.Path)
    which.add_argument("--show", action="store_true")
    parser.add_argument("--expect", choices=["True", "False"])
    names = parser.add_mutually_exclusive_group()
    names.add_argument("--environment", type=pathlib.Path)
    names.add_argument("--look-alike", action="store_true")
    parser.add_argument("--problem", default="")
    parser.add_argument("--tokens", default="")
    args = parser.parse_args()
    if not args.show and args.expect is None:
        parser.error("--expect is missing")
    return args


def problem_of(text):
    """The look-alike's MoE problem with what `text` changes in it."""
    problem = dict(lookalike.PROBLEM)
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        if name not in problem:
            sys.exit(f"{name} is no dimension; they are {' '.join(problem)}")
        kind = type(problem[name])
        problem[name] = value == "True" if kind is bool else kind(value)
    return problem


def tokens_of(text, tune_max):
    """Each bucket, one below and one above it, the middle before it, and what lies beyond the last."""
    if text:
        return [int(n) for n in text.split(",")]
    steps = lookalike.buckets(tune_max)
    found = {BEYOND}
    for low, high in zip([0, *steps], steps):
        found |= {low + 1, (low + high + 1) // 2, high}
    return sorted(found)


def read_v1(path):
    """{key: (runner, tactic)}"""
    return {k: (v[0], v[1]) for k, v in json.loads(path.read_text()).items() if not k.startswith("_")}


def read_v2(folder):
    found = [json.loads(p.read_text()) for p in sorted((folder / "entries").glob("*.json"))]
    return {e["key"]: (e["runner"], e["tactic"]) for e in found}


def serve(op, tokens, problem, table):
    """Asks for each number of tokens; (keys served from the table, what was wrong)."""
    import families
    from flashinfer.autotuner import _tactic_to_json

    served, wrong = set(), []
    for n in tokens:
        (choice,) = families.ask(op, n, **problem)
        (key,) = choice.keys
        have = [choice.runner, _tactic_to_json(choice.tactic)]
        want = list(table.get(key.file_key, (choice.runner, -1)))
        say(tokens=n, bucket=key.nearest_profile[0][0], key=key.file_key, runner=have[0], tactic=have[1])
        if have != want:
            wrong.append({"tokens": n, "have": have, "want": want})
        elif key.file_key in table:
            served.add(key.file_key)
    return served, wrong


def judge(problem, tokens, table, expect):
    """Serves and compares; the table is empty where it was to be refused."""
    served, wrong = serve("trtllm_fp4_moe", tokens, problem, table if expect else {})
    ours = [k for k in table if k.startswith(f"('{lookalike.MOE}', ")]
    unserved = sorted(set(ours) - served) if expect else []
    ok = not wrong and not unserved and bool(ours)
    say(verdict="ok" if ok else "wrong", expected=expect, entries=len(ours), others=len(table) - len(ours),
        served=len(served), unserved=unserved, wrong=wrong)
    return ok


def on_cache(args, problem, tokens):
    from flashinfer.autotuner import AutoTuner

    expect = args.expect == "True"
    loaded = AutoTuner.get().load_configs(str(args.cache))
    say(load_configs=loaded, expected=expect, file=args.cache.name)
    return judge(problem, tokens, read_v1(args.cache), expect) and loaded is expect


def on_store(args, problem, tokens):
    from flashinfer.autotune_cache import ManagedAutotuneCache, ReplayCoverage, autotune_v2
    from flashinfer.autotuner import _collect_metadata

    expect = args.expect == "True"
    mine = ManagedAutotuneCache(_collect_metadata(), args.store)
    folders = sorted((args.store / "v2").glob("*/"))
    found = mine.env_dir in folders
    say(environment=mine.env_hash, found=found, expected=expect, folders=[f.name for f in folders])
    table = {k: v for f in folders if f == mine.env_dir or not expect for k, v in read_v2(f).items()}
    report = ReplayCoverage(max_records=RECORDS)
    with autotune_v2(mode="replay", cache_root=args.store, replay_report=report):
        ok = judge(problem, tokens, table, expect)
    sources = sorted({r["source"] for r in report.records})
    say(replay={"hits": report.hits, "misses": report.misses, "skipped": report.skipped, "sources": sources})
    whole = report.hits == len(tokens) if expect else report.misses == len(tokens)
    return ok and found is expect and whole


def main():
    args = parse()
    problem = problem_of(args.problem)
    environment = stubs.LOOK_ALIKE if args.look_alike else None
    if args.environment:
        environment = json.loads(args.environment.read_text())
    import flashinfer
    import torch
    from flashinfer.autotuner import _collect_metadata

    stubs.install(environment)
    say(flashinfer=flashinfer.__version__, torch=torch.__version__, metadata=_collect_metadata(),
        gpu_here=torch.cuda.is_available())
    if args.show:
        return 0
    tokens = tokens_of(args.tokens, problem["tune_max"])
    return 0 if (on_cache if args.cache else on_store)(args, problem, tokens) else 1


if __name__ == "__main__":
    sys.exit(main())
