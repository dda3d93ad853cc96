#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Before versions change it is said what that orphans, who could sweep it again and how; and that holds afterwards.

usage: upgrade.py --build DIR [TEST...]
"""
import json
import re
import subprocess

from files import table
from harness import Daemon, expect, key, run, slack
from loop import toy
from stale import FACTS, run_command, sweep_all, with_facts
from wire import Client, Probe


def plan(d, *words, code):
    """The replies of `tunectl upgrade --plan`, as one."""
    env = d.environment()
    done = subprocess.run([str(d.build / "client/tunectl"), "upgrade", "--plan", *words, "--json"], env=env,
                          capture_output=True, text=True, timeout=30, check=False)
    expect(done.returncode == code, f"the plan ended with {done.returncode}", done.stdout[:2000], done.stderr)
    pages = [json.loads(line) for line in done.stdout.splitlines()]
    for page in pages[:-1]:
        expect("next" in page and page["more"] > 0, "a page says not that another follows", page)
    if pages:
        expect("next" not in pages[-1] and pages[-1]["more"] == 0, "the last page is not the last", pages[-1])
    return [row for page in pages for row in page["tables"]], pages


def test_what_it_says_comes_to_pass(build):
    with toy(build, *with_facts(onednn="1.0")) as d:
        d.wait_ready()
        code, _, _ = d.tunectl("sweep", "--recipe", "toy", "--layout", "tp=1", "--wait", timeout=60)
        expect(code == 0, "not swept", code)
        sweep_all(d, key(16, 32))
        rows, _ = plan(d, "onednn=2.0", code=1)
        expect(sorted((row["stale"], row["answered"], row["valid"]) for row in rows) == [(1, 0, 0), (4, 0, 0)], "odd", rows)
        for row in rows:
            expect(row["facts"] == "onednn have=1.0 want=2.0", "not the fact", row)
            expect(row["next"].startswith("no worker section here has the new environment: worker 'cpu'") and
                   "command" not in row, "a command that nobody here could obey", row)
        expect(d.counter("misses_stale") == 0 and d.status()["stale"] == [], "a plan counts as a miss", d.status())
        # Nothing depends on it, or it is what is there.
        rows, _ = plan(d, "cudnn=92400", "onednn=1.0", code=0)
        expect(all(row["stale"] == 0 and row["entries"] == row["valid"] for row in rows), "odd", rows)

        # A second worker has the new versions: it is named, and its commands sweep all of it.
        d.fake(*with_facts(onednn="2.0"), section="new")
        d.restart()
        d.wait_ready()
        d.wait_ready("new")
        rows, _ = plan(d, "onednn=2.0", "--as", "cpu", code=1)
        commands = {row["model"]: row["command"] for row in rows}
        expect(commands == {"toy": "tunectl sweep --as new --recipe toy --layout tp=1",
                            "adhoc": f"tunectl sweep --as new '{key(16, 32)}'"}, "other commands", rows)
        expect(all(row["next"] == "worker section new has the new environment" for row in rows), "not who", rows)
        for command in commands.values():
            run_command(d, command)
        d.wait_for(lambda: d.status()["entries"] == 10, 60, "the sweeps")
        rows, _ = plan(d, "onednn=2.0", "--as", "cpu", code=0)
        expect(sorted((row["stale"], row["answered"]) for row in rows) == [(1, 1), (4, 4)], "not answered", rows)
        expect(all("command" not in row and "next" not in row for row in rows), "a cure of nothing", rows)
        # And so it is: after the change nothing misses.
        client = Client(d.dir / "run/lookup.sock").hello(**FACTS, onednn="2.0")
        for problem in (key(16, 32), key(5, 128, 64)):
            expect(client.lookup(problem)["kind"] == "hit", "orphaned after all", client.lookup(problem))


def test_commands_are_bounded_and_lead_on(build):
    with Daemon(build).fake(*with_facts(onednn="1.0")) as d:
        d.wait_ready()
        for n in range(1, 25):
            d.lookup(key(16, n))
        d.wait_for(lambda: d.status()["entries"] == 24, 60, "the sweeps")
        d.fake(*with_facts(onednn="2.0"), section="new")
        d.restart()
        d.wait_ready()
        d.wait_ready("new")
        for left in (24, 8):
            rows, _ = plan(d, "onednn=2.0", "--as", "cpu", code=1)
            expect(len(rows) == 1 and rows[0]["stale"] - rows[0]["answered"] == left, "another number is left", rows)
            expect(len(re.findall(r"'matmul,", rows[0]["command"])) == min(left, 16), "not as many as fit", rows)
            expect(rows[0].get("more", 0) == max(0, left - 16), "the rest is not said", rows)
            run_command(d, rows[0]["command"])
            d.wait_for(lambda: d.status()["entries"] == 48 - max(0, left - 16), 60, "the sweeps")
        plan(d, "onednn=2.0", "--as", "cpu", code=0)


def test_sweeping_that_is_off_is_said(build):
    with Daemon(build, sweep={"when": "never"}).fake(*with_facts(onednn="2.0")) as d:
        d.wait_ready()
        (d.dir / "site/a.json").write_bytes(table(key(16)).replace(b"2.6.3", b"1.0"))
        expect(d.tunectl("reload")[0] == 0, "the table is refused")
        rows, _ = plan(d, "onednn=2.0", code=1)
        expect("sweeping is switched off" in rows[0]["next"] and rows[0]["command"].startswith("tunectl sweep '"),
               "not said", rows)
        expect(d.status()["queued"] == 0, "a plan queues", d.status())


def test_many_tables_are_told_in_stretches(build):
    d = Daemon(build, sweep={"when": "never"}).fake(*with_facts(onednn="1.0"))
    for i in range(200):
        keys = [key(m, 1 + i) for m in (2 ** j for j in range(11))]
        (d.dir / "site" / f"{i:03}.json").write_bytes(table(*keys).replace(b"2.6.3", b"1.0"))
    large = [key(m, 1000 + i) for i in range(600) for m in (2 ** j for j in range(10))]
    (d.dir / "site/large.json").write_bytes(table(*large).replace(b"2.6.3", b"1.0"))
    with d:
        d.wait_ready()
        before = d.counter("loop_lag_us")
        with Probe(d, key(1, 1)) as probe:
            rows, pages = plan(d, "onednn=2.0", code=1)
            worst, count, median = probe.end()
        expect(len(rows) == 201 and len(pages) >= 4, "not all, or not in stretches", len(rows), len(pages))
        expect(sum(row["stale"] for row in rows) == 200 * 11 + 6000, "not all entries", sum(row["stale"] for row in rows))
        expect(all(len(page["tables"]) <= 64 for page in pages), "a page is too long")
        expect(worst[0] < 50 * slack(build), f"a lookup took {worst[0]:.1f} ms", worst, count, median)
        print(f"  the loop's longest turn: {before} us before, {d.counter('loop_lag_us')} us with {len(pages)} replies")


def test_who_asks_wrongly_is_told(build):
    with Daemon(build).fake(*with_facts(onednn="1.0")) as d:
        d.wait_ready()
        client = Client(d.dir / "run/lookup.sock")
        good = {"fact": "onednn", "value": "2.0"}
        for facts, word in ([], "1 to 16"), ([good] * 17, "1 to 16"), ([good, good], "one value"), \
                ([{"fact": "x" * 500, "value": "1"}], "is not a fact"), ([{"fact": "ecc", "value": "1"}], "evidence only"), \
                ([{"fact": "onednn", "value": ""}], "one value"), ([{"fact": "onednn", "value": "*"}], "one value"), \
                ([{"fact": "onednn", "value": "1" * 128}], "127 bytes"):
            reply = client.ask("upgrade", {"facts": facts})
            expect(reply.status == "BAD_FIELD" and word in reply.body["sentence"], "not refused", facts, reply)
        expect(client.ask("upgrade", {}).status == "BAD_FIELD", "a plan of nothing")
        expect(client.ask("upgrade", {"facts": [good]}, digest=b"\1" * 8).status == "NEED_HELLO", "whose environment?")
        reply = client.ask("upgrade", {"facts": [good], "from": 2 ** 53 - 1})
        expect(reply.status == "OK" and reply.body["tables"] == [] and reply.body["more"] == 0, "beyond the end", reply)


if __name__ == "__main__":
    run([test_what_it_says_comes_to_pass, test_commands_are_bounded_and_lead_on, test_sweeping_that_is_off_is_said,
         test_many_tables_are_told_in_stretches, test_who_asks_wrongly_is_told])
