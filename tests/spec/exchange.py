#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's tables in, out, and never stale in silence.

usage: exchange.py --build DIR [TEST...]
"""
import json
import os
import pathlib
import subprocess

import lookalike as la
from harness import Daemon, expect, run
from wire import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGED = ROOT / "tables"
B300 = {"device": "NVIDIA B300 SXM6 AC", "flashinfer": "0.6.16", "cuda": "13.0", "cublas": "13.1.0",
        "cudnn": "91900", "cudnn_frontend": "1.26.0"}


class Node(Daemon):
    """A daemon with the packaged recipes, and tunectl as people type it."""

    def __init__(self, build, **more):
        super().__init__(build, packaged=PACKAGED, **more)
        self.files = self.dir / "files"
        self.files.mkdir()

    def write(self, name, text):
        path = self.files / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def say(self, *args, timeout=60):
        """(exit code, stdout, stderr) of tunectl without --json."""
        env = {**self.environment(), "TACTICD_RECIPES": str(PACKAGED / "recipes")}
        done = subprocess.run([str(self.build / "client/tunectl"), *args], capture_output=True, env=env, timeout=timeout,
                              stdin=subprocess.DEVNULL, check=False)
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def take(self, *args, timeout=60):
        code, out, err = self.say(*args, timeout=timeout)
        expect(code == 0, f"tunectl {args} ended with {code}", out, err)
        return out

    def client(self, **facts):
        return Client(self.dir / "run/lookup.sock").hello(**facts)

    def learned(self):
        return {p.name: p.read_bytes() for p in (self.dir / "state/tables").glob("*")}


def bucket_of(tokens, last=8192):
    return next((b for b in la.BUCKETS if b >= tokens and b <= last), last)


def expect_hit(answer, tactic, tokens):
    expect(answer["kind"] == "hit" and answer["tactic"] == tactic, f"{tokens} tokens", answer, tactic)


def test_each_packaged_layout_answers_its_own_tactics(build):
    with Node(build) as d, d.client(**B300) as c:
        served = {}
        for layout in la.LAYOUTS:
            table = next(PACKAGED.glob(f"NVIDIA_B300_SXM6_AC/kimi-k3,{layout},*cudnn=91900.json"))
            entries = [json.loads(line.rstrip(",")) for line in table.read_text().splitlines()[1:-1]]
            expect(len(entries) == 21, "not 21 buckets", table)
            for entry, tokens in zip(entries, la.BUCKETS):
                answer = c.lookup(la.problem(tokens, layout))
                expect_hit(answer, entry["tactic"], tokens)
                expect(answer["state"] == "imported" and answer["layer"] == "packaged" and table.name in answer["file"],
                       "another place", answer)
                served[layout, tokens] = entry["tactic"]
        same = [n for n in la.BUCKETS if served["ep=8,tp=1", n] == served["ep=1,tp=8", n]]
        expect(not same, "layouts share tactics", same)
        # Every number of tokens goes to its bucket; beyond the last one FlashInfer clamps.
        for tokens in (*range(1, 8200, 7), 8191, 8192, 8193, 20000):
            answer = c.lookup(la.problem(tokens, "ep=8,tp=1"))
            expect_hit(answer, served["ep=8,tp=1", bucket_of(tokens)], tokens)
        # Deferred finalize was not swept: another problem, and nobody guesses.
        answer = c.lookup(la.problem(16, "ep=8,tp=1", "deferred"))
        expect(answer["kind"] == "miss" and answer["reason"] in ("unseeded", "unsweepable"), "not a miss", answer)
        code, told, _ = d.tunectl("lookup", la.problem(16, "ep=8,tp=1"))
        expect(code == 1 and told["kind"] == "miss", "another environment is served", told)


def test_import_serves_and_export_gives_the_bytes_back(build):
    with Node(build) as d:
        meta = la.metadata()
        for salt, layout in enumerate(la.LAYOUTS):
            text = la.cache(meta, salt=salt)
            d.take("import", d.write(la.name(layout, meta), text))
            with d.client(**la.facts_of(meta)) as c:
                for tokens in la.BUCKETS:
                    answer = c.lookup(la.problem(tokens, layout))
                    expect_hit(answer, la.tactic(tokens, salt), tokens)
                expect(answer["state"] == "imported" and answer["layer"] == "learned", "another state", answer)
            out = d.take("export", answer["file"])
            expect(out == text, "not the same bytes", out[:400])
        # The same file again replaces its table; both layouts keep their own.
        first = d.learned()
        d.take("import", d.write(la.name("ep=8,tp=1", meta), la.cache(meta, salt=5)))
        second = d.learned()
        expect(set(first) == set(second) and sum(first[n] != second[n] for n in first) == 1, "not one replaced",
               *first, *second)
        # Restart: it is on disk.
        d.restart()
        with d.client(**la.facts_of(meta)) as c:
            expect_hit(c.lookup(la.problem(64, "ep=8,tp=1")), la.tactic(64, 5), 64)
            expect_hit(c.lookup(la.problem(64, "ep=1,tp=8")), la.tactic(64, 1), 64)
            answer = c.ask("lookup", la.problem(64, "ep=1,tp=8").encode())
            expect(answer.status == "OK", "no answer", answer)


def test_a_layout_that_nobody_says_is_asked_for(build):
    with Node(build) as d:
        bare = d.write("autotune_configs.json", la.cache())
        code, out, err = d.say("import", bare)
        expect(code == 2 and not out and "local_experts" in err and "not guessed" in err, "no question", code, out, err)
        code, out, err = d.say("import", "--recipe", "kimi-k3", bare)
        expect(code == 2 and "--layout ep=8,tp=1 | --layout ep=1,tp=8" in err, "the layouts are not named", code, err)
        code, _, err = d.say("import", "--recipe", "kimi-k3", "--layout", "ep=4,tp=2", bare)
        expect(code == 2 and "no layout ep=4,tp=2" in err, "a layout that is none", code, err)
        # A name is bytes from outside, too.
        code, _, err = d.say("import", d.write("m," + "a" * 110 + "," + "b" * 90 + ",device_name=x.json", la.cache()))
        expect(code == 2, "a long name", code, err)
        named = d.write(la.name("ep=8,tp=1", la.metadata()), la.cache())
        code, _, err = d.say("import", "--layout", "ep=1,tp=8", named)
        expect(code == 2 and "ep=8,tp=1" in err and "ep=1,tp=8" in err, "name and option disagree", code, err)
        expect(not d.learned(), "something was imported", *d.learned())
        d.take("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", bare)
        # Old naming has no cuDNN version; a name that lies is told, and the header rules.
        meta = la.metadata(flashinfer_version="0.6.16.dev20260730")
        d.take("import", d.write(la.name("ep=8,tp=1", meta, cudnn=False), la.cache(meta)))
        code, _, err = d.say("import", d.write(la.name("ep=1,tp=8", la.metadata()), la.cache(meta)))
        expect(code == 0 and "the header rules" in err, "nothing is said of the name", code, err)
        with d.client(**la.facts_of(la.metadata())) as c:
            answer = c.lookup(la.problem(16, "ep=1,tp=8"))
            expect(answer["kind"] == "miss" and answer["reason"] == "stale", "the name was believed", answer)


def test_the_drill_of_the_seed(build):
    """Tables of 0.6.16.dev20260730; a server asks with 0.6.16."""
    old = la.metadata(flashinfer_version="0.6.16.dev20260730")
    new = la.metadata()
    with Node(build) as d:
        for salt, layout in enumerate(la.LAYOUTS):
            d.take("import", d.write(la.name(layout, old, cudnn=False), la.cache(old, salt=salt)))
        with d.client(**la.facts_of(new)) as c:
            for _ in range(3):
                for tokens in la.BUCKETS:
                    answer = c.lookup(la.problem(tokens, "ep=8,tp=1"))
                    expect(answer["kind"] == "miss" and answer["reason"] == "stale", "not stale", answer)
            differs = [(row["fact"], row["have"], row["want"]) for row in answer["differs"]]
            expect(differs == [("flashinfer", "0.6.16.dev20260730", "0.6.16")], "not the one fact", differs)
            expect("ep=8,tp=1" in answer["orphan"] and "command" in answer, "orphan or cure missing", answer)
        warnings = [line for line in d.log().splitlines() if " warning stale table" in line]
        expect(len(warnings) == 1 and answer["orphan"] in warnings[0] and "have=0.6.16.dev20260730 want=0.6.16" in
               warnings[0] and "tunectl sweep" in warnings[0], "not one warning that says it all", *warnings)
        status = d.status()
        expect(len(status["stale"]) == 1 and status["stale"][0]["asked"] == 63, "status", status["stale"])
        expect(d.counter("misses_stale") == 63, "counter", d.counter("misses_stale"))
        # Renaming cures nothing.
        path = pathlib.Path(answer["orphan"])
        path.rename(path.with_name(path.name.replace("0.6.16.dev20260730", "0.6.16")))
        d.tunectl("reload")
        with d.client(**la.facts_of(new)) as c:
            expect(c.lookup(la.problem(16, "ep=8,tp=1"))["reason"] == "stale", "renaming cured it")
        # The command says plainly that nobody here can sweep it.
        code, told, err = d.tunectl("sweep", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1")
        text = json.dumps(told) + err
        expect("worker" in text, "a sweep that cannot be is not told", code, told, err)
        # Tables of the new version answer, and those of the old one still serve who has it.
        d.take("import", d.write(la.name("ep=8,tp=1", new), la.cache(new, salt=7)))
        with d.client(**la.facts_of(new)) as c, d.client(**la.facts_of(old)) as before:
            expect_hit(c.lookup(la.problem(16, "ep=8,tp=1")), la.tactic(16, 7), 16)
            expect_hit(before.lookup(la.problem(16, "ep=8,tp=1")), la.tactic(16, 0), 16)


def test_undated_imports_that_disagree(build):
    """The versions of the asker choose; with neither, the greatest name answers and the conflict is told."""
    with Node(build) as d:
        for salt, cudnn in enumerate(("91900", "92400")):
            meta = la.metadata(cudnn_version=cudnn)
            d.take("import", d.write(la.name("ep=8,tp=1", meta), la.cache(meta, salt=salt)))
        for salt, cudnn in enumerate(("91900", "92400")):
            with d.client(**la.facts_of(la.metadata(cudnn_version=cudnn))) as c:
                expect_hit(c.lookup(la.problem(16, "ep=8,tp=1")), la.tactic(16, salt), 16)
                told = c.ask("explain", {"key": la.problem(16, "ep=8,tp=1")}).body
                expect(told["answer"]["tactic"] == la.tactic(16, salt), "explain", told)
                others = [row for row in told["others"] if row["layer"] == "learned"]
                expect(len(others) == 1 and "conflict" in others[0]["why"] and cudnn not in others[0]["file"], "why", told)
        expect(d.counter("conflicts") == 0, "a conflict was counted")
        with d.client(**la.facts_of(la.metadata(cudnn_version="91700"))) as c:
            for _ in range(3):
                answer = c.lookup(la.problem(16, "ep=8,tp=1"))
                expect_hit(answer, la.tactic(16, 1), 16)
            expect("92400" in answer["file"], "not the greatest name", answer)
            told = c.ask("table", {"recipe": "kimi-k3", "layout": "ep=8,tp=1"}).body
            expect(told["disputed"] == 21 and told["covered"] == 21, "the table does not say it", told)
        with d.client(**la.facts_of(la.metadata())) as c:
            told = c.ask("table", {"recipe": "kimi-k3", "layout": "ep=8,tp=1"}).body
            expect("disputed" not in told and told["covered"] == 21, "no dispute under a file's own versions", told)
        warnings = [line for line in d.log().splitlines() if "dispute" in line]
        expect(d.counter("conflicts") == 24 and len(warnings) == 1 and "92400" in warnings[0], "not told once", *warnings)


def test_a_larger_ladder_is_a_missing_bucket(build):
    meta = la.metadata()
    with Node(build, sweep={"when": "never"}) as d:
        d.take("import", "--max", "16384", d.write(la.name("ep=8,tp=1", meta), la.cache(meta)))
        with d.client(**la.facts_of(meta)) as c:
            expect_hit(c.lookup(la.problem(8192, "ep=8,tp=1")), la.tactic(8192), 8192)
            answer = c.lookup(la.problem(8193, "ep=8,tp=1"))
            expect(answer["kind"] == "miss" and "tokens=16384," in answer["key"], "not the missing bucket", answer)


def test_unknown_versions_are_never_served(build):
    with Node(build) as d:
        for i, gpu in enumerate((None, "unknown", "None")):
            text = la.cache({**la.metadata(), "gpu": gpu})
            code, _, err = d.say("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", d.write(f"{i}.json", text))
            expect(code == 0 and "none of it is served" in err and "device" in err, "not told", code, err)
        listed = json.loads(la.cache())
        listed["_metadata"] = ["x"]
        d.take("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", d.write("list.json", json.dumps(listed)))
        with d.client(**la.facts_of(la.metadata())) as c:
            answer = c.lookup(la.problem(16, "ep=8,tp=1"))
            expect(answer["kind"] == "miss", "unknown was served", answer)


def bad_files():
    good = la.cache()
    deep = "[" * 10000 + "]" * 10000
    line = f'"{la.file_key(1)}": ["MoERunner", [8, 7]]'
    yield "empty", "", "empty"
    yield "cut", good[:1500], "the text ends"
    yield "cut in a key", good[:250], "the text ends"
    yield "garbage", bytes(range(256)) * 4, ""
    yield "gzip", b"\x1f\x8b\x08" + bytes(100), "gzip"
    yield "bom", "\ufeff" + good, "byte order mark"
    yield "nul", good + "\0\0\0", "NUL"
    yield "doubled", "{" + line + ", " + line + "}", "the same key"
    yield "deep", '{"a": ' + deep + "}", "nested deeper"
    yield "number", "{" + line.replace("7", "7" * 80) + "}", "number"
    for word in ("NaN", "Infinity", "-Infinity", "1e999"):
        yield word, "{" + line.replace("7", word) + "}", ""
    for value in ('[17]', '["MoERunner"]', '[52, "MoERunner"]', '["MoERunner", [64, "1"]]', '["MoERunner", {"tile": 64}]',
                  '["MoERunner", 57802752]', '["MoERunner", [64, 1, 9, 9, 9]]', '["MoERunner", [64, 9007199254740993]]',
                  '["Another", [64, 1]]', '17', 'null', '["MoERunner", [64, 1], 5]'):
        yield value, '{"' + la.file_key(1) + '": ' + value + "}", ""
    yield "trailing comma", good.replace("\n  },", ",\n  },", 1), "comma"
    yield "arity", '{"' + la.file_key(1).replace("(0,), (0,)), ())", "(0,)), ())") + '": ["MoERunner", [8, 7]]}', "tensors"
    yield "no tuple", '{"(1": ["MoERunner", [8, 7]]}', "key"
    yield "call", '{"__import__(\'os\').system(\'false\')": ["MoERunner", [8, 7]]}', "key"
    yield "other hidden size", la.cache(hidden=4096), "hidden"


def resident_kib(pid):
    return int(next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith("VmRSS")).split()[1])


def test_bad_files_are_refused_whole(build):
    with Node(build) as d:
        d.take("import", d.write(la.name("ep=8,tp=1", la.metadata()), la.cache()))
        before, pid = d.learned(), d.process.pid
        for what, text, words in bad_files():
            path = d.write("bad.json", text)
            code, out, err = d.say("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", path)
            expect(code == 1 and not out and words in err and "bad.json" in err, f"{what}: {code}", out, err)
            expect("bad.json:" in err or what in ("empty",), f"{what}: no place", err)
        # 100 MB: not even read.
        huge = d.files / "huge.json"
        with open(huge, "wb") as f:
            f.truncate(100_000_000)
        code, _, err = d.say("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", str(huge))
        expect(code == 1 and "16 MiB" in err, "huge", code, err)
        expect(d.learned() == before, "something changed on disk")
        expect(d.process.pid == pid and d.process.poll() is None, "the daemon ended")
        expect_alive(d)


def expect_alive(d):
    with d.client(**la.facts_of(la.metadata())) as c:
        expect_hit(c.lookup(la.problem(16, "ep=8,tp=1")), la.tactic(16), 16)


def test_the_door_takes_tables_only(build):
    """What the wire brings is checked again: nobody may say that he measured."""
    with Node(build) as d:
        path = d.write(la.name("ep=8,tp=1", la.metadata()), la.cache())
        d.take("import", "--out", str(d.files / "t.json"), path)
        text = (d.files / "t.json").read_text()
        with Client(d.dir / "run/control/sock") as c:
            for what, body in (("empty", b""), ("no table", b"{}"), ("cut", text[:-3].encode()),
                               ("nul", text.encode() + b"\0x"), ("bytes", bytes(range(256))),
                               ("confirmed", text.replace('"state":"imported"', '"state":"confirmed"').encode()),
                               ("a big one", b" " * 12_000_000)):
                reply = c.ask("import", body)
                expect(reply.status not in ("OK",), f"{what} was taken", reply)
            expect(not d.learned(), "something was stored", *d.learned())
            kib = resident_kib(d.process.pid)
            expect(kib < 60 * 1024, "memory was not given back", kib)
            reply = c.ask("import", text.encode())
            expect(reply.status == "OK" and reply.body["entries"] == 21 and not reply.body["replaced"], "not taken", reply)
        with Client(d.dir / "run/lookup.sock") as c:
            expect(c.ask("import", text.encode()).status == "WRONG_DOOR", "the lookup door takes tables")
        expect_alive(d)


def test_names_cannot_leave_their_folder(build):
    with Node(build) as d:
        for gpu in ("Radeon Instinct MI50/MI60", "../../etc/x", "a,b=c%d", "x" * 120, "NVIDIA  two  blanks "):
            meta = la.metadata(gpu=gpu)
            d.take("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", d.write("named.json", la.cache(meta)))
            with d.client(**la.facts_of(meta)) as c:
                answer = c.lookup(la.problem(16, "ep=8,tp=1"))
                expect_hit(answer, la.tactic(16), 16)
                expect(pathlib.Path(answer["file"]).parent == d.dir / "state/tables", "outside", answer["file"])
            expect(d.take("export", answer["file"]) == la.cache(meta), "another text")


def test_a_partial_file_renews_and_keeps(build):
    """A second, smaller tuning run loses nothing; two models without a recipe do not meet."""
    with Node(build) as d:
        meta, options = la.metadata(), ("--recipe", "kimi-k3", "--layout", "ep=8,tp=1")
        d.take("import", *options, d.write("whole.json", la.cache(meta)))
        out = d.take("import", *options, d.write("part.json", la.cache(meta, buckets=[1, 2, 16], salt=3)))
        expect("3 entries" in out and "18 of before stay" in out, "not told", out)
        with d.client(**la.facts_of(meta)) as c:
            for tokens in la.BUCKETS:
                expect_hit(c.lookup(la.problem(tokens, "ep=8,tp=1")), la.tactic(tokens, 3 if tokens in (1, 2, 16) else 0), tokens)
        (file,) = d.learned()
        keys = json.loads(d.take("export", str(d.dir / "state/tables" / file)))
        expect(len(keys) == 22, "not all entries go out", len(keys))
        # Where nobody joins them, nothing is overwritten.
        code, _, err = d.say("import", *options, "--out", str(d.files / "out"), str(d.files / "whole.json"),
                             str(d.files / "part.json"))
        expect(code == 2, "not a directory", code, err)
        (d.files / "out").mkdir()
        code, _, err = d.say("import", *options, "--out", str(d.files / "out"), str(d.files / "whole.json"),
                             str(d.files / "part.json"))
        expect(code == 2 and "another of these files" in err and len(list((d.files / "out").iterdir())) == 1, "overwritten", err)


def raw_import(d, text):
    with Client(d.dir / "run/control/sock") as c:
        return c.ask("import", text.encode())


def test_what_was_measured_stays(build):
    """An import neither takes the place of a sweep's entries nor claims to be one."""
    meta = la.metadata()
    with Node(build) as d:
        path = d.write(la.name("ep=8,tp=1", meta), la.cache(meta, buckets=[16, 32]))
        d.take("import", "--out", str(d.files / "t.json"), path)
        text = (d.files / "t.json").read_text()
        swept = text.replace('"state":"imported"', '"state":"confirmed","date":"2026-12-01T00:00:00Z"')
        d.take("import", path)
        (file,) = d.learned()
        (d.dir / "state/tables" / file).write_text(swept.replace("[16,", "[8,", 1))
        d.tunectl("reload")
        d.take("import", path)
        expect(len(d.learned()) == 2 and d.learned()[file].decode() == swept.replace("[16,", "[8,", 1), "a sweep was replaced")
        with d.client(**la.facts_of(meta)) as c:
            expect(c.lookup(la.problem(16, "ep=8,tp=1"))["state"] == "confirmed", "an import goes first")
        for what, old, new in (
                ("a date", '"state":"imported"', '"state":"imported","date":"2099-01-01T00:00:00Z"'),
                ("a sweep", '"state":"imported"', '"state":"imported","sweep":"9"'),
                ("rounds", '"state":"imported"', '"state":"imported","rounds":99'),
                ("another problem's key", f'"file_key":"{la.file_key(16)}"', f'"file_key":"{la.file_key(32)}"'),
                ("another environment", '\\"gpu\\":\\"Look Alike 3000\\"', '\\"gpu\\":\\"Look Alike 4000\\"')):
            expect(old in text, what)
            reply = raw_import(d, text.replace(old, new, 1))
            expect(reply.status == "FAILED", f"{what} was taken", reply)
            lie = d.write("lie.json", text.replace(old, new, 1))
            if "another" in what:
                for args in (("check", lie), ("export", lie)):
                    code, _, err = d.say(*args)
                    expect(code == 1, f"{what}: {args[0]}", code, err)
        for lie in ({"gpu": "*"}, {"flashinfer_version": "*"}, {"flashinfer_version": "0.7.4"}):
            code, out, err = d.say("export", str(d.files / "t.json"), "--metadata", json.dumps({**meta, **lie}))
            expect(code == 1 and not out and "hold for" in err, "it claims more than it holds for", lie, out[:200])


