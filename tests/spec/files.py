#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that are broken, in every layer, are refused by name with place or field, and cost nobody else anything; what
cannot be written is said, tried again, and never half there.

usage: files.py --build DIR [TEST...]
"""
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

from harness import Daemon, Skip, expect, key, run, slack
from loop import RECIPE
from wire import Client, Manager, Probe

CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
FACTS = {"device": "cpu:fake", "isa": "avx2", "threads": "2", "onednn": "2.6.3"}
LAYERS = {"pinned": "state/pinned", "site": "site", "learned": "state/tables", "packaged": "packaged"}
HEADER = {"format": 1, "method": "m", "model": "toy", "layout": "tp=1", "fingerprint": FACTS, "ladder": {"kind": "pow2", "max": 1024}}


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def table(*keys, tactic='{"id":9}', more="", header=None):
    """A table's text: an imported entry for each key."""
    entries = [f'{{"key":"{k}","tactic":{tactic},"state":"imported"{more}}}' for k in keys]
    return "\n".join([f'{{"header":{compact(header or HEADER)},"entries":[', ",\n".join(entries), "]}", ""]).encode()


GOOD = table(key(16), key(64))


def rule(tactic='{"id":9}', **more):
    return {"id": "0" * 16, "op": "matmul", "backend": "onednn", "tactic": json.loads(tactic), "reason": "a test", **more}


def deny_file(*rules):
    return json.dumps({"format": 1, "rules": list(rules)}, indent=1).encode()


# --- broken in every way: name, bytes or what makes it, words of the refusal ---

BROKEN = [
    ("empty", b"", r"line 1"),
    ("garbage", bytes(range(256)) * 16, r"line 1"),
    ("no-table", b"not a table\n", r"line 1:1"),
    ("other-json", b'{"a":1}\n', r"line 1"),
    ("cut-in-entry", GOOD[:-40], r"line 3:\d+"),
    ("cut-at-end", GOOD[:-3], r"line 4.*cut short|line 3.*cut short"),
    ("cut-in-header", GOOD[:40], r"line 1:\d+"),
    ("nul", GOOD.replace(b'"id":9', b'"id":\x00', 1), r"line 2:\d+"),
    ("bom", b"\xef\xbb\xbf" + GOOD, r"line 1:1"),
    ("not-utf8", table(key(16), more=',"note":"\xff"').replace("\xff".encode(), b"\xff"), r"line 2:\d+"),
    ("nan", table(key(16), more=',"gain":NaN'), r"line 2:\d+"),
    ("infinite", table(key(16), more=',"gain":1e999'), r"line 2"),
    ("deep-value", table(key(16), tactic="[" * 10000 + "]" * 10000), r"line 2:\d+.*nested deeper"),
    ("deep-file", b"[" * 10000, r"line 1:\d+.*nested deeper"),
    ("wrong-type", table(key(16), more=',"rounds":"many"'), r"line 2.*rounds"),
    ("key-is-number", GOOD.replace(f'"{key(16)}"'.encode(), b"16", 1), r"line 2.*key"),
    ("negative", table(key(16), more=',"rounds":-1'), r"line 2.*rounds"),
    ("beyond-2-53", table(key(16), more=',"rounds":9007199254740993'), r"line 2.*rounds"),
    ("field-twice", table(key(16), more=',"gain":1,"gain":2'), r"line 2.*gain"),
    ("key-twice", table(key(16), key(16)), r"line 3.*"),
    ("bad-key", table(key(16).replace("layout=tn", "layout=xx")), r"line 2.*layout"),
    ("blank-tokens", table(key("*")), r"line 2.*key"),
    ("other-order", table(",".join(reversed(key(16).split(",")))), r"line 2.*"),
    ("unknown-op", table("sort,n=1"), r"line 2.*op"),
    ("unknown-state", GOOD.replace(b"imported", b"hearsay", 1), r"line 2.*state"),
    ("bad-date", table(key(16), more=',"date":"yesterday"'), r"line 2.*date"),
    ("format-2", table(key(16), header={**HEADER, "format": 2}), r"line 1.*format"),
    ("no-model", table(key(16), header={k: v for k, v in HEADER.items() if k != "model"}), r"line 1.*model"),
    ("bad-ladder", table(key(16), header={**HEADER, "ladder": {"kind": "nearest", "max": 8}}), r"line 1.*kind"),
    ("long-fact", table(key(16), header={**HEADER, "fingerprint": {**FACTS, "isa": "x" * 500}}), r"line 1.*isa"),
    ("no-comma", GOOD.replace(b"},\n", b"}\n"), r"line 3.*comma"),
    ("more-behind", GOOD + b"{}\n", r"line 5.*behind|line 5.*after"),
    ("too-large", lambda p: p.write_bytes(GOOD.replace(b"]}\n", b" " * (17 << 20) + b"\n]}\n")), r"larger than 16 MiB"),
    ("fifo", os.mkfifo, r"not a regular file"),
    ("folder", os.mkdir, r"not a regular file"),
    ("socket", lambda p: bind(p), r"cannot open|not a regular file"),
    ("loop", lambda p: p.symlink_to(p), r"cannot open: Too many levels"),
    ("dangling", lambda p: p.symlink_to("/nonexistent"), r"cannot open: No such file"),
    ("endless", lambda p: p.symlink_to("/dev/zero"), r"not a regular file"),
    ("unreadable", lambda p: (p.write_bytes(GOOD), p.chmod(0)), r"cannot open: Permission denied"),
]


