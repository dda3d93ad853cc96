#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the results that ./check collected: names what failed and prints "N passed, N failed, N skipped".

usage: tally.py DIRECTORY   with files of one JSON object a line: {"name": ..., "result": ..., "stdout": ..., "stderr": ...}

The last lines that a failed test said stand below its name: they are all that is left where the output is cut off.
"""
import json
import pathlib
import sys

LAST_LINES = 12  # of each stream of a failed test
LINE_BYTES = 400


def last_words(test):
    for stream in ("stdout", "stderr"):
        for line in test.get(stream, "").splitlines()[-LAST_LINES:]:
            print(f"    {line[:LINE_BYTES]}")


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        for line in path.read_text().splitlines():
            test = json.loads(line)
            kind = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(test["result"], "failed")
            counts[kind] += 1
            if kind != "passed":
                print(f"{kind}: {path.stem}: {test['name']} ({test['result']})")
            if kind == "failed":
                last_words(test)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return counts["failed"] > 0 or counts["passed"] == 0


if __name__ == "__main__":
    sys.exit(main())
