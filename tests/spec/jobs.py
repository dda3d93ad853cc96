#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One job, one answer: whoever asks in a job's name gets the same bytes, whatever happens to tables and daemon; who
may not have them is told why, by fact and rank.

usage: jobs.py --build DIR [TEST...]
"""
import contextlib
import ctypes
import hashlib
import json
import multiprocessing
import os
import signal
import time

from files import CLEAR, FACTS, HEADER, quiet, refusals, rule, table
from harness import Daemon, Skip, expect, key, run, slack
from loop import RECIPE, TOY, add_recipe, line_of, without_place
from wire import Client, Closed, Manager

RANKS = 64
CUDNN = key(16, 128, 64, "cudnn")
GPU = {"device": "GPU X", "sm_count": "132", "mig_profile": "none", "driver": "580.1", "cudnn": "91900"}
TICK_S = 0.5


def recipes(d):
    """toy, whose problems are oneDNN's, and both, which has one of cuDNN, too."""
    add_recipe(d)
    both = {**RECIPE, "model": "both", "layouts": [{"layout": "tp=1", "problems": [
        {"name": "up", "key": key("*", 128, 64), "buckets": [16]}, {"name": "mix", "key": key("*", 128, 64, "cudnn"), "buckets": [16]}]}]}
    (d.dir / "packaged/recipes/both.json").write_text(json.dumps(both))


def site(d, name, text):
    (d.dir / f"site/{name}.json").write_bytes(text)


def seeded(build, *keys, **more):
    """A daemon that only answers, with a site's table of these problems."""
    d = quiet(build, **more)
    recipes(d)
    site(d, "toy", table(*(keys or TOY), tactic='{"id":9}', header={**HEADER, "ladder": RECIPE["ladder"]}))
    return d


def asker(d, facts=FACTS, **more):
    return Client(d.dir / "run/lookup.sock", **more).hello(**facts)


def fetch(client, job, rank=0, recipe="toy", **more):
    """A rank's answer: the reply, whose bytes are those of its digest."""
    reply = client.ask("table", {"recipe": recipe, "job": job, "rank": rank, **more})
    if reply.status == "OK":
        digest = hashlib.blake2b(reply.attachment, digest_size=32).hexdigest()
        expect(reply.body["digest"] == digest, "other bytes than the digest's", reply)
    return reply


def look(client, job, problem):
    reply = client.ask("lookup", problem.encode(), job=job.encode())
    return {**reply.body, "kind": reply.kind} if reply.status == "OK" else {"status": reply.status, **reply.body}


def rows(d):
    return d.status().get("jobs", [])


def row(d, job):
    found = [r for r in rows(d) if r["job"] == job]
    expect(len(found) == 1, f"status does not list {job} once", rows(d))
    return found[0]


def warnings(d, words):
    return [line for line in d.log().splitlines() if " warning " in line and words in line]


def job_files(d):
    return sorted((d.dir / "state/jobs").glob("*.json"))


def snapshots(d):
    return sorted(p.name for p in (d.dir / "state/jobs/snapshots").glob("*"))


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@contextlib.contextmanager
def ticking(d):
    """The daemon of `d` under a manager that wants a sign of life each TICK_S."""
    manager = Manager(f"/tmp/manager-{os.getpid()}")
    d.env = manager.environment(watchdog_us=int(2e6 * TICK_S))
    try:
        with d:
            yield d
    finally:
        manager.close()
        os.unlink(manager.path)


# --- one answer ---

def be_a_rank(path, rank, ends, results):
    """Fetches and looks up until told to end, whatever happens to the daemon."""
    digests, answers, fetched, looked, client = set(), {}, 0, 0, None
    while not ends.is_set():
        try:
            client = client or Client(path).hello(**FACTS)
            reply = fetch(client, "llm", rank, wait_ms=300)
            if reply.status == "NEED_HELLO":
                client.hello(**FACTS)
                continue
            digests.add(reply.body["digest"] if reply.status == "OK" else str(reply))
            fetched += 1
            for problem in (TOY[0], key(9, 128, 64), TOY[3], TOY[2]):
                answer = look(client, "llm", problem)
                if answer.get("status") != "NEED_HELLO":
                    answers.setdefault(problem, set()).add(json.dumps(answer, sort_keys=True))
                    looked += 1
        except (OSError, Closed):  # it was killed; a server asks again
            client = None
            time.sleep(0.02)
        time.sleep(0.05)
    results.put((digests, answers, fetched, looked))