def bind(path):
    """A socket's file; its path may be longer than a socket's address, so it is moved there."""
    short = f"/tmp/s{os.getpid()}"
    s = socket.socket(socket.AF_UNIX)
    s.bind(short)
    os.rename(short, path)
    s.close()


def put(path, content):
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)


def obey_permissions():
    """Root no longer goes over permission bits: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH leave the bounding set."""
    prctl = ctypes.CDLL(None).prctl
    for capability in (1, 2):
        prctl(24, capability, 0, 0, 0)


def quiet(build, **more):
    """A daemon that only answers, and obeys the bits of files."""
    d = Daemon(build, sweep={"when": "never"}, **more).fake(*CLEAR)
    d.popen["preexec_fn"] = obey_permissions
    return d


def refusals(d):
    return {row["file"]: row["sentence"] for row in d.status()["refused"]}


# --- reading ---

def test_broken_tables_in_each_layer(build):
    d = quiet(build)
    good, broken = {}, {}
    for n, (layer, folder) in enumerate(LAYERS.items()):
        directory = d.dir / folder
        directory.mkdir(exist_ok=True)
        good[layer] = key(16, 32 + n)
        (directory / "good.json").write_bytes(table(good[layer]))
        (directory / "folder").mkdir()
        good[f"{layer} below"] = key(16, 64 + n)
        (directory / "folder/good.json").write_bytes(table(good[f"{layer} below"]))
        (directory / "closed").mkdir()
        (directory / "closed").chmod(0)
        broken[str(directory / "closed")] = "Permission denied"
        for name, content, words in BROKEN:
            path = directory / f"{name}.json"
            put(path, content)
            broken[str(path)] = words
    begun = time.monotonic()
    with d:
        took = time.monotonic() - begun
        expect(took < 5 * slack(build), f"the start took {took:.1f} s")
        d.wait_ready()
        refused = refusals(d)
        for path, words in broken.items():
            expect(path in refused, f"not refused: {path}", *refused.items())
            expect(re.search(words, refused[path]), f"not the place or the field: {path}", refused[path], words)
        expect(refused.keys() == broken.keys(), "others are refused", refused.keys() - broken.keys())
        for layer, problem in good.items():
            answer = d.lookup(problem)
            expect(answer["kind"] == "hit" and answer["layer"] == layer.split()[0], f"{layer} is not served", answer)
        expect(d.lookup(key(64))["kind"] == "miss", "a refused file is served in part", d.lookup(key(64)))
        expect(d.counter("refused_tables") == len(broken), "not counted", d.counter("refused_tables"))
        named = sum(path in d.log() for path in broken)
        expect(named > 0, "the log names none")
        # Again, while somebody asks.
        with Probe(d, *good.values()) as probe:
            for _ in range(20):
                code, told, _ = d.tunectl("reload")
                expect(code == 1 and len(told["refused"]) == len(broken), "a reload sees it otherwise", told)
            worst, count, median = probe.end()
        expect(worst[0] < 50 * slack(build) and count > 3, f"a lookup took {worst[0]:.1f} ms", worst, count, median)
        # And without the daemon; only what no table can be.
        files = [p for p in broken if "/site/" in p and not p.endswith("closed") and not p.endswith("unreadable.json")]
        for path in files:
            done = subprocess.run([str(d.build / "client/tunectl"), "check", path], capture_output=True, text=True,
                                  timeout=20, check=False)
            expect(done.returncode == 1 and path in done.stdout + done.stderr, f"check finds nothing in {path}",
                   done.returncode, done.stdout, done.stderr)
        for path in d.dir.glob("*/closed"):
            path.chmod(0o755)
        for path in d.dir.glob("*/*/closed"):
            path.chmod(0o755)