def test_a_missing_bucket_is_queued(build):
    """8193 tokens at tune_max 16384: the bucket that is missing, and nothing else, is swept."""
    meta = la.metadata()
    facts = [f"fact.{k}={v}" for k, v in la.facts_of(meta).items()]
    with Node(build, sweep={"when": "always"}).fake("op=trtllm_fp4_moe", "backend=flashinfer",
                                                    "times=100,80,120", "jitter=0.002", *facts, section="gpu",
                                                    backend="flashinfer", device="0") as d:
        d.wait_ready("gpu")
        d.take("import", "--max", "16384", d.write(la.name("ep=8,tp=1", meta), la.cache(meta)))
        with d.client(**la.facts_of(meta)) as c:
            answer = c.lookup(la.problem(8193, "ep=8,tp=1"))
            expect(answer["kind"] == "miss" and "tokens=16384," in answer["key"], "not the missing bucket", answer)
            expect(answer["reason"] in ("unseeded", "sweeping"), "it will not be swept", answer)
            d.wait_answer(la.problem(16384, "ep=8,tp=1"), section="gpu")
        expect(d.counter("sweeps_started") == 1, "more was swept than the missing bucket", d.status()["sweeps"])


def test_a_shell_asks_as_a_server_would(build):
    meta = la.metadata()
    with Node(build) as d:
        d.take("import", d.write(la.name("ep=8,tp=1", meta), la.cache(meta)))
        path = d.write("metadata.json", json.dumps(meta))
        for given in (json.dumps(meta), path):
            code, answer, err = d.tunectl("lookup", la.problem(17, "ep=8,tp=1"), "--metadata", given)
            expect(code == 0 and answer["tactic"] == la.tactic(32), "not the bucket's tactic", answer, err)
        for command in (("pin", la.problem(16, "ep=8,tp=1"), "[16,1]"), ("table", "kimi-k3", "--job", "j")):
            code, _, err = d.say(*command)
            expect(code == 2 and "--metadata" in err, "what binds was done for this machine's CPU", command, err)
        d.take("pin", la.problem(16, "ep=8,tp=1"), "[16,1]", "--metadata", path)
        with d.client(**la.facts_of(meta)) as c:
            expect(c.lookup(la.problem(16, "ep=8,tp=1"))["tactic"] == [16, 1], "the pin is not served")


