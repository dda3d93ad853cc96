# SPDX-License-Identifier: Apache-2.0
"""tacticd.flashinfer: FlashInfer seeded by a real daemon, and everything that can go wrong. FlashInfer itself is a
stand-in here (stand_in/flashinfer); tests/flashinfer has the real packages."""
import contextlib
import importlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import common
import flashinfer.autotune_cache as stand_in_cache
import flashinfer.autotuner.autotuner as stand_in
from common import BUCKETS, ENVIRONMENT, EP, LAYOUT, MODEL, TOTAL, TP, Case, client, listening

import tacticd
from tacticd import cachefile, flashinfer

DAEMON = None
OTHER = {**ENVIRONMENT, "flashinfer_version": "0.7.4"}
MINE = {"('my::op', 'MyRunner', ((1, 2),), ())": ["MyRunner", 7, ["p"], {"times": [1.5, 2.25]}]}


def setUpModule():
    global DAEMON
    DAEMON = common.daemon()


def tearDownModule():
    common.end(DAEMON)


class Here(Case):
    """A daemon where libtactic looks, and a folder."""

    def setUp(self):
        super().setUp()
        os.environ["TACTICD_SOCKET"] = common.socket_of(DAEMON)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def seed(self, **options):
        return flashinfer.seed_flashinfer(MODEL, EP, TP, **{"timeout_ms": 15000, **options})

    def materialize(self, path, **options):
        return flashinfer.materialize(path, MODEL, EP, TP, **{"timeout_ms": 15000, **options})

    def install(self, root=None, **options):
        return flashinfer.install_v2(MODEL, EP, TP, root, **{"timeout_ms": 15000, **options})

    def client(self, **options):
        made = client(DAEMON, **options)
        self.addCleanup(made.close)
        return made

    @contextlib.contextmanager
    def denied(self, tokens, *tactic):
        """The daemon denies the table's tactic for so many tokens, while this is open."""
        key = self.client().flashinfer_problem(common.file_key(tokens), MODEL, LAYOUT)
        code, told, err = DAEMON.tunectl("deny", key, *tactic, "--reason", "a test says so")
        self.assertEqual(code, 0, err)
        try:
            yield
        finally:
            code, _, err = DAEMON.tunectl("allow", told["id"])
            self.assertEqual(code, 0, err)


class Seed(Here):
    def test_seeded(self):
        with listening() as heard, mock.patch("tempfile.tempdir", str(self.folder)):
            self.assertIs(self.seed(), True)
        self.assertEqual(heard, [])
        self.assertEqual(self.tuner()._file_configs, {k: tuple(v) for k, v in common.entries().items()})
        self.assertEqual(os.listdir(self.folder), [])  # the file is gone again

    def test_records_of_other_files_stay(self):
        tuner = self.tuner()
        tuner._namespaced_records, tuner._dirty_namespaces = {"name": {"a": 1}}, {"name"}
        self.assertIs(self.seed(), True)
        self.assertEqual((tuner._namespaced_records, tuner._dirty_namespaces), ({"name": {"a": 1}}, {"name"}))

    def test_in_the_process_s_own_environment(self):
        """Facts that the entries do not depend on may differ; the file says the process's own."""
        stand_in.ENVIRONMENT["cudnn_version"] = "92400"
        self.assertEqual(flashinfer.metadata()["cudnn_version"], "92400")
        self.assertIs(self.seed(), True)

    def test_with_the_caller_s_client_and_table(self):
        c = self.client(environment=OTHER)
        self.assertIs(self.seed(client=c), True)
        self.assertEqual(c.fingerprint_get("flashinfer"), "0.6.16")
        table = c.table(MODEL, LAYOUT)
        self.reset()  # no daemon is asked now
        os.environ["TACTICD_SOCKET"] = "/nowhere/at/all"
        self.assertIs(self.seed(table=table), True)
        self.assertEqual(len(self.tuner()._file_configs), len(BUCKETS))

    def test_waits_for_more_and_takes_what_there_is(self):
        begun = time.monotonic()
        self.assertIs(self.seed(wait_ms=700), True)
        self.assertGreater(time.monotonic() - begun, 0.6)

    def test_unconfirmed_is_refused_where_asked(self):
        self.assertRefuses(lambda: self.seed(confirmed=True), "0 of 42 problems are answered")
        self.assertRefuses(lambda: self.seed(client=self.client(confirmed=True)), "unconfirmed")


