#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker comes back with other versions: what they orphan is said once for each table, counted, and swept again,
what was asked for first; each sweep looks first at what won before, and nothing old is served meanwhile.

usage: bump.py --build DIR [TEST...]
"""
from files import table
from harness import Daemon, expect, key, run, slack
from loop import TOY, Watch, add_recipe
from stale import FACTS, warnings, with_facts
from wire import Client, Probe

MANY = 200  # candidates
SLOW_US = 2000


class Bumped(Daemon):
    """A daemon whose worker's file is replaced while it runs."""

    def __init__(self, build, **options):
        super().__init__(build, **options)
        self.workers["cpu"] = {"command": str(self.dir / "worker"), "backend": "onednn", "device": "cpu"}
        self.write_config()

    def install(self, version, *more):
        fresh, words = self.dir / "worker.new", self.dir / f"words-{version}"
        words.write_text("".join(word + "\n" for word in (*with_facts(onednn=version), *more)))
        fresh.write_text(f"#!/bin/sh\nexec {self.build}/tests/fake_worker @{words}\n")
        fresh.chmod(0o755)
        fresh.rename(self.dir / "worker")
        return self

    def version(self):
        return self.status()["workers"][0].get("fingerprint", {}).get("onednn")

    def bump(self, version, *more):
        """The daemon finds out by itself: a reload would be a new reading of the tables, which is told anew."""
        self.install(version, *more)
        self.wait_for(lambda: self.version() == version, 15, f"the worker of {version}")


def swept(d):
    return [(row.get("orphans"), row.get("swept")) for row in sorted(d.status()["stale"], key=lambda row: row["file"])]


def test_asked_for_first_then_recipes_then_the_rest(build):
    d = Bumped(build, options={"recipes": "toy"}).install("1.0")
    add_recipe(d)
    rest, asked = [key(m, 32) for m in (2, 4, 8)], key(64, 16)
    everything = (*rest, asked, *TOY)
    with d:
        d.wait_for(lambda: d.status()["entries"] == 4, 30, "the recipe")
        for problem in (*rest, asked):
            d.lookup(problem)
            d.wait_answer(problem)
        old = [path.name for path in (d.dir / "state/tables").glob("*.json")]
        expect(len(old) == 2 and d.counter("orphans") == 0, "odd", old)
        client = Client(d.dir / "run/lookup.sock").hello(**FACTS, onednn="2.0")  # a server that was updated first
        miss = client.lookup(asked)
        expect(miss["reason"] == "stale" and miss["command"].startswith("#"), "who could sweep it?", miss)
        watch = Watch(d, "--since", "0")
        d.bump("2.0", f"opens={d.dir / 'opens'}", "flush_ms=2")
        # Explain only asks: a lookup would be a wish.
        answers = []
        while d.status()["entries"] < 16:
            answers += [client.ask("explain", {"key": problem}, digest=client.digest).body["answer"] for problem in everything]
        for answer in answers:
            expect(answer["kind"] == "hit" and "onednn=2.0" in answer["file"] or answer.get("reason") == "stale",
                   "something old is served, or the reason is another one", answer)
        expect(any(a["kind"] == "miss" for a in answers) and any(a["kind"] == "hit" for a in answers), "nothing in between")
        expect(all(client.lookup(problem)["kind"] == "hit" for problem in everything), "not all are hits again")
        order = [line.split(" ")[0] for line in (d.dir / "opens").read_text().splitlines()]
        expect(order[0] == asked and set(order[1:5]) == set(TOY) and order[5:] == rest, "another order", *order)
        d.wait_for(lambda: swept(d) == [(4, 4), (4, 4)], 12, "status to count")
        expect((d.counter("orphaned_tables"), d.counter("orphans"), d.counter("orphans_swept")) == (2, 8, 8), "counted wrongly")
        expect(len(warnings(d)) == 2, "not one warning a table, though a lookup met one before", *warnings(d))
        for name in old:
            said = [line for line in warnings(d) if f"/{name}\"" in line]
            expect(len(said) == 1 and "onednn" in said[0] and "cure=" in said[0], "not said", name)
        expect(sum("entries=4" in line for line in d.log().splitlines()) == 2, "not how many", d.log())
        events = [e for e in watch.events if e["kind"] == "stale" and "left behind" in e["text"]]
        watch.end()
        expect(len(events) == 2 and all("4 entries were left behind: onednn have=1.0" in e["text"] for e in events),
               "watch does not tell", *events)
        # Nothing is swept twice, also not after a restart, and then nothing is to be told.
        d.restart()
        d.wait_ready()
        d.wait_for(lambda: d.counter("orphans_swept") == 8, 12, "a walk")
        expect(d.counter("sweeps_started") == 0 and d.status()["stale"] == [] and len(warnings(d)) == 2, "again", d.status())


def test_sweeping_that_is_off(build):
    d = Bumped(build).install("1.0")
    with d:
        d.wait_ready()
        for m in (16, 64):
            d.lookup(key(m))
            d.wait_answer(key(m))
        d.sweep["when"] = "never"
        d.install("2.0")
        d.restart()
        d.wait_for(lambda: d.status()["stale"], 20, "what is stale")
        expect(swept(d) == [(2, 0)] and d.counter("orphans") == 2, "not counted", d.status()["stale"])
        expect(len(warnings(d)) == 1 and "switched off" in warnings(d)[0] and
               f"cure=\"tunectl sweep '{key(16)}'\"" in warnings(d)[0], "not told", *warnings(d))
        expect(d.status()["queued"] == 0 and d.counter("sweeps_started") == 0, "swept all the same", d.status())
        expect(d.lookup(key(16))["reason"] == "stale", "served", d.lookup(key(16)))


