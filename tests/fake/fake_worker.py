#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fake_worker.c in Python: the same words, the same answers to the byte, through the frame of tacticd.worker; and so
what shows that both frames are one.

usage: fake_worker.py [NAME=VALUE | EVENT[.CANDIDATE]=BEHAVIOUR[:ARG][@WHEN] | @FILE]...
@FILE holds the same words, one a line.
Settings: times hot growth jitter seed sleep jit_us op kernels prewarm backend fact.NAME; facts=none: nothing can be swept.
Events: hello open look check run close. Behaviours: crash exit hang ignore spin fail hopeless refuse lie nan blind unsteady
slow disturbed foreign stdout, all as fake_worker.c says, and what C has not: raise:WORDS and raise_os:WORDS
(exceptions that nobody expects), memory (MemoryError), unsayable (a time that no line can hold), nothing (open: no
candidates).
"""
import json
import math
import os
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True  # the tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "client/python"))

from tacticd.worker import frame  # noqa: E402

EVENTS = ("hello", "open", "look", "check", "run", "close")
WORD = 1 << 64


def splitmix(state):
    """The next state and its number, as bench_random has it."""
    state = (state + 0x9E3779B97F4A7C15) % WORD
    z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return state, z ^ z >> 31


class Order:
    """Misbehaviour: what, at which event of which candidate, and at which times of it."""

    def __init__(self, event, value):
        self.event, _, candidate = event.partition(".")
        self.candidate = int(candidate) if candidate else None
        value, _, when = value.partition("@")
        self.what, _, self.arg = value.partition(":")
        first, dash, last = when.partition("-")
        self.first = int(first) if first else 1
        self.last = int(last) if last else math.inf if dash or not first else self.first
        self.seen = 0

    def is_due(self, event, candidate):
        if event != self.event or self.candidate not in (None, candidate):
            return False
        self.seen += 1
        return self.first <= self.seen <= self.last


class Scenario:
    def __init__(self, words):
        self.set = {"times": "100,80,120,101,150,95", "hot": "", "growth": "0", "jitter": "0.01", "seed": "1",
                    "sleep": "0", "jit_us": "0", "op": "matmul", "kernels": "", "prewarm": "", "backend": "onednn",
                    "facts": ""}
        self.facts = {"device": "cpu:fake", "isa": "avx2", "threads": "2", "onednn": "2.6.3"}
        self.orders = []
        for word in words:
            if word.startswith("@"):
                words += pathlib.Path(word[1:]).read_text().splitlines()
                continue
            name, equals, value = word.partition("=")
            if name.partition(".")[0] in EVENTS and equals:
                self.orders.append(Order(name, value))
            elif name.startswith("fact."):
                self.facts[name[5:]] = value
            elif name in self.set and equals:
                self.set[name] = value
            else:
                sys.exit(f"fake_worker.py: cannot understand '{word}'")

    def number(self, name):
        return float(self.set[name])

    def misbehave(self, event, candidate=None):
        """Acts on the orders for this event; returns the one that changes the answer, or None."""
        changes = None
        for order in self.orders:
            if order.is_due(event, candidate):
                act(order.what, order.arg)
                changes = order
        return changes


def act(what, arg):
    """What never comes back, or changes nothing of the answer."""
    if what == "crash":
        os.kill(os.getpid(), int(arg))
    elif what == "exit":
        os._exit(int(arg))
    elif what in ("hang", "ignore"):
        if what == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    elif what == "spin":
        while True:
            pass
    elif what == "stdout":
        print(arg, flush=True)
    elif what == "raise":
        raise ZeroDivisionError(arg)
    elif what == "raise_os":
        raise OSError(arg)
    elif what == "memory":
        raise MemoryError


class Problem(frame.Problem):
    method = "cpu-wall-layer-2"  # BENCH_CPU_METHOD

    def __init__(self, scenario, key):
        self.scenario, self.tokens = scenario, float(key.tokens)
        self.state = (int(scenario.set["seed"]) * 1000003 + key.tokens) % WORD
        self.times = [float(t) for t in scenario.set["times"].split(",")]
        self.hot = [float(t) for t in scenario.set["hot"].split(",") if t]
        self.kernels = [k for k in scenario.set["kernels"].split(",") if k]
        prewarm = json.loads(scenario.set["prewarm"] or "null")
        self.candidates = [frame.Candidate({"id": i}, f"fake tactic {i}", "odd" if i % 2 else "even",
                                           kernel=self.kernels[i] if i < len(self.kernels) else None, prewarm=prewarm)
                           for i in range(len(self.times))]
        if self.hot:
            self.run_hot = self.launch_hot

    def obey(self, event, i):
        """The order that changes the answer: (what, arg)."""
        order = self.scenario.misbehave(event, i)
        if order and order.what == "fail":
            raise frame.Failed(order.arg or "the fake library refuses")
        if order and order.what == "hopeless":
            raise frame.Hopeless(order.arg or "the fake library refuses")
        return (order.what, order.arg) if order else ("", "")

    def random(self):
        self.state, number = splitmix(self.state)
        return float(number >> 11)

    def draw_us(self, i, order):
        """The time of one launch: log-normal around the candidate's own."""
        u, v = (self.random() + 0.5) * 2.0 ** -53, self.random() * 2.0 ** -53
        normal = math.sqrt(-2.0 * math.log(u)) * math.cos(6.283185307179586 * v)
        us = self.times[i] * self.tokens ** self.scenario.number("growth")
        us *= math.exp(self.scenario.number("jitter") * normal)
        if order[0] in ("slow", "disturbed"):
            us *= float(order[1])
        if self.scenario.number("sleep"):
            time.sleep(us * 1e-6)
        return math.nan if order[0] == "unsayable" else us

    def look(self, i, limit_ms):
        order = self.obey("look", i)
        first_us = self.draw_us(i, order) + self.scenario.number("jit_us")
        us = self.draw_us(i, order)
        kernel = self.candidates[i].kernel or f"fake tactic {i}"
        return frame.Look(first_us, frame.Sample(us, us / 10.0, order[0] == "disturbed"), kernel)

    def check(self, i):
        what, arg = self.obey("check", i)
        ok = what not in ("lie", "nan")
        error = math.nan if what in ("nan", "blind") else 0.5 if what == "lie" else 1e-6 * (i + 1)
        return frame.Check(ok, error, 1e-3, "unsteady" not in (what, arg), "" if ok else f"element [0,{i}] is wrong on order")

    def run(self, i):
        order = self.obey("run", i)
        us = self.draw_us(i, order)
        return frame.Sample(us, us / 10.0, order[0] == "foreign")

    def launch_hot(self, i):
        sample = self.run(i)
        return sample._replace(device_us=sample.device_us * (self.hot[i] if i < len(self.hot) else 1.0))

    def close(self):
        self.scenario.misbehave("close")


def main():
    scenario = Scenario(sys.argv[1:])

    def family(key, seed, memory_cap_bytes, next_key):
        order = scenario.misbehave("open")
        problem = Problem(scenario, key)
        if order and order.what == "nothing":
            problem.candidates = []
        if order and order.what == "refuse":
            raise (frame.Memory if order.arg == "memory" else frame.Unsupported)("the fake library cannot")
        return problem

    def backend():
        if scenario.set["facts"] == "none":
            raise frame.Unavailable("no fake library")
        scenario.misbehave("hello")
        return frame.Backend(scenario.set["backend"], "tactic-fake 1", scenario.facts,
                             {op: family for op in scenario.set["op"].split(",")})

    sys.exit(frame.main(backend, []))


if __name__ == "__main__":
    main()