class Refusals(Here):
    """Always False, one warning, no exception, in time."""

    def everything(self, *words, seconds=20, **options):
        self.assertRefuses(lambda: self.seed(**options), *words, seconds=seconds)
        self.assertRefuses(lambda: self.materialize(self.folder / "f", **options), *words, seconds=seconds)
        self.assertRefuses(lambda: self.install(self.folder / "v2", **options), *words, seconds=seconds)
        self.assertEqual(self.tuner()._file_configs, {})
        self.assertEqual([p for p in self.folder.rglob("*") if p.is_file()], [])

    def test_no_daemon(self):
        os.environ["TACTICD_SOCKET"] = "/nowhere/at/all"
        self.everything("/nowhere/at/all", seconds=2, timeout_ms=60000, wait_ms=60000)  # nothing waits

    def test_silent_daemon(self):
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(self.folder / "s"))
            silent.listen()
            os.environ["TACTICD_SOCKET"] = str(self.folder / "s")
            self.assertRefuses(lambda: self.seed(timeout_ms=300), seconds=3)

    def test_somebody_else_listens(self):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(self.folder / "s"))
            other.listen()

            def babble():
                while True:
                    try:
                        connection, _ = other.accept()
                    except OSError:
                        return
                    with connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)

            babbler = threading.Thread(target=babble)
            babbler.start()
            os.environ["TACTICD_SOCKET"] = str(self.folder / "s")
            self.assertRefuses(lambda: self.seed(timeout_ms=2000), seconds=6)
            other.shutdown(socket.SHUT_RDWR)
            babbler.join()

    def test_killed_while_it_is_asked(self):
        d = common.daemon()
        try:
            os.environ["TACTICD_SOCKET"] = common.socket_of(d)
            killer = threading.Timer(0.7, d.kill)
            killer.start()
            begun = time.monotonic()
            self.assertRefuses(lambda: self.seed(wait_ms=30000), seconds=10)  # it would have waited
            self.assertGreater(time.monotonic() - begun, 0.5)
            killer.join()
        finally:
            common.end(d)

    def test_stopped_while_it_is_asked(self):
        d = common.daemon()
        try:
            os.environ["TACTICD_SOCKET"] = common.socket_of(d)
            d.process.send_signal(signal.SIGSTOP)
            self.assertRefuses(lambda: self.seed(timeout_ms=400), "did not answer", seconds=3)
        finally:
            d.process.send_signal(signal.SIGCONT)
            common.end(d)

    def test_stale(self):
        """The warning names the facts that differ, and the cure."""
        stand_in.ENVIRONMENT.update(OTHER)
        self.everything("0 of 42", "stale", "flashinfer 0.6.16 there, 0.7.4 here", f"tunectl sweep --recipe {MODEL}",
                        client=self.client())

    def test_another_device(self):
        stand_in.ENVIRONMENT["gpu"] = "Another 1"
        self.everything("other_device", "device Look Alike 3000 there, Another 1 here", client=self.client())

    def test_unknown_recipe_and_layout(self):
        self.assertRefuses(lambda: flashinfer.seed_flashinfer("no-such-model", EP, TP), "no-such-model")
        self.assertRefuses(lambda: flashinfer.seed_flashinfer(MODEL, 3, 5), "ep=3,tp=5")
        self.assertRefuses(lambda: flashinfer.seed_flashinfer(None, None, None))

    def test_flashinfer_says_no(self):
        stand_in.LOADS = "no"
        self.assertRefuses(self.seed, "does not take the file")

    def test_flashinfer_raises(self):
        stand_in.LOADS = "error"
        with mock.patch("tempfile.tempdir", str(self.folder)):
            self.assertRefuses(self.seed, "told to fail")
        self.assertEqual(os.listdir(self.folder), [])

    def test_flashinfer_takes_nothing(self):
        with mock.patch.object(stand_in.AutoTuner, "load_configs", lambda self, path: True):
            self.assertRefuses(self.seed, "none of its 4 entries")

    def test_flashinfer_is_not_there(self):
        with mock.patch.dict(sys.modules, {"flashinfer": None}):
            self.assertIsNone(flashinfer.metadata())
            self.everything("FlashInfer cannot be imported")

    def test_flashinfer_does_not_tell_its_environment(self):
        with mock.patch.object(importlib.import_module("flashinfer.autotuner"), "_collect_metadata", None):
            self.everything("does not tell its environment")

    def test_unwritable(self):
        with mock.patch("tempfile.tempdir", "/nowhere/at/all"):
            self.assertRefuses(self.seed, "/nowhere/at/all")
        for path in ("/dev/null/f.json", "/proc/f.json", str(self.folder), "a\0b"):
            self.assertRefuses(lambda: self.materialize(path))
        for root in ("/dev/null", "/proc", "a\0b"):
            self.assertRefuses(lambda: self.install(root))
        self.assertEqual(os.listdir(self.folder), [])

    def test_no_library(self):
        """Also an old one, and a file that is none."""
        program = ("import logging, tacticd, tacticd.flashinfer as f\n"
                   "logging.basicConfig(format='%(name)s %(levelname)s %(message)s')\n"
                   "import flashinfer.autotuner.autotuner as s\n"
                   f"s.ENVIRONMENT = {ENVIRONMENT!r}\n"
                   "print(f.seed_flashinfer('m', 1, 1), f.materialize('/nowhere/f', 'm', 1, 1), f.install_v2('m', 1, 1, '/nowhere'))\n"
                   "try:\n    tacticd.Client()\n"
                   "except tacticd.TacticError as e:\n    print(e.code.name)\n")
        bad = self.folder / "bad.so"
        bad.write_text("not a library")
        libc = next(line.split()[-1] for line in open("/proc/self/maps", encoding="utf-8") if "libc.so" in line)
        for path in ("/nowhere/libtactic.so.1", str(bad), libc):
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                                  env={**os.environ, "TACTICD_LIBRARY": path, "PYTHONPATH": os.pathsep.join(sys.path)})
            self.assertEqual(done.stdout, "False False False\nNO_LIBRARY\n", done.stderr)
            self.assertEqual(done.stderr.count("tacticd WARNING"), 3, done.stderr)
            self.assertIn("TACTICD_LIBRARY", done.stderr)

    def test_interrupts_pass(self):
        for stop in (KeyboardInterrupt, SystemExit):
            with mock.patch.object(stand_in.AutoTuner, "load_configs", side_effect=stop), self.assertRaises(stop):
                self.seed()