def test_broken_recipes(build):
    d = quiet(build)
    folder = d.dir / "packaged/recipes"
    folder.mkdir()
    text = json.dumps(RECIPE)
    (folder / "good.json").write_text(text)
    broken = {"cut": (text[:-10], "line 1:"), "nan": (text.replace("64]", "NaN]"), "line 1:"),
              "type": (text.replace('"toy"', "7"), "model"), "ladder": (text.replace('"list"', '"nearest"'), "kind"),
              "key": (text.replace("layout=tn", "layout=xx"), r"layouts.\[0\].problems.\[0\]"),
              "bucket": (text.replace("[16]", "[17]"), "bucket 17 is not on the ladder"),
              "none": (text.replace('"layouts"', '"others"'), "layouts|others"), "twice": (text, "of that model was read")}
    for name, (content, _) in broken.items():
        (folder / f"{name}.json").write_text(content.replace("toy", f"toy-{name}") if name != "twice" else content)
    with d:
        d.wait_ready()
        refused = {pathlib.Path(path).stem: sentence for path, sentence in refusals(d).items()}
        expect(refused.keys() == broken.keys() or refused.keys() - {"good"} == broken.keys() - {"twice"},
               "not exactly the broken ones", refused)
        for name, (_, words) in broken.items():
            if name in refused:
                expect(re.search(words, refused[name]), f"{name}: not the place or the field", refused[name])
        code, told, _ = d.tunectl("want", "--recipe", "toy", "--as", "cpu")
        expect(told["total"] == 4, "the good one is not in use", told)
        code, _, sentence = d.tunectl("want", "--recipe", "toy-cut", "--as", "cpu")
        expect(code == 4 and "no recipe" in sentence, "a broken one is in use", code, sentence)


def test_a_broken_deny_file_denies(build):
    d = quiet(build)
    (d.dir / "site/good.json").write_bytes(table(key(16)) + b"")
    default = table(key(64)).replace(b'"tactic":{"id":9},', b"")
    (d.dir / "site/default.json").write_bytes(default)
    deny = d.dir / "site/deny"
    deny.mkdir()
    (deny / "rules.json").write_text('{"format":1,"rules":[')
    with d:
        d.wait_ready()

        def expect_blind(when):
            answer = d.lookup(key(16))
            expect(answer["kind"] == "miss" and answer["reason"] == "denied", f"served blindly {when}", answer)
            expect("rules cannot be read" in answer["next"] and "command" not in answer, f"why not? {when}", answer)
            expect(d.lookup(key(64))["kind"] == "default", f"a default denies nothing {when}", d.lookup(key(64)))
            expect("line 1:" in refusals(d)[str(deny / "rules.json")], "not named", refusals(d))
        expect_blind("at start")
        expect(str(deny / "rules.json") in d.log(), "the log does not name it")
        # Another rule, or a reload, does not make it see.
        code, told, _ = d.tunectl("deny", key("*", 999), '{"id":1}', "--reason", "a test")
        expect(code == 0, "no rule can be added", told)
        expect_blind("after a rule was added")
        expect(d.tunectl("allow", told["id"])[0] == 0, "the rule cannot be removed")
        expect_blind("after a rule was removed")
        expect(d.tunectl("reload")[0] == 1, "a reload finds nothing wrong")
        expect_blind("after a reload")
        # Mended: the rule that stands in it holds, however it is written.
        (deny / "rules.json").write_bytes(deny_file(rule('{ "id" : 8 }')))
        expect(d.tunectl("reload")[0] == 0, "mended, and still refused", refusals(d))
        expect(d.lookup(key(16))["kind"] == "hit", "mended, and still denied", d.lookup(key(16)))
        (deny / "rules.json").write_bytes(deny_file(rule()))
        expect(d.tunectl("reload")[0] == 0 and d.lookup(key(16))["reason"] == "denied", "the rule does not hold")
        # Broken again while the daemon runs: the rules of before stand.
        (deny / "rules.json").write_text("{")
        expect(d.tunectl("reload")[0] == 1, "a reload finds nothing wrong")
        expect(d.lookup(key(16))["reason"] == "denied" and d.status()["denied"] == 1, "the rules of before are gone")
        (d.dir / "site/other.json").write_bytes(table(key(128), tactic='{"id":5}'))
        d.tunectl("reload")
        expect(d.lookup(key(128))["kind"] == "hit", "the rules of before deny everything", d.lookup(key(128)))
        # New rules beside it hold all the same.
        (deny / "more.json").write_bytes(deny_file(rule('{"id":5}')))
        expect(d.tunectl("reload")[0] == 1 and d.lookup(key(128))["reason"] == "denied", "a new rule was ignored")
        expect(d.lookup(key(16))["reason"] == "denied", "the rules of before are gone")
        (deny / "more.json").unlink()
        expect(d.tunectl("reload")[0] == 1 and d.lookup(key(128))["kind"] == "hit", "a rule outlived its file")
        os.unlink(deny / "rules.json")
        expect(d.tunectl("reload")[0] == 0 and d.lookup(key(16))["kind"] == "hit", "removed, and still denied")