def test_64_processes_hold_one_snapshot(build):
    # What the job is tied to leaves one problem out, which is swept, pinned and denied later on.
    d = Daemon(build, sweep={"when": "never"}).fake(*CLEAR)
    recipes(d)
    site(d, "toy", table(*TOY[:2], TOY[3], tactic='{"id":9}', header={**HEADER, "ladder": RECIPE["ladder"]}))
    with d:
        d.wait_ready()
        ends, results = multiprocessing.Event(), multiprocessing.Queue()
        ranks = [multiprocessing.Process(target=be_a_rank, args=(d.dir / "run/lookup.sock", i, ends, results), daemon=True)
                 for i in range(RANKS)]
        for process in ranks:
            process.start()
        d.wait_for(lambda: rows(d) and len(rows(d)[0].get("ranks", [])) == RANKS, 30, "all ranks")
        for turn in range(2):
            site(d, "toy", table(*TOY, tactic=json.dumps({"id": 10 + turn}), header={**HEADER, "ladder": RECIPE["ladder"]}))
            expect(d.tunectl("reload")[0] == 0, "a reload was refused")
            expect(d.tunectl("pin", TOY[turn], '{"id":77}', "--as", "cpu")[0] == 0, "a pin was refused")
            expect(d.tunectl("deny", key("*", 128, 64), json.dumps({"id": 10 + turn}), "--reason", "a test")[0] == 0, "a rule")
            expect(d.lookup(TOY[turn])["tactic"] == {"id": 77}, "nothing changed for others")
            time.sleep(1)
            d.kill()
            d.start()
            d.wait_ready()
            time.sleep(1)
        d.sweep["when"] = "always"
        d.restart()
        d.wait_ready()
        expect(d.tunectl("sweep", key(64, 64, 64), TOY[2], "--as", "cpu", "--wait", "--force", timeout=60)[0] == 0, "not swept")
        ends.set()
        told = [results.get(timeout=30) for _ in ranks]
        for process in ranks:
            process.join(10)
        digests = set().union(*(t[0] for t in told))
        expect(len(digests) == 1, "not one answer", *digests)
        expect(all(t[2] > 10 and t[3] > 40 for t in told), "somebody hardly asked", [t[2:] for t in told])
        for problem in told[0][1]:
            answers = set().union(*(t[1].get(problem, set()) for t in told))
            expect(len(answers) == 1, f"not one answer for {problem}", *answers)
        print(f"  {sum(t[2] for t in told)} tables, {sum(t[3] for t in told)} lookups")
        late = fetch(asker(d), "llm", 99)
        expect({late.body["digest"]} == digests and (late.body["covered"], late.body["total"]) == (3, 4), "a late rank", late)
        missed = look(asker(d), "llm", TOY[2])
        expect(missed["reason"] == "not_in_snapshot" and missed["command"] == f"tunectl sweep '{TOY[2]}'", "odd", missed)
        expect(look(asker(d), "llm", TOY[0])["tactic"] == {"id": 9}, "not the snapshot's")
        told = row(d, "llm")
        expect(told["state"] == "ready" and told["ranks"] == [*range(RANKS), 99] and told["recipe"] == "toy", "odd", told)
        # Another job gets what is known now.
        other = fetch(asker(d), "llm2")
        expect(other.body["digest"] not in digests and other.body["covered"] == 4, "nothing had changed at all", other)


def test_who_comes_while_the_first_waits_shares_its_answer(build):
    d = Daemon(build, sweep={"when": "always"}).fake(*CLEAR, "flush_ms=2")
    recipes(d)
    with d:
        d.wait_ready()
        clients = [asker(d) for _ in range(8)]
        for i, client in enumerate(clients):
            client.put("table", {"recipe": "toy", "job": "a", "rank": i, "wait_ms": 50000})
        d.wait_for(lambda: d.counter("watch_waiters") == 8, 10, "eight that wait")
        expect(row(d, "a")["state"] == "forming" and look(asker(d), "a", TOY[0])["reason"] == "unknown_job", "odd")
        d.tunectl("sweep", "--recipe", "toy", "--as", "cpu")
        told = [json.loads(client.read()[1]) for client in clients]
        expect(all(t == told[0] and t["covered"] == t["total"] == 4 for t in told), "not one answer", *told)
        expect(d.counter("jobs_fixed") == 1 and d.counter("watch_waiters") == 0, "not one flight", d.counter("jobs_fixed"))
        # Nobody waits longer than he said: whose time is over first fixes it for all.
        site(d, "toy", b"{")
        slow, quick = asker(d), asker(d)
        slow.put("table", {"recipe": "both", "job": "b", "rank": 0, "wait_ms": 50000})
        d.wait_for(lambda: d.counter("watch_waiters") == 1, 10, "one that waits")
        begun = time.monotonic()
        reply = fetch(quick, "b", 1, "both", wait_ms=300)
        took = time.monotonic() - begun
        expect(0.29 < took < 5 and reply.body["covered"] == 1 and reply.body["total"] == 2, "not when it was to", reply, took)
        expect(json.loads(slow.read()[1]) == reply.body, "the first got another answer")


