#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The start window: before a server starts, its recipe is swept on its own devices, all of them at once, and whoever
waits for it learns when it is done, or why it never will be.

usage: prepare.py --build DIR [TEST...]
"""
import json
import os
import signal
import subprocess
import time

from files import CLEAR
from harness import Daemon, expect, key, run, slack
from wire import Client

DONE, MISS, AWAY, REFUSED, NOBODY, TIMEUP, STOPPED = 0, 1, 3, 4, 69, 75, 130
STEADY = ("flush_ms=4",)  # a sweep takes real time, and hardly a CPU's
HELD = ("flush_ms=200",)  # ... more than any of these tests
GPUS = [f"gpu{i}" for i in range(4)]
CARD = ("fact.sm_count=132", "fact.mig_profile=none", "fact.driver=580.1", "fact.ecc=on")  # what a GPU's tactics depend on
LADDER = {"kind": "list", "values": [1, 2, 4, 8, 16, 32, 64, 128], "round": "ceil", "above": "miss"}
MODEL = [key(m, 128, 64) for m in LADDER["values"]]


def recipe(d, name="model", *more):
    """A recipe of eight problems, and perhaps others."""
    problems = [{"name": "up", "key": key("*", 128, 64)}, *more]
    (d.dir / "packaged/recipes").mkdir(exist_ok=True)
    (d.dir / f"packaged/recipes/{name}.json").write_text(json.dumps(
        {"format": 1, "model": name, "ladder": LADDER, "layouts": [{"layout": "tp=1", "problems": problems}]}))


def node(build, *scenario, sections=GPUS, **more):
    """A node of four devices that are alike."""
    d = Daemon(build, **more)
    for i, section in enumerate(sections):
        d.fake(*CLEAR, *scenario, section=section, device=f"npu:{i}")
    recipe(d)
    return d


def wait_ready(d, sections=GPUS):
    for section in sections:
        d.wait_ready(section)


def prepare(d, *args, timeout=60):
    return d.tunectl("prepare", "model", *args, timeout=timeout)


def run_text(d, *args, timeout=60):
    """As people and logs see it: exit code, standard output, standard error."""
    done = subprocess.run([str(d.build / "client/tunectl"), *args], capture_output=True, text=True, env=d.environment(),
                          timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout, done.stderr


def start(d, *args):
    return subprocess.Popen([str(d.build / "client/tunectl"), "prepare", "model", *args], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=d.environment(), stdin=subprocess.DEVNULL)


def end(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def counts(told):
    return {name: told.get(name) for name in ("total", "covered", "helpless", "unsweepable", "absent")}


def swept(d):
    """{problem: sections that began to sweep it}, by the journals that are left and what status shows."""
    return {row["key"]: row["worker"] for row in d.status()["sweeps"] if row["phase"] != "queued"}


def queued(d):
    return [row for row in d.status()["sweeps"]]


# --- spread ---

def timed(build, sections):
    with node(build, *STEADY, sections=sections) as d:
        wait_ready(d, sections)
        begun = time.monotonic()
        process = start(d, "--wait", "120s")
        used, most = set(), 0
        while process.poll() is None:
            now = swept(d)
            expect(len(set(now.values())) == len(now), "two sweeps on one device", now)
            used |= set(now.values())
            most = max(most, len(now))
            time.sleep(0.02)
        took = time.monotonic() - begun
        code, out, err = end(process)
        expect(code == DONE, f"ended with {code}", out, err)
        expect(d.counter("sweeps_started") == len(MODEL), "not one sweep for each problem", d.counter("sweeps_started"))
        # What was prepared is what a job gets, from the first rank on.
        code, told, _ = d.tunectl("table", "model", "--job", "llm", "--as", sections[0])
        expect(code == 0 and told["covered"] == told["total"] == len(MODEL), "the job's table is not whole", told)
        # Whoever comes later finds it done.
        begun = time.monotonic()
        code, told, _ = prepare(d, "--wait", "60s")
        expect(code == DONE and told["covered"] == told["known"] == len(MODEL), "not done", told)
        expect(time.monotonic() - begun < 2 * slack(build), "waited for nothing", time.monotonic() - begun)
        return took, used, most


def test_problems_spread_over_devices_that_are_alike(build):
    alone, used, most = timed(build, GPUS[:1])
    expect(used == {"gpu0"} and most == 1, "odd", used, most)
    spread, used, most = timed(build, GPUS)
    print(f"  {len(MODEL)} problems: one device {alone:.1f} s, four {spread:.1f} s, {most} sweeps at once")
    expect(used == set(GPUS) and most == 4, "not on all of them", used, most)
    expect(spread < 0.6 * alone, "hardly faster", alone, spread)


def test_one_flight_whoever_asks(build):
    with node(build, *STEADY) as d:
        wait_ready(d)
        together = [start(d, "--as", section, "--wait", "120s") for section in GPUS]
        ended = [end(process) for process in together]
        expect(all(code == DONE for code, _, _ in ended), "not all were told", *ended)
        expect(d.counter("sweeps_started") == len(MODEL), "swept twice", d.counter("sweeps_started"))


def test_devices_that_differ_do_not_stand_in(build):
    d = node(build, *STEADY, "fact.onednn=2.6.3", sections=GPUS[:2])
    d.fake(*CLEAR, *STEADY, "fact.onednn=3.1", section="other", device="npu:9")
    with d:
        wait_ready(d, ["gpu0", "gpu1", "other"])
        code, _, err = run_text(d, "prepare", "model")
        expect(code == 2 and "say which environment is meant with --as" in err, "guessed", code, err)
        process, used = start(d, "--as", "gpu1"), set()
        while process.poll() is None:
            used |= set(swept(d).values())
            time.sleep(0.02)
        expect(end(process)[0] == DONE and used == {"gpu0", "gpu1"}, "swept elsewhere", used)
        code, told, _ = prepare(d, "--as", "other", "--wait", "0")
        expect(code == TIMEUP and told["covered"] == 0 and told["queued"] == len(MODEL), "another environment's answers", told)


def test_a_recipe_of_two_libraries(build):
    """A server that has loaded both asks for both; tunectl asks as one section of each."""
    d = node(build, *STEADY, sections=GPUS[:2])
    d.fake(*CLEAR, *STEADY, *CARD, "fact.onednn=unknown", "fact.cublaslt=130100", "backend=cublaslt", section="lt",
           device="npu:0", backend="cublaslt")
    recipe(d, "model", {"name": "down", "key": key("*", 128, 96, backend="cublaslt")})
    with d:
        wait_ready(d, ["gpu0", "gpu1", "lt"])
        code, out, err = run_text(d, "prepare", "model", "--as", "gpu0", "--wait", "60s")
        expect(code == NOBODY and "8 of 16" in out, f"ended with {code}", out, err)
        code, out, err = run_text(d, "prepare", "model", "--wait", "60s")
        expect(code == DONE and "worker sections gpu0,lt: " in out and "cublaslt=130100" in out and "onednn=" in out,
               f"ended with {code}", out, err)
        for args in ([], ["--as", "lt,gpu1"], ["--as", "gpu1,lt,gpu0"]):
            code, told, err = d.tunectl("table", "model", *args)
            expect(code == 0 and told["covered"] == told["total"] == 16, "the table is not whole", args, told, err)
        for names, code_, sentence in (("lt,nobody", REFUSED, "worker section 'nobody'"), (",gpu0", 2, "is no worker section's name"),
                                       ("x" * 64, 2, "is no worker section's name"), ("lt," * 700, 2, "2047 bytes at most")):
            code, out, err = run_text(d, "prepare", "model", "--as", names)
            expect(code == code_ and sentence in out + err, names, code, out, err)


def test_libraries_of_two_devices_are_no_environment(build):
    d = node(build, *HELD, sections=GPUS[:1])
    d.fake(*CLEAR, *HELD, "fact.device=npu:other", "fact.cublaslt=130100", "backend=cublaslt", section="lt", device="npu:1",
           backend="cublaslt")
    with d:
        wait_ready(d, ["gpu0", "lt"])
        for args in ([], ["--as", "gpu0,lt"]):
            code, out, err = run_text(d, "prepare", "model", *args)
            expect(code == 2 and "worker sections gpu0,lt are not one environment: their device is " in err, code, out, err)
        expect(not d.status()["sweeps"], "something was queued", d.status())


def test_what_is_answered_loosely_is_swept_at_its_own_bucket(build):
    """Loose problems of before have another ladder: its buckets answer lookups, and not the recipe."""
    with node(build, *STEADY, sections=GPUS[:1]) as d:
        path = d.dir / "packaged/recipes/model.json"
        path.write_text(json.dumps({"format": 1, "model": "model", "ladder": {"kind": "hybrid", "max": 1024}, "layouts": [
            {"layout": "tp=1", "problems": [{"name": "up", "key": key("*", 128, 64), "buckets": [512, 768]}]}]}))
        d.tunectl("reload")
        wait_ready(d, GPUS[:1])
        for m in (512, 700):
            d.lookup(key(m, 128, 64), "gpu0")
            d.wait_answer(key(m, 128, 64), "gpu0")
        expect(d.lookup(key(768, 128, 64), "gpu0")["key"] == key(1024, 128, 64), "not answered by the loose bucket")
        code, told, _ = d.tunectl("sweep", "--recipe", "model", "--as", "gpu0")
        expect(code == 0 and (told["known"], told["queued"]) == (1, 1), "not queued", told)
        code, told, err = prepare(d, "--wait", "60s")
        expect(code == DONE and told["covered"] == told["known"] == told["total"] == 2, f"ended with {code}", told, err)
        expect(d.lookup(key(768, 128, 64), "gpu0")["key"] == key(768, 128, 64), "not its own answer")
        expect(d.counter("sweeps_started") == 3, "swept more", d.counter("sweeps_started"))


# --- the window ---

def test_a_window_is_kept_for_its_devices(build):
    with node(build, *HELD) as d:
        wait_ready(d)
        code, told, _ = prepare(d, "--wait", "0", "--device", "gpu1,npu:3")
        expect(code == TIMEUP and counts(told) == {"total": 8, "covered": 0, "helpless": 0, "unsweepable": 0, "absent": 0},
               "not queued", told)
        d.wait_for(lambda: set(swept(d).values()) == {"gpu1", "gpu3"}, 10, "both to sweep")
        row = next(row for row in queued(d) if row["phase"] == "queued")
        expect(row["why"] == "start window" and 0 < row["window_s"] <= 600, "not told", row)
        # Others are for others.
        d.lookup(key(16, 64, 64), "gpu0")
        d.wait_for(lambda: len(swept(d)) == 3, 10, "what was missed goes elsewhere")
        time.sleep(0.3)
        expect(len(swept(d)) == 3, "swept where it should not be", swept(d))
        # Its time is over: all may.
        client = Client(d.dir / "run/lookup.sock").hello("gpu0")
        client.ask("want", {"recipe": "model", "window_s": 0, "devices": ["gpu1"]})
        expect(next(row for row in queued(d) if row["phase"] == "queued")["why"] == "start window", "shortened by another")


def test_a_window_ends_with_its_time(build):
    with node(build, *HELD) as d:
        wait_ready(d)
        begun = time.monotonic()
        process = start(d, "--wait", "1s", "--device", "gpu2")
        code, out, err = end(process)
        took = time.monotonic() - begun
        expect(code == TIMEUP and 0.9 < took < 5 * slack(build), f"ended with {code} after {took:.1f} s", out, err)
        lines = out.splitlines()
        expect(any(line.split() == "answered 0 of 8 problems after 1 s".split() for line in lines), "not how far", out)
        expect(sum(line.startswith(("queued ", "sweeping ")) for line in lines) == 8, "not what is left", out)
        d.wait_for(lambda: all(row["why"] == "demand" for row in queued(d)), 10, "the window to end")
        d.tunectl("sweep", key(4, 32, 32), "--as", "gpu0")  # kicks, as a tick does
        d.wait_for(lambda: len(swept(d)) == 4, 10, "all devices to help")


def test_unknown_devices_are_refused_by_name(build):
    with node(build, *HELD) as d:
        wait_ready(d)
        for name in ("gpu9", "GPU-ffffffff-0000-0000"):
            code, out, err = run_text(d, "prepare", "model", "--device", "gpu0", "--device", name)
            expect(code == REFUSED and f"devices.[1]: no worker section is, or runs on, '{name}'" in err, "not by name", code, out, err)
        expect(d.status()["queued"] == 0, "queued all the same")
        client = Client(d.dir / "run/lookup.sock").hello("gpu0")
        reply = client.ask("want", {"recipe": "model", "devices": ["gpu0"] * 33})
        expect(reply.status == "BAD_FIELD" and "32" in reply.body["sentence"], "without a bound", reply)


def test_devices_of_another_environment(build):
    d = node(build, *HELD, "fact.onednn=2.6.3", sections=GPUS[:1])
    d.fake(*CLEAR, *HELD, "fact.onednn=3.1", section="other", device="npu:9")
    with d:
        wait_ready(d, ["gpu0", "other"])
        code, out, err = run_text(d, "prepare", "model", "--as", "gpu0", "--device", "other")
        expect(code == NOBODY and "none of the devices named has this environment, which is that of 'gpu0'" in out, "odd", code, out, err)


# --- how it ends ---

def test_nobody_can(build):
    with node(build, *HELD, sections=GPUS[:1]) as d:
        wait_ready(d, GPUS[:1])
        begun = time.monotonic()
        facts = '{"device":"NVIDIA H200","cudnn_version":"91900"}'
        code, told, err = prepare(d, "--metadata", facts, "--wait", "60s")
        expect(code == NOBODY and counts(told) == {"total": 8, "covered": 0, "helpless": 8, "unsweepable": 8, "absent": 0},
               f"ended with {code}", told, err)
        expect(all(row["state"] == "refused" and "another environment" in row["why"] or "cannot be compared" in row["why"]
                   for row in told["left"]), "without a reason", told)
        expect(time.monotonic() - begun < 5 * slack(build), "waited for what cannot be")
    with Daemon(build) as d:  # without a worker
        recipe(d)
        d.tunectl("reload")
        code, told, err = prepare(d, "--wait", "60s")
        expect(code == NOBODY and told["unsweepable"] == 8, f"ended with {code}", told, err)
    with node(build, *HELD, sections=GPUS[:1], sweep={"when": "never"}) as d:
        wait_ready(d, GPUS[:1])
        code, told, err = prepare(d, "--wait", "60s")
        expect(code == NOBODY and "when = never" in told["left"][0]["why"], f"ended with {code}", told, err)


def test_a_worker_that_starts_is_waited_for(build):
    with node(build, *STEADY, "start_ms=1500") as d:
        code, told, err = prepare(d, "--wait", "60s")
        expect(code == DONE and told["covered"] == 8, f"ended with {code}", told, err)
    with node(build, *STEADY, "hello=exit:3", sections=GPUS[:1]) as d:
        d.wait_for(lambda: d.status()["workers"][0]["state"] == "failed", 20, "a worker that fails")
        for args in ([], ["--as", "gpu0"]):
            code, out, err = run_text(d, "prepare", "model", *args)
            expect(code == NOBODY and "worker 'gpu0' is failed" in out + err, f"ended with {code}", out, err)


def test_what_fails_is_not_waited_for(build):
    bad = key(4, 32, 32)
    d = node(build, *STEADY, f"without={bad}", "# too long for a line of the configuration", sections=GPUS[:2])
    recipe(d, "model", {"name": "bad", "key": key("*", 32, 32), "buckets": [4]})
    with d:
        wait_ready(d, GPUS[:2])
        begun = time.monotonic()
        code, told, err = prepare(d, "--wait", "60s")
        expect(code == MISS and (told["covered"], told["total"], told["helpless"]) == (8, 9, 1), f"ended with {code}", told, err)
        expect([row["key"] for row in told["left"]] == [bad] and told["left"][0]["why"], "which, and why?", told)
        expect(time.monotonic() - begun < 30 * slack(build), "waited for what cannot be")
        code, out, _ = run_text(d, "prepare", "model", "--wait", "60s")
        expect(code == MISS and any(line.startswith("refused") and bad in line for line in out.splitlines()), "not said", out)


def test_a_pause_that_outlasts_the_wait(build):
    with node(build, "look.0=crash:11", sections=GPUS[:1]) as d:
        wait_ready(d, GPUS[:1])
        begun = time.monotonic()
        code, told, err = prepare(d, "--wait", "40s")
        expect(code in (TIMEUP, MISS) and told["covered"] == 0, f"ended with {code}", told, err)
        expect(all(row.get("why") for row in told["left"]), "without a reason", told)
        expect(time.monotonic() - begun < 30, "waited for a pause that lasts a minute", time.monotonic() - begun)


def test_a_users_quota(build):
    with node(build, *STEADY, limits={"want_per_uid": 3}) as d:
        wait_ready(d)
        code, told, err = prepare(d, "--wait", "60s")
        expect(code == MISS and (told["covered"], told["helpless"], told["unsweepable"]) == (3, 5, 0), f"ended with {code}", told, err)
        expect(all(f"user {os.getuid()} has queued 3 problems" in row["why"] for row in told["left"]), "without a reason", told)
        expect(d.counter("sweeps_started") == 3, "swept more", d.counter("sweeps_started"))


def test_an_interrupt(build):
    with node(build, *HELD) as d:
        wait_ready(d)
        for number in (signal.SIGINT, signal.SIGTERM):
            process = start(d, "--wait", "60s")
            d.wait_for(lambda: swept(d), 10, "a sweep")
            time.sleep(0.3)
            process.send_signal(number)
            code, _, err = end(process, 10)
            expect(code == STOPPED and "interrupted" in err, f"ended with {code}", err)
        expect(d.status()["queued"] == 8, "the problems went with it", d.status()["queued"])


def test_a_daemon_that_restarts_meanwhile(build):
    with node(build, *STEADY, "start_ms=300") as d:
        wait_ready(d)
        process = start(d, "--wait", "120s")
        d.wait_for(lambda: swept(d), 20, "a sweep")
        d.kill()
        time.sleep(0.5)
        d.start()
        code, out, err = end(process)
        expect(code == DONE, f"ended with {code}", out, err)
        d.wait_for(lambda: swept(d) == {}, 20, "quiet")
        code, told, _ = d.tunectl("table", "model", "--job", "llm", "--as", "gpu2")
        expect(code == 0 and told["covered"] == told["total"] == 8, "the job's table is not whole", told)


def test_without_a_daemon(build):
    d = node(build)
    code, _, err = run_text(d, "prepare", "model", "--wait", "60s")
    d.cleanup()
    expect(code == AWAY and err, f"ended with {code}", err)


def test_how_much_it_says(build):
    with node(build, *STEADY) as d:
        wait_ready(d)
        code, out, err = run_text(d, "prepare", "model", "--wait", "2min", timeout=130)
        lines = out.splitlines()
        expect(code == DONE and not err and len(lines) == 3, "not three lines", out, err)
        expect(lines[0].split() == "problems 8, 0 answered, 8 to be swept".split(), "odd", out)
        expect(lines[1].startswith("environment") and lines[2].split()[:5] == "answered 8 of 8 problems".split(), "odd", out)
        for text in ("1.5", "1500ms", "0.5min", "1h", "0"):
            expect(run_text(d, "prepare", "model", "--wait", text)[0] == DONE, "a time", text)
        for text in ("", "s", "1m", "1 s", "-1", "1e99h", "ms"):
            expect(run_text(d, "prepare", "model", "--wait", text)[0] == 2, "no time", text)


if __name__ == "__main__":
    run([test_problems_spread_over_devices_that_are_alike, test_one_flight_whoever_asks, test_devices_that_differ_do_not_stand_in,
         test_a_recipe_of_two_libraries, test_libraries_of_two_devices_are_no_environment,
         test_what_is_answered_loosely_is_swept_at_its_own_bucket,
         test_a_window_is_kept_for_its_devices, test_a_window_ends_with_its_time, test_unknown_devices_are_refused_by_name,
         test_devices_of_another_environment, test_nobody_can, test_a_worker_that_starts_is_waited_for,
         test_what_fails_is_not_waited_for, test_a_pause_that_outlasts_the_wait, test_a_users_quota, test_an_interrupt,
         test_a_daemon_that_restarts_meanwhile, test_without_a_daemon, test_how_much_it_says])