def test_adopt_takes_what_engines_made(build):
    with Node(build) as d:
        meta = la.metadata()
        vllm = d.files / "vllm/flashinfer_autotune_cache/0.6.16/100a/0123abcd"
        vllm.mkdir(parents=True)
        (vllm / "autotune_configs.json").write_text(la.cache(meta))
        (vllm / "other.json").write_text('{"a": 1}')
        (vllm / "broken.json").write_text("{")
        options = ("--recipe", "kimi-k3", "--layout", "ep=8,tp=1")
        d.take("adopt", str(d.files / "vllm"), *options)
        expect_alive(d)
        # SGLang keeps a file a rank; ranks that tuned alone differ, and nobody picks by age.
        sglang = d.files / "sglang/flashinfer/autotune/0.6.16/sm100/0123456789abcdef"
        sglang.mkdir(parents=True)
        for rank in range(3):
            (sglang / f"rank_tp{rank}_pp0_dp0.json").write_text(la.cache(meta, salt=rank))
        before = d.learned()
        code, _, err = d.say("adopt", str(d.files / "sglang"), *options)
        expect(code == 1 and "conflict" in err and "rank_tp0" in err and "rank_tp1" in err and d.learned() == before,
               "a conflict was settled in silence", code, err)
        for rank in range(3):
            d.take("adopt", str(d.files / "sglang"), *options, "--prefer", f"rank_tp{rank}")
            with d.client(**la.facts_of(meta)) as c:
                expect_hit(c.lookup(la.problem(16, "ep=8,tp=1")), la.tactic(16, rank), 16)
        # What one file has beside the other is no contradiction.
        parts = d.files / "parts"
        parts.mkdir()
        (parts / "a.json").write_text(la.cache(meta, buckets=la.BUCKETS[:10]))
        (parts / "b.json").write_text(la.cache(meta, buckets=la.BUCKETS[9:]))
        d.take("adopt", str(parts), *options)
        with d.client(**la.facts_of(meta)) as c:
            for tokens in la.BUCKETS:
                expect_hit(c.lookup(la.problem(tokens, "ep=8,tp=1")), la.tactic(tokens), tokens)
        # Links that lead back up are not followed, and what is no file is not opened.
        for i in range(8):
            (vllm / f"link{i}").symlink_to("..")
        os.mkfifo(vllm / "pipe.json")
        d.take("adopt", str(d.files / "vllm"), *options, timeout=20)
        code, _, err = d.say("adopt", str(d.files / "nothing"), *options)
        expect(code == 1 and "no cache" in err, "an empty place", code, err)


