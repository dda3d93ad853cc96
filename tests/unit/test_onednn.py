#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The oneDNN worker against the real library: what it lists, runs and refuses.

usage: test_onednn.py --build DIR [TEST...]      exit status 77: this build has no such worker
"""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

MIB = 1 << 20


class Failure(AssertionError):
    pass


def expect(condition, message):
    if not condition:
        raise Failure(message)


def key(m, n=96, k=64, a="f32", b=None, out=None, acc="f32", layout="tn", batch=1, epilogue="none", scale="none",
        workspace=0):
    return (f"matmul,backend=onednn,a={a},b={b or a},out={out or a},acc={acc},layout={layout},batch={batch},"
            f"m={m},n={n},k={k},epilogue={epilogue},scale={scale},workspace_bytes={workspace}")


class Worker:
    def __init__(self, program, **env):
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        fd = theirs.fileno()
        move = f" 3<&{fd} {fd}<&-" if fd != 3 else ""
        self.process = subprocess.Popen(["/bin/sh", "-c", f"exec \"$0\"{move}", program], pass_fds=[fd],
                                        stdin=subprocess.DEVNULL, env={**os.environ, **env})
        theirs.close()
        self.lines = self.sock.makefile("rb")
        self.hello = self.hear("hello")

    def hear(self, *want):
        line = self.lines.readline()
        expect(line, "the worker closed its socket")
        said = json.loads(line)
        expect(said["say"] in want, f"wanted {want}, heard {line.decode()}")
        return said

    def ask(self, say, *want, **fields):
        self.sock.sendall(json.dumps({"say": say, **fields}).encode() + b"\n")
        return self.hear(*want)

    def open(self, problem, cap=4096 * MIB, seed=1):  # CPUs with a cache of 480 MiB need more than one GiB
        return self.ask("open", "opened", "refused", problem=problem, seed=seed, memory_cap_bytes=cap)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.lines.close()
        self.sock.close()
        status = self.process.wait(20)
        if kind is None:
            expect(status == 0, f"ended with {status}")


def hello_tells_what_is_loaded(program):
    with Worker(program, OMP_NUM_THREADS="1") as w:
        facts = w.hello["fingerprint"]
        expect(w.hello["backend"] == "onednn" and w.hello["ops"] == ["matmul"], str(w.hello))
        expect(w.hello["pid"] == w.process.pid, "the pid is not its own")
        expect(facts["device"].startswith("cpu:"), str(facts))
        expect(re.fullmatch(r"\d+\.\d+\.\d+", facts["onednn"]), str(facts))
        expect(facts["threads"] == "1", str(facts))
        expect(re.fullmatch(r"[0-9a-f]{64}", facts["library_hash"]), str(facts))
    printed = json.loads(subprocess.run([program, "--hello"], capture_output=True, check=True, timeout=20).stdout)
    expect(printed["fingerprint"]["library_hash"] == facts["library_hash"], "--hello says something else")
    done = subprocess.run([program], capture_output=True, timeout=20, check=False)
    expect(done.returncode == 64 and b"tacticd" in done.stderr, f"started by hand: {done}")


def the_space_is_implementations_by_threads(program):
    with Worker(program, OMP_NUM_THREADS="3") as w:
        opened = w.open(key(4))
        tactics = [c["tactic"] for c in opened["candidates"]]
        expect(tactics[0]["threads"] == 3, f"native does not use what the process has: {tactics[0]}")
        expect({t["threads"] for t in tactics} == {1, 2, 3}, f"thread counts {tactics}")
        texts = [json.dumps(t, sort_keys=True) for t in tactics]
        expect(len(set(texts)) == len(texts), "a tactic stands twice")
        expect(opened["flush_us"] > 0 and opened["method"] == "cpu-wall-layer-2", f"another method: {opened}")
        expect({c["family"] for c in opened["candidates"]} == {t["impl"] for t in tactics}, "family is not the impl")
        w.ask("close", "closed")
        expect(w.open(key(4))["space_digest"] == opened["space_digest"], "the digest is not stable")


def candidates_of(w, problem):
    opened = w.open(problem)
    expect(opened["say"] == "opened", f"{problem}: {opened}")
    return range(len(opened["candidates"]))


PROBLEMS = [dict(), dict(layout="nn"), dict(batch=3, epilogue="bias"), dict(epilogue="relu"),
            dict(epilogue="bias_relu", scale="tensor", layout="nn"), dict(k=1), dict(n=1), dict(workspace=64 * MIB),
            dict(a="bf16"), dict(a="bf16", out="f32", epilogue="bias"), dict(a="s8", out="s32", acc="s32"),
            dict(a="u8", b="s8", out="s8", acc="s32", scale="tensor", epilogue="bias"),
            dict(a="s8", out="f32", acc="s32", scale="tensor", layout="nn")]


def every_candidate_computes_the_right_thing(program):
    ran = 0
    with Worker(program) as w:
        for dims in PROBLEMS:
            for m in (1, 5):
                opened = w.open(key(m, **dims))
                if opened["say"] == "refused":
                    expect(opened["reason"] == "unsupported" and dims.get("a", "f32") != "f32", f"{dims}: {opened}")
                    continue
                for i in range(len(opened["candidates"])):
                    looked = w.ask("look", "looked", candidate=i)
                    expect(0 < looked["device_us"] <= 1e7 and looked["first_us"] > 0, f"{dims}: {looked}")
                    checked = w.ask("check", "checked", candidate=i)
                    expect(checked["ok"] and checked["max_error"] <= checked["limit"], f"{dims}: {checked}")
                    ran += 1
                w.ask("close", "closed")
    expect(ran >= 40, f"only {ran} candidates ran")


def rounds_come_back_in_order(program):
    with Worker(program) as w:
        n = len(candidates_of(w, key(2)))
        order = [*reversed(range(n)), 0]
        samples = w.ask("run", "samples", round=3, order=order)
        expect(samples["round"] == 3 and samples["order"] == order, str(samples))
        expect(len(samples["device_us"]) == n + 1 and min(samples["device_us"]) > 0, str(samples))
        expect(samples["host_us"] == samples["device_us"], "on a CPU the launch is the work")


def rounds_need_no_look_before(program):
    with Worker(program) as w:
        candidates_of(w, key(2))
        w.ask("run", "samples", round=1, order=[1, 0])
        expect(w.ask("check", "checked", candidate=1)["ok"], "a check without a look")


def hot_rounds_leave_out_what_makes_the_caches_cold(program):
    with Worker(program) as w:
        n = len(candidates_of(w, key(2)))
        order = [*range(n)] * 4
        took = {"cold": [], "hot": []}
        for i in range(10):
            flush = "hot" if i % 2 else "cold"
            start = time.monotonic()
            samples = w.ask("run", "samples", round=1, order=order, flush=flush)
            took[flush].append(time.monotonic() - start)
            expect(samples["order"] == order and min(samples["device_us"]) > 0, str(samples))
        # A neighbour may hold up a launch of either kind, but hardly each of five rounds.
        expect(min(took["hot"]) < min(took["cold"]), f"the layer before still runs: {took}")


def what_it_cannot_do_is_refused(program):
    cases = [(dict(a="f16"), "unsupported"), (dict(a="e4m3"), "unsupported"), (dict(epilogue="gelu"), "unsupported"),
             (dict(acc="tf32"), "unsupported"), (dict(acc="s32"), "unsupported"), (dict(scale="row"), "unsupported"),
             (dict(n=1 << 40, k=1 << 40), "memory"),
             (dict(n=8192, k=8192, epilogue="relu"), "unsupported")]
    with Worker(program) as w:
        for dims, reason in cases:
            refused = w.open(key(64, **dims))
            expect(refused["say"] == "refused" and refused["reason"] == reason and refused["detail"], f"{dims}: {refused}")
        expect(w.open(key(1, n=512, k=512), cap=MIB)["reason"] == "memory", "the cap is not kept")
        expect(w.open(key(1))["say"] == "opened", "a refusal leaves something open")


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def close_gives_the_memory_back(program):
    # A sanitizer would keep what was freed.
    options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
    with Worker(program, ASAN_OPTIONS=options) as w:
        before = resident_bytes(w.process.pid)
        for _ in range(3):
            for i in candidates_of(w, key(1, n=4096, k=4096)):
                w.ask("check", "checked", candidate=i)
            grown = resident_bytes(w.process.pid) - before
            expect(grown > 64 * MIB, f"no ring: grew by {grown >> 20} MiB")
            w.ask("close", "closed")
        left = resident_bytes(w.process.pid) - before
        expect(left < 24 * MIB, f"{left >> 20} MiB stay after close")


def it_ends_with_its_socket(program):
    for opened in (False, True):
        with Worker(program) as w:
            if opened:
                candidates_of(w, key(1))


TESTS = [hello_tells_what_is_loaded, the_space_is_implementations_by_threads, every_candidate_computes_the_right_thing,
         rounds_come_back_in_order, rounds_need_no_look_before, hot_rounds_leave_out_what_makes_the_caches_cold,
         what_it_cannot_do_is_refused, close_gives_the_memory_back, it_ends_with_its_socket]


def main():
    args = sys.argv[1:]
    if len(args) < 2 or args[0] != "--build":
        sys.exit(__doc__)
    program = (pathlib.Path(args[1]) / "daemon/workers/tactic-onednn").resolve()
    if not program.exists():
        print("SKIP: this build has no oneDNN worker")
        sys.exit(77)
    failed = 0
    for test in TESTS:
        if args[2:] and test.__name__ not in args[2:]:
            continue
        begun = time.monotonic()
        try:
            test(str(program))
            print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
        except (Failure, subprocess.TimeoutExpired, TimeoutError) as e:
            failed += 1
            print(f"not ok {test.__name__}: {e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