def test_a_reload_with_a_broken_file_keeps_the_old_content(build):
    d = quiet(build)
    path = d.dir / "site/good.json"
    path.write_bytes(GOOD)
    with d:
        d.wait_ready()
        before = d.lookup(key(16))
        path.write_bytes(GOOD[:-20])
        code, told, _ = d.tunectl("reload")
        expect(code == 1 and [row["file"] for row in told["refused"]] == [str(path)], "not named", told)
        expect(d.lookup(key(16)) == before, "the old content is gone", d.lookup(key(16)))
        # A new file beside it comes into use all the same; a signal does what the command does.
        (d.dir / "site/other.json").write_bytes(table(key(128)))
        d.process.send_signal(signal.SIGHUP)
        d.wait_for(lambda: d.lookup(key(128))["kind"] == "hit", 10, "the reload by signal")
        expect(d.lookup(key(16)) == before and list(refusals(d)) == [str(path)], "the old content is gone")
        path.write_bytes(table(key(16), tactic='{"id":7}'))
        expect(d.tunectl("reload")[0] == 0 and d.lookup(key(16))["tactic"] == {"id": 7}, "mended, and not in use")
        expect(d.lookup(key(64))["kind"] == "miss", "a line that is gone is served", d.lookup(key(64)))
        path.write_bytes(b"")
        d.tunectl("reload")
        d.restart()
        d.wait_ready()
        expect(d.lookup(key(16))["kind"] == "miss" and str(path) in refusals(d), "from where?", d.lookup(key(16)))
        path.unlink()
        expect(d.tunectl("reload")[0] == 0 and refusals(d) == {}, "what is gone is still refused", refusals(d))
        # Recipes, too.
        recipe = d.dir / "site/recipes/toy.json"
        recipe.parent.mkdir()
        for text, refused, known in ((json.dumps(RECIPE), 0, True), ("{", 1, True), ("[]", 1, True), (None, 0, False)):
            recipe.write_text(text) if text else recipe.unlink()
            expect(d.tunectl("reload")[0] == refused, "not what a reload should find", text, refusals(d))
            code, told, _ = d.tunectl("want", "--recipe", "toy", "--as", "cpu")
            expect((code != 4) == known, "the recipe of before is gone", text, told)


