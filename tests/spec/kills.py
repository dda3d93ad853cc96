#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at any instant: what was published stays published, what was denied stays denied, no half file is read, no
process is left over, and a sweep goes on where it was.

usage: kills.py --build DIR [--long] [--kills N] [--seed N] [TEST...]
"""
import argparse
import json
import os
import random
import signal
import subprocess
import time

from harness import Daemon, arguments, expect, key, run
from wire import Client, Closed

FACTS = {"device": "cpu:fake", "isa": "avx2", "threads": "2", "onednn": "2.6.3"}
CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
KILLS, LONG_KILLS = 15, 200
# When it is killed: while it starts, at a random time, after such news or phase, or after a pin was promised.
WAYS = ["start", "time", "racing", "racing", "publishing", "publishing", "published", "denied", "pin"]
LINGER_S = {"racing": 0.06, "publishing": 0.004}
OPTIONS = None


def without_line(answer):
    return {k: v for k, v in answer.items() if k != "line"}  # lines move when others are added above


def rounds_of(lines):
    return [line["round"] for line in lines if line["say"] == "samples" and line["round"] < 1000000]


def is_finished(lines):
    return lines[-1]["say"] == "journal_end"


class Story:
    """What the daemon said, held against it after each restart."""

    def __init__(self, build, seed):
        self.random = random.Random(seed)
        # Candidate 4 is wrong: each sweep writes a rule, too.
        self.d = Daemon(build).fake(*CLEAR, "flush_ms=1", "check.4=lie")
        self.answers = {}  # key: what a lookup was told
        self.promised = set()  # keys that were news, but not looked up
        self.denied = set()  # keys whose rule was news
        self.open = []  # keys wanted and not known to be answered
        self.next = 0
        self.since = 0

    def new_key(self):
        self.next += 1
        return key(2 ** (self.next % 8), 32 + self.next)

    def connect(self):
        def try_it():
            try:
                return Client(self.d.dir / "run/lookup.sock").hello(**FACTS)
            except (OSError, Closed):
                return None
        return self.d.wait_for(try_it, 20, "the door to open")

    def rules(self, client, problem):
        rules = client.ask("explain", {"key": problem}).body["deny"]
        return [rule for rule in rules if rule["tactic"] == {"id": 4} and rule["source"] == "sweep"]

    def verify(self, client):
        """Everything that was ever said still holds."""
        for problem, told in self.answers.items():
            answer = without_line(client.lookup(problem))
            expect(answer == told, "a published answer changed", answer, told)
        for problem in self.promised:
            answer = client.lookup(problem)
            expect(answer["kind"] == "hit", "what was news is not answered", answer)
            self.answers[problem] = without_line(answer)
        self.promised.clear()
        for problem in self.denied:
            expect(self.rules(client, problem), "a rule is gone", problem)
        status = client.ask("status", {}).body
        expect(status["refused"] == [], "files are refused", status["refused"])
        for path in self.d.dir.glob("state/*/*.json"):
            json.loads(path.read_text())

    def wish(self, client):
        def ready():
            try:
                client.hello("cpu")
                return True
            except AssertionError:
                return False
        self.d.wait_for(ready, 20, "the worker's hello")
        for problem in self.open:  # what was published without our hearing of it
            answer = client.lookup(problem)
            if answer["kind"] == "hit":
                self.answers[problem] = without_line(answer)
        self.open = [k for k in self.open if k not in self.answers]
        self.open += [self.new_key() for _ in range(3 - len(self.open))]
        told = client.ask("want", {"keys": self.open}).body
        expect(told["refused"] == 0, "a wish was refused", told)

    def pin(self):
        """An admin's pin: when its answer came, it holds."""
        problem = key(1, 20000 + self.next)
        with Client(self.d.dir / "run/control/sock").hello(**FACTS) as control:
            reply = control.ask("pin", {"key": problem, "tactic": {"id": 5}})
        expect(reply.status == "OK", "no pin", reply)
        self.promised.add(problem)

    def listen(self, client, until):
        """Takes news until a moment, or until `until` says that it has come; looks up what was published."""
        reply = client.ask("watch", {"since": self.since, "wait_ms": 10}).body
        self.since = reply["next"]
        for event in reply["events"]:
            if event["kind"] == "denied":
                self.denied.update(k for k in self.open if self.rules(client, k))
            if event["kind"] == "published":
                self.promised.add(event["key"])
            if until(event):
                return True
        for problem in [k for k in self.promised if k in self.open]:
            self.answers[problem] = without_line(client.lookup(problem))
            expect(self.answers[problem]["kind"] == "hit", "what was news is not answered", self.answers[problem])
            self.promised.discard(problem)
        return False

    def live_and_die(self, how):
        """One start, ended by SIGKILL at some instant."""
        d = self.d
        d.start(wait=False)
        if how == "start":
            time.sleep(self.random.uniform(0, 0.04))
            d.kill()
            return
        client = self.connect()
        self.since = 0
        self.verify(client)
        self.wish(client)
        if how == "pin":
            self.pin()
        end = time.monotonic() + self.random.uniform(0, 0.5) + (0 if how in ("time", "pin") else 2)
        while time.monotonic() < end:
            if self.listen(client, lambda e: e["kind"] == how or e.get("phase") == how):
                break
        if how in LINGER_S:
            time.sleep(self.random.uniform(0, LINGER_S[how]))
        d.kill()
        client.close()

    def finish(self):
        """Without a kill: all that was wanted is answered, and each sweep was one."""
        d = self.d
        d.start()
        client = self.connect()
        self.verify(client)
        self.wish(client)
        d.wait_for(lambda: client.ask("status", {}).body["queued"] == 0, 60, "all that was wanted")
        for problem in self.open:
            expect(client.lookup(problem)["kind"] == "hit", "not answered in the end", problem)
        client.close()


