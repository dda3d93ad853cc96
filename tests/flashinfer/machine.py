#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries real.py with the GPU and the libraries of this machine: nothing of them is a stub.

usage: machine.py VERSION SITE OUT [GIVEN]

SITE has flashinfer-python VERSION and what python3 lacks of its needs. GIVEN/VERSION has caches made elsewhere
(cases.py says how). Adds to OUT/environment.jsonl (the metadata that a cache must carry here), OUT/results.jsonl
(a case a line) and OUT/served.jsonl (what was chosen for each number of tokens).
"""
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cases  # noqa: E402


def add(path, **fields):
    with path.open("a") as f:
        f.write(json.dumps(fields) + "\n")


def main():
    version, site, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    more = cases.given(pathlib.Path(sys.argv[4], version)) if len(sys.argv) > 4 else []

    def program(args):
        return cases.run(sys.executable, *args, PYTHONPATH=site, PYTHONPYCACHEPREFIX=f"{site}-bytecode")

    shown = program([cases.REAL, "--show"])
    if shown.returncode:
        sys.exit(shown.stderr)
    here = json.loads(shown.stdout.splitlines()[-1])
    add(out / "environment.jsonl", **here)
    print(json.dumps(here))
    if here["flashinfer"] != version or not here["gpu_here"]:
        sys.exit(f"this is FlashInfer {here['flashinfer']}, with a GPU: {here['gpu_here']}")
    failures = 0
    with tempfile.TemporaryDirectory() as work:
        for result in cases.judge_all(version, here["metadata"], pathlib.Path(work), program, more):
            print(result.line(), flush=True)
            failures += not result.ok
            rows = [r for r in result.rows if "tokens" not in r]
            add(out / "results.jsonl", version=version, case=result.case.name, must=result.case.status,
                status=result.status, ok=result.ok, said=rows)
            for row in result.rows:
                if "tokens" in row:
                    add(out / "served.jsonl", version=version, case=result.case.name, **row)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
