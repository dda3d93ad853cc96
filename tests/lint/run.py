#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the lint checks: one line each, what they found below it, and a count in the end.

usage: run.py [--root DIR] [--list] [CHECK ...]
Each check is a module here with check(root), which lists what is wrong as "file:line: why", and
planted(root), which builds a small tree with known faults and lists what must be found in it, no more and
no less. A check that misses a planted fault has failed, whatever it says of the tree.
Exit status: 0 all passed, 1 something failed, 77 nothing could run.
"""
import argparse
import importlib
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

import tree  # noqa: E402

CHECKS = ["includes", "headers_alone", "pure", "exports", "used", "words", "heads", "format"]
SHOWN = 40  # findings of one check that are printed


def misses_planted(module):
    """What the check gets wrong on its own planted tree, or None."""
    with tempfile.TemporaryDirectory(prefix="lint.") as folder:
        want = sorted(module.planted(Path(folder)))
        have = sorted(module.check(Path(folder)))
    if len(want) != len(have) or any(not h.startswith(w) for w, h in zip(want, have)):
        return f"planted faults {want}, found {have}"
    return None


def outcome(name, root):
    """("ok" | "FAIL" | "SKIP", findings)"""
    module = importlib.import_module(name)
    try:
        blind = misses_planted(module)
        if blind:
            return "FAIL", [blind]
        found = module.check(root)
    except tree.Skip as why:
        return "SKIP", [str(why)]
    return ("FAIL", found) if found else ("ok", [])


def main():
    parser = argparse.ArgumentParser(description="lint checks of this tree")
    parser.add_argument("--root", type=Path, default=HERE.parent.parent)
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    parser.add_argument("checks", nargs="*", metavar="CHECK", default=[])
    args = parser.parse_args()
    if args.list:
        print("\n".join(CHECKS))
        return 0
    count = {"ok": 0, "FAIL": 0, "SKIP": 0}
    for name in args.checks or CHECKS:
        result, found = outcome(name, args.root.resolve())
        count[result] += 1
        print(f"{result} {name}" + (f": {len(found)}" if result == "FAIL" else ""))
        for line in found[:SHOWN]:
            print(f"    {line}")
        if len(found) > SHOWN:
            print(f"    and {len(found) - SHOWN} more")
    print(f"{count['ok']} passed, {count['FAIL']} failed, {count['SKIP']} skipped")
    if count["FAIL"]:
        return 1
    return 0 if count["ok"] else 77


if __name__ == "__main__":
    sys.exit(main())