def check_journals(d, sweeps=1):
    """Rounds were not repeated, and sweeps not begun again. Returns how many went on after a kill."""
    raced, resumed = {}, 0
    for name, lines in d.journals().items():
        rounds = rounds_of(lines)
        expect(rounds == list(range(len(rounds))), f"sweep {name} repeated or lost rounds", rounds)
        expect(is_finished(lines), f"the journal of {name} is left unfinished", lines[0]["key"], lines[-1]["say"])
        if rounds:
            raced.setdefault(lines[0]["key"], []).append(name)
        restarts = sum(line["say"] == "journal_loss" and line["why"] == "restart" for line in lines)
        resumed += restarts > 0
    for problem, names in raced.items():
        expect(len(names) == sweeps, "a sweep that had begun to race was begun again", problem, names)
    return resumed


def kill_and_verify(build, kills):
    story = Story(build, OPTIONS.seed)
    d = story.d
    try:
        ways = (WAYS * (1 + kills // len(WAYS)))[:kills]
        story.random.shuffle(ways)
        for how in ways:
            story.live_and_die(how)
            d.expect_alone(3)
        story.finish()
        resumed = check_journals(d)
        files = [str(p) for p in d.dir.glob("state/*/*.json")]
        done = subprocess.run([str(d.build / "client/tunectl"), "check", *files], capture_output=True, text=True, check=False)
        expect(done.returncode == 0 and files, "tunectl check finds fault", done.stdout, done.stderr)
        print(f"  {kills} kills (seed {OPTIONS.seed}): {len(story.answers)} answers, "
              f"{len(story.denied)} rules, {resumed} sweeps resumed")
        expect(resumed > 0 and story.denied and len(story.answers) > kills / 3, "too little happened for the test to mean anything")
        d.__exit__(None, None, None)
    except BaseException as e:
        d.__exit__(type(e), e, None)
        raise


def test_a_daemon_killed_at_any_instant(build):
    kill_and_verify(build, OPTIONS.kills or KILLS)


def test_a_daemon_killed_at_any_instant_200_times(build):
    kill_and_verify(build, OPTIONS.kills or LONG_KILLS)


# --- workers ---

def racing(d, problem, rounds=3):
    """Asks for it, and waits until it races."""
    d.wait_ready()
    d.lookup(problem)

    def row():
        rows = [r for r in d.status()["sweeps"] if r["key"] == problem]
        return rows and rows[0]["phase"] in ("racing", "judging") and rows[0]["done"] >= rounds
    d.wait_for(row, 20, "the race")


def parts(d):
    """(launcher, worker) pids."""
    children = d.children()
    launcher = [pid for pid, line in children.items() if "/tactic-launch " in line]
    worker = [pid for pid, line in children.items() if "/tactic-launch " not in line]
    expect(len(launcher) == 1 and len(worker) == 1, "not one launcher and one worker", children)
    return launcher[0], worker[0]


def expect_innocence(d, problem, losses):
    """The sweep went on, nobody was accused, no round was run twice."""
    answer = d.wait_answer(problem, seconds=30)
    expect(answer["kind"] == "hit" and answer["tactic"] == {"id": 1} and answer["candidates"] == 6, "odd", answer)
    expect(d.tunectl("explain", problem, "--as", "cpu")[1]["deny"] == [], "somebody innocent was denied")
    journals = list(d.journals().values())
    expect(len(journals) == 1, "begun again", [j[0] for j in journals])
    rounds = rounds_of(journals[0])
    expect(rounds == list(range(len(rounds))) and len(rounds) >= answer["rounds"], "rounds repeated or lost", rounds)
    whys = [line["why"] for line in journals[0] if line["say"] == "journal_loss"]
    expect(whys == losses, "the journal tells another story", whys)


def test_the_worker_is_killed_in_mid_round(build):
    with Daemon(build).fake(*CLEAR, "flush_ms=4") as d:
        racing(d, key(64))
        os.kill(parts(d)[1], signal.SIGKILL)
        expect_innocence(d, key(64), ["outside"])
        expect(d.counter("worker_deaths_signal") == 1, "not counted", d.counter("worker_deaths_signal"))


def test_the_launcher_is_killed_in_mid_round(build):
    with Daemon(build).fake(*CLEAR, "flush_ms=4") as d:
        racing(d, key(64))
        launcher, worker = parts(d)
        os.kill(launcher, signal.SIGKILL)
        d.wait_for(lambda: worker not in d.children(), 5, "the worker to follow its launcher")
        expect_innocence(d, key(64), ["outside"])


def test_the_worker_is_stopped_in_mid_round(build):
    with Daemon(build, sweep={"look_deadline_min": "300ms"}).fake(*CLEAR, "flush_ms=4") as d:
        racing(d, key(64))
        os.kill(parts(d)[1], signal.SIGSTOP)
        expect_innocence(d, key(64), ["deadline"])
        expect(d.counter("worker_deaths_deadline") == 1, "not killed for being late", d.counter("worker_deaths_deadline"))


def test_a_worker_that_is_killed_again_and_again(build):
    with Daemon(build).fake(*CLEAR, "flush_ms=10") as d:
        racing(d, key(64), 1)
        killed = set()

        def history():
            """Kills each worker once, when it races: then no candidate is to blame."""
            if any(row["phase"] == "racing" for row in d.status()["sweeps"]):
                for pid, line in d.children().items():
                    if "/tactic-launch " not in line and pid not in killed:
                        killed.add(pid)
                        os.kill(pid, signal.SIGKILL)
            return d.tunectl("explain", key(64), "--as", "cpu")[1].get("history")
        history = d.wait_for(history, 60, "it gives up")
        expect("failed" in history and "4 workers died for no reason found" in history and len(killed) == 4,
               "not told why, or too early", history, killed)
        expect(d.lookup(key(64))["kind"] == "miss", "an answer all the same", d.lookup(key(64)))
        starts = d.counter("worker_starts")
        for _ in range(20):
            d.lookup(key(64))
        expect(d.counter("worker_starts") - starts <= 1 and d.counter("sweeps_started") == 1, "tried again at once",
               d.status())
        code, _, _ = d.tunectl("sweep", key(64), "--as", "cpu", "--force", "--wait", timeout=30)
        expect(code == 0 and d.lookup(key(64))["kind"] == "hit", "an admin cannot have it tried again", code)


def test_nothing_outlives_a_killed_daemon(build):
    d = Daemon(build)
    mark = d.dir / "grandchild"
    d.fake(*CLEAR, f"look.1=fork:{mark}", "run.2=ignore@3")
    with d:
        d.wait_ready()
        d.lookup(key(64))
        d.wait_for(lambda: mark.exists() and mark.read_text().strip(), 10, "the grandchild")
        d.wait_for(lambda: any(r["phase"] == "racing" for r in d.status()["sweeps"]), 10, "the worker to hang, deaf")
        expect(len(d.children()) == 3, "launcher, worker and grandchild", d.children())
        d.kill()
        d.expect_alone(3)
        d.start()  # the place is free


def test_an_unfinished_sweep_of_another_environment_starts_over(build):
    with Daemon(build).fake(*CLEAR, "flush_ms=4", "fact.onednn=1.0") as d:
        racing(d, key(64))
        d.kill()
        begun = set(d.journals())
        d.fake(*CLEAR, "fact.onednn=2.0").start()
        d.wait_ready()
        d.lookup(key(64))
        answer = d.wait_answer(key(64))
        expect("onednn=2.0" in answer["file"] and answer["sweep"] not in begun, "an entry of the old version", answer)
        swept = d.journals()[answer["sweep"]]
        expect(all(line["fingerprint"]["onednn"] == "2.0" for line in swept if "fingerprint" in line), "mixed", swept[0])
        expect(rounds_of(swept) == list(range(len(rounds_of(swept)))), "rounds of two environments", rounds_of(swept))
        # Back in the old one nothing is answered that was not swept there, which begins by itself, and nothing is left.
        d.fake(*CLEAR, "fact.onednn=1.0").restart()
        d.wait_ready()
        answer = d.lookup(key(64))
        expect(answer["kind"] == "miss" or "onednn=1.0" in answer["file"], "an answer of the other version", answer)
        expect("onednn=1.0" in d.wait_answer(key(64))["file"], "not swept again", d.lookup(key(64)))
        d.wait_for(lambda: d.status()["queued"] == 0, 10, "the sweep's end")
        expect(check_journals(d, 2) == 0, "resumed all the same", d.journals().keys())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="kills a daemon and its workers")
    parser.add_argument("--kills", type=int, help=f"how often the daemon is killed; default {KILLS}, {LONG_KILLS} if --long")
    parser.add_argument("--seed", type=int, default=1, help="of the instants")
    OPTIONS = arguments(parser)
    run([test_a_daemon_killed_at_any_instant, test_the_worker_is_killed_in_mid_round,
         test_the_launcher_is_killed_in_mid_round, test_the_worker_is_stopped_in_mid_round,
         test_a_worker_that_is_killed_again_and_again, test_nothing_outlives_a_killed_daemon,
         test_an_unfinished_sweep_of_another_environment_starts_over],
        [test_a_daemon_killed_at_any_instant_200_times], OPTIONS)