class Materialize(Here):
    def held(self, path):
        return json.loads(path.read_text())

    def test_new(self):
        path = self.folder / "deep/down/f.json"
        self.assertIs(self.materialize(path), True)
        self.assertEqual(self.held(path), common.cache_file())
        self.assertEqual(os.listdir(path.parent), ["f.json"])
        self.assertIs(self.tuner().load_configs(path), True)

    def test_the_same_environment_keeps_its_other_entries(self):
        path = self.folder / "f.json"
        other = {common.file_key(4): ["MoERunner", [8, 99]], **MINE, "_records": {"name": {"a": 1}}, "_generation": "old"}
        path.write_text(json.dumps(common.cache_file(more=other)))
        path.chmod(0o640)
        self.assertIs(self.materialize(path), True)
        held = self.held(path)
        self.assertEqual(list(held)[:2] + list(held)[-1:], ["_metadata", "_records", "_generation"])
        self.assertEqual({k: v for k, v in held.items() if k[0] != "_"}, {**MINE, **common.entries()})
        self.assertEqual(held["_records"], {"name": {"a": 1}})
        self.assertNotEqual(held["_generation"], "old")
        self.assertEqual(path.stat().st_mode & 0o777, 0o640)
        before = path.read_bytes()
        self.assertIs(self.materialize(path), True)
        self.assertEqual(path.read_bytes(), before)

    def test_another_environment_stays(self):
        path = self.folder / "f.json"
        path.write_text(json.dumps(common.cache_file(environment=OTHER, more=MINE)))
        before = path.read_bytes()
        self.assertRefuses(lambda: self.materialize(path), "flashinfer_version is 0.7.4 there, 0.6.16 here", str(path))
        self.assertEqual(path.read_bytes(), before)
        self.assertIs(self.materialize(path, overwrite=True), True)
        self.assertEqual(self.held(path), common.cache_file())

    def test_an_environment_nobody_knows_is_replaced(self):
        for unknown in ("unknown", None, "None"):
            path = self.folder / "f.json"
            path.write_text(json.dumps(common.cache_file(environment={**ENVIRONMENT, "cudnn_version": unknown}, more=MINE)))
            self.assertIs(self.materialize(path), True)
            self.assertEqual(self.held(path), common.cache_file())
        missing = {k: v for k, v in ENVIRONMENT.items() if k != "gpu"}
        path.write_text(json.dumps(common.cache_file(environment=missing, more=MINE)))
        self.assertIs(self.materialize(path), True)
        self.assertEqual(self.held(path), common.cache_file())

    def test_wildcards_and_old_files_are_the_same_environment(self):
        path = self.folder / "f.json"
        path.write_text(json.dumps(common.cache_file(environment={**ENVIRONMENT, "cudnn_version": "*"}, more=MINE)))
        self.assertIs(self.materialize(path), True)
        self.assertEqual(self.held(path), common.cache_file(more=MINE))
        path.write_text(json.dumps(MINE))  # no metadata at all
        self.assertIs(self.materialize(path), True)
        self.assertEqual(self.held(path), common.cache_file(more=MINE))

    def test_what_is_no_cache_file_stays(self):
        path = self.folder / "f.json"
        for text in ("my notes", "[1, 2]", "[" * 100000, "\udc80"):
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
            before = path.read_bytes()
            self.assertRefuses(lambda: self.materialize(path), "no cache file")
            self.assertEqual(path.read_bytes(), before)
        path.write_text("")
        self.assertIs(self.materialize(path), True)
        os.truncate(path, cachefile.MAX_FILE_BYTES + 1)
        self.assertRefuses(lambda: self.materialize(path), "longer than 64 MiB")
        os.mkfifo(self.folder / "pipe")
        self.assertRefuses(lambda: self.materialize(self.folder / "pipe"), "no file")

    def test_denied_entries_go(self):
        """They were written before the rule was there."""
        path = self.folder / "f.json"
        path.write_text(json.dumps(common.cache_file(more={**MINE, "_records": {"name": {"a": 1}}})))
        self.assertIs(self.materialize(path, client=self.client()), True)
        left = {k: v for k, v in common.entries().items() if k != common.file_key(4)}
        with self.denied(4, "[32,4]"), listening() as heard:
            self.assertIs(self.materialize(path, client=self.client()), True)
        self.assertEqual(len(heard), 1, heard)
        self.assertIn("taken out, because this node denies them: 1 entries", heard[0])
        held = self.held(path)
        self.assertEqual({k: v for k, v in held.items() if k[0] != "_"}, {**MINE, **left})
        self.assertEqual(held["_records"], {"name": {"a": 1}})

    def test_denied_entries_go_though_nothing_is_served(self):
        path = self.folder / "f.json"
        self.assertIs(self.materialize(path, client=self.client()), True)
        with contextlib.ExitStack() as stack:
            for tokens in BUCKETS:
                stack.enter_context(self.denied(tokens, f"[32,{tokens}]"))
            with listening() as heard:
                self.assertIs(self.materialize(path, client=self.client()), False)
        self.assertEqual(len(heard), 2, heard)
        self.assertIn(f"{len(BUCKETS)} entries", heard[0])
        self.assertEqual({k for k in self.held(path) if k[0] != "_"}, set())

    def test_denied_entries_of_another_environment_are_not_ours(self):
        path = self.folder / "f.json"
        path.write_text(json.dumps(common.cache_file(environment=OTHER)))
        before = path.read_bytes()
        with self.denied(4, "[32,4]"):
            self.assertRefuses(lambda: self.materialize(path, client=self.client()), "0.7.4 there")
        self.assertEqual(path.read_bytes(), before)

    def test_a_table_in_hand_needs_no_daemon(self):
        path = self.folder / "f.json"
        c = self.client()
        self.assertIs(self.materialize(path, client=c), True)
        table = c.table(MODEL, LAYOUT)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(self.folder / "s"))
            silent.listen()
            asking = self.client(socket=str(self.folder / "s"))
            with listening() as heard:
                self.assertIs(self.materialize(path, table=table, client=asking, timeout_ms=300), True)
        self.assertEqual(len(heard), 1, heard)
        self.assertIn("is not known", heard[0])

    def test_for_another_process(self):
        with mock.patch.dict(sys.modules, {"flashinfer": None}):
            self.assertIs(self.materialize(self.folder / "f.json", metadata=ENVIRONMENT), True)
        self.assertEqual(self.held(self.folder / "f.json"), common.cache_file())