def test_what_a_job_is_tied_to(build):
    with seeded(build) as d:
        d.wait_ready()
        client = asker(d)
        first = fetch(client, "a", 3)
        expect(first.status == "OK" and fetch(client, "a", 4, layout="tp=1").bytes == first.bytes, "the same, spelt out", first)
        for more, words in (({"layout": "tp=2"}, "layout 'tp=1', not 'tp=2'"), ({"confirmed": True}, "all answers"),
                            ({"recipe": "both"}, "recipe 'toy', not 'both'")):
            reply = fetch(client, "a", 5, **more)
            expect(reply.status == "CONFLICT" and words in reply.body["sentence"] and "rank 3" in reply.body["sentence"],
                   f"let in with {more}", reply)
        expect(fetch(client, "b", recipe="none").status == "NOT_FOUND" and len(rows(d)) == 1, "a job of nothing")
        # The recipe goes: the job stays what it is, also for who names no layout.
        (d.dir / "packaged/recipes/toy.json").unlink()
        d.tunectl("reload")
        expect(fetch(client, "a", 6).bytes == first.bytes, "it went with its recipe", fetch(client, "a", 6))
        # The frame's job is as good as the field's; two of them are none.
        reply = client.ask("table", {"recipe": "toy", "rank": 7}, job=b"a")
        expect(reply.bytes == first.bytes and row(d, "a")["ranks"] == [3, 4, 6, 7], "not by the frame", reply, row(d, "a"))
        expect(client.ask("table", {"recipe": "toy", "job": "b"}, job=b"a").status == "BAD_FIELD", "two jobs at once")
        for name in (b"\xff", b"a\nb", b"a\0b"):
            expect(client.ask("table", {"recipe": "toy"}, job=name).status == "BAD_FIELD", "a name of any bytes", name)
        expect(fetch(client, "x" * 129).status == "BAD_FIELD" and fetch(client, "x" * 128, recipe="both").status == "OK", "lengths")
        expect(look(client, "x" * 128, key(16, 128, 64))["kind"] == "hit", "a long name does not do for lookups")
        answer = look(client, "never", TOY[0])
        expect(answer["reason"] == "unknown_job" and "fetch the job's table first" in answer["next"], "odd", answer)
        answer = look(client, "a", TOY[1])
        expect(answer["layer"] == "snapshot" and first.body["digest"] in answer["file"], "where?", answer)
        expect(line_of(answer["file"], answer["line"]) == without_place(answer), "not in that line", answer)


# --- ranks that differ ---

