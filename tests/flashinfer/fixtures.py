#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the fixtures of tests/fixtures/flashinfer again with the real FlashInfer, each version, and compares;
then lets real.py judge caches that must be taken, that must be refused, and that it must find fault with.

usage: fixtures.py --build DIR [--write]    --write replaces the fixtures instead of comparing

The packages are installed below DIR/flashinfer (venv.sh; about 650 MB are downloaded once). Exit status 77 if they
cannot be had.
"""
import argparse
import difflib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import lookalike  # noqa: E402
import stubs  # noqa: E402

FIXTURES = HERE.parent / "fixtures/flashinfer"
VERSIONS = ["0.6.16", "0.7.4"]
SKIPPED = 77
SHOWN = 60  # lines of what is wrong


def environment(build, version):
    """The python of a version's virtual environment, or None where it cannot be had."""
    made = subprocess.run([HERE / "venv.sh", version, build / "flashinfer"], check=False)
    if made.returncode == SKIPPED:
        return None
    made.check_returncode()
    return build / "flashinfer" / version / "bin/python"


def run(python, *args):
    return cases.run(python, *args, PYTHONPYCACHEPREFIX=python.parents[2] / "bytecode")


def files(folder):
    return {p.relative_to(folder): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def compare(version, have, want):
    """What differs between two folders, as lines."""
    have, want = files(have), files(want)
    lines = []
    for name in sorted(set(have) | set(want)):
        lines += difflib.unified_diff(want.get(name, "").splitlines(), have.get(name, "").splitlines(),
                                      f"fixture {version}/{name}", f"made now {version}/{name}", lineterm="", n=1)
    return lines


def make(python, version, write):
    """Makes a version's fixtures; what is wrong."""
    with tempfile.TemporaryDirectory() as work:
        made = run(python, HERE / "produce.py", work)
        sys.stdout.write("".join(f"{line}\n" for line in made.stderr.splitlines() if line.startswith("stub: ")))
        if made.returncode:
            return [made.stderr]
        if write:
            shutil.rmtree(FIXTURES / version, ignore_errors=True)
            shutil.copytree(work, FIXTURES / version)
        return compare(version, pathlib.Path(work), FIXTURES / version)[:SHOWN]


def rules(version):
    """Whether the look-alike's rules give what the real package gave; what is wrong."""
    wrong, folder = [], FIXTURES / version
    for tune_max, ladder in json.loads((folder / "buckets.json").read_text())["hybrid"].items():
        ours = lookalike.buckets(int(tune_max))
        # A run starts one above the bucket before; no tokens are one.
        starts = [[0, 1], *([low + 1, high] for low, high in zip(ours, ours[1:]))]
        if ours != ladder["buckets"] or starts != ladder["runs"]:
            wrong.append(f"{version}: the look-alike's ladder for {tune_max} is another")
    for row in json.loads((folder / "keys.json").read_text()):
        if row["op"] == "trtllm_fp4_moe":
            problem = {**lookalike.PROBLEM, **row["dims"]}
            bucket = lookalike.bucket_of(row["tokens"], problem["tune_max"])
            key = str(lookalike.moe_key(version, bucket, problem))
            if row["keys"] != [key]:
                wrong.append(f"{version}: {row['dims']} {row['tokens']}: {key} is not {row['keys']}")
    for path in folder.glob("v2/*/manifest.json"):
        if lookalike.folder_name(json.loads(path.read_text())) != path.parent.name:
            wrong.append(f"{version}: {path.parent.name} is not the name of its manifest")
    for path in folder.glob("v2/*/entries/*.json"):
        if lookalike.entry_name(json.loads(path.read_text())["key"]) != path.name:
            wrong.append(f"{version}: {path.name} is not the name of its key")
    return wrong[:SHOWN]


def judge(version, python):
    """How many cases of real.py did not go as they must."""
    failures = 0
    with tempfile.TemporaryDirectory() as work:
        def program(args):
            return run(python, args[0], "--look-alike", *args[1:])

        meta = lookalike.metadata(version, stubs.LOOK_ALIKE)
        for result in cases.judge_all(version, meta, pathlib.Path(work), program):
            print(result.line(), flush=True)
            failures += not result.ok
    return failures


def main():
    parser = argparse.ArgumentParser(description="fixtures of the real FlashInfer")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    pythons = {v: environment(args.build.resolve(), v) for v in VERSIONS}
    if None in pythons.values():
        return SKIPPED
    failures = 0
    for version, python in pythons.items():
        wrong = make(python, version, args.write) + rules(version)
        print("\n".join(wrong) if wrong else f"ok {version} fixtures", flush=True)
        failures += bool(wrong) + judge(version, python)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
