#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPUs without a GPU: gpuwatch over a made-up NVML (tests/fake/fake_nvml.c), the scripted worker as a GPU's. Which GPU a
section means; sweeps wait for others, give the GPU back and go on later; NVML may hang or not be there.

usage: gpus.py --build DIR [TEST...]
"""
import contextlib
import os
import pathlib
import signal
import subprocess
import time

from harness import Daemon, expect, key, run, slack
from wire import Probe

ONE, TWO = "GPU-aaaa1111-2222-3333", "GPU-aaaa4444-5555-6666"
MIGS = ("MIG-bbbb1111-2222-3333", "MIG-bbbb4444-5555-6666")
PLAIN = ["driver 580.159.04", f"gpu {ONE} 143771 NVIDIA H200", "reserved 620", "workers 700",
         f"gpu {TWO} 143771 NVIDIA H200", "reserved 620", "workers 700"]
CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")  # 1 wins
SLOW = ("times=100,80,82,82,150,95", "jitter=0.05", "flush_ms=8")  # 1 wins, after seconds
PROBLEM, NOBODYS = key(64), key(64, backend="cublaslt")
LOOKUP_MS = 50
ASK_S, STALE_S = 3, 10  # INVENTORY_ASK_MS, SWEEPS_GPU_STALE_MS


class Scene:
    """What the made-up NVML shows; changes count from gpuwatch's next call on."""

    def __init__(self, d, build, lines):
        self.path = d.dir / "nvml"
        self.strangers = []
        self.show(lines)
        d.env.update(FAKE_NVML=str(self.path), LD_LIBRARY_PATH=str(pathlib.Path(build).resolve() / "tests/fake"))

    def show(self, lines):
        self.lines = list(lines)
        new = self.path.with_suffix(".new")
        new.write_text("".join(line + "\n" for line in self.lines))
        new.rename(self.path)

    def on(self, uuid, *lines):
        """Adds lines about a GPU."""
        at = next(i for i, line in enumerate(self.lines) if line.split()[1:2] == [uuid]) + 1
        self.show(self.lines[:at] + list(lines) + self.lines[at:])

    def stranger(self):
        """A process that is not the daemon's; ends with the test."""
        self.strangers.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return self.strangers[-1].pid

    def end(self):
        for process in self.strangers:
            process.kill()
            process.wait()


@contextlib.contextmanager
def watched(build, *scenario, lines=PLAIN, device="0", start=True, workers=None, env=None, **sweep):
    """A daemon with a worker section "gpu", while somebody looks its problem up all the time."""
    d = Daemon(build, sweep={"when": "idle", **sweep})
    scene = Scene(d, build, lines)
    d.env.update(env or {})
    d.fake(*(scenario or CLEAR), section="gpu", device=device)
    for name, options in (workers or {}).items():
        d.fake(*(scenario or CLEAR), section=name, **options)
    try:
        with d:
            if not start:
                yield d, scene
                return
            d.wait_ready("gpu")
            with Probe(d, NOBODYS, "nonsense,a=b", section="gpu") as probe:
                yield d, scene
                time.sleep(0.2)  # a short test may be over before the probe is there
                worst, count, median = probe.end()
            expect(count > 0, "the probe found no time", count)
            expect(worst[0] < LOOKUP_MS * slack(build), f"a lookup took {worst[0]:.1f} ms", worst, count, median)
    finally:
        scene.end()


def rows(d):
    return d.status().get("devices", [])


def row(d, device="0"):
    return next(r for r in rows(d) if r.get("device") == device)


def gpuwatch(d):
    """Processes of gpuwatch, its launcher left out."""
    return [pid for pid, line in d.children().items() if line.split()[0].endswith("tactic-gpuwatch")]


def wait_state(d, state, device="0", seconds=15):
    return d.wait_for(lambda: (r := row(d, device))["state"] == state and r, seconds, f"device {device} to be {state}")


def workers(d):
    return [pid for pid, line in d.children().items() if "fake_worker" in line.split()[0]]


