#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of one node answer on another, in a signed file; what is not signed by who is trusted, or not whole, does not.

usage: bundle.py --build DIR [TEST...]
"""
import json
import pathlib
import shutil
import signal

from files import refusals, table
from harness import Daemon, expect, key, run

CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
HIDDEN = "the signature does not hold"


def sweeper(build):
    return Daemon(build).fake(*CLEAR)


def server(build):
    """Another node: it only answers."""
    d = Daemon(build, sweep={"when": "never"}).fake(*CLEAR)
    (d.dir / "keys").mkdir()
    return d


def keygen(d, name):
    path = d.dir / name
    code, told, err = d.tunectl("keygen", str(path))
    expect(code == 0 and path.stat().st_mode & 0o777 == 0o600, "no key", code, err)
    return path, told["key"][:16]


def pack(d, name, secret, *words, code=0):
    path = d.dir / name
    done, told, err = d.tunectl("bundle", str(path), "--key", str(secret), *words)
    expect(done == code, f"bundle ended with {done}", told, err)
    return path, told


def trust(d, secret):
    public = pathlib.Path(f"{secret}.pub")
    shutil.copy(public, d.dir / "keys" / public.name)
    return d.dir / "keys" / public.name


def reload(d, code):
    done, told, err = d.tunectl("reload")
    expect(done == code, f"reload ended with {done}", told, err)
    return told


def expect_served(d, bundle, *problems):
    """Each is answered from the line of the bundle that holds it."""
    lines = bundle.read_text().split("\n")
    for problem in problems:
        told = d.tunectl("explain", problem, "--as", "cpu")[1]
        answer = told["answer"]
        expect(answer["kind"] == "hit" and answer["layer"] == "site" and answer["file"] == str(bundle),
               "not served from the bundle", answer)
        expect(lines[answer["line"] - 1].startswith(f'{{"key":"{answer["key"]}"'), "another line", answer["line"], lines)
        expect(d.lookup(problem)["line"] == answer["line"], "lookup and explain differ", d.lookup(problem))


def expect_missed(d, *problems):
    for problem in problems:
        expect(d.lookup(problem)["kind"] == "miss", "served", d.lookup(problem))


def expect_refused(d, bundle, *words):
    sentence = refusals(d).get(str(bundle), "")
    expect(all(word in sentence for word in words), "not named, or not why and what helps", words, refusals(d))


def test_a_bundle_answers_on_another_node(build):
    with sweeper(build) as a, server(build) as b:
        for d in (a, b):
            d.wait_ready()
        for m, n in ((16, 64), (64, 64), (16, 128)):
            a.lookup(key(m, n))
            a.wait_answer(key(m, n))
        problems = (key(16), key(64), key(16, 128))
        secret, name = keygen(a, "fleet")
        packed, told = pack(a, "a.bundle", secret)
        expect(sum(row["entries"] for row in told["tables"]) == 3 and not told["left_out"], "not all is packed", told)
        learned = [pathlib.Path(row["from"]).read_text() for row in told["tables"]]
        expect(packed.read_text().endswith("".join(learned)), "the tables' bytes changed")

        # A stranger's: nothing of it, until the key is there.
        bundle = b.dir / "site/a.bundle"
        shutil.copy(packed, bundle)
        refused = reload(b, 1)["refused"]
        expect(len(refused) == 1 and refused[0]["file"] == str(bundle), "reload does not name it", refused)
        expect_refused(b, bundle, name, "is not trusted here", str(b.dir / "keys"), "reload")
        expect_missed(b, *problems)
        public = trust(b, secret)
        expect_missed(b, *problems)
        reload(b, 0)
        expect_served(b, bundle, *problems)
        expect(b.status()["refused"] == [], "still refused", b.status()["refused"])
        same = {k: v for k, v in b.lookup(key(64)).items() if k not in ("layer", "file", "line")}
        expect(same == {k: v for k, v in a.lookup(key(64)).items() if k in same}, "another answer", same)
        rows = [row for row in b.tunectl("tables")[1]["tables"] if row["file"] == str(bundle)]
        expect(sum(row["entries"] for row in rows) == 3 and rows[0]["layer"] == "site", "tables does not show it", rows)
        # Tokens between the buckets, too; and it is there after a start.
        expect(b.lookup(key(13))["key"] == key(16), "not mapped", b.lookup(key(13)))
        b.restart()
        b.wait_ready()
        expect_served(b, bundle, *problems)
        # What is a bundle already is not packed again.
        _, told = pack(b, "b.bundle", secret, code=1)
        expect(not (b.dir / "b.bundle").exists(), "an empty bundle was written")

        # The key goes, and what it signed goes with it; SIGHUP is a reload, too.
        public.unlink()
        b.process.send_signal(signal.SIGHUP)
        b.wait_for(lambda: b.lookup(key(16))["kind"] == "miss", 10, "the end of the bundle")
        expect_refused(b, bundle, name, "is not trusted here")
        expect_missed(b, *problems)


def test_a_spoilt_bundle_is_refused_whole(build):
    with sweeper(build) as a, server(build) as b:
        for d in (a, b):
            d.wait_ready()
        a.lookup(key(16))
        a.wait_answer(key(16))
        secret, _ = keygen(a, "fleet")
        good = pack(a, "a.bundle", secret)[0].read_bytes()
        trust(b, secret)
        bundle = b.dir / "site/a.bundle"
        at = good.index(b'"tactic"')
        spoils = {"cut": (good[:-1], HIDDEN), "half": (good[:len(good) // 2], HIDDEN), "empty": (b"", "not a bundle"),
                  "altered": (good[:at] + good[at:].replace(b"1", b"2", 1), HIDDEN), "longer": (good + b"\n", HIDDEN),
                  "table": (table(key(16)), "not a bundle"), "large": (good + b" " * (64 << 20), "larger than 64 MiB")}
        for name, (content, words) in spoils.items():
            bundle.write_bytes(content)
            reload(b, 1)
            expect_refused(b, bundle, words)
            expect_missed(b, key(16))
            done = b.tunectl("check", str(bundle))
            expect(done[0] == 1 or name == "table", f"{name}: check finds nothing", done)
        bundle.write_bytes(good)
        reload(b, 0)
        expect_served(b, bundle, key(16))
        # Damage leaves the old content in service, as of any file, but no start finds it.
        answer = b.lookup(key(16))
        bundle.write_bytes(good[:-1])
        reload(b, 1)
        expect(b.lookup(key(16)) == answer, "a damaged file costs the answers that were served", b.lookup(key(16)))
        b.restart()
        b.wait_ready()
        expect_refused(b, bundle, HIDDEN, "copy it here again")
        expect_missed(b, key(16))
        # In any other layer it is not read at all.
        for folder in ("packaged", "state/tables"):
            (b.dir / folder).mkdir(exist_ok=True)
            (b.dir / folder / "a.bundle").write_bytes(good)
        bundle.unlink()
        reload(b, 1)
        expect_refused(b, b.dir / "packaged/a.bundle", "among the site's tables only")
        expect_refused(b, b.dir / "state/tables/a.bundle", "among the site's tables only")
        expect_missed(b, key(16))


def test_keys_are_changed_without_a_gap(build):
    with sweeper(build) as a, server(build) as b:
        for d in (a, b):
            d.wait_ready()
        a.lookup(key(16))
        a.wait_answer(key(16))
        old, _ = keygen(a, "old")
        new, _ = keygen(a, "new")
        bundle = b.dir / "site/a.bundle"
        old_public = trust(b, old)
        shutil.copy(pack(a, "a.bundle", old)[0], bundle)
        reload(b, 0)
        expect_served(b, bundle, key(16))
        trust(b, new)
        reload(b, 0)
        expect_served(b, bundle, key(16))
        shutil.copy(pack(a, "a.bundle", new)[0], bundle)
        reload(b, 0)
        expect_served(b, bundle, key(16))
        old_public.unlink()
        reload(b, 0)
        expect_served(b, bundle, key(16))
        # A file of keys that is none is named, and costs no other.
        (b.dir / "keys/broken.pub").write_text("hello\n")
        shutil.copy(old, b.dir / "keys/secret.pub")
        refused = {row["file"]: row["sentence"] for row in reload(b, 1)["refused"]}
        expect("not a public key" in refused[str(b.dir / "keys/broken.pub")], "not named", refused)
        expect("a secret key" in refused[str(b.dir / "keys/secret.pub")], "not named", refused)
        expect_served(b, bundle, key(16))


def test_only_what_may_travel_is_packed(build):
    with sweeper(build) as a:
        a.wait_ready()
        for m in (16, 64):
            a.lookup(key(m))
            a.wait_answer(key(m))
        (a.dir / "site/hearsay.json").write_bytes(table(key(16, 32)))
        reload(a, 0)
        secret, _ = keygen(a, "fleet")
        _, told = pack(a, "a.bundle", secret)
        expect([row["entries"] for row in told["tables"]] == [2], "not the learned ones alone", told)
        expect([row["file"] for row in told["left_out"]] == [str(a.dir / "site/hearsay.json")], "not said", told)
        _, told = pack(a, "a.bundle", secret, "--imported")
        expect(sum(row["entries"] for row in told["tables"]) == 3, "--imported does not pack it", told)
        # What is denied here stays here.
        tactic = a.lookup(key(16))["tactic"]
        code, rule, err = a.tunectl("deny", key(16), json.dumps(tactic), "--reason", "a test")
        expect(code == 0 and rule["filtered"] == 1, "not denied", rule, err)
        path, told = pack(a, "a.bundle", secret)
        expect([(row["entries"], row["denied"]) for row in told["tables"]] == [(1, 1)], "a denied tactic travels", told)
        expect(key(16).encode() not in path.read_bytes() and key(64).encode() in path.read_bytes(), "not as it says")
        code, told, _ = a.tunectl("check", str(path), "--key", f"{secret}.pub")
        expect(code == 0 and told[0]["entries"] == 1, "not a good bundle", told)
        # Nor does anything travel while nobody knows what is denied.
        (a.dir / "state/deny/broken.json").write_text("{")
        reload(a, 1)
        code, _, err = a.tunectl("bundle", str(path), "--key", str(secret))
        expect(code == 1 and "broken.json: these deny rules cannot be read" in err, "packed blindly", code, err)


if __name__ == "__main__":
    run([test_a_bundle_answers_on_another_node, test_a_spoilt_bundle_is_refused_whole,
         test_keys_are_changed_without_a_gap, test_only_what_may_travel_is_packed])
