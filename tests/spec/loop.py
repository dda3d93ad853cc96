#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loop a server sees: nobody knows the problem, the daemon sweeps it by itself, and from then on it answers,
with all the evidence and the very line it stands in.

usage: loop.py --build DIR [TEST...]
"""
import ctypes
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

from harness import Daemon, Skip, expect, key, run, slack
from wire import Client, Reply

MISS_MS = 200
TABLE_DEF = pathlib.Path(__file__).resolve().parents[2] / "proto/table.def"
CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
TIE = ("times=100,100,120,100.1", "jitter=0.002")


def evidence_fields():
    text = TABLE_DEF.read_text()
    text = text[text.index("#define ENTRY_FIELDS"):text.index("RECORD(entry,")]
    return set(re.findall(r"FIELD\(rec, \w+, (\w+),", text))


def line_of(path, number):
    """The entry that stands in that line, and nothing but it."""
    text = pathlib.Path(path).read_text().splitlines()[number - 1]
    return json.loads(text.rstrip(","))


def expect_evidence(answer, without=()):
    missing = evidence_fields() - {"prewarm", "note", "file_key", "file_value", *without} - answer.keys()
    expect(not missing, f"evidence is missing: {', '.join(sorted(missing))}", answer)
    expect({"layer", "file", "line"} <= answer.keys(), "it does not say where it stands", answer)


def natural(text):
    """The order of keys in files: numbers as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def without_place(answer):
    return {k: v for k, v in answer.items() if k not in ("kind", "layer", "file", "line")}


class Watch:
    """tunectl watch in the background."""

    def __init__(self, daemon, *args):
        self.replies = []
        self.process = subprocess.Popen([str(daemon.build / "client/tunectl"), "watch", "--json", *args],
                                        stdout=subprocess.PIPE, text=True, env=daemon.environment(),
                                        stdin=subprocess.DEVNULL)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.replies.append(json.loads(line))

    @property
    def events(self):
        return [event for reply in list(self.replies) for event in reply["events"]]

    def end(self):
        self.process.terminate()
        self.process.wait(10)
        self.thread.join(10)


def test_an_unseeded_problem_is_swept_by_itself(build):
    problem = key(64)
    with Daemon(build).fake(*CLEAR, "flush_ms=2") as d:
        d.wait_ready()
        watch = Watch(d, "--since", "0")
        d.wait_for(lambda: watch.events, 10, "the first event")  # it listens
        client = Client(d.dir / "run/lookup.sock").hello()
        begun = time.monotonic()
        miss = client.lookup(problem)
        took_ms = (time.monotonic() - begun) * 1e3
        expect(took_ms < MISS_MS * slack(build), f"the miss took {took_ms:.0f} ms")
        expect(miss["kind"] == "miss" and miss["reason"] == "unseeded", "not a miss for being unseeded", miss)
        expect(miss["key"] == problem and "swept" in miss["detail"] and "queued" in miss["next"], "says too little", miss)
        expect(miss["command"] == f"tunectl sweep '{problem}'", "not the command that cures it", miss)

        def is_sweeping():
            answer = client.lookup(problem)
            return answer if answer.get("reason") == "sweeping" else None

        sweeping = d.wait_for(is_sweeping, 20, "a miss that says it is being swept")
        expect("worker sweeps it now" in sweeping["next"], "does not say what happens", sweeping)
        row = d.wait_for(lambda: next((r for r in d.status()["sweeps"] if r["key"] == problem), None), 5, "its row")
        expect(row["worker"] == "cpu" and row["phase"] != "queued" and row["why"] == "demand" and row["sweep"],
               "status does not show the sweep", row)

        answer = d.wait_answer(problem)
        expect(answer["kind"] == "hit" and answer["tactic"] == {"id": 1}, "not the clear winner", answer)
        expect(answer["state"] == "confirmed" and answer["layer"] == "learned", "not ours", answer)
        expect(0.2 < answer["gain"] < 0.3 and answer["candidates"] == 6 and answer["rounds"] >= 16, "odd", answer)
        expect(answer["max_error"] <= answer["error_limit"] and answer["repeatable"] is True, "not checked", answer)
        expect_evidence(answer)

        d.wait_for(lambda: any(e["kind"] == "published" for e in watch.events), 10, "news of the publication")
        d.wait_for(lambda: any(e["text"].startswith("ended after") for e in watch.events), 10, "news of its end")
        watch.end()
        events = [e for e in watch.events if e.get("key") == problem]
        kinds = [e["kind"] for e in events]
        phases = [e["phase"] for e in events if "phase" in e]
        expect(kinds[0] == "queued" and "published" in kinds, "the story has no beginning or no end", *events)
        order = [p for i, p in enumerate(phases) if p not in phases[:i]]
        expect(order.index("looking") < order.index("checking") < order.index("racing") < order.index("publishing"),
               "phases out of order", order)
        rounds = [e["done"] for e in events if e.get("phase") == "racing"]
        expect(len(rounds) > 2 and rounds == sorted(rounds) and rounds[-1] <= 160, "no progress was seen", rounds)
        expect([e["seq"] for e in watch.events] == sorted({e["seq"] for e in watch.events}), "events out of order")
        expect(d.counter("sweeps_started") == 1, "more than one sweep", d.counter("sweeps_started"))


