#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Versions change: what was swept under the old ones is not served, loudly, with the command that cures it; it is
not lost either, and serves whoever still has them.

usage: stale.py --build DIR [TEST...]
"""
import json
import os
import shlex
import subprocess

from harness import Daemon, expect, key, run
from loop import toy
from wire import Client

CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
FACTS = {"device": "cpu:fake", "isa": "avx2", "threads": "2"}
SLOW = "flush_ms=10"  # what the new worker sweeps by itself takes a while
WARNING = " warning stale table"


def with_facts(**facts):
    return (*CLEAR, *(f"fact.{name}={value}" for name, value in facts.items()))


def warnings(d):
    return [line for line in d.log().splitlines() if WARNING in line]


def sweep_all(d, *keys):
    d.wait_ready()
    for problem in keys:
        d.lookup(problem)
        d.wait_answer(problem)


def reconfigure(d, when, **facts):
    """Restarts it with a worker of other facts."""
    d.fake(*with_facts(**facts))
    d.sweep["when"] = when
    d.restart()
    d.wait_ready()


def expect_stale(answer, orphan, command, **facts):
    expect(answer["kind"] == "miss" and answer["reason"] == "stale", "not stale", answer)
    expect(answer["orphan"] == str(orphan), "another file is named", answer["orphan"], orphan)
    differs = {row["fact"]: (row["have"], row["want"]) for row in answer["differs"]}
    expect(differs == facts, "not each differing fact with have and want", differs, facts)
    expect(answer["command"] == command, "another command", answer["command"], command)


def run_command(d, command):
    """As an admin who copies it from the screen."""
    env = {**d.environment(), "PATH": f"{d.build}/client:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=30, check=False)
    expect(done.returncode == 0, f"{command} fails", done.stdout, done.stderr)


def entries(d):
    return d.status()["entries"]


def test_a_loose_entry_goes_stale_and_is_cured(build):
    with Daemon(build).fake(*with_facts(onednn="1.0")) as d:
        sweep_all(d, key(16), key(64))
        old = next((d.dir / "state/tables").glob("*.json"))
        bytes_before = old.read_bytes()
        answers = {m: d.lookup(key(m)) for m in (16, 64)}

        reconfigure(d, "never", onednn="2.0")
        command = f"tunectl sweep '{key(64)}'"
        for _ in range(5):
            expect_stale(d.lookup(key(64)), old, command, onednn=("1.0", "2.0"))
        expect_stale(d.lookup(key(16)), old, f"tunectl sweep '{key(16)}'", onednn=("1.0", "2.0"))
        expect_stale(d.lookup(key(13)), old, f"tunectl sweep '{key(16)}'", onednn=("1.0", "2.0"))
        expect(len(warnings(d)) == 1, "not exactly one warning", *warnings(d))
        said, command = warnings(d)[0], f"tunectl sweep '{key(16)}'"  # the worker met it first, and names its first entry
        expect(str(old) in said and "onednn have=1.0 want=2.0" in said and command in said, "it says too little", said)
        stale = d.status()["stale"]
        expect(len(stale) == 1 and stale[0]["asked"] == 7, "status does not count", stale)
        expect((stale[0]["file"], stale[0]["command"]) == (str(old), command) and "have=1.0" in stale[0]["facts"],
               "status does not show it", stale)
        expect(d.counter("misses_stale") == 7 and d.counter("sweeps_started") == 0, "counted wrongly", d.status())

        # Where sweeping is on the worker cures it by itself (bump.py has more of that).
        reconfigure(d, "always", onednn="2.0")
        d.wait_for(lambda: entries(d) == 4, 20, "the cure")
        answer = d.lookup(key(64))
        expect(answer["kind"] == "hit" and answer["file"] != str(old) and "onednn=2.0" in answer["file"], "odd", answer)
        expect(old.read_bytes() == bytes_before, "the old table was written to")
        expect(d.counter("sweeps_started") == 2, "more was swept than there was", d.counter("sweeps_started"))
        expect(len(warnings(d)) == 2, "two starts, two warnings", *warnings(d))

        # Back to the old version: the old answers, at once.
        reconfigure(d, "always", onednn="1.0")
        for m in (16, 64):
            expect(d.lookup(key(m)) == answers[m], "the old answer is another one now", d.lookup(key(m)))
        expect(d.counter("sweeps_started") == 0, "swept again", d.counter("sweeps_started"))


def test_a_recipe_goes_stale_and_is_cured(build):
    with toy(build, *with_facts(onednn="1.0")) as d:
        d.wait_ready()
        code, _, _ = d.tunectl("sweep", "--recipe", "toy", "--layout", "tp=1", "--wait", timeout=60)
        expect(code == 0 and entries(d) == 4, "not swept", code)
        old = next((d.dir / "state/tables").glob("*.json"))
        reconfigure(d, "never", onednn="2.0")
        answer = d.lookup(key(5, 128, 64))
        expect_stale(answer, old, "tunectl sweep --recipe toy --layout tp=1", onednn=("1.0", "2.0"))
        reconfigure(d, "always", onednn="2.0")
        run_command(d, answer["command"])
        d.wait_for(lambda: entries(d) == 8, 20, "the cure of all four")
        expect(d.lookup(key(5, 128, 64))["kind"] == "hit", "not cured")

        # The recipe is gone: its command would not do, so another is given.
        os.unlink(d.dir / "packaged/recipes/toy.json")
        reconfigure(d, "never", onednn="3.0")
        answer = d.lookup(key(5, 128, 64))
        expect(answer["reason"] == "stale" and len(answer["differs"]) == 1, "odd", answer)
        reconfigure(d, "always", onednn="3.0")
        run_command(d, answer["command"])
        # What was left behind was of the recipe's ladder; the command's own bucket is of the plain one, or that same one.
        d.wait_for(lambda: entries(d) >= 12, 20, f"the cure by {answer['command']} and of what was left behind too")
        expect(d.lookup(key(5, 128, 64))["kind"] == "hit", "not cured", answer["command"])


def test_each_differing_fact_is_named(build):
    with Daemon(build).fake(*with_facts(onednn="1.0", isa="avx2", threads="4")) as d:
        sweep_all(d, key(64))
        old = next((d.dir / "state/tables").glob("*.json"))
        reconfigure(d, "never", onednn="2.0", isa="avx512", threads="8")
        expect_stale(d.lookup(key(64)), old, f"tunectl sweep '{key(64)}'",
                     onednn=("1.0", "2.0"), isa=("avx2", "avx512"), threads=("4", "8"))
        for words in ("onednn have=1.0 want=2.0", "isa have=avx2 want=avx512", "threads have=4 want=8"):
            expect(words in warnings(d)[0] and words in d.status()["stale"][0]["facts"], f"{words} is not said")
        # Another device is no version; what does not bear on the problem is no difference.
        client = Client(d.dir / "run/lookup.sock").hello(**{**FACTS, "device": "cpu:other", "onednn": "1.0"})
        expect(client.lookup(key(64))["reason"] == "other_device", "another device is not stale", client.lookup(key(64)))
        client.hello(**{**FACTS, "threads": "4", "onednn": "1.0", "cudnn": "91900"})
        expect(client.lookup(key(64))["kind"] == "hit", "a library that does not matter matters", client.lookup(key(64)))
        # A fact that is not known is never served.
        client.hello(**{k: v for k, v in FACTS.items() if k != "threads"}, onednn="1.0")
        expect(client.lookup(key(64))["kind"] == "miss", "served though a fact is unknown", client.lookup(key(64)))


def test_where_no_worker_could_cure_it_that_is_said(build):
    d = Daemon(build)
    script = d.dir / "worker"

    def install(version, *more):
        fresh = d.dir / "worker.new"
        fresh.write_text(f"#!/bin/sh\nexec {d.fake_command(*with_facts(onednn=version), *more)}\n")
        fresh.chmod(0o755)
        fresh.rename(script)

    install("1.0")
    d.workers["cpu"] = {"command": str(script), "backend": "onednn", "device": "cpu"}
    d.write_config()
    with d:
        sweep_all(d, key(64))
        client = Client(d.dir / "run/lookup.sock").hello(**FACTS, onednn="2.0")
        miss = client.lookup(key(64))
        cure = f"tunectl sweep '{key(64)}'"
        expect(miss["reason"] == "stale" and miss["next"].startswith("worker 'cpu' has another environment: onednn have"),
               "not the reason why nothing happens", miss)
        said = "# no worker section here has this environment now; once one has: "
        expect(miss["command"] == said + cure, "a command that cannot help", miss["command"])
        run_command(d, miss["command"])  # a shell takes it for a comment
        expect(len(warnings(d)) == 1 and said.strip() in warnings(d)[0] and "want '2.0'" in warnings(d)[0],
               "the warning hides it", *warnings(d))
        expect(d.status()["stale"][0]["command"].startswith(said[:-2]), "status hides it", d.status()["stale"])
        # Now there is one: the command is a command, and status names it too.
        install("2.0", SLOW)
        d.wait_for(lambda: d.status()["workers"][0].get("fingerprint", {}).get("onednn") == "2.0", 12, "the new worker")
        miss = client.lookup(key(64))
        expect(miss["reason"] == "stale" and miss["command"] == cure, "still no cure", miss)
        expect(d.status()["stale"][0]["command"] == cure, "status still says none", d.status()["stale"])
        d.wait_for(lambda: client.lookup(key(64))["kind"] == "hit", 20, "the cure")


def test_the_header_rules_and_not_the_name(build):
    with Daemon(build).fake(*with_facts(onednn="1.0")) as d:
        sweep_all(d, key(64))
        old = next((d.dir / "state/tables").glob("*.json"))
        answer = d.lookup(key(64))
        reconfigure(d, "never", onednn="2.0")
        renamed = old.with_name(old.name.replace("onednn=1.0", "onednn=2.0"))
        old.rename(renamed)
        expect(d.tunectl("reload")[0] == 0, "the renamed file was refused")
        expect_stale(d.lookup(key(64)), renamed, f"tunectl sweep '{key(64)}'", onednn=("1.0", "2.0"))
        expect(str(renamed) in warnings(d)[-1], "the warning names another file", *warnings(d))
        # Sweeping now must not write over it, though its name is the one that the new table would have.
        reconfigure(d, "always", onednn="2.0")
        d.lookup(key(64))
        swept = d.wait_answer(key(64))
        expect("onednn=2.0" in json.dumps(json.loads(renamed.read_text())["header"]) or swept["file"] != str(renamed),
               "an entry of 2.0 stands below a header of 1.0", swept, renamed.read_text())
        # Back: the same answer from the renamed file, without a sweep.
        reconfigure(d, "always", onednn="1.0")
        again = d.lookup(key(64))
        expect({**again, "file": ""} == {**answer, "file": ""}, "another answer", again)
        expect(d.counter("sweeps_started") == 0, "swept again", d.counter("sweeps_started"))


def test_the_command_sweeps_for_who_asked(build):
    # One wish a user: what is missed after the first is swept by its command only.
    d = Daemon(build, limits={"want_per_uid": 1})
    d.fake(*with_facts(onednn="1.0", threads="2"), section="two")
    d.fake(*with_facts(onednn="1.0", threads="4"), section="four")
    with d:
        d.wait_ready("two")
        d.wait_ready("four")
        d.lookup(key(8), "two")
        d.wait_answer(key(8), "two")
        miss = d.lookup(key(64), "four")
        expect(miss["kind"] == "miss" and "has queued 1 problems" in miss["next"], "it was queued by itself", miss)
        run_command(d, miss["command"])
        d.wait_for(lambda: entries(d) == 2, 20, f"the cure by {miss['command']}")
        expect(d.lookup(key(64), "four")["kind"] == "hit", "cured for somebody else", miss["command"])
        expect(d.lookup(key(64), "two")["kind"] == "miss", "an answer of four threads for two")
        # Tokens that no table maps are swept at the bucket at which they will be looked up.
        miss = d.lookup(key(19, 32), "two")
        run_command(d, miss["command"])
        d.wait_for(lambda: entries(d) == 3, 20, f"the cure by {miss['command']}")
        answers = [d.lookup(key(m, 32), "two") for m in (19, 23)]
        expect(all(a["kind"] == "hit" and a["key"] == key(32, 32) for a in answers), "off the ladder", *answers)


def test_two_headers_of_one_name_stand_apart(build):
    # In a file's name a colon is an underscore; in a header it is not.
    with Daemon(build).fake(*with_facts(device="cpu:a", onednn="1.0")) as d:
        sweep_all(d, key(64))
        first = d.lookup(key(64))
        reconfigure(d, "always", device="cpu_a", onednn="1.0")
        miss = d.lookup(key(64))
        expect(miss["reason"] == "other_device", "another device's entry is served", miss)
        second = d.wait_answer(key(64))
        expect(second["file"] != first["file"], "two devices' entries stand in one table", second)
        d.lookup(key(16))
        expect(d.wait_answer(key(16))["file"] == second["file"], "not in the table of its own", d.lookup(key(16)))
        reconfigure(d, "never", device="cpu:a", onednn="1.0")
        expect(d.lookup(key(64)) == first, "the first device's answer was lost", d.lookup(key(64)))
        expect(d.lookup(key(16))["reason"] == "other_device", "another device's entry is served", d.lookup(key(16)))


def test_the_worker_is_replaced_while_the_daemon_runs(build):
    d = Daemon(build)
    script = d.dir / "worker"

    def install(version, *more):
        fresh = d.dir / "worker.new"
        fresh.write_text(f"#!/bin/sh\nexec {d.fake_command(*with_facts(onednn=version), *more)}\n")
        fresh.chmod(0o755)
        fresh.rename(script)

    def version():
        row = d.status()["workers"][0]
        return row.get("fingerprint", {}).get("onednn")

    install("1.0")
    d.workers["cpu"] = {"command": str(script), "backend": "onednn", "device": "cpu"}
    d.write_config()
    with d:
        sweep_all(d, key(64))
        old = next((d.dir / "state/tables").glob("*.json"))
        answer = d.lookup(key(64))
        client = Client(d.dir / "run/lookup.sock").hello()  # a server that loaded 1.0 and keeps it

        install("2.0", SLOW)
        d.wait_for(lambda: version() == "2.0", 12, "the daemon to notice")
        miss = d.lookup(key(64))
        expect_stale(miss, old, f"tunectl sweep '{key(64)}'", onednn=("1.0", "2.0"))
        expect(len(warnings(d)) == 1, "not exactly one warning", *warnings(d))
        expect({k: v for k, v in client.lookup(key(64)).items()} == answer, "who still has 1.0 lost its answer")
        expect("onednn=2.0" in d.wait_answer(key(64))["file"], "not swept under 2.0 by itself")
        expect(client.lookup(key(64)) == answer, "the new answer is told to who has 1.0", client.lookup(key(64)))

        install("1.0")
        expect(d.tunectl("reload")[0] == 0, "reload failed")  # looks at once
        d.wait_for(lambda: version() == "1.0", 12, "the daemon to notice")
        swept = d.counter("sweeps_started")
        expect(d.lookup(key(64)) == answer, "another answer", d.lookup(key(64)))
        expect(d.counter("sweeps_started") == swept == 2, "swept again", d.counter("sweeps_started"))
        expect(shlex.split(miss["command"])[2] == key(64), "the command is not one a shell takes", miss["command"])


if __name__ == "__main__":
    run([test_a_loose_entry_goes_stale_and_is_cured, test_a_recipe_goes_stale_and_is_cured,
         test_each_differing_fact_is_named, test_where_no_worker_could_cure_it_that_is_said,
         test_the_header_rules_and_not_the_name, test_the_command_sweeps_for_who_asked,
         test_two_headers_of_one_name_stand_apart, test_the_worker_is_replaced_while_the_daemon_runs])