def test_a_v2_store_goes_out_and_comes_back(build):
    with Node(build) as d:
        meta = la.metadata(flashinfer_version="0.7.4", cutlass_dsl_version="4.5.0")
        d.take("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", "--out", str(d.files / "t.json"),
               d.write("v1.json", la.cache(meta)))
        d.take("export", "--v2", str(d.files / "root"), str(d.files / "t.json"))
        store = next((d.files / "root/v2").iterdir())
        expect(len(list((store / "entries").glob("*.json"))) == 21, "not 21 entries")
        d.take("adopt", str(d.files / "root"), "--recipe", "kimi-k3", "--layout", "ep=8,tp=1")
        with d.client(device=la.DEVICE, flashinfer="0.7.4") as c:
            answer = c.lookup(la.problem(16, "ep=8,tp=1"))
            expect_hit(answer, la.tactic(16), 16)
        code, out, _ = d.say("diff", str(store), str(d.files / "v1.json"))
        expect(code == 0 and "0 differences" in out, "not the same", out)
        # An entry that does not stand where its key says would not be found: refused, and named.
        entry = next((store / "entries").glob("*.json"))
        entry.rename(entry.with_name("0" * 24 + ".json"))
        code, _, err = d.say("diff", str(store), str(d.files / "v1.json"))
        expect(code == 1 and "belongs into" in err, "a moved entry", code, err)


