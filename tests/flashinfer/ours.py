#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the real FlashInfer take what tunectl writes, and serve exactly that?

usage: ours.py --build DIR                      both versions, with stubs (stubs.py) for GPU and library versions
       ours.py --build DIR --given ENV FOLDER   writes such files for environments of a machine with a GPU: ENV is
                                                the environment.jsonl that machine.py made there; FOLDER/VERSION/
                                                is what it takes as GIVEN

The tables are the packaged ones of Kimi-K3 (0.6.16) and a look-alike's for both versions, in both forms. Exit status
77 if the packages cannot be had.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import fixtures  # noqa: E402
import lookalike  # noqa: E402
import stubs  # noqa: E402

ROOT = HERE.parents[1]
B300 = {**stubs.LOOK_ALIKE, "gpu": "NVIDIA B300 SXM6 AC"}
KIMI = {"ep=8,tp=1": "", "ep=1,tp=8": "local=896,intermediate=384"}  # what real.py's problem must be told
SITU = {"activation": 10}


def tunectl(build, *args):
    done = subprocess.run([build / "client/tunectl", *map(str, args)], capture_output=True, text=True, check=False,
                          env={"TACTICD_RECIPES": str(ROOT / "tables/recipes")}, timeout=60)
    if done.returncode:
        sys.exit(f"tunectl {args}: {done.stderr}")
    return done.stdout


def import_look_alike(build, version, meta, folder, name="table"):
    """A table of ours with the look-alike's entries."""
    source, table = folder / "source.json", folder / f"{name}.json"
    lookalike.write_v1(source, meta, lookalike.entries(version, {**lookalike.PROBLEM, **SITU}))
    tunectl(build, "import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", "--out", table, source)
    return table


def swept(table, version):
    """The same entries as if they had been swept here: without the keys of any file."""
    lines = table.read_text().splitlines()
    header = json.loads(lines[0][len('{"header":'):-len(',"entries":[')])
    header["fingerprint"] = {"device": header["fingerprint"]["device"], "flashinfer": version}
    del header["flashinfer"]
    rows = [json.loads(line.rstrip(",")) for line in lines[1:-1]]
    for row in rows:
        del row["file_key"], row["file_value"]
        row["state"] = "confirmed"
    text = '{"header":' + json.dumps(header, separators=(",", ":")) + ',"entries":[\n'
    text += ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]}\n"
    path = table.with_name("swept.json")
    path.write_text(text)
    return path


def files(build, version, meta, folder):
    """(name, arguments of real.py) of caches that tunectl wrote for an environment."""
    work = folder / "work"
    work.mkdir(parents=True)
    table = import_look_alike(build, version, meta, work)
    problem = ",".join(f"{k}={v}" for k, v in SITU.items())
    other = import_look_alike(build, cases.OTHER_VERSION, {**meta, "flashinfer_version": cases.OTHER_VERSION}, work, "other")
    shapes = [("imported", table, [], "True"), ("other_version", other, [], "False"),
              ("wildcards", table, ["--wild"], "True"),
              ("swept", swept(table, version), ["--metadata", json.dumps(meta)], "True")]
    for name, source, options, expect in shapes:
        path = folder / name
        path.mkdir()
        tunectl(build, "export", source, "--out", path / "cache.json", *options)
        yield name, path, ["--cache", path / "cache.json"], expect, problem
        if not version.startswith("0.6.") and name != "wildcards":  # a store is found by its exact environment
            path = folder / f"store_{name}"
            path.mkdir()
            tunectl(build, "export", source, "--v2", path / "store", *options)
            yield f"store_{name}", path, ["--store", path / "store"], expect, problem
    shutil.rmtree(work)


def write_given(build, environments, folder):
    """What machine.py takes: the caches, with what is expected of them."""
    for line in environments.read_text().splitlines():
        here = json.loads(line)
        target = folder / here["flashinfer"]
        shutil.rmtree(target, ignore_errors=True)
        for _, path, _, expect, problem in files(build, here["flashinfer"], here["metadata"], target):
            (path / "expect").write_text(expect)
            (path / "problem").write_text(problem)
        print(f"{target}: {len(list(target.glob('*/')))} caches")
    return 0


def judge(python, name, environment, args, expect, problem):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(environment, f)
        f.flush()
        done = fixtures.run(python, cases.REAL, "--environment", f.name, *args, "--expect", expect, "--problem", problem)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    verdict = next((r for r in rows if "verdict" in r), {})
    ok = done.returncode == 0 and verdict.get("verdict") == "ok"
    print(f"{'ok' if ok else 'FAIL'} {name}: expected {expect}, {verdict.get('served')} of {verdict.get('entries')} served"
          + ("" if ok else f"\n{rows[-2:]}\n{done.stderr[-800:]}"), flush=True)
    return ok


def packaged(build, python, folder):
    """Kimi-K3's tables as they are installed, in an environment that is stubbed as B300."""
    failures = 0
    for layout, problem in KIMI.items():
        for table in sorted((ROOT / "tables/NVIDIA_B300_SXM6_AC").glob(f"kimi-k3,{layout},*.json")):
            path = folder / f"{table.stem}.cache.json"
            tunectl(build, "export", table, "--out", path)
            cudnn = json.loads(path.read_text())["_metadata"]["cudnn_version"]
            asked = ",".join(filter(None, [problem, "activation=10"]))
            for other in ("91900", "92400"):
                failures += not judge(python, f"0.6.16 packaged {layout} cudnn {cudnn}, here {other}",
                                      {**B300, "cudnn_version": other}, ["--cache", path], str(cudnn == other), asked)
    return failures


def main():
    parser = argparse.ArgumentParser(description="the real FlashInfer on what tunectl writes")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--given", type=pathlib.Path, nargs=2, metavar=("ENV", "FOLDER"))
    args = parser.parse_args()
    build = args.build.resolve()
    if args.given:
        return write_given(build, *args.given)
    pythons = {v: fixtures.environment(build, v) for v in fixtures.VERSIONS}
    if None in pythons.values():
        return fixtures.SKIPPED
    failures = 0
    with tempfile.TemporaryDirectory() as work:
        for version, python in pythons.items():
            meta = lookalike.metadata(version, stubs.LOOK_ALIKE)
            for name, _, real, expect, problem in files(build, version, meta, pathlib.Path(work, version)):
                failures += not judge(python, f"{version} {name}", stubs.LOOK_ALIKE, real, expect, problem)
        failures += packaged(build, pythons["0.6.16"], pathlib.Path(work))
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