def test_directories_that_cannot_be_listed(build):
    d = quiet(build)
    (d.dir / "site/good.json").write_bytes(table(key(16)))
    (d.dir / "site/more").mkdir()
    (d.dir / "site/more/other.json").write_bytes(table(key(128), tactic='{"id":5}'))
    deny = d.dir / "site/deny"
    deny.mkdir()
    (deny / "rules.json").write_bytes(deny_file(rule()))
    deny.chmod(0)
    try:
        with d:
            d.wait_ready()

            def expect_named(path, when):
                expect(refusals(d) == {str(path): "cannot list: Permission denied"}, f"not named {when}", refusals(d))

            def reasons(*problems):
                return [d.lookup(k).get("reason", "served") for k in problems]
            # Nobody knows what is denied: everything is.
            expect_named(deny, "at start")
            expect(reasons(key(16), key(128)) == ["denied", "denied"], "served blindly", reasons(key(16), key(128)))
            deny.chmod(0o755)
            expect(d.tunectl("reload")[0] == 0, "listed, and still refused", refusals(d))
            expect(reasons(key(16), key(128)) == ["denied", "served"], "not the rule", reasons(key(16), key(128)))
            # While the daemon runs, rules and tables of before stand, and what can be read is.
            for number, closed in enumerate((deny, d.dir / "state/deny", d.dir / "site/more", d.dir / "site")):
                closed.mkdir(exist_ok=True)
                closed.chmod(0o311)
                new = d.dir / f"packaged/{number}.json"
                new.write_bytes(table(key(32 << number), tactic='{"id":6}'))
                expect(d.tunectl("reload")[0] == 1, f"a reload without {closed} finds nothing wrong")
                expect_named(closed, "after a reload")
                expect(reasons(key(16), key(128), key(32 << number)) == ["denied", "served", "served"],
                       f"something else without {closed}", reasons(key(16), key(128), key(32 << number)))
                closed.chmod(0o755)
                expect(d.tunectl("reload")[0] == 0 and refusals(d) == {}, "listed, and still refused", refusals(d))
    finally:
        for path in (d.dir / "site", deny, d.dir / "state/deny", d.dir / "site/more"):
            if path.exists():
                path.chmod(0o755)


def test_missing_folders_and_files_in_their_place(build):
    d = quiet(build)
    for name in ("site", "packaged"):
        (d.dir / name).rmdir()
    (d.dir / "site").write_text("in the way")
    with d:
        d.wait_ready()
        expect(d.status()["tables"] == 0 and d.lookup(key(16))["kind"] == "miss", "odd", d.status())


# --- writing ---

def learned(d):
    return {p.name: p.read_bytes() for p in (d.dir / "state/tables").iterdir()} if (d.dir / "state/tables").is_dir() else {}


def writer(build, *scenario):
    """A daemon that sweeps and obeys the bits of files, and knows key(16) already."""
    d = Daemon(build).fake(*CLEAR, *scenario)
    d.popen["preexec_fn"] = obey_permissions
    return d


def knows_one(d):
    d.wait_ready()
    d.lookup(key(16))
    return d.wait_answer(key(16))


def expect_saved_when_mended(d, why, mend):
    """A sweep's entry cannot be saved: that is said; once it can be, it is, and nothing was swept twice."""
    before, answer, started = learned(d), d.lookup(key(16)), d.counter("sweeps_started")
    d.lookup(key(64))
    d.wait_for(lambda: re.search(rf"error an entry could not be saved.*{why}", d.log()), 20, "the log to say why")
    expect(d.counter("saves_failed") > 0, "not counted")
    expect(d.lookup(key(64))["kind"] == "miss", "published though it is not saved", d.lookup(key(64)))
    expect(d.lookup(key(16)) == answer and learned(d) == before, "what was known suffers", learned(d).keys())
    mend()
    d.wait_answer(key(64), seconds=10)
    expect(d.counter("sweeps_started") == started + 1, "swept twice", d.counter("sweeps_started"))
    expect(all(not name.startswith(".") for name in learned(d)), "half a file is left", learned(d).keys())
    expect(d.tunectl("reload")[0] == 0, "something unreadable was written", refusals(d))


def expect_failed_and_forced(d, why, mend):
    """The same, but nobody mends it in time: the sweep fails for that reason, and can be had again."""
    before, failed = learned(d), d.counter("saves_failed")
    d.lookup(key(128))
    history = d.wait_ended(key(128), 30)
    expect(d.log().count("error an entry could not be saved") >= 1, "the log does not say it")
    expect("failed" in history and "could not be saved" in history and re.search(why, history), "not the reason", history)
    expect(d.counter("saves_failed") == failed + 3, "not three tries", d.counter("saves_failed"))
    expect(learned(d) == before, "something was written", learned(d).keys())
    mend()
    code, _, _ = d.tunectl("sweep", key(128), "--as", "cpu", "--force", "--wait")
    expect(code == 0 and d.lookup(key(128))["kind"] == "hit", "cannot be had again", code)