def test_nothing_better_is_default(build):
    with Daemon(build).fake(*TIE) as d:
        d.wait_ready()
        d.lookup(key(16))
        answer = d.wait_answer(key(16))
        expect(answer["kind"] == "default" and "tactic" not in answer, "not a default", answer)
        expect(answer["state"] == "confirmed" and answer["gain"] == 0 and answer["candidates"] == 4, "odd", answer)
        expect_evidence(answer, {"tactic", "name", "family"})
        code, _, _ = d.tunectl("lookup", key(16), "--as", "cpu")
        expect(code == 0, "a default is an answer", code)


def test_explain_names_file_and_line(build):
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        for m in (64, 16, 4, 128):  # not in the order in which they stand in the file
            d.lookup(key(m))
            d.wait_answer(key(m))
        path = next((d.dir / "state/tables").glob("*.json"))
        for m in (64, 16, 4, 128):
            told = d.tunectl("explain", key(m), "--as", "cpu")[1]
            answer = told["answer"]
            expect(answer["file"] == str(path), "another file", answer["file"], path)
            expect(line_of(path, answer["line"]) == without_place(answer), f"line {answer['line']} holds something else",
                   line_of(path, answer["line"]), answer)
            expect(answer == d.lookup(key(m)), "explain and lookup disagree", answer)
            expect(told["others"] == [] and told["deny"] == [] and "hit" in told["history"], "odd", told)

        # A site's table goes before ours; ours is named, with the reason why it is not served.
        lines = path.read_text().splitlines()
        ours = next(i for i, text in enumerate(lines) if ",m=16," in text)
        lines[ours] = lines[ours].replace('"tactic":{"id":1}', '"tactic":{"id":7}').replace('"confirmed"', '"imported"')
        (d.dir / "site/ours.json").write_text("\n".join(lines) + "\n")
        expect(d.tunectl("reload")[0] == 0, "the site's table was refused")
        told = d.tunectl("explain", key(16), "--as", "cpu")[1]
        answer = told["answer"]
        expect(answer["layer"] == "site" and answer["tactic"] == {"id": 7} and answer["line"] == ours + 1, "odd", answer)
        expect(line_of(d.dir / "site/ours.json", answer["line"]) == without_place(answer), "another line", answer)
        expect(len(told["others"]) == 1, "ours is not named", told["others"])
        other = told["others"][0]
        expect(other["layer"] == "learned" and other["state"] == "confirmed" and "hidden" in other["why"], "odd", other)
        expect(line_of(other["file"], other["line"])["tactic"] == other["tactic"] == {"id": 1}, "another line", other)


