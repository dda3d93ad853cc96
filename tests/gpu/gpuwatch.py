#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpuwatch on a real GPU and its real NVML: what it tells against nvidia-smi, what a question costs, and how soon a
sweep gives the GPU back to a process that comes (the scripted worker sweeps; the stranger is real).

usage: gpuwatch.py --build DIR [TEST...]      exit status 77: no NVML here
"""
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "spec"))
from harness import Daemon, Skip, expect, key, run  # noqa: E402

PROBLEM = key(64)
SLOW = ("times=100,80,82,82,150,95", "jitter=0.05", "flush_ms=20")
# A context with 4 GiB, then a line, then it stays until its input ends.
STRANGER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for r in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
          cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
          cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4 << 30))):
    assert r == 0, r
print("here", flush=True)
sys.stdin.read()
"""


class Watch:
    """gpuwatch with us in the daemon's place."""

    def __init__(self, build):
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$0" 3<&{fd} 3>&{fd}', str(pathlib.Path(build) / "daemon/tactic-gpuwatch")], pass_fds=(fd,))
        theirs.close()
        self.socket, self.lines = ours, ours.makefile("r")
        self.hello = json.loads(self.lines.readline())
        if self.hello["say"] == "gpu_none":
            raise Skip(self.hello["why"])

    def ask(self, brief=False):
        """What it tells, and how many ms that took."""
        begun = time.monotonic()
        self.socket.sendall(json.dumps({"say": "gpu_ask", "seq": 1, "brief": brief}).encode() + b"\n")
        found = []
        while True:
            line = json.loads(self.lines.readline())
            if line["say"] == "gpu_end":
                return found, (time.monotonic() - begun) * 1e3
            found.append(line)

    def end(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        expect(self.process.wait(5) == 0, "it did not end well", self.process.returncode)


def stranger():
    process = subprocess.Popen([sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    expect(process.stdout.readline() == "here\n", "the stranger has no context")
    return process


def end(process):
    process.stdin.close()
    process.wait(20)


def test_it_tells_what_nvidia_smi_tells(build):
    watch = Watch(build)
    told, first_ms = watch.ask()
    fields = "index,uuid,name,memory.total,power.limit,driver_version"
    rows = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], capture_output=True,
                          text=True, check=True).stdout.splitlines()
    gpus = [g for g in told if "parent" not in g]
    expect(len(gpus) == len(rows), "not as many", told, rows)
    for gpu, line in zip(gpus, rows):
        index, uuid, name, total, power, driver = line.split(", ")
        expect((gpu["index"], gpu["uuid"], gpu["name"]) == (int(index), uuid, name), "another GPU", gpu, line)
        expect(gpu["total_bytes"] >> 20 == int(total) and watch.hello["driver"] == driver, "memory or driver", gpu, line)
        expect("power_cap_mw" not in gpu or abs(gpu["power_cap_mw"] / 1000 - float(power)) < 1, "power cap", gpu, line)
        expect("trouble" not in gpu, "trouble", gpu)
        print(f"   {json.dumps(gpu)}")
    times = [watch.ask(brief=True)[1] for _ in range(50)]
    print(f"   {len(told)} devices: first question {first_ms:.1f} ms, brief ones {statistics.median(times):.2f} ms, worst {max(times):.2f}")
    watch.end()


def test_it_sees_a_process(build):
    watch = Watch(build)
    before = watch.ask()[0][0]
    process = stranger()
    try:
        after = watch.ask()[0][0]
        grown = after["used_bytes"] - before["used_bytes"]
        print(f"   used before {before['used_bytes'] >> 20} MiB, with 4 GiB taken {after['used_bytes'] >> 20}; listed {after['processes']}")
        expect(grown >= 4 << 30, "its memory is not there", before, after)
        listed = [p for p in after["processes"] if p["pid"] == process.pid]
        if listed:
            expect(listed[0].get("group") == os.getpgid(process.pid) and listed[0].get("name", "").startswith("python"), "not it", listed)
        else:
            print("   its pid is not to be seen here: sweeps go by memory")
    finally:
        end(process)
    watch.end()


def test_the_gpu_is_given_back(build):
    Watch(build).end()
    d = Daemon(build, sweep={"when": "idle", "memory_cap": "1GiB"})
    with d.fake(*SLOW, section="gpu", device="0"):
        d.wait_ready("gpu")
        row = d.status()["devices"][0]
        expect(row["uuid"].startswith(("GPU-", "MIG-")) and row["visible"] == row["uuid"], "not resolved", row)
        d.lookup(PROBLEM, "gpu")
        d.wait_for(lambda: d.status()["devices"][0]["state"] == "sweeping", 20, "a sweep")

        def workers():
            return [pid for pid, line in d.children().items() if "fake_worker" in line.split()[0]]
        begun = time.monotonic()
        process = stranger()
        here = time.monotonic()
        try:
            d.wait_for(lambda: not workers(), 5, "the worker's end")
            gone = time.monotonic()
            print(f"   its context took {(here - begun) * 1e3:.0f} ms; the worker was gone {(gone - begun) * 1e3:.0f} ms after its start")
            row = d.wait_for(lambda: (r := d.status()["devices"][0])["state"] == "in use" and r, 10, "that to be said")
            print(f"   {row['waits']}")
        finally:
            end(process)
        expect(d.wait_answer(PROBLEM, "gpu")["kind"] == "hit", "it did not go on")


if __name__ == "__main__":
    run((test_it_tells_what_nvidia_smi_tells, test_it_sees_a_process, test_the_gpu_is_given_back))
