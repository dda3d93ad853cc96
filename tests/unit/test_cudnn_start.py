#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cuDNN worker where it cannot start: one line that says why, and the status for it; and where stand-ins for the
driver (FAKE_LIBRARIES) and the library (FAKE_CUDNN) let it.

usage: test_cudnn_start.py PROGRAM
"""
import json
import os
import subprocess
import sys


def expect(condition, message):
    if not condition:
        sys.exit(f"not ok: {message}")


def start(*arguments, **env):
    kept = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    return subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**kept, **env})


def expect_unavailable(done, says):
    expect(done.returncode == 69 and not done.stdout, str(done))
    expect(done.stderr.startswith("worker: cudnn: ") and done.stderr.count("\n") == 1, str(done))
    expect(says in done.stderr, f"no word of {says}: {done}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    fakes = {"LD_LIBRARY_PATH": os.environ["FAKE_LIBRARIES"]}
    front = os.environ["FAKE_CUDNN"] + "/libcudnn.so.9"
    # Whether this machine has a driver or not.
    expect_unavailable(start("--library", "/nowhere/libcudnn.so.9", "--hello"), "")
    expect_unavailable(start("--hello", **fakes, FAKE_CUDA="devices=0"), "device")
    expect_unavailable(start("--library", "/nowhere/libcudnn.so.9", "--hello", **fakes), "/nowhere/libcudnn.so.9")
    expect_unavailable(start("--library", "libc.so.6", "--hello", **fakes), "no cuDNN of version 9")
    # This stand-in for the front knows its version and nothing else, and ends the process if it is asked.
    expect_unavailable(start("--hello", **fakes), "cudnnGetErrorString")
    done = start("--library", front, "--hello", **fakes)
    expect(done.returncode == 0 and not done.stderr, str(done))
    hello = json.loads(done.stdout)
    expect(hello["backend"] == "cudnn" and hello["fingerprint"]["cudnn"] == "91900", done.stdout)
    expect(hello["ops"] == ["matmul", "moe_grouped_matmul", "convolution"], done.stdout)
    expect(len(hello["fingerprint"]["library_hash"]) == 64, done.stdout)
    for arguments in (["--library"], ["--hallo"], ["--hello", "--library", "/x"]):
        done = start(*arguments)
        expect(done.returncode == 64 and "[--library PATH] [--hello]" in done.stderr, f"{arguments}: {done}")
    done = start()
    expect(done.returncode == 64 and "tacticd" in done.stderr, f"started by hand: {done}")
    print("ok")


if __name__ == "__main__":
    main()