def test_explain_changes_nothing(build):
    """Who asks why gets the reason and no side effect: no miss is counted, nothing is queued."""
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        told = d.tunectl("explain", key(64), "--as", "cpu")[1]
        answer = told["answer"]
        expect(answer["kind"] == "miss" and answer["reason"] == "unseeded", "not the reason", answer)
        expect("not queued" in answer["next"] and "tunectl sweep" in answer["command"], "not what follows", answer)
        for name in ("misses_unseeded", "sweeps_started"):
            expect(d.counter(name) == 0, "explain counted", name, d.counter(name))
        expect(d.status()["sweeps"] == [], "explain queued", d.status()["sweeps"])
        d.lookup(key(64))
        d.wait_answer(key(64))
        expect(d.counter("sweeps_started") == 1, "the lookup did not queue", d.counter("sweeps_started"))


def test_waiting_ends_with_the_sweep(build):
    """--wait stays for what is swept, not for what pauses after others disturbed it, whoever queued that."""
    with Daemon(build).fake(*CLEAR, "run=foreign") as d:
        d.wait_ready()
        for m in (64, 16):
            code, _, _ = d.tunectl("sweep", key(m), "--as", "cpu", "--wait", timeout=20)
            expect(code != 0, "a disturbed sweep answers nothing", code)
        rows = d.status()["sweeps"]
        expect([row["phase"] for row in rows] == ["queued"] * 2, "they are tried again", rows)
        expect(all(590 < row["retry_s"] <= 600 for row in rows), "after a pause that status tells", rows)
        miss = d.lookup(key(16))
        expect(miss["kind"] == "miss" and miss["next"].startswith("tried again in "), "a miss says so", miss)
        expect("without an answer" in miss["detail"], "it was swept", miss)
        expect(miss["command"] == f"tunectl sweep '{key(16)}'", "the cure tries at once", miss)
        code, _, _ = d.tunectl("sweep", key(64), "--as", "cpu", "--wait", timeout=20)
        expect(code != 0 and d.counter("sweeps_contaminated") == 3, "an admin need not wait", d.counter("sweeps_contaminated"))


def test_waiting_is_for_ones_own(build):
    """What a server wanted, or a lookup has under way, is waited for as well; what others queued is not."""
    with Daemon(build).fake(*CLEAR, "sleep=1", "flush_ms=2") as d:
        d.wait_ready()
        d.tunectl("want", key(64), "--as", "cpu")
        code, _, _ = d.tunectl("sweep", key(64), "--as", "cpu", "--wait", timeout=30)
        expect(code == 0 and d.lookup(key(64))["kind"] == "hit", "it did not wait for what was wanted", code)
        d.lookup(key(16))
        d.wait_for(lambda: any(row["phase"] != "queued" for row in d.status()["sweeps"]), 10, "a sweep under way")
        code, _, _ = d.tunectl("sweep", key(16), "--as", "cpu", "--wait", "--force", timeout=30)
        expect(code == 0 and d.lookup(key(16))["kind"] == "hit", "it did not wait for a lookup's sweep", code)
        told = Client(d.dir / "run/control/sock").hello().ask("sweep", {"keys": [key(16), key(8)], "look": True}).body
        expect((told["total"], told["known"], told["queued"], told["refused"]) == (2, 1, 0, 0), "odd", told)
        expect(d.status()["queued"] == 0, "a look queued something", d.status()["sweeps"])
        d.tunectl("want", key(4), "--as", "cpu")
        d.tunectl("sweep", *(key(m, 128) for m in (1, 2, 4, 8, 16, 32)), "--as", "cpu")
        code, _, _ = d.tunectl("sweep", key(4), "--as", "cpu", "--wait", timeout=30)
        expect(code == 0 and d.status()["queued"] > 1, "it waited for what another queued", code, d.status()["sweeps"])


