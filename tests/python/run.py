#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a file of unit tests of the Python client against libtactic and the daemon of a build.

usage: run.py --build DIR [--cc COMMAND] [--version VERSION] MODULE [TEST...]
Exit status: 0 all passed, 1 something failed, 77 nothing failed and something could not be tested here.
"""
import argparse
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main():
    parser = argparse.ArgumentParser(description="tests of the Python client")
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--cc", default="cc", help="C compiler, a command line")
    parser.add_argument("--version", help="the project's, as meson has it")
    parser.add_argument("tests", nargs="+", metavar="MODULE", help="the file, then perhaps tests in it")
    args = parser.parse_args()
    sys.dont_write_bytecode = True  # the tree stays as it is
    sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/spec"), str(HERE), str(HERE / "stand_in")]
    os.environ["TACTICD_LIBRARY"] = str(args.build.resolve() / "client/libtactic.so.1")
    os.environ.pop("TACTICD_SOCKET", None)

    import common

    common.BUILD, common.CC, common.VERSION = args.build.resolve(), args.cc, args.version
    module, *names = args.tests
    loader = unittest.TestLoader()
    names = [f"{module}.{name}" for name in names] or [module]
    result = unittest.TextTestRunner(verbosity=2).run(loader.loadTestsFromNames(names))
    if not result.wasSuccessful() or not result.testsRun:
        return 1
    return 77 if result.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
