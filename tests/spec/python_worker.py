#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker in Python below the real daemon: its problems are swept and answered, and candidates that crash, hang, raise
or are wrong are out, for the same reasons as below a worker in C.

usage: python_worker.py --build DIR [TEST...]
"""
import contextlib
import pathlib
import sys

from faults import expect_denied, expect_winner, explain, raced_in
from harness import Daemon, expect, key, run

FAKE = pathlib.Path(__file__).resolve().parent.parent / "fake/fake_worker.py"
CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")  # 1 wins, 5 is second
PROBLEM = key(64)


@contextlib.contextmanager
def daemon(build, *scenario, **sweep):
    d = Daemon(build, sweep={"look_deadline_min": "1s", **sweep})
    (d.dir / "scenario").write_text("".join(f"{word}\n" for word in (*CLEAR, *scenario)))
    d.workers["cpu"] = {"command": f"{sys.executable} {FAKE} @{d.dir}/scenario", "backend": "onednn", "device": "cpu"}
    d.write_config()
    with d:
        d.wait_ready()
        d.lookup(PROBLEM)
        yield d


def test_a_problem_is_swept(build):
    with daemon(build, "look.3=fail:no", "check.4=lie") as d:
        expect_winner(d, raced=4)
        expect_denied(d, {4: ["wrong on order"]})
        expect((d.counter("worker_starts"), raced_in(d)) == (1, {0, 1, 2, 5}), "not one worker, or others raced",
               d.counter("worker_starts"), raced_in(d))


def test_candidates_that_end_it(build):
    with daemon(build, "look.2=stdout:about to fall", "look.2=crash:11", "check.3=exit:3", "run.4=crash:6",
                "run.5=raise:sticky") as d:
        expect_winner(d, raced=4)  # two fell in a round
        expect_denied(d, {2: ["signal 11", "about to fall"], 3: ["exited with status 3"], 4: ["signal 6"],
                          5: ["exited with status 70", "ZeroDivisionError: sticky"]})


def test_candidates_that_hang(build):
    with daemon(build, "look.2=spin", "check.5=ignore", "run.3=hang") as d:
        expect_winner(d, raced=4)
        expect_denied(d, {3: ["hung"], 5: ["hung"]})  # a look that hangs is only slow
        expect(2 not in raced_in(d), "the slow one raced")
        # One each, and one for the round that 3 hung in before it was tried alone.
        expect(d.counter("worker_deaths_deadline") == 4, "deadlines", d.counter("worker_deaths_deadline"))


def test_a_problem_that_it_cannot(build):
    with daemon(build, "open=refuse:unsupported") as d:
        d.wait_ended(PROBLEM)
        answer = d.lookup(PROBLEM)
        expect(answer["kind"] == "miss" and "the fake library cannot" in str(explain(d)), "not told why", answer, explain(d))


def test_one_that_cannot_start(build):
    with daemon(build, "facts=none") as d:
        told = str(d.status()["workers"])
        expect("69" in told or "no fake library" in told, "status does not say why", told)


run((test_a_problem_is_swept, test_candidates_that_end_it, test_candidates_that_hang, test_a_problem_that_it_cannot,
     test_one_that_cannot_start))