def test_waiting_tells_why_nothing_is_swept(build):
    with Daemon(build, sweep={"when": "idle"}).fake(*CLEAR) as d:
        d.wait_ready()
        load = [subprocess.Popen([sys.executable, "-c", "import os; os.nice(19)\nwhile True: pass"])
                for _ in range(os.cpu_count())]
        said = d.dir / "said"
        try:
            with open(said, "w") as out:
                waiting = subprocess.Popen([str(d.build / "client/tunectl"), "sweep", key(64), "--as", "cpu", "--wait"],
                                           stdout=out, env=d.environment(), stdin=subprocess.DEVNULL)
            try:
                d.wait_for(lambda: "nothing is swept now (idle: waits, others use" in said.read_text(), 20, "the reason")
                time.sleep(2)  # of a share that changes nothing is said again
                expect(said.read_text().count("nothing is swept now") == 1, "said again", said.read_text())
            finally:
                waiting.terminate()
                waiting.wait(10)
        finally:
            for process in load:
                process.kill()
                process.wait(10)


def test_loose_tokens_are_mapped(build):
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        d.lookup(key(32))
        swept = d.wait_answer(key(32))
        for m in (17, 31, 32):
            answer = d.lookup(key(m))
            expect(answer == swept, f"m={m} is not answered by its bucket", answer)
        for m, bucket in ((16, 16), (33, 64), (5, 8)):
            answer = d.lookup(key(m))
            expect(answer["kind"] == "miss" and answer["reason"] == "unseeded", f"m={m} is another bucket's", answer)
            answer = d.wait_answer(key(m))
            expect(answer["key"] == key(bucket), f"m={m} was swept at another bucket", answer["key"])
        # Dimensions in another order are the same problem.
        words = key(17).split(",")
        answer = d.lookup(",".join([words[0], *reversed(words[1:])]))
        expect(answer == d.lookup(key(17)) and answer["kind"] == "hit", "the order of dimensions matters", answer)
        swept = d.counter("sweeps_started")
        expect(swept == 4, "buckets 8, 16, 32 and 64 were to be swept, each once", swept)


RECIPE = {"format": 1, "model": "toy", "ladder": {"kind": "list", "values": [4, 16, 64], "round": "ceil", "above": "miss"},
          "layouts": [{"layout": "tp=1", "problems": [{"name": "up", "key": key("*", 128, 64)},
                                                      {"name": "down", "key": key("*", 64, 128), "buckets": [16]}]},
                      {"layout": "tp=2", "problems": [{"name": "up", "key": key("*", 64, 64)}]}]}
TOY = [key(4, 128, 64), key(16, 128, 64), key(64, 128, 64), key(16, 64, 128)]


def add_recipe(d):
    (d.dir / "packaged/recipes").mkdir()
    (d.dir / "packaged/recipes/toy.json").write_text(json.dumps(RECIPE))


def toy(build, *scenario):
    d = Daemon(build).fake(*(scenario or CLEAR))
    add_recipe(d)
    return d


def test_what_is_denied_wholly_is_not_swept(build):
    """No sweep could find what may be served, and its default would take the place of what was learned."""
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        d.tunectl("sweep", key(64), "--as", "cpu", "--wait")
        hit = d.lookup(key(64))
        _, told, _ = d.tunectl("deny", key(64), "null", "--reason", "a test")
        miss = d.lookup(key(64))
        expect(miss["reason"] == "denied" and miss["command"] == f"tunectl allow {told['id']}", "not the cure", miss)
        expect(told["id"] in miss["next"] and "node.json" in miss["next"], "which rule?", miss)
        expect(d.status()["queued"] == 0 and d.counter("sweeps_started") == 1, "it is swept", d.status()["sweeps"])
        d.tunectl("allow", told["id"])
        expect(hit["kind"] == "hit" and d.lookup(key(64)) == hit, "what was learned is gone", d.lookup(key(64)))
        # A rule of the site is taken back where it stands.
        rule = {"id": "x", "op": "matmul", "backend": "onednn", "tactic": None, "reason": "a test"}
        (d.dir / "site/deny").mkdir()
        (d.dir / "site/deny/all.json").write_text(json.dumps({"format": 1, "rules": [rule]}))
        expect(d.tunectl("reload")[0] == 0, "the rule was refused", d.status()["refused"])
        miss = d.lookup(key(64))
        expect("site/deny/all.json" in miss["next"] and "command" not in miss, "the cure cannot help", miss)
        _, _, err = d.tunectl("allow", "x")
        expect("site/deny/all.json" in err, "where does it stand?", err)


