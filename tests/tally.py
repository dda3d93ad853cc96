#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the results that ./check collected: names what failed and prints "N passed, N failed, N skipped".

usage: tally.py DIRECTORY   with files of one JSON object a line: {"name": ..., "result": ...}
"""
import json
import pathlib
import sys


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        for line in path.read_text().splitlines():
            test = json.loads(line)
            kind = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(test["result"], "failed")
            counts[kind] += 1
            if kind != "passed":
                print(f"{kind}: {path.stem}: {test['name']} ({test['result']})")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return counts["failed"] > 0 or counts["passed"] == 0


if __name__ == "__main__":
    sys.exit(main())