def test_wildcards_only_where_nothing_depends(build):
    with Node(build) as d:
        d.take("import", "--out", str(d.files / "t.json"), d.write(la.name("ep=8,tp=1", la.metadata()), la.cache()))
        meta = json.loads(d.take("export", "--wild", str(d.files / "t.json")))["_metadata"]
        expect(meta == {**la.metadata(), "cuda_version": "*", "cublas_version": "*", "cudnn_version": "*",
                        "cudnn_frontend_version": "*"}, "another metadata", meta)
        # Members that no op here stands for depend on anything.
        cache = json.loads(la.cache())
        cache["('lib::other', 'R', ((1, 2),), ())"] = ["R", 3]
        d.take("import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", "--out", str(d.files / "u.json"),
               d.write("other.json", json.dumps(cache, indent=2)))
        expect(json.loads(d.take("export", "--wild", str(d.files / "u.json")))["_metadata"] == la.metadata(), "wild")


MIXED = """{"_metadata": {"flashinfer_version": "0.7.4", "cuda_version": "13.0", "gpu": "Look Alike 3000"},
"('flashinfer::trtllm_bf16_moe', 'MoERunner', ((12288, 512), (0,), (12288, 4), (12288, 4), (12288, 512), (0,), (0,), \
(0,)), ('Module', 4, 8, 32, 0, 1052672, 1052672, 0, 512, 512, 256, 3, True, 2, False, False))": ["MoERunner", [8, 43]],
"('fp4_gemm', 'TrtllmGemmRunner', ((8192, 1024), (1024, 4096), (-1, 128), (128, 4096), (1,), (0,), (-1, 4096), (0,), \
(0,), (-1,)), (False, 17826818, 1052672))": ["TrtllmGemmRunner", 57],
"('mxfp8_gemm', 'CuteDSLMxfp8GemmRunner', ((8192, 1024), (1024, 4096), (-1,), (131072,), (0,), (-1, 4096), \
(41943040,)), ('torch.bfloat16', True))": ["CuteDSLMxfp8GemmRunner", -1]}
"""
MIXED_MOE = ("trtllm_bf16_moe,backend=flashinfer,act=bf16,weights=bf16,out=bf16,tokens=%d,top_k=4,experts=32,local_experts=8,"
             "shared_experts=0,hidden=512,hidden_out=512,intermediate=256,activation=swiglu,finalize=fused,routing="
             "precomputed,routing_method=none,weight_layout=block_major_k,shuffled=yes,packed=no,token_scale=none,lora=none")