def test_what_is_pinned_is_not_swept(build):
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        d.tunectl("pin", key(64), '{"id":3}', "--as", "cpu")
        for _ in range(2):
            _, told, _ = d.tunectl("want", key(64), "--as", "cpu")
            expect((told["known"], told["queued"]) == (1, 0), "swept, though it would not be served", told)
        expect(d.tunectl("sweep", key(64), "--as", "cpu", "--force", "--wait")[0] == 0, "force does")
        expect(d.counter("sweeps_started") == 1, "odd", d.counter("sweeps_started"))


def test_a_reload_queues_a_new_recipe(build):
    with Daemon(build, options={"recipes": "toy"}).fake(*CLEAR) as d:
        d.wait_ready()
        add_recipe(d)
        expect(d.tunectl("reload")[0] == 0, "the recipe was refused")
        d.wait_for(lambda: d.counter("sweeps_hit") == 4, 20, "the recipe's sweeps")


def test_a_recipe_is_swept_to_its_own_file(build):
    with toy(build) as d:
        d.wait_ready()
        code, told, _ = d.tunectl("sweep", "--recipe", "toy", "--as", "cpu", "--wait", timeout=60)
        expect(code == 0, "not all were answered", told)
        expect((told["total"], told["known"], told["queued"], told["refused"]) == (4, 0, 4, 0), "odd", told)
        files = list((d.dir / "state/tables").glob("*.json"))
        expect([f.name for f in files] == ["toy,tp=1,device_name=cpu_fake,isa=avx2,threads=2,onednn=2.6.3.json"],
               "not the recipe's file", files)
        table = json.loads(files[0].read_text())
        expect(table["header"]["model"] == "toy" and table["header"]["layout"] == "tp=1", "odd", table["header"])
        expect(table["header"]["ladder"] == RECIPE["ladder"], "not the recipe's ladder", table["header"])
        expect([e["key"] for e in table["entries"]] == sorted(TOY, key=natural), "not the recipe's problems, sorted")
        expect(d.lookup(key(5, 128, 64))["key"] == TOY[1], "the recipe's ladder does not map 5 to 16")
        expect(d.lookup(key(65, 128, 64))["reason"] == "off_ladder", "65 lies beyond the ladder")
        code, told, _ = d.tunectl("sweep", "--recipe", "toy", "--as", "cpu", "--wait")
        expect(code == 0 and told["known"] == 4 and told["queued"] == 0, "known ones were queued again", told)
        expect(d.counter("sweeps_started") == 4, "not one sweep each", d.counter("sweeps_started"))
        code, told, _ = d.tunectl("want", "--recipe", "toy", "--layout", "tp=2", "--as", "cpu")
        expect(code == 0 and told["queued"] == 3, "the other layout is another table", told)
        d.wait_for(lambda: d.status()["queued"] == 0, 60, "the other layout")
        expect(len(list((d.dir / "state/tables").glob("toy,tp=2,*.json"))) == 1, "no file of its own")


def test_old_entries_are_swept_again(build):
    with Daemon(build, sweep={"revalidate": "yes"}).fake(*CLEAR) as d:
        d.wait_ready()
        d.lookup(key(64))
        date = d.wait_answer(key(64))["date"]
        expect(d.stop() == 0, "it did not stop")
        path = next((d.dir / "state/tables").glob("*.json"))
        path.write_text(path.read_text().replace(f'"date":"{date}"', '"date":"2026-01-01T00:00:00Z"'))
        d.start()
        d.wait_ready()
        expect(d.lookup(key(64))["date"] == "2026-01-01T00:00:00Z", "the date is not what the table says")
        d.wait_for(lambda: d.lookup(key(64))["date"] != "2026-01-01T00:00:00Z", 30, "another sweep")
        expect(d.counter("sweeps_started") == 1, "swept more than once", d.counter("sweeps_started"))


