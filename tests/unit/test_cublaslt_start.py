#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cuBLASLt worker where it cannot start: one line, and the status that says why. What it does where it can
is tested on a machine with a GPU.

usage: test_cublaslt_start.py PROGRAM
"""
import subprocess
import sys


def expect(condition, message):
    if not condition:
        sys.exit(f"not ok: {message}")


def start(*arguments):
    return subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, timeout=60, check=False)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # Without a driver that is what it says; with one, that there is no such library, or another one.
    for path in ("/nowhere/libcublasLt.so", "libc.so.6"):
        done = start("--library", path, "--hello")
        expect(done.returncode == 69 and not done.stdout, f"{path}: {done}")
        expect(done.stderr.startswith("worker: cublaslt: ") and done.stderr.count("\n") == 1, f"{path}: {done}")
    for arguments in (["--library"], ["--hallo"], ["--hello", "--library", "/x"]):
        done = start(*arguments)
        expect(done.returncode == 64 and "[--library PATH] [--hello]" in done.stderr, f"{arguments}: {done}")
    done = start()
    expect(done.returncode == 64 and "tacticd" in done.stderr, f"started by hand: {done}")
    print("ok")


if __name__ == "__main__":
    main()