MIXED_GEMM = ("trtllm_gemm,backend=flashinfer,a=nvfp4,b=nvfp4,out=bf16,batch=0,m=%d,n=4096,k=2048,alpha=one,"
              "scale_layout=128x4")
MIXED_DSL = ("cutedsl_gemm,backend=flashinfer,a=mxfp8,b=mxfp8,out=bf16,batch=0,m=%d,n=4096,k=1024,kernel=dense,alpha=none,"
             "bias=no,pdl=yes,pdl_choice=caller,sm=0")


def test_a_file_with_two_ladders(build):
    """Mixtures of experts clamp to what they were tuned for, matrix products never do."""
    facts = {"device": "Look Alike 3000", "flashinfer": "0.7.4", "cuda": "13.0"}
    with Node(build) as d:
        out = d.take("import", d.write("mixed.json", MIXED))
        expect(out.count("imported") == 2 and len(d.learned()) == 2, "not two tables", out)
        with d.client(**facts) as c:
            for tokens in (8193, 12288, 50000):
                expect_hit(c.lookup(MIXED_MOE % tokens), [8, 43], tokens)
            for tokens in (4097, 8192):
                expect_hit(c.lookup(MIXED_GEMM % tokens), 57, tokens)
            for tokens in (4096, 8193, 50000):
                answer = c.lookup(MIXED_GEMM % tokens)
                expect(answer["kind"] == "miss", f"{tokens} tokens", answer)
            # The file does not know which CuTe DSL compiles the kernel: nobody's answer.
            answer = c.lookup(MIXED_DSL % 8192)
            expect(answer["kind"] == "miss" and answer["differs"][0]["fact"] == "cutlass_dsl", "served", answer)
        for name in d.learned():
            expect(d.take("export", str(d.dir / "state/tables" / name)) == MIXED, "not the same bytes", name)


if __name__ == "__main__":
    run([test_each_packaged_layout_answers_its_own_tactics, test_import_serves_and_export_gives_the_bytes_back,
         test_a_layout_that_nobody_says_is_asked_for, test_the_drill_of_the_seed, test_undated_imports_that_disagree,
         test_a_larger_ladder_is_a_missing_bucket, test_unknown_versions_are_never_served,
         test_bad_files_are_refused_whole, test_the_door_takes_tables_only, test_names_cannot_leave_their_folder,
         test_a_partial_file_renews_and_keeps,
         test_what_was_measured_stays, test_a_missing_bucket_is_queued, test_a_shell_asks_as_a_server_would,
         test_adopt_takes_what_engines_made, test_a_v2_store_goes_out_and_comes_back,
         test_wildcards_only_where_nothing_depends, test_a_file_with_two_ladders])
