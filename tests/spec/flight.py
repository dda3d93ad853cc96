#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many ask at once: one problem is swept once, nobody can fill the queue for all, and who listens too late learns how
much was missed.

usage: flight.py --build DIR [TEST...]
"""
import multiprocessing
import os
import time

from harness import Daemon, Skip, expect, key, run
from wire import Client

CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
HELD = (*CLEAR, "open=hang")  # the first sweep never gets beyond opening: whatever comes then waits
PROCESSES = 8


def ask_until_answered(path, keys, start, results):
    client = Client(path).hello()
    start.wait()
    misses, answers = 0, {}
    for problem in keys:
        while (answer := client.lookup(problem))["kind"] == "miss":
            misses += 1
            time.sleep(0.002)
        answers[problem] = answer
    results.put((misses, answers))


def all_at_once(d, keys):
    """What PROCESSES processes were told that began together: [(misses, {key: answer})]."""
    start, results = multiprocessing.Barrier(PROCESSES), multiprocessing.Queue()
    processes = [multiprocessing.Process(target=ask_until_answered, args=(d.dir / "run/lookup.sock", keys, start, results))
                 for _ in range(PROCESSES)]
    for p in processes:
        p.start()
    told = [results.get(timeout=60) for _ in processes]
    for p in processes:
        p.join(10)
    return told


def test_eight_processes_ask_and_one_sweep_answers(build):
    with Daemon(build).fake(*CLEAR, "flush_ms=3") as d:
        d.wait_ready()
        told = all_at_once(d, [key(64)])
        expect(all(misses > 0 for misses, _ in told), "somebody was not there in time", [m for m, _ in told])
        expect(all(answers == told[0][1] for _, answers in told), "not all were told the same", *told)
        expect(told[0][1][key(64)]["tactic"] == {"id": 1}, "not the winner", told[0])
        expect(d.counter("sweeps_started") == 1, "swept more than once", d.counter("sweeps_started"))
        expect(d.counter("worker_starts") == 1, "more than one worker", d.counter("worker_starts"))
        journals = d.journals()
        begun = [lines[0]["key"] for lines in journals.values()]
        expect(begun == [key(64)], "not one journal", begun)
        asked = sum(misses for misses, _ in told)
        counted = d.counter("misses_unseeded") + d.counter("misses_sweeping")
        expect(counted == asked, "misses were not counted", counted, asked)


def test_a_storm_of_problems_is_swept_each_once(build):
    keys = [key(m, n) for n in (64, 128) for m in (1, 2, 4, 8, 16, 32, 64)]
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        told = all_at_once(d, keys)
        expect(all(answers == told[0][1] for _, answers in told), "not all were told the same")
        d.wait_for(lambda: d.status()["queued"] == 0, 20, "the last sweep's end")
        begun = sorted(lines[0]["key"] for lines in d.journals().values())
        expect(begun == sorted(keys), "not one journal each", begun)
        expect(d.counter("sweeps_started") == len(keys), "not one sweep each", d.counter("sweeps_started"))


def opened(d, *scenario):
    """[(problem, what its worker was told comes next)] of two problems that were wanted at once, as they were opened."""
    path = d.dir / "opens"
    with d.fake(*CLEAR, f"opens={path}", *scenario):
        d.wait_ready()
        code, told, _ = d.tunectl("want", key(64), key(128), "--as", "cpu")
        expect(code == 0 and told["queued"] == 2, "not both are queued", told)
        d.wait_answer(key(64))
        d.wait_answer(key(128))
        return [tuple(line.split(" ")) for line in path.read_text().splitlines()]


def test_a_worker_is_told_what_probably_comes_next(build):
    told = opened(Daemon(build))
    expect(told == [(key(64), key(128)), (key(128), "")], "not told", *told)
    # What it made ahead may be what it died of.
    told = opened(Daemon(build), "look.2=crash:11")
    expect(told[:2] == [(key(64), key(128)), (key(64), "")], "told again after a death", *told)


def test_wants_of_one_user_are_bounded(build):
    keys = [key(m, n) for n in (16, 32, 64, 128) for m in (1, 2, 4, 8, 16, 32, 64, 128)]
    with Daemon(build, limits={"want_per_uid": 10}).fake(*HELD) as d:
        d.wait_ready()
        code, told, _ = d.tunectl("want", *keys, "--as", "cpu")
        expect(code == 1, "a want that was refused in part", code)
        expect((told["total"], told["queued"], told["refused"]) == (32, 10, 22), "odd", told)
        expect(f"user {os.getuid()} has queued 10 problems" in told["detail"], "no reason", told)
        expect(d.status()["queued"] == 10, "more than the quota is queued", d.status()["queued"])
        # Who asks again for what waits already takes nothing.
        code, told, _ = d.tunectl("want", *keys[:10], "--as", "cpu")
        expect(code == 0 and told["queued"] == 10, "the same ones were refused", told)
        # Lookups that miss are wishes too, and are answered all the same.
        answer = d.lookup(keys[20])
        expect(answer["kind"] == "miss" and "has queued 10 problems" in answer["next"], "odd", answer)
        expect(d.status()["queued"] == 10, "a lookup goes round the quota", d.status()["queued"])
        # The quota is for users, not for admins.
        code, told, _ = d.tunectl("sweep", keys[20], "--as", "cpu")
        expect(code == 0 and told["queued"] == 1 and d.status()["queued"] == 11, "an admin was refused", told)


def want_as(uid, path, keys, results):
    os.setgid(uid)
    os.setuid(uid)
    try:
        reply = Client(path).hello().ask("want", {"keys": keys})
        results.put(reply.body)
    except OSError as e:
        results.put({"error": str(e)})


def test_a_quota_is_each_users_own(build):
    if os.getuid() != 0:
        raise Skip("only root can ask as other users")
    with Daemon(build, limits={"want_per_uid": 4}).fake(*HELD) as d:
        os.chmod(d.dir, 0o755)
        d.wait_ready()
        results = multiprocessing.Queue()
        for i, uid in enumerate((65533, 65534, 65533)):
            process = multiprocessing.Process(
                target=want_as, args=(uid, d.dir / "run/lookup.sock", [key(2**m, 32 << i) for m in range(6)], results))
            process.start()
            told = results.get(timeout=20)
            process.join(10)
            queued = (4, 4, 0)[i]
            expect(told.get("queued") == queued, f"user {uid} was to get {queued} of 6", told)
            expect(f"user {uid} has queued 4" in told["detail"], "not told whose quota it is", told)


def test_a_full_queue_keeps_what_is_wanted_most(build):
    keys = [key(2**m) for m in range(8)]
    with Daemon(build, sweep={"queue_max": 4}).fake(*HELD) as d:
        d.wait_ready()
        client = Client(d.dir / "run/lookup.sock").hello()
        client.lookup(keys[0])
        d.wait_for(lambda: any(r["phase"] == "opening" for r in d.status()["sweeps"]), 10, "the first to be swept")
        for problem in keys[1:4]:
            expect("queued" in client.lookup(problem)["next"], "there was room")
        for problem in keys[4:6]:
            answer = client.lookup(problem)
            expect(answer["kind"] == "miss" and answer["reason"] == "unseeded" and "full" in answer["next"],
                   "a full queue is not said", answer)
        client.lookup(keys[2])  # asked twice: wanted more than the others
        # A server's wish before its start goes before misses, and an admin's too.
        told = client.ask("want", {"keys": [keys[6]]}).body
        expect(told["queued"] == 1, "a want found no room", told)
        code, told, _ = d.tunectl("sweep", keys[7], "--as", "cpu")
        expect(code == 0 and told["queued"] == 1, "an admin found no room", told)
        rows = {r["key"]: r["why"] for r in d.status()["sweeps"]}
        expect(rows == {keys[0]: "demand", keys[2]: "demand", keys[6]: "start window", keys[7]: "admin"},
               "not what is wanted most", rows)
        expect([r["key"] for r in d.status()["sweeps"]] == [keys[0], keys[6], keys[7], keys[2]], "not in order of urgency")


def test_watch_says_how_much_was_lost(build):
    with Daemon(build).fake(*HELD) as d:
        d.wait_ready()
        client = Client(d.dir / "run/lookup.sock").hello()
        for n in range(3):
            told = client.ask("want", {"keys": [key(64, 8, 1 + 512 * n + i) for i in range(512)]}).body
            expect(told["queued"] == 512, "not taken", told)
        news = client.ask("watch", {"since": 0, "wait_ms": 0}).body
        code, shown, _ = d.tunectl("watch", "--since", "0", "--for", "0")
        expect(code == 0 and shown["lost"] == news["lost"] > 500, "not told what was lost", shown["lost"])
        expect(news["events"][0]["seq"] == news["lost"] + 1, "lost and told do not meet", news["events"][0], news["lost"])
        events, since = [], 0
        while (news := client.ask("watch", {"since": since, "wait_ms": 0}).body)["events"]:
            expect(len(news["events"]) <= 64 and (not since or news["lost"] == 0), "too many, or lost since", news["lost"])
            events += news["events"]
            since = news["next"]
        seqs = [e["seq"] for e in events]
        expect(seqs == list(range(seqs[0], seqs[0] + 1024)), "not the newest 1024 without a gap", seqs[0], len(seqs))
        expect(news["next"] == since == seqs[-1] and news["queued"] == 1536, "odd", news)
        # Numbers of an earlier daemon are none of ours: everything is news.
        news = client.ask("watch", {"since": 10**9, "wait_ms": 0}).body
        expect(news["events"][0]["seq"] == seqs[0], "not everything kept", news["events"][0])


def test_many_watchers_all_hear_and_one_too_many_is_told(build):
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        asker = Client(d.dir / "run/lookup.sock").hello()
        since = asker.ask("watch", {"since": 0, "wait_ms": 0}).body["next"]
        watchers = [Client(d.dir / "run/lookup.sock") for _ in range(32)]
        for watcher in watchers:
            for _ in range(8):
                watcher.put("watch", {"since": since, "wait_ms": 20000})
        d.wait_for(lambda: d.counter("watch_waiters") == 256, 10, "256 waiters")
        reply = asker.ask("watch", {"since": since, "wait_ms": 20000})
        expect(reply.status == "BUSY", "one too many was not told", reply)
        expect(asker.lookup(key(8))["kind"] == "miss", "lookups suffer")
        for watcher in watchers:
            for _ in range(8):
                frames = watcher.read()
                expect(b'"queued"' in frames[1], "no news", frames)
        expect(d.counter("watch_waiters") == 0, "waiters are left", d.counter("watch_waiters"))
        # Without news the wait ends when it was to.
        d.wait_answer(key(8))
        d.wait_for(lambda: d.status()["queued"] == 0, 10, "quiet")
        last = asker.ask("watch", {"wait_ms": 0}).body["next"]
        begun = time.monotonic()
        reply = asker.ask("watch", {"since": last, "wait_ms": 300})
        took = time.monotonic() - begun
        expect(reply.body["events"] == [] and 0.29 < took < 5, "the deadline was not kept", reply, took)


if __name__ == "__main__":
    run([test_eight_processes_ask_and_one_sweep_answers, test_a_storm_of_problems_is_swept_each_once,
         test_a_worker_is_told_what_probably_comes_next, test_wants_of_one_user_are_bounded, test_a_quota_is_each_users_own,
         test_a_full_queue_keeps_what_is_wanted_most, test_watch_says_how_much_was_lost,
         test_many_watchers_all_hear_and_one_too_many_is_told])