def test_a_state_directory_that_is_read_only(build):
    with writer(build) as d:
        knows_one(d)
        folders = [d.dir / "state" / name for name in ("tables", "journal", "log")]

        def permit(mode):
            for folder in folders:
                folder.chmod(mode)
        permit(0o555)
        expect_saved_when_mended(d, "Permission denied", lambda: permit(0o755))
        expect("cannot be written, its sweep goes on without" in d.log(), "the lost journal is not said")
        permit(0o555)
        expect_failed_and_forced(d, "Permission denied", lambda: permit(0o755))


def test_a_file_in_place_of_the_tables_directory(build):
    with writer(build) as d:
        (d.dir / "state/tables").write_text("in the way")
        d.wait_ready()
        expect_failed_and_forced(d, "Not a directory", lambda: (d.dir / "state/tables").unlink())


def test_a_full_disk(build):
    d = writer(build, "check.2=lie")
    state = d.dir / "state"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(state)], capture_output=True,
                             text=True, check=False)
    if mounted.returncode != 0:
        d.__exit__(Skip, None, None)
        raise Skip(f"no small file system can be mounted: {mounted.stderr.strip()}")
    ballast = state / "ballast"

    def fill():
        with open(ballast, "wb", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(4096))
            except OSError:
                pass
    manager = Manager(d.dir / "manager")
    d.env = manager.environment(watchdog_us=200000)  # a tick each 100 ms
    try:
        with d:
            knows_one(d)
            fill()
            expect_saved_when_mended(d, "No space left", ballast.unlink)
            # What was found to be wrong is denied all the same, though the rule cannot be kept: at this bucket, too.
            (d.dir / "site/wrong.json").write_bytes(table(key(128), tactic='{"id":2}'))
            d.tunectl("reload")
            expect(d.lookup(key(128))["tactic"] == {"id": 2}, "the site's table is not in use")
            fill()
            expect(d.tunectl("sweep", key(128), "--as", "cpu", "--force")[0] == 0, "cannot be swept")
            d.wait_ended(key(128), 30)
            expect("a deny rule could not be saved" in d.log(), "the log does not say it", d.log()[-1500:])
            expect(d.lookup(key(128))["kind"] == "miss", "found wrong, and served", d.lookup(key(128)))
            expect(d.tunectl("reload")[0] == 0 and d.lookup(key(128))["kind"] == "miss", "served after a reload")
            ballast.unlink()
            d.wait_for(lambda: b'"min":128' in (state / "deny/node.json").read_bytes(), 10, "the rule to be kept")
            code, told, _ = d.tunectl("sweep", key(128), "--as", "cpu", "--force", "--wait")
            expect(code == 0 and d.lookup(key(128))["tactic"] == {"id": 1}, "not swept once there was room", told)
            fill()
            code, _, sentence = d.tunectl("pin", key(1), '{"id":3}', "--as", "cpu")
            expect(code == 4 and "No space left" in sentence, "a pin was promised", code, sentence)
            expect(not any((state / "pinned").iterdir() if (state / "pinned").exists() else ()), "half a pin")
            ballast.unlink()
            expect(d.tunectl("pin", key(1), '{"id":3}', "--as", "cpu")[0] == 0, "no pin once there was room")
            answers = {m: d.lookup(key(m)) for m in (1, 16, 64, 128)}
            d.restart()
            d.wait_ready()
            for m, answer in answers.items():
                expect(d.lookup(key(m)) == answer, "a restart finds something else", d.lookup(key(m)), answer)
    finally:
        subprocess.run(["umount", "-l", str(state)], check=False, stderr=subprocess.DEVNULL)
        manager.close()
        d.cleanup()