def variable(pid, name):
    for word in (pathlib.Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0"):
        if word.startswith(name.encode() + b"="):
            return word.decode().split("=", 1)[1]
    return None


def journal(d):
    return next(lines for lines in d.journals().values() if lines[0]["key"] == PROBLEM)


def begin(d, section="gpu"):
    """Queues the problem and waits until rounds of it are measured; returns how many there were."""
    d.lookup(PROBLEM, section)

    def rounds():
        found = [lines for lines in d.journals().values() if lines[0]["key"] == PROBLEM]
        return sum(line["say"] == "samples" for line in found[0]) if found else 0
    return d.wait_for(rounds, 20, "rounds")


# --- which GPU ---

def test_the_inventory(build):
    lines = [*PLAIN, "gpu GPU-cccc1111-2222-3333 143771 NVIDIA H200", f"mig {MIGS[0]} 1 0 18000", "workers 500",
             f"mig {MIGS[1]} 2 0 18000"]
    more = {"second": {"device": "GPU-aaaa4"}, "part": {"device": MIGS[1]}, "old": {"device": "MIG-GPU-cccc1111-2222-3333/1/0"}}
    with watched(build, lines=lines, workers=more) as (d, scene):
        for section in ("second", "part", "old"):
            d.wait_ready(section)
        wanted = {"0": ONE, "GPU-aaaa4": TWO, MIGS[1]: MIGS[1], "MIG-GPU-cccc1111-2222-3333/1/0": MIGS[0]}
        found = {r["device"]: (r["uuid"], r["visible"], r["state"]) for r in rows(d) if "device" in r}
        expect(found == {device: (uuid, uuid, "free") for device, uuid in wanted.items()}, "not resolved", found)
        first, gpu = row(d), next(r for r in rows(d) if r.get("uuid", "").startswith("GPU-cccc"))
        expect(first["name"] == "NVIDIA H200" and first["total_bytes"] == 143771 << 20 and first["mig"] == "off"
               and first["workers"] == ["gpu"] and first["index"] == 0, "not described", first)
        expect(first["power_cap_w"] == 700 and first["ecc"] and first["sm_mhz"] == 1980
               and first["throttle"] == "power cap, software thermal", "not described", first)
        expect("device" not in gpu and gpu["mig"] == "on", "what no section has is not shown", gpu)
        expect(row(d, MIGS[1])["parent"] == gpu["uuid"] and row(d, MIGS[1])["mig"] == "gi 2, ci 0", "MIG", rows(d))
        # Its worker sees that GPU and no other, and gpuwatch is gone when nobody needs it.
        d.wait_for(lambda: not gpuwatch(d), 15, "gpuwatch to end")
        expect(d.status()["gpuwatch"] == "driver 580.159.04, not watched now", "not said", d.status()["gpuwatch"])
        for pid in workers(d):
            expect(variable(pid, "CUDA_VISIBLE_DEVICES") in wanted.values(), "another environment", variable(pid, "CUDA_VISIBLE_DEVICES"))
        text = subprocess.run([str(d.build / "client/tunectl"), "status"], capture_output=True, text=True, env=d.environment(),
                              check=True).stdout
        expect(all(word in text for word in ("0.6/140.4 GiB", ONE, "gi 2, ci 0", "USERS")), "not shown", text)
        answer = d.wait_answer(PROBLEM, "second")
        expect(answer["kind"] == "hit", "not swept", answer)


def test_devices_that_cannot_be(build):
    more = {"twice": {"device": "GPU-aaaa1"}, "unclear": {"device": "GPU-aaaa"}, "absent": {"device": "7"}, "cpu": {}}
    with watched(build, workers=more, start=False) as (d, scene):
        words = {"twice": "the same GPU as 0", "unclear": "2 devices begin so", "absent": "'7' is no GPU"}
        d.wait_ready("gpu")
        d.wait_ready("cpu")
        for section, why in words.items():
            told = d.wait_for(lambda: next((w for w in d.status()["workers"] if w["section"] == section
                                            and w["state"] == "failed"), None), 10, section)
            expect(why in told["detail"], "not the reason", told)
        states = {r["device"]: r["state"] for r in rows(d)  if "device" in r}
        expect(states == {"0": "free", "GPU-aaaa1": "refused", "GPU-aaaa": "refused", "7": "refused"}, "states", states)
        # One that comes later is found by a reload.
        scene.show([*PLAIN, *[f"gpu GPU-dddd{i} 100000 NVIDIA H200" for i in range(6)]])
        expect(d.tunectl("reload")[0] == 0, "no reload")
        expect(wait_state(d, "free", "7")["uuid"] == "GPU-dddd5", "not found", rows(d))
        d.wait_for(lambda: any(w["section"] == "absent" and w["state"] == "ready" for w in d.status()["workers"]), 10, "its hello")


def test_a_variable_that_is_set_for_us(build):
    with watched(build, device="1", env={"CUDA_VISIBLE_DEVICES": f"{TWO},GPU-aaaa1"}, start=False) as (d, scene):
        d.wait_ready("gpu")
        told = row(d, "1")
        expect(told["uuid"] == ONE and told["visible"] == ONE and told["given"] == f"{TWO},GPU-aaaa1", "not within it", told)
    with watched(build, device="0", env={"CUDA_VISIBLE_DEVICES": "0"}, start=False, workers={
            "other": {"device": "1", "env": "CUDA_VISIBLE_DEVICES=0,1"}}) as (d, scene):
        d.wait_ready("gpu")
        d.wait_ready("other")
        expect((row(d)["uuid"], row(d, "1")["uuid"]) == (ONE, TWO), "the section's own variable", rows(d))
    with watched(build, device="0", env={"CUDA_VISIBLE_DEVICES": "0,0"}, start=False) as (d, scene):
        told = wait_state(d, "refused")
        expect("twice" in told["waits"], "not the reason", told)


def test_a_library_of_its_own(build):
    d = Daemon(build)
    library = d.dir / "libfake.so"
    library.write_text("one")
    script = d.dir / "worker"
    script.write_text(f'#!/bin/sh\necho "$@" > {d.dir}/args\nexec {d.build}/tests/fake_worker\n')
    script.chmod(0o755)
    d.workers["cpu"] = {"command": f"{script} --more", "backend": "onednn", "device": "cpu", "library": library}
    d.write_config()
    with d:
        d.wait_ready()
        expect((d.dir / "args").read_text().split() == ["--more", "--library", str(library)], "arguments", (d.dir / "args").read_text())
        starts = d.counter("worker_starts")
        library.write_text("another")
        d.wait_for(lambda: d.counter("worker_starts") > starts, 15, "another hello")
        expect("files changed" in d.log(), "not said")


# --- who else is there ---

def test_a_stranger_in_the_midst_of_a_sweep(build):
    with watched(build, *SLOW) as (d, scene):
        rounds = begin(d)
        told = d.wait_for(lambda: (r := row(d)).get("users") and r, 5, "its users")
        expect(told["state"] == "sweeping" and [u["whose"] for u in told["users"]] == ["ours"] * len(told["users"]) != [],
               "its own worker is not known", told)
        pid = scene.stranger()
        begun = time.monotonic()
        scene.on(ONE, f"process {pid} 1024")
        while workers(d):
            expect(time.monotonic() - begun < 5, "the worker is still there", d.log()[-2000:])
        gone_ms = (time.monotonic() - begun) * 1e3
        print(f"   a stranger is listed, the worker is gone: {gone_ms:.0f} ms")
        expect(gone_ms < 600 * slack(build), f"given back after {gone_ms:.0f} ms")
        told = wait_state(d, "in use")
        expect(told["waits"] == f"process {pid} (sleep) computes on it", "not the reason", told)
        expect(f"process {pid} (sleep)" in d.status()["sweeping"], "not the reason", d.status()["sweeping"])
        expect({u["pid"]: u["whose"] for u in told["users"]}[pid] == "foreign", "users", told)
        time.sleep(1)
        expect(workers(d) == [] and d.counter("sweeps_yielded") == 1, "it did not stay away", d.counter("sweeps_yielded"))
        # It goes on when the stranger is gone, from where it was.
        scene.show(PLAIN)
        answer = d.wait_answer(PROBLEM, "gpu")
        expect(answer["kind"] == "hit" and answer["tactic"] == {"id": 1} and answer["state"] == "confirmed", "answer", answer)
        lines = journal(d)
        numbers = [line["round"] for line in lines if line["say"] == "samples"]
        lost = [line["why"] for line in lines if line["say"] == "journal_loss"]
        expect(len(numbers) > rounds and numbers == sorted(set(numbers)), "rounds were repeated", numbers)
        expect(lost == ["stopped"] and d.counter("sweeps_started") == 1, "not resumed", lost, d.counter("sweeps_started"))


def test_a_sweep_that_waits_survives_the_daemon(build):
    with watched(build, *SLOW, start=False) as (d, scene):
        d.wait_ready("gpu")
        begin(d)
        scene.on(ONE, f"process {scene.stranger()} 1024")
        d.wait_for(lambda: not workers(d), 5, "the worker's end")
        before = sum(line["say"] == "samples" for line in journal(d))
        sweep = journal(d)[0]["sweep"]
        d.kill()
        d.expect_alone()
        d.start()
        d.wait_ready("gpu")
        wait_state(d, "in use")
        time.sleep(0.5)
        expect(sum(line["say"] == "samples" for line in journal(d)) == before, "it was swept beside a stranger")
        scene.show(PLAIN)
        answer = d.wait_answer(PROBLEM, "gpu")
        expect(answer["sweep"] == sweep and answer["rounds"] >= before, "not from its journal", answer, before)


def test_a_stranger_before_a_sweep(build):
    with watched(build, start=False) as (d, scene):
        d.wait_ready("gpu")
        pid = scene.stranger()
        scene.on(TWO, f"process {pid} 2048")
        answer = d.lookup(PROBLEM, "gpu")
        expect(d.wait_answer(PROBLEM, "gpu")["kind"] == "hit", "another GPU's user kept it", answer)
        scene.show(PLAIN)
        scene.on(ONE, f"process {pid} 2048")
        time.sleep(0.3)  # what was seen last is too old for another sweep then
        d.lookup(key(16), "gpu")
        wait_state(d, "in use")
        expect(d.lookup(key(16), "gpu")["kind"] == "miss" and d.counter("sweeps_started") == 1, "it began", row(d))
        # Not enough memory keeps it as well, without a stranger.
        scene.show(PLAIN)
        scene.on(ONE, f"process {pid} 140000")
        d.restart(sweep={"when": "idle", "idle_ignore": "sleep other"})
        d.wait_ready("gpu")
        d.lookup(key(16), "gpu")
        told = wait_state(d, "full")
        expect("GiB are free; a sweep may take 16.0" in told["waits"], "not the reason", told)
        scene.show(PLAIN)
        scene.on(ONE, f"process {pid} 2048", f"process {pid} 0")
        d.wait_answer(key(16), "gpu")
        expect("ignored" in {u["whose"] for u in row(d)["users"]}, "users", row(d))
        # What computes through an ignored server is no monitor.
        scene.show(PLAIN)
        other = subprocess.Popen(["tail", "-f", "/dev/null"])
        scene.strangers.append(other)
        scene.on(ONE, f"process {pid} 500", f"process {other.pid} 500 mps")
        time.sleep(0.3)
        d.lookup(key(128), "gpu")
        told = wait_state(d, "in use")
        expect(f"process {other.pid} (tail)" in told["waits"], "not the reason", told)


def test_processes_that_cannot_be_seen(build):
    hidden = [line.replace("workers 700", "hidden 700 workers") for line in PLAIN]
    with watched(build, *SLOW, lines=hidden, memory_cap="1GiB") as (d, scene):
        begin(d)
        told = d.wait_for(lambda: (r := row(d)).get("unseen") and r, 5, "that to be said")
        expect(told["state"] == "sweeping" and "users" not in told, "not told", told)
        # The worker's own cap and context are allowed for; what is beyond is somebody's.
        begun = time.monotonic()
        scene.on(ONE, "hidden 4000")
        d.wait_for(lambda: not workers(d), 5, "the worker's end")
        print(f"   memory of a stranger that is not listed, the worker is gone: {(time.monotonic() - begun) * 1e3:.0f} ms")
        told = wait_state(d, "in use")
        expect("held by processes that cannot be seen from here" in told["waits"], "not the reason", told)
        scene.show(hidden)
        expect(d.wait_answer(PROBLEM, "gpu")["kind"] == "hit", "not resumed")
    # A pid of another namespace is nobody that we could name.
    with watched(build, lines=PLAIN[:2] + ["process 4194300 5000"] + PLAIN[2:]) as (d, scene):
        d.lookup(PROBLEM, "gpu")
        told = wait_state(d, "in use")
        expect("cannot be seen" in told["waits"] and told["users"][0]["whose"] == "unseen", "not the reason", told)


def test_rounds_beside_strangers_do_not_count(build):
    with watched(build, *SLOW, when="always") as (d, scene):
        begin(d)
        scene.on(ONE, f"process {scene.stranger()} 1024")
        history = d.wait_for(lambda: (t := d.tunectl("explain", PROBLEM, "--as", "gpu")[1]) and t.get("history"), 30, "its end")
        expect("contaminated: others used the device" in history, "not the verdict", history)
        expect(d.counter("sweeps_yielded") == 0 and d.counter("rounds_lost") > 4, "rounds", d.counter("rounds_lost"))
        marked = [bool(line.get("foreign")) for line in journal(d) if line["say"] == "samples"] if d.journals() else []
        expect(marked == sorted(marked), "the journal marks others", marked)
        expect(d.lookup(PROBLEM, "gpu")["kind"] == "miss", "published all the same")


# --- NVML ---

def test_nvml_hangs(build):
    with watched(build, *SLOW) as (d, scene):
        begin(d)
        watcher = d.wait_for(lambda: gpuwatch(d), 5, "gpuwatch")
        scene.show([*PLAIN, "hang processes"])
        begun = time.monotonic()
        told = d.wait_for(lambda: (t := d.status()).get("gpuwatch", "").startswith("NVML did not answer") and t, 10, "that to be said")
        took = time.monotonic() - begun
        expect(took < ASK_S + 1.5 * slack(build), f"noticed after {took:.1f} s", told["gpuwatch"])
        d.wait_for(lambda: not set(watcher) & set(gpuwatch(d)), 5, "gpuwatch to be killed")
        expect(d.log().count("GPUs cannot be watched") == 1, "not one line", d.log()[-2000:])
        # The sweep goes on for a while; it may be done by then, and the next one waits.
        d.wait_for(lambda: d.lookup(PROBLEM, "gpu")["kind"] == "hit" or row(d)["state"] == "in use", STALE_S + 10, "either")
        d.lookup(key(16), "gpu")
        time.sleep(1)
        expect(d.lookup(key(16), "gpu")["kind"] == "miss", "swept though nobody can tell who is there")
        scene.show(PLAIN)
        answer = d.wait_answer(key(16), "gpu")
        expect(answer["kind"] == "hit", "not afterwards", answer)


def test_nvml_hangs_while_a_long_sweep_runs(build):
    with watched(build, *SLOW, "flush_ms=40") as (d, scene):
        begin(d)
        scene.show([*PLAIN, "hang memory"])
        begun = time.monotonic()
        d.wait_for(lambda: not workers(d), STALE_S + 15, "the worker's end")
        took = time.monotonic() - begun
        expect(d.counter("sweeps_yielded") == 1, "the sweep ended before", took)
        told = wait_state(d, "in use")
        expect("cannot be told: NVML did not answer" in told["waits"], "not the reason", told)
        scene.show(PLAIN)
        d.wait_for(lambda: workers(d), 60, "the sweep to go on")


def test_nvml_hangs_at_the_start(build):
    with watched(build, lines=[*PLAIN, "hang init"], start=False, workers={"cpu": {}}) as (d, scene):
        d.wait_ready()
        with Probe(d, NOBODYS) as probe:
            time.sleep(2)
            worst, count, _ = probe.end()
        expect(count > 3 and worst[0] < LOOKUP_MS * slack(build), "lookups stopped", worst, count)
        expect(row(d)["state"] == "asking" and len(gpuwatch(d)) == 1, "not asking", rows(d))


def test_no_nvml(build):
    for lines, words in ((None, "NVML cannot be opened"), (["fail init 9"], "no NVIDIA driver is loaded: Driver Not Loaded (9)"),
                         (["driver 1"], "lists no GPU")):
        d = Daemon(build, sweep={"when": "always"})
        scene = Scene(d, build, lines or [])
        if lines is None:
            (d.dir / "lib").mkdir()
            (d.dir / "lib/libnvidia-ml.so.1").write_text("no library\n")
            d.env["LD_LIBRARY_PATH"] = str(d.dir / "lib")
        with d.fake(*CLEAR, section="gpu", device="1"):
            d.wait_ready("gpu")
            told = row(d, "1")
            expect(told["state"] == "not verified" and told["visible"] == "1" and words in told["waits"], "not said", told)
            expect(words in d.status()["gpuwatch"], "not said", d.status()["gpuwatch"])
            expect(d.wait_answer(PROBLEM, "gpu")["kind"] == "hit", "not swept though it may be always")
            expect(d.log().count("GPUs cannot be watched") == 1, "not one line", d.log())
            expect(gpuwatch(d) == [], "it stayed", d.children())
            # Where sweeps wait for idle GPUs they wait, and say why.
            d.restart(sweep={"when": "idle"})
            d.wait_ready("gpu")
            d.lookup(key(16), "gpu")
            time.sleep(0.5)
            expect(d.lookup(key(16), "gpu")["kind"] == "miss", "swept though nobody can tell who is there")
            expect(words in d.status()["sweeping"], "not said", d.status()["sweeping"])
        scene.end()


def test_gpuwatch_dies(build):
    with watched(build, *SLOW) as (d, scene):
        begin(d)
        for pid in d.wait_for(lambda: gpuwatch(d), 5, "gpuwatch"):
            os.kill(pid, signal.SIGKILL)
        d.wait_for(lambda: "gpuwatch ended with signal 9" in d.log(), 5, "that to be said")
        expect(d.wait_answer(PROBLEM, "gpu")["kind"] == "hit", "the sweep went with it")
        # A lost GPU is no GPU that is free.
        scene.show([*PLAIN, "fail memory 15"])
        d.wait_for(lambda: d.tunectl("reload")[0] == 0 and "GPU is lost" in row(d).get("trouble", ""), 20, "that to be said")
        expect(row(d)["state"] == "in use" and "cannot be told" in row(d)["waits"], "taken for free", row(d))


if __name__ == "__main__":
    run((test_the_inventory, test_devices_that_cannot_be, test_a_variable_that_is_set_for_us, test_a_library_of_its_own,
         test_a_stranger_in_the_midst_of_a_sweep, test_a_sweep_that_waits_survives_the_daemon, test_a_stranger_before_a_sweep,
         test_processes_that_cannot_be_seen, test_rounds_beside_strangers_do_not_count, test_nvml_hangs,
         test_nvml_hangs_while_a_long_sweep_runs, test_nvml_hangs_at_the_start, test_no_nvml, test_gpuwatch_dies))