def test_ranks_of_other_facts_are_told(build):
    with seeded(build) as d:
        site(d, "gpu", table(CUDNN, header={**HEADER, "model": "both", "fingerprint": GPU, "ladder": RECIPE["ladder"]}))
        d.tunectl("reload")
        d.wait_ready()
        ours = {**FACTS, **GPU, "device": "cpu:fake"}
        theirs = {**ours, "cudnn": "92400"}
        one, other = asker(d, ours), asker(d, theirs)
        # Its entries do not call cuDNN: told, and given.
        first, second = fetch(one, "cpu", 0), fetch(other, "cpu", 1)
        wanted = [{"fact": "cudnn", "have": "91900", "want": "92400", "have_rank": 0, "rank": 1, "bears": False}]
        expect("differs" not in first.body and second.status == "OK", "not given", first, second)
        expect(second.body["differs"] == wanted and second.attachment == first.attachment, "not told", second)
        expect(fetch(other, "cpu", 1).body["differs"] == wanted, "told but once")
        expect(row(d, "cpu")["differs"] == wanted and row(d, "cpu")["state"] == "ready", "not in status", row(d, "cpu"))
        said = warnings(d, "job=cpu")
        expect(len(said) == 1 and "cudnn is 91900 on rank 0 and 92400 on rank 1" in said[0], "not one warning", *said)
        expect(look(other, "cpu", TOY[0]) == look(one, "cpu", TOY[0]), "lookups differ", look(other, "cpu", TOY[0]))
        expect(d.counter("jobs_conflicts") == 1, "not counted once", d.counter("jobs_conflicts"))

        # One that does.
        one.hello(**GPU)
        other.hello(**{**GPU, "cudnn": "92400"})
        first, second = fetch(one, "gpu", 4, "both"), fetch(other, "gpu", 6, "both")
        expect(first.status == "OK" and first.body["covered"] == 1, "odd", first)
        wanted = [{"fact": "cudnn", "have": "91900", "want": "92400", "have_rank": 4, "rank": 6, "bears": True}]
        expect(second.status == "CONFLICT" and second.attachment is None, "given a snapshot", second)
        expect(second.body["differs"] == wanted, "not by fact and rank", second)
        expect("cudnn is 91900 on rank 4 and 92400 on rank 6" in second.body["sentence"], "not in words", second)
        expect(row(d, "gpu")["differs"] == wanted and row(d, "gpu")["ranks"] == [4], "not in status", row(d, "gpu"))
        expect(len(warnings(d, "job=gpu")) == 1, "not one warning", *warnings(d, "job=gpu"))
        answer = look(other, "gpu", CUDNN)
        expect(answer["reason"] == "fingerprint_conflict" and "tactic" not in answer, "served", answer)
        expect([(r["fact"], r["have"], r["want"], r["have_rank"]) for r in answer["differs"]] == [("cudnn", "91900", "92400", 4)],
               "not which fact", answer)
        expect(look(one, "gpu", CUDNN)["kind"] == "hit", "the first rank suffers")
        # What a rank does not know is not the same either.
        other.hello(**{k: v for k, v in GPU.items() if k != "driver"})
        reply = fetch(other, "gpu", 7, "both")
        expect(reply.status == "CONFLICT" and reply.body["differs"][0]["want"] == "unknown", "unknown is no difference", reply)
        # And so it is after a restart, and to ranks that wait together.
        d.kill()
        d.start()
        other = asker(d, {**GPU, "cudnn": "92400"})
        expect(fetch(other, "gpu", 6, "both").body["differs"] == wanted, "forgotten with the daemon")
        one, other = asker(d, GPU), asker(d, {**GPU, "driver": "570"})
        one.put("table", {"recipe": "both", "job": "late", "rank": 0, "wait_ms": 300})
        d.wait_for(lambda: d.counter("watch_waiters") == 1, 10, "the first to wait")
        reply = fetch(other, "late", 1, "both", wait_ms=5000)
        expect(reply.status == "CONFLICT" and reply.body["differs"][0]["fact"] == "driver", "who waited is not told", reply)