def test_versions_in_use_are_not_orphaned(build):
    """Two sections with two versions side by side: nobody's entries are swept for the other."""
    d = Daemon(build).fake(*with_facts(onednn="1.0"))
    d.fake(*with_facts(onednn="2.0"), section="new")
    with d:
        d.wait_ready("new")
        d.lookup(key(64))
        d.wait_answer(key(64))
        d.restart()
        d.wait_ready("new")
        d.wait_ready("cpu")
        expect(d.counter("orphans") == 0 and d.counter("sweeps_started") == 0 and not warnings(d), "swept", d.status())
        del d.workers["cpu"]
        d.restart()
        d.wait_for(lambda: d.status()["entries"] == 2, 20, "the sweep for the one that is left")
        expect(len(warnings(d)) == 1 and d.lookup(key(64), "new")["kind"] == "hit", "not told", *warnings(d))


def costs(journal):
    """Looks, checks, and the time of their launches in us; a look and a check are two launches each."""
    looks = [line for line in journal if line["say"] == "looked"]
    checks = [line["candidate"] for line in journal if line["say"] == "checked"]
    us = {line["candidate"]: line["device_us"] for line in looks}
    return len(looks), len(checks), sum(line["first_us"] + line["device_us"] for line in looks) + 2 * sum(us[c] for c in checks)


def sweep_of_many(build, with_old, native_us):
    """The journal of a sweep of MANY candidates, most 20 x slower than the best, which had another number before."""
    then, now = MANY - 7, MANY - 20
    kernels, times = [[f"k{i}" for i in range(MANY)] for _ in range(2)], [[native_us, *(MANY - 1) * [SLOW_US]] for _ in range(2)]
    times[0][then] = times[1][now] = SLOW_US / 20
    kernels[1][then], kernels[1][now] = f"k{now}", f"k{then}"
    words = [("times=" + ",".join(f"{t:g}" for t in ts), "kernels=" + ",".join(ks)) for ts, ks in zip(times, kernels)]
    with Bumped(build).install("1.0", *words[0]) as d:
        d.wait_ready()
        if with_old:
            d.lookup(key(64))
            expect(d.wait_answer(key(64))["tactic"] == {"id": then}, "another winner", d.lookup(key(64)))
        d.install("2.0", *words[1])
        d.restart()
        d.wait_ready()
        d.lookup(key(64))
        answer = d.wait_answer(key(64))
        expect(answer["tactic"] == {"id": now} and answer["kernel"] == f"k{then}", "another winner", answer)
        history = d.wait_ended(key(64))
        again = f'its kernel won under other versions too, as {{"id":{then}}}'
        expect((again in history) == with_old, "explain does not say that the number changed", history)
        return d.journals()[answer["sweep"]]


def test_a_kernel_is_known_again_under_another_number(build):
    for native_us, words in (SLOW_US, "native as slow as most"), (SLOW_US / 15, "native 1.3 x the best"):
        without, hinted = (sweep_of_many(build, with_old, native_us) for with_old in (False, True))
        order = [line["candidate"] for line in hinted if line["say"] == "looked"]
        expect(order[:2] == [0, MANY - 20], "the old winner's kernel is not looked at first", order[:5])
        expect(hinted[0]["hints"][0]["kernel"] == f"k{MANY - 7}", "the journal does not hold the hints", hinted[0])
        (looks0, checks0, us0), (looks1, checks1, us1) = costs(without), costs(hinted)
        print(f"  {words}: {looks0} looks, {checks0} checks, {us0 / 1e3:.1f} ms of launches without the old entry; "
              f"{looks1}, {checks1}, {us1 / 1e3:.1f} ms with it: {us1 / us0:.2f}")
        expect(us1 < 1.05 * us0, "it costs more", us0, us1)


def test_many_entries(build):
    """20,000 entries of a gone version, imported: the loop goes on, and the queue stays short."""
    d = Bumped(build).install("2.0", "flush_ms=20")
    (d.dir / "state/tables").mkdir()
    for t in range(20):
        keys = [key(2 ** j, 1 + 100 * t + i) for i in range(100) for j in range(10)]
        (d.dir / "state/tables" / f"{t:02}.json").write_bytes(table(*keys).replace(b"2.6.3", b"1.0"))
    with d:
        before = d.counter("loop_lag_us")
        with Probe(d, key(1, 1), key(64, 1500)) as probe:
            d.wait_for(lambda: d.counter("orphans") == 20000, 30, "the walk")
            for version in ("3.0", "4.0"):
                d.install(version, "flush_ms=20")
                expect(d.tunectl("reload")[0] == 0, "reload failed")
                d.wait_for(lambda: d.version() == version, 15, f"the worker of {version}")
                d.wait_for(lambda: d.status()["queued"] and d.counter("orphans") >= 20000, 30, "the walk")
            worst, count, median = probe.end()
        status = d.status()
        print(f"  {count} lookups, median {median:.2f} ms, worst {worst[0]:.1f} ms; the loop's longest turn: {before} us before, "
              f"{d.counter('loop_lag_us')} us with walks; {status['queued']} problems queued")
        expect(0 < status["queued"] <= 300, "the queue is not short", status["queued"])
        expect(worst[0] < 50 * slack(build), f"a lookup took {worst[0]:.1f} ms", worst, count, median)


if __name__ == "__main__":
    run([test_asked_for_first_then_recipes_then_the_rest, test_sweeping_that_is_off, test_versions_in_use_are_not_orphaned,
         test_a_kernel_is_known_again_under_another_number, test_many_entries])