def test_a_learned_table_that_broke_is_set_aside(build):
    with writer(build) as d:
        answer = knows_one(d)
        path = pathlib.Path(answer["file"])
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        d.lookup(key(64))
        d.wait_answer(key(64))
        aside = path.with_name(path.name + ".refused-1")
        expect(aside.read_bytes() == whole[:-9], "what stood there is lost")
        expect(re.search(r"warning table file set aside.*refused-1", d.log()), "not said", d.log()[-1500:])
        expect(key(64).encode() in path.read_bytes() and key(16).encode() in path.read_bytes(), "what was served is lost")
        expect(d.tunectl("reload")[0] == 0, "refused", refusals(d))


def test_what_could_not_be_read_back_is_not_written(build):
    d = quiet(build)
    with d:
        d.wait_ready()
        deep = json.dumps({"a": 1})
        for _ in range(21):
            deep = f'{{"a":{deep}}}'
        code, told, _ = d.tunectl("deny", key(8), deep, "--reason", "deeper than a file may be")
        expect(code == 4, "taken", told)
        code, told, _ = d.tunectl("deny", key(8), '{"id":1}', "--reason", "a test")
        expect(code == 0, "one bad rule spoils the next", told)
        pinned = 0
        for m in range(1, 19):
            code, told, _ = d.tunectl("pin", key(m), '{"id":2}', "--as", "cpu", "--note", "x" * 100000)
            pinned += code == 0
        expect(pinned == 18, "a small table was refused", pinned)
        big = Client(d.dir / "run/control/sock").hello()
        refused = [m for m in range(101, 120)
                   if big.ask("pin", {"key": key(m), "tactic": {"id": 3}, "note": "y" * 1000000}).status != "OK"]
        expect(refused, "17 MB are no table")
        expect(d.lookup(key(1))["kind"] == "hit" and d.lookup(key(101))["kind"] == "hit", "pins are gone", d.log()[-900:])
        d.restart()
        d.wait_ready()
        expect(refusals(d) == {} and d.status()["denied"] == 1, "a file is refused", refusals(d))
        expect(d.lookup(key(1))["kind"] == "hit" and d.lookup(key(101))["kind"] == "hit", "pins are gone")


def test_unpinning_from_a_torn_table_loses_nothing(build):
    d = quiet(build)
    with d:
        d.wait_ready()
        for m in (1, 2, 3):
            d.tunectl("pin", key(m), '{"id":2}', "--as", "cpu")
        path = pathlib.Path(d.lookup(key(1))["file"])
        path.write_bytes(path.read_bytes()[:-20])
        expect(d.tunectl("reload")[0] == 1, "torn, and taken")
        expect(d.tunectl("unpin", key(2))[0] == 0, "not unpinned")
        expect([d.lookup(key(m))["kind"] for m in (1, 2, 3)] == ["hit", "miss", "hit"], "pins are gone", d.log()[-900:])


def test_a_model_with_a_dot_keeps_its_tables(build):
    d = writer(build)
    (d.dir / "packaged/recipes").mkdir()
    (d.dir / "packaged/recipes/dot.json").write_text(json.dumps({**RECIPE, "model": ".dot"}))
    with d:
        d.wait_ready()
        expect(d.tunectl("sweep", "--recipe", ".dot", "--as", "cpu", "--wait", timeout=60)[0] == 0, "not swept")
        before = d.status()["entries"]
        d.restart()
        d.wait_ready()
        expect(d.status()["entries"] == before > 0, "the table is gone", d.status())


def test_a_fifo_among_the_journals(build):
    d = writer(build)
    (d.dir / "state/journal").mkdir(parents=True, exist_ok=True)
    os.mkfifo(d.dir / "state/journal/20260101T000000Z-00000000.jsonl")
    with d:
        knows_one(d)


if __name__ == "__main__":
    run([test_broken_tables_in_each_layer, test_broken_recipes, test_a_broken_deny_file_denies,
         test_a_reload_with_a_broken_file_keeps_the_old_content, test_directories_that_cannot_be_listed,
         test_missing_folders_and_files_in_their_place,
         test_a_state_directory_that_is_read_only, test_a_file_in_place_of_the_tables_directory, test_a_full_disk,
         test_a_learned_table_that_broke_is_set_aside, test_what_could_not_be_read_back_is_not_written,
         test_unpinning_from_a_torn_table_loses_nothing, test_a_model_with_a_dot_keeps_its_tables,
         test_a_fifo_among_the_journals])