class Options(ctypes.Structure):
    """struct tactic_options."""
    _fields_ = [("size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("as_section", ctypes.c_char_p), ("job", ctypes.c_char_p),
                ("timeout_ms", ctypes.c_uint), ("flags", ctypes.c_uint), ("log", ctypes.c_void_p), ("log_ctx", ctypes.c_void_p),
                ("state_dir", ctypes.c_char_p), ("site_dir", ctypes.c_char_p), ("packaged_dir", ctypes.c_char_p), ("keys_dir", ctypes.c_char_p),
                ("rank", ctypes.c_uint)]


class Tactic:
    """A rank that uses libtactic."""

    def __init__(self, d, job, rank, facts):
        self.lib = ctypes.CDLL(str(d.build / "client/libtactic.so"))
        for name in ("tactic_last_error", "tactic_table_digest", "tactic_table_warning"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        options = Options(size=ctypes.sizeof(Options), socket=str(d.dir / "run/lookup.sock").encode(), job=job.encode(),
                          timeout_ms=10000, rank=rank)
        self.handle = ctypes.c_void_p()
        expect(self.lib.tactic_open(ctypes.byref(options), ctypes.byref(self.handle)) == 0, "not opened")
        for fact, value in facts.items():
            self.lib.tactic_fingerprint_set(self.handle, fact.encode(), value.encode())

    def table(self, recipe):
        """(digest, warning), or the error and its sentence."""
        table = ctypes.c_void_p()
        error = self.lib.tactic_table(self.handle, recipe.encode(), None, 0, ctypes.byref(table))
        if error:
            return error, self.lib.tactic_last_error(self.handle).decode()
        told = self.lib.tactic_table_digest(table).decode(), self.lib.tactic_table_warning(table).decode()
        self.lib.tactic_table_free(table)
        return told


def test_a_server_in_c_agrees_with_the_others(build):
    if slack(build) != 1:
        raise Skip("a library with a sanitizer cannot be loaded into Python")
    with seeded(build) as d:
        d.wait_ready()
        facts = {**FACTS, "cudnn": "1"}
        digest = fetch(asker(d, facts), "c", 0).body["digest"]
        expect(Tactic(d, "c", 1, facts).table("toy") == (digest, ""), "another one", Tactic(d, "c", 1, facts).table("toy"))
        told = Tactic(d, "c", 2, {**FACTS, "cudnn": "2"}).table("toy")
        expect(told == (digest, "cudnn is 1 on rank 0 and 2 here"), "not warned", told)
        told = Tactic(d, "c", 3, {**facts, "threads": "8"}).table("toy")
        expect(told[0] == 8 and "threads is 2 on rank 0 and 8 on rank 3" in told[1], "not refused", told)
        expect(row(d, "c")["ranks"] == [0, 1, 2], "odd", row(d, "c"))


# --- revoked ---

def test_a_rule_revokes_and_a_denied_tactic_is_never_served(build):
    d = seeded(build, TOY[0], TOY[3])
    site(d, "other", table(TOY[1], tactic='{"id":5}', header={**HEADER, "layout": "x", "ladder": RECIPE["ladder"]}))
    with d:
        d.wait_ready()
        client = asker(d)
        first = fetch(client, "a", 0)
        fetch(client, "b", 0, "both")
        expect(first.body["covered"] == 3 and look(client, "a", TOY[1])["tactic"] == {"id": 5}, "odd", first)
        since = client.ask("watch", {"wait_ms": 0}).body["next"]
        # A rule that hits none of its entries is nothing to it.
        d.tunectl("deny", key("*", 128, 64), '{"id":6}', "--reason", "a test")
        expect(fetch(client, "a", 1).bytes == first.bytes, "revoked for nothing")
        _, told, _ = d.tunectl("deny", key("*", 128, 64), '{"id":9}', "--reason", "wrong results")
        file = str(d.dir / "state/deny/node.json")

        def expect_revoked(when):
            reply = fetch(client, "a", 2)
            sentence = reply.body["sentence"]
            expect(reply.status == "REVOKED" and told["id"] in sentence and file in sentence and "new name" in sentence,
                   f"not refused {when}", reply)
            expect(row(d, "a")["state"] == "revoked" and told["id"] in row(d, "a")["revoked"], f"not in status {when}", row(d, "a"))
            answer = look(client, "a", TOY[0])
            expect(answer["kind"] == "miss" and answer["reason"] == "denied" and told["id"] in answer["next"], f"served {when}", answer)
            expect(look(client, "a", TOY[1])["tactic"] == {"id": 5}, f"what is not denied is gone {when}", look(client, "a", TOY[1]))
        expect_revoked("at once")
        events = [e for e in client.ask("watch", {"since": since, "wait_ms": 0}).body["events"] if e["kind"] == "revoked"]
        expect(len(events) == 1 and "job a" in events[0]["text"] and told["id"] in events[0]["text"], "no news of it", *events)
        said = warnings(d, "job revoked")
        expect(len(said) == 1 and "job=a" in said[0] and told["id"] in said[0] and "wrong results" in said[0], "not one warning", *said)
        expect(d.counter("jobs_revoked") == 1, "not counted", d.counter("jobs_revoked"))
        expect(fetch(client, "b", 1, "both").status == "OK" and row(d, "b")["state"] == "ready", "another job suffers", row(d, "b"))
        d.wait_for(lambda: "revoked" in json.loads(job_files(d)[0].read_text()), 10, "it to be on disk")
        d.kill()
        d.start()
        d.wait_ready()
        client = asker(d)
        expect_revoked("after a crash")
        # The rule goes: its entries answer again, but who starts now would not agree with who started then.
        expect(d.tunectl("allow", told["id"])[0] == 0, "not allowed")
        d.restart()
        d.wait_ready()
        client = asker(d)
        expect(fetch(client, "a", 3).status == "REVOKED", "made good again", fetch(client, "a", 3))
        # A rule that came while the daemon was away counts, too.
        (d.dir / "site/deny").mkdir()
        (d.dir / "site/deny/one.json").write_text(json.dumps({"format": 1, "rules": [rule('{"id":5}')]}))
        d.restart()
        d.wait_ready()
        client = asker(d)
        expect(row(d, "b")["state"] == "revoked" and "site/deny/one.json" in row(d, "b")["revoked"], "overlooked", row(d, "b"))
        fresh = fetch(client, "a2", 0)
        expect(fresh.status == "OK" and fresh.body["covered"] == 2, "a new name does not help", fresh)


def test_rules_that_cannot_be_read_deny_jobs_for_so_long(build):
    d = seeded(build)
    with d:
        d.wait_ready()
        first = fetch(asker(d), "a")
        (d.dir / "site/deny").mkdir()
        (d.dir / "site/deny/x.json").write_text("{")
        d.restart()
        d.wait_ready()
        client = asker(d)
        reply = fetch(client, "a", 1)
        expect(reply.status == "FAILED" and "rules cannot be read" in reply.body["sentence"], "served blindly", reply)
        expect(look(client, "a", TOY[0])["reason"] == "denied", "served blindly", look(client, "a", TOY[0]))
        expect(fetch(client, "new").status == "FAILED" and len(rows(d)) == 1, "tied to nothing", rows(d))
        (d.dir / "site/deny/x.json").unlink()
        d.tunectl("reload")
        expect(fetch(client, "a", 1).bytes == first.bytes, "not mended with it", fetch(client, "a", 1))
        expect(look(client, "a", TOY[0])["kind"] == "hit" and row(d, "a")["state"] == "ready", "odd", row(d, "a"))


# --- its end ---

def ask_and_stay(path, job, told, ends):
    told.put(fetch(Client(path).hello(**FACTS), job, 5).body["digest"])
    ends.wait()


def test_a_job_ends_a_day_after_the_last_ask_unless_a_process_lives(build):
    with ticking(seeded(build)) as d:
        d.wait_ready()
        told, ends = multiprocessing.Queue(), multiprocessing.Event()
        child = multiprocessing.Process(target=ask_and_stay, args=(d.dir / "run/lookup.sock", "a", told, ends), daemon=True)
        child.start()
        digest = told.get(timeout=20)
        fetched = fetch(asker(d), "other")
        expect(fetched.body["digest"] == digest and snapshots(d) == [f"{digest}.json"], "one snapshot for both", snapshots(d))
        path = next(p for p in job_files(d) if p.name.startswith("a,"))

        def age(seconds):
            """As if it had been asked for so long ago, and the daemon killed since."""
            d.kill()
            edit(path, asked=int(time.time()) - seconds)
            d.start()
            d.wait_ready()
            time.sleep(3 * TICK_S)
        d.wait_for(lambda: "pid" in json.loads(path.read_text())["askers"][0], 10, "the asker to be on disk")
        age(86400 + 700)
        expect(row(d, "a")["state"] == "ready" and row(d, "a")["asked_s"] > 86400, "gone though its process lives", rows(d))
        ends.set()
        child.join(10)
        d.wait_for(lambda: [r["job"] for r in rows(d)] == ["other"], 10, "it to end with its process")
        d.wait_for(lambda: not path.exists(), 10, "its file to go")
        expect(snapshots(d) == [f"{digest}.json"] and d.counter("jobs_ended") == 1, "the other's went with it", snapshots(d))
        expect(look(asker(d), "a", TOY[0])["reason"] == "unknown_job", "it answers still")
        # Nobody of it lives, but the day is not over; then it is.
        path = job_files(d)[0]
        edit(path, boot="another boot")
        age(86000)
        expect(row(d, "other")["state"] == "ready", "gone before its day was over", rows(d))
        edit(path, boot="another boot")
        age(86400 + 700)
        expect(rows(d) == [] and snapshots(d) == [] and job_files(d) == [], "something is left", snapshots(d))
        # Its name is free.
        site(d, "toy", table(TOY[0], tactic='{"id":1}', header={**HEADER, "ladder": RECIPE["ladder"]}))
        d.tunectl("reload")
        expect(fetch(asker(d), "other").body["covered"] == 1, "the name is not free", rows(d))


# --- files ---

def test_broken_files_block_their_names(build):
    d = seeded(build, limits={"jobs_per_uid": 100})
    names = ("torn", "empty", "other", "flipped", "gone", "short", "good")
    with d:
        d.wait_ready()
        client = asker(d)
        before = {name: fetch(client, name).body["digest"] for name in names if name in ("torn", "empty", "other")}
        # Each of the others has a snapshot of its own.
        for i, name in enumerate(names[3:]):
            site(d, "toy", table(*TOY, tactic=json.dumps({"id": 20 + i}), header={**HEADER, "ladder": RECIPE["ladder"]}))
            d.tunectl("reload")
            before[name] = fetch(client, name).body["digest"]
        expect(len(set(before.values())) == 5, "not told apart", before)
        d.kill()
        path = {name: next(p for p in job_files(d) if p.name.startswith(f"{name},")) for name in names}
        shot = {name: d.dir / f"state/jobs/snapshots/{before[name]}.json" for name in names}
        path["torn"].write_bytes(path["torn"].read_bytes()[:100])
        path["empty"].write_bytes(b"")
        edit(path["other"], job="somebody else")
        shot["flipped"].write_bytes(shot["flipped"].read_bytes().replace(b'"id": 20', b'"id": 29', 1))
        shot["gone"].unlink()
        shot["short"].write_bytes(shot["short"].read_bytes()[:50])
        d.start()
        d.wait_ready()

        def expect_blocked(when):
            client = asker(d)
            refused = refusals(d)
            for name in names[:3]:
                expect(str(path[name]) in refused, f"{name} is not named {when}", refused)
            for name, words in (("flipped", "not those that its digest names"), ("gone", "No such file"), ("short", "digest")):
                expect(words in refused.get(str(shot[name]), ""), f"{name} is not named {when}", refused)
                expect(row(d, name)["state"] == "revoked" and str(shot[name]) in row(d, name)["revoked"], "odd", row(d, name))
            for name in names[:-1]:
                reply = fetch(client, name, 1)
                expect(reply.status == "REVOKED" and "cannot be read" in reply.body["sentence"], f"{name} was made again {when}", reply)
                expect(look(client, name, TOY[0])["reason"] == "revoked", f"{name} is served {when}", look(client, name, TOY[0]))
            expect(fetch(client, "good", 1).body["digest"] == before["good"], f"the good one suffers {when}")
            expect(len(warnings(d, "the job is revoked")) > 0, "not in the log")
        expect(len(refusals(d)) == 6, "others are refused", refusals(d))
        expect_blocked("at start")
        d.restart()
        d.wait_ready()
        expect_blocked("after another start")
        # A snapshot that comes back does not make good what was told meanwhile.
        d.stop()
        shot["flipped"].write_bytes(shot["flipped"].read_bytes().replace(b'"id": 29', b'"id": 20', 1))
        d.start()
        d.wait_ready()
        expect(fetch(asker(d), "flipped").status == "REVOKED", "revoked for a while only")
        # Nobody knows which jobs there are: none can begin.
        d.stop()
        (d.dir / "state/jobs").chmod(0o300)
        d.start()
        d.wait_ready()
        reply = fetch(asker(d), "new")
        (d.dir / "state/jobs").chmod(0o755)
        expect(reply.status == "FAILED" and "state/jobs" in reply.body["sentence"], "a job began blindly", reply)
        expect(str(d.dir / "state/jobs") in refusals(d), "not named", refusals(d))


def test_what_cannot_be_written_is_not_told(build):
    with ticking(seeded(build)) as d:
        d.wait_ready()
        client = asker(d)
        (d.dir / "state/jobs").write_text("in the way")
        reply = fetch(client, "a")
        expect(reply.status == "FAILED" and "cannot be kept" in reply.body["sentence"], "told, and not on disk", reply)
        expect(rows(d) == [] and d.counter("saves_failed") == 1, "it is known", rows(d))
        (d.dir / "state/jobs").unlink()
        first = fetch(client, "a")
        expect(first.status == "OK", "it is not tried again", first)
        # A revocation that cannot be written holds, and is written when it can be.
        (d.dir / "state/jobs").rename(d.dir / "state/away")
        (d.dir / "state/jobs").write_text("in the way")
        _, told, _ = d.tunectl("deny", key("*", 128, 64), '{"id":9}', "--reason", "a test")
        expect(fetch(client, "a", 1).status == "REVOKED", "forgotten", told)
        d.wait_for(lambda: d.counter("saves_failed") >= 2, 10, "it to be tried")
        (d.dir / "state/jobs").unlink()
        (d.dir / "state/away").rename(d.dir / "state/jobs")
        d.wait_for(lambda: "revoked" in json.loads(job_files(d)[0].read_text()), 10, "it to be written after all")
        d.kill()
        # What a crash leaves between snapshot and job goes at the next start.
        (d.dir / "state/jobs/snapshots/stray.json").write_text("{}")
        d.start()
        expect(snapshots(d) == [f"{first.body['digest']}.json"], "an orphan stays", snapshots(d))


def test_a_kill_at_any_instant_tells_nobody_two_things(build):
    d = seeded(build)
    with d:
        d.wait_ready()
        for turn in range(12):
            name = f"job{turn}"
            site(d, "toy", table(*TOY, tactic=json.dumps({"id": 100 + turn}), header={**HEADER, "ladder": RECIPE["ladder"]}))
            d.tunectl("reload")
            client = asker(d)
            client.put("table", {"recipe": "toy", "job": name, "rank": 0})
            time.sleep(turn * 0.0007)
            d.process.send_signal(signal.SIGKILL)
            try:
                told = json.loads(client.read()[1])["digest"]
            except (OSError, Closed):
                told = None
            d.process.wait(20)
            d.start()
            site(d, "toy", table(*TOY, tactic=json.dumps({"id": 200 + turn}), header={**HEADER, "ladder": RECIPE["ladder"]}))
            d.tunectl("reload")
            again = fetch(asker(d), name, 1)
            expect(again.status == "OK" and told in (None, again.body["digest"]), "two answers", told, again)
        expect(refusals(d) == {}, "half a file", refusals(d))


# --- bounds ---

def test_jobs_are_bounded_and_the_bound_is_said(build):
    d = seeded(build, limits={"jobs_per_uid": 3})
    with d:
        d.wait_ready()
        client = asker(d)
        first = [fetch(client, name).bytes for name in "abc"]
        reply = fetch(client, "d")
        expect(reply.status == "QUOTA" and "has 3 jobs" in reply.body["sentence"], "one too many", reply)
        d.restart()
        d.wait_ready()
        client = asker(d)
        expect(fetch(client, "d").status == "QUOTA", "counted anew after a start")
        expect([fetch(client, name).bytes for name in "abc"] == first, "one that lives was given up", rows(d))
        expect(d.counter("jobs") == 3, "not counted", d.counter("jobs"))


def test_many_wait_and_one_connection_cannot_take_all_the_room(build):
    d = seeded(build, TOY[0])
    with d:
        d.wait_ready()
        client = asker(d)
        for i in range(9):
            client.put("table", {"recipe": "toy", "job": "a", "rank": i, "wait_ms": 3000})
        frames = client.read()
        expect(b"of this connection" in frames[1], "the ninth waits", frames)
        others = [asker(d) for _ in range(300)]
        for i, other in enumerate(others):
            other.put("table", {"recipe": "toy", "job": "a", "rank": 100 + i, "wait_ms": 3000})
        told = {other.read()[1] for other in others} | {client.read()[1] for _ in range(8)}
        expect(len(told) == 1 and json.loads(told.pop())["covered"] == 1, "not one answer for all", *told)
        expect(len(row(d, "a")["ranks"]) == 308 and d.counter("loop_lag_us") < 200000 * slack(build), "odd", row(d, "a"))


def test_many_jobs_of_a_large_recipe_leave_the_loop_its_turns(build):
    """Snapshots are made and sent one by one, however many are due at once."""
    buckets = [1, 2, 4, 8, 16, 32, 64, 128]
    widths = [64 + 16 * i for i in range(256)]
    ladder = {"kind": "list", "values": buckets, "above": "clamp"}
    problems = [{"name": f"p{n}", "key": key("*", 128, n), "buckets": buckets} for n in widths]
    big = {**RECIPE, "model": "big", "ladder": ladder, "layouts": [{"layout": "tp=1", "problems": problems}]}
    keys = sorted(key(m, 128, n) for n in widths for m in buckets)[1:]  # one is missing: all wait
    d = quiet(build)
    add_recipe(d)
    (d.dir / "packaged/recipes/big.json").write_text(json.dumps(big))
    site(d, "big", table(*keys, tactic='{"id":9}', header={**HEADER, "model": "big", "ladder": ladder}))
    with d:
        clients = [asker(d) for _ in range(40)]
        expect(clients[0].ask("table", {"recipe": "big"}).body["covered"] == len(keys), "the table does not answer")
        one = d.counter("loop_lag_us")
        for i, client in enumerate(clients):
            client.put("table", {"recipe": "big", "job": f"job {i}", "rank": 0, "wait_ms": 500})
        told = {json.loads(client.read()[1])["digest"] for client in clients}
        for i, client in enumerate(clients):
            client.put("table", {"recipe": "big", "job": "all", "rank": i, "wait_ms": 500})
        told |= {json.loads(client.read()[1])["digest"] for client in clients}
        expect(len(told) == 1, "not one answer", told)
        expect(d.counter("loop_lag_us") < max(4 * one, 30000), "they were made in one turn", one, d.counter("loop_lag_us"))


if __name__ == "__main__":
    run([test_64_processes_hold_one_snapshot, test_who_comes_while_the_first_waits_shares_its_answer,
         test_what_a_job_is_tied_to, test_ranks_of_other_facts_are_told, test_a_server_in_c_agrees_with_the_others,
         test_a_rule_revokes_and_a_denied_tactic_is_never_served, test_rules_that_cannot_be_read_deny_jobs_for_so_long,
         test_a_job_ends_a_day_after_the_last_ask_unless_a_process_lives, test_broken_files_block_their_names,
         test_what_cannot_be_written_is_not_told, test_a_kill_at_any_instant_tells_nobody_two_things,
         test_jobs_are_bounded_and_the_bound_is_said, test_many_wait_and_one_connection_cannot_take_all_the_room,
         test_many_jobs_of_a_large_recipe_leave_the_loop_its_turns])
