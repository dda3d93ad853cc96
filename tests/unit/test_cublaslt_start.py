#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cuBLASLt worker where it cannot start: one line that says why, and the status for it. A stand-in for the
driver is in FAKE_LIBRARIES; what the worker does where it can start is tested on a machine with a GPU.

usage: test_cublaslt_start.py PROGRAM
"""
import os
import subprocess
import sys


def expect(condition, message):
    if not condition:
        sys.exit(f"not ok: {message}")


def start(*arguments, **env):
    return subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **env})


def expect_unavailable(done, says):
    expect(done.returncode == 69 and not done.stdout, str(done))
    expect(done.stderr.startswith("worker: cublaslt: ") and done.stderr.count("\n") == 1, str(done))
    expect(says in done.stderr, f"no word of {says}: {done}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    fakes = {"LD_LIBRARY_PATH": os.environ["FAKE_LIBRARIES"]}
    # Whether this machine has a driver or not.
    expect_unavailable(start("--library", "/nowhere/libcublasLt.so", "--hello"), "")
    expect_unavailable(start("--hello", **fakes, FAKE_CUDA="devices=0"), "device")
    expect_unavailable(start("--library", "/nowhere/libcublasLt.so", "--hello", **fakes), "/nowhere/libcublasLt.so")
    expect_unavailable(start("--library", "libc.so.6", "--hello", **fakes), "cublasLtCreate")
    # This stand-in for the library knows its version and nothing else.
    expect_unavailable(start("--hello", **fakes), "cublasLtCreate")
    for arguments in (["--library"], ["--hallo"], ["--hello", "--library", "/x"]):
        done = start(*arguments)
        expect(done.returncode == 64 and "[--library PATH] [--hello]" in done.stderr, f"{arguments}: {done}")
    done = start()
    expect(done.returncode == 64 and "tacticd" in done.stderr, f"started by hand: {done}")
    print("ok")


if __name__ == "__main__":
    main()