class Store(Here):
    def environments(self, root):
        return {p.name: json.loads((p / "manifest.json").read_text()) for p in (root / "v2").iterdir()}

    def test_store(self):
        root = self.folder / "root"
        self.assertIs(self.install(root), True)
        (manifest,) = self.environments(root).values()
        self.assertEqual(manifest, {**ENVIRONMENT, "cache_schema": "v2"})
        held = [json.loads(p.read_text()) for p in root.glob("v2/*/entries/*.json")]
        self.assertEqual({e["key"]: [e["runner"], e["tactic"]] for e in held}, common.entries())

    def test_denied_entries_go(self):
        root = self.folder / "root"
        self.assertIs(self.install(root, client=self.client()), True)
        with self.denied(4, "[32,4]"), listening() as heard:
            self.assertIs(self.install(root, client=self.client()), True)
        self.assertIn("1 entries", heard[0])
        held = [json.loads(p.read_text())["key"] for p in root.glob("v2/*/entries/*.json")]
        self.assertEqual(sorted(held), sorted(k for k in common.entries() if k != common.file_key(4)))

    def test_default_root(self):
        stand_in_cache.ROOT = self.folder / "own"
        self.assertIs(self.install(), True)
        self.assertEqual(len(self.environments(self.folder / "own")), 1)
        with mock.patch.dict(os.environ, {"FLASHINFER_AUTOTUNE_CACHE_DIR": str(self.folder / "set")}):
            self.assertIs(self.install(), True)
        self.assertEqual(len(self.environments(self.folder / "set")), 1)

    def test_policy_is_part_of_the_identity(self):
        policy = mock.Mock(manifest_fields=lambda: {"measure_execution_mode": "eager"})
        self.assertIs(self.install(self.folder, measurement_policy=policy), True)
        self.assertIs(self.install(self.folder), True)
        modes = [m.get("measure_execution_mode") for m in self.environments(self.folder).values()]
        self.assertEqual(sorted(modes, key=str), [None, "eager"])

    def test_a_release_without_v2(self):
        with mock.patch.dict(sys.modules, {"flashinfer.autotune_cache": None}):
            package = importlib.import_module("flashinfer")
            kept = package.__dict__.pop("autotune_cache")
            try:
                self.assertRefuses(self.install, "has no autotune_v2")
            finally:
                package.autotune_cache = kept


class Whole(Here):
    def test_coverage_is_told(self):
        with listening(level=20) as heard:
            self.seed()
        self.assertIn(f"4 of 4 entries, 4 of {TOTAL} problems", heard[-1])

    def test_imports_nothing_by_itself(self):
        program = "import sys, tacticd, tacticd.flashinfer\nprint([m for m in ('flashinfer', 'torch') if m in sys.modules])\n"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(done.stdout, "[]\n")

    def test_names(self):
        for name in tacticd.__all__:
            self.assertTrue(hasattr(tacticd, name), name)