def test_a_recipe_that_grew_is_swept_for_what_is_missing(build):
    with toy(build) as d:
        d.wait_ready()
        d.tunectl("sweep", "--recipe", "toy", "--as", "cpu", "--wait", timeout=60)
        expect(d.lookup(key(100, 128, 64))["reason"] == "off_ladder", "100 lies beyond the ladder")
        grown = {**RECIPE, "ladder": {**RECIPE["ladder"], "values": [4, 16, 64, 128]}}
        (d.dir / "packaged/recipes/toy.json").write_text(json.dumps(grown))
        expect(d.tunectl("reload")[0] == 0, "the recipe was refused")
        code, told, _ = d.tunectl("sweep", "--recipe", "toy", "--as", "cpu", "--wait", timeout=60)
        expect(code == 0 and (told["total"], told["known"], told["queued"]) == (5, 4, 1), "not the missing one", told)
        answer = d.lookup(key(100, 128, 64))
        expect(answer["kind"] == "hit" and answer["key"] == key(128, 128, 64), "the new bucket is not reached", answer)
        expect(len(list((d.dir / "state/tables").glob("*.json"))) == 1, "a larger ladder is no new table")
        expect(d.counter("sweeps_started") == 5, "swept again", d.counter("sweeps_started"))


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("as_", ctypes.c_char_p),
                ("job", ctypes.c_char_p), ("timeout_ms", ctypes.c_uint), ("flags", ctypes.c_uint),
                ("log", ctypes.c_void_p), ("log_ctx", ctypes.c_void_p), ("state_dir", ctypes.c_char_p),
                ("site_dir", ctypes.c_char_p), ("packaged_dir", ctypes.c_char_p)]


class Row(ctypes.Structure):
    _fields_ = [("tactic", ctypes.c_char_p), ("kind", ctypes.c_uint32), ("index", ctypes.c_uint32)]


def library(build):
    path = pathlib.Path(build) / "client/libtactic.so"
    if not path.exists():
        raise Skip(f"{path} was not built")
    if slack(build) > 1:
        raise Skip("a library with sanitizers cannot be loaded by this interpreter")
    lib = ctypes.CDLL(str(path))
    lib.tactic_table_digest.restype = lib.tactic_last_error.restype = ctypes.c_char_p
    lib.tactic_table_text.restype = ctypes.c_void_p
    lib.tactic_table_find.restype = ctypes.POINTER(Row)
    lib.tactic_table_find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64]
    return lib


def fetch(lib, handle, wait_ms):
    """(digest, text, covered, total, table)"""
    table, size = ctypes.c_void_p(), ctypes.c_size_t()
    covered, total = ctypes.c_uint64(), ctypes.c_uint64()
    status = lib.tactic_table(handle, b"toy", None, ctypes.c_uint(wait_ms), ctypes.byref(table))
    expect(status == 0, "no table", lib.tactic_last_error(handle))
    text = ctypes.string_at(lib.tactic_table_text(table, ctypes.byref(size)), size.value)
    lib.tactic_table_coverage(table, ctypes.byref(covered), ctypes.byref(total))
    return lib.tactic_table_digest(table).decode(), text, covered.value, total.value, table


def test_a_server_fetches_the_table_it_wanted(build):
    lib = library(build)
    with toy(build, *CLEAR, "flush_ms=2") as d:
        d.wait_ready()
        options = Options(size=ctypes.sizeof(Options), socket=str(d.dir / "run/lookup.sock").encode(), as_=b"cpu",
                          timeout_ms=5000)
        handle = ctypes.c_void_p()
        expect(lib.tactic_open(ctypes.byref(options), ctypes.byref(handle)) == 0, "no handle")
        digest, text, covered, total, empty = fetch(lib, handle, 0)
        expect((covered, total) == (0, 4), "covered before anything was swept", covered, total)
        wanted = (ctypes.c_uint64 * 4)()
        status = lib.tactic_want(handle, b"toy", None, None, ctypes.c_size_t(0), ctypes.byref(wanted))
        expect(status == 0 and list(wanted) == [4, 0, 4, 0], "the want was not taken", status, list(wanted))
        # The daemon holds the answer back until the table is whole.
        digest, text, covered, total, table = fetch(lib, handle, 30000)
        expect((covered, total) == (4, 4), "not whole", covered, total)
        expect(hashlib.blake2b(text, digest_size=32).hexdigest() == digest, "the digest is of other bytes", digest)
        snapshot = json.loads(text)
        expect([e["key"] for e in snapshot["entries"]] == sorted(TOY, key=natural), "not the recipe's problems")
        for m, bucket in ((3, 4), (5, 16), (64, 64)):
            row = lib.tactic_table_find(table, key("*", 128, 64).encode(), m).contents
            expect(row.kind == 1 and json.loads(row.tactic) == {"id": 1}, f"m={m} is no hit in the snapshot", row.kind)
            entry = next(e for e in snapshot["entries"] if e["key"] == key(bucket, 128, 64))
            expect(entry["tactic"] == {"id": 1} and entry["state"] == "confirmed", "odd", entry)
        expect(lib.tactic_table_find(table, key("*", 128, 64).encode(), 65).contents.kind == 3, "65 is off the ladder")
        # The same answers are the same bytes, whoever asks; what changed since does not change them.
        expect(fetch(lib, handle, 0)[:2] == (digest, text), "a second fetch differs")
        d.restart()
        d.wait_ready()
        expect(fetch(lib, handle, 0)[:2] == (digest, text), "the snapshot changed with a restart")
        lib.tactic_table_free(empty)
        lib.tactic_table_free(table)
        lib.tactic_close(handle)


def test_who_waits_for_a_table_is_served_by_any_publication(build):
    """A sweep, or an admin who pins what was missing or allows what was denied."""
    tactic = {"id": 5}
    d = toy(build)
    d.sweep = {"when": "never"}
    d.write_config()
    with d:
        d.wait_ready()
        asker, admin = Client(d.dir / "run/lookup.sock").hello(), Client(d.dir / "run/control/sock").hello()

        def wait_while(change):
            asker.put("table", {"recipe": "toy", "wait_ms": 60000})
            d.wait_for(lambda: d.counter("watch_waiters") == 1, 10, "the waiter")
            change()
            reply = Reply(asker.read())
            expect(reply.status == "OK" and reply.body["covered"] == reply.body["total"] == 4, "not whole", reply)

        wait_while(lambda: [admin.ask("pin", {"key": problem, "tactic": tactic}) for problem in TOY])
        rule = {"id": "", "op": "matmul", "backend": "onednn", "tactic": tactic, "reason": "a test"}
        denied = admin.ask("deny", {"rule": rule}).body
        expect(denied["filtered"] == 4, "not denied", denied)
        wait_while(lambda: admin.ask("allow", {"id": denied["id"]}))


if __name__ == "__main__":
    run([test_an_unseeded_problem_is_swept_by_itself, test_nothing_better_is_default,
         test_explain_names_file_and_line, test_explain_changes_nothing, test_waiting_ends_with_the_sweep,
         test_waiting_is_for_ones_own, test_waiting_tells_why_nothing_is_swept, test_what_is_denied_wholly_is_not_swept, test_what_is_pinned_is_not_swept,
          test_a_reload_queues_a_new_recipe,
         test_loose_tokens_are_mapped, test_a_recipe_is_swept_to_its_own_file,
         test_old_entries_are_swept_again, test_a_recipe_that_grew_is_swept_for_what_is_missing,
         test_a_server_fetches_the_table_it_wanted, test_who_waits_for_a_table_is_served_by_any_publication])
