# SPDX-License-Identifier: Apache-2.0
"""tacticd.Client and Table against a real daemon with a table of FlashInfer's."""
import gc
import json
import logging
import os
import pickle
import socket
import tempfile
import threading
import time

import common
from common import BUCKETS, ENVIRONMENT, LAYOUT, MODEL, TOTAL, Case, client

import tacticd
from tacticd import Error, Kind, TacticError

DAEMON = None


def setUpModule():
    global DAEMON
    DAEMON = common.daemon()


def tearDownModule():
    common.end(DAEMON)


class Raises(Case):
    def assertFails(self, code, function, *args, **kwargs):
        with self.assertRaises(TacticError) as caught:
            function(*args, **kwargs)
        self.assertIs(caught.exception.code, code, caught.exception)
        self.assertEqual(str(caught.exception), caught.exception.sentence)
        self.assertTrue(caught.exception.sentence)
        return caught.exception


class Lookups(Raises):
    def test_hit(self):
        with client(DAEMON) as c:
            key = c.flashinfer_problem(common.file_key(4), MODEL, LAYOUT)
            answer = c.lookup(key)
        self.assertIs(answer.kind, Kind.HIT)
        self.assertEqual(json.loads(answer.tactic), [32, 4])
        self.assertEqual((answer.key, answer.state, answer.layer, answer.from_daemon), (key, "imported", "learned", True))
        self.assertTrue(answer.file.endswith(".json"))
        self.assertGreater(answer.line, 0)
        self.assertGreater(answer.generation, 0)
        self.assertIsNone(answer.reason)
        self.assertIsNone(answer.evidence.gain)  # nothing was measured
        self.assertIsNone(answer.evidence.repeatable)
        self.assertEqual(answer.evidence.ties, ())

    def test_miss_has_a_reason(self):
        with client(DAEMON) as c:
            answer = c.lookup("no_such_op,backend=none")
            self.assertEqual((answer.kind, answer.reason, answer.tactic), (Kind.MISS, "unknown_op", None))

    def test_many_in_order(self):
        with client(DAEMON) as c:
            keys = [c.flashinfer_problem(common.file_key(m), MODEL, LAYOUT) for m in BUCKETS] * 50
            answers = c.lookup_many(keys + ["x"])
        self.assertEqual([a.key for a in answers[:-1]], keys)
        self.assertEqual([json.loads(a.tactic)[1] for a in answers[:-1]], list(BUCKETS) * 50)
        self.assertIs(answers[-1].kind, Kind.MISS)

    def test_confirmed_takes_no_imports(self):
        with client(DAEMON, confirmed=True) as c:
            key = c.flashinfer_problem(common.file_key(4), MODEL, LAYOUT)
            self.assertEqual((c.lookup(key).kind, c.lookup(key).reason), (Kind.MISS, "unconfirmed"))
            self.assertEqual(c.table(MODEL, LAYOUT).covered, 0)

    def test_another_environment_is_told(self):
        with client(DAEMON, environment={**ENVIRONMENT, "flashinfer_version": "0.7.4"}) as c:
            answer = c.lookup(c.flashinfer_problem(common.file_key(4), MODEL, LAYOUT))
        self.assertEqual((answer.kind, answer.reason), (Kind.MISS, "stale"))
        self.assertIn("flashinfer 0.6.16 there, 0.7.4 here", answer.sentence)

    def test_errors(self):
        missing = os.path.join(tempfile.gettempdir(), "tacticd-nobody.sock")
        with tacticd.Client(socket=missing) as c:
            self.assertFails(Error.ABSENT, c.lookup, "x")
            self.assertEqual(self.assertFails(Error.ABSENT, c.lookup_many, ["x", "y"]).answers, [None, None])
        self.assertFails(Error.PATH, tacticd.Client, socket="/" + "x" * 200)
        self.assertFails(Error.ARGUMENT, tacticd.Client, job="x" * 129)
        self.assertFails(Error.ARGUMENT, tacticd.Client, socket="a\0b")
        with client(DAEMON) as c:
            self.assertFails(Error.NOT_FOUND, c.table, "no-such-model")
            self.assertFails(Error.NOT_FOUND, c.table, MODEL, "ep=3,tp=7")
            self.assertFails(Error.NOT_FOUND, c.recipe_problems, "no-such-model")
            self.assertFails(Error.NOT_FOUND, c.recipe_problems, MODEL, "ep=3,tp=7")
            self.assertFails(Error.ARGUMENT, c.recipe_problems, None)
            self.assertFails(Error.NOT_FOUND, c.flashinfer_problem, "('an::op', 'R', (), ())", MODEL, LAYOUT)
            self.assertFails(Error.REFUSED, c.flashinfer_problem, "not a key", MODEL, LAYOUT)
            self.assertFails(Error.ARGUMENT, c.fingerprint_set, "no_such_fact", "x")
            self.assertFails(Error.ARGUMENT, c.fingerprint_flashinfer, "not JSON")
            self.assertFails(Error.ARGUMENT, c.want)
        self.assertFails(Error.ARGUMENT, c.lookup, "x")  # it is closed
        c.close()
        error = pickle.loads(pickle.dumps(TacticError(3, "late", [None])))
        self.assertEqual((error.code, error.sentence, error.answers), (Error.TIMEOUT, "late", [None]))
        self.assertEqual(TacticError(99, "of a newer library").code, 99)

    def test_silence_costs_one_deadline(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(folder + "/s")
            silent.listen()
            with tacticd.Client(socket=folder + "/s", timeout_ms=300) as c:
                begun = time.monotonic()
                self.assertFails(Error.TIMEOUT, c.lookup, "x")
                self.assertGreater(time.monotonic() - begun, 0.25)
                for _ in range(20):  # libtactic stays quiet for a second
                    self.assertFails(Error.TIMEOUT, c.lookup, "x")
                self.assertLess(time.monotonic() - begun, 5)

    def test_log_hears_and_may_fail(self):
        heard = []
        with tacticd.Client(socket="/nowhere/at/all", log=lambda level, words: heard.append((level, words))) as c:
            self.assertFails(Error.ABSENT, c.lookup, "x")
        self.assertIn(logging.INFO, [level for level, _ in heard])

        def fail(level, words):
            raise ValueError("of the caller")

        with tacticd.Client(socket="/nowhere/at/all", log=fail) as c:
            self.assertFails(Error.ABSENT, c.lookup, "x")

    def test_facts(self):
        with client(DAEMON) as c:
            self.assertEqual(c.fingerprint_get("flashinfer"), "0.6.16")
            self.assertEqual(c.fingerprint_get("device"), "Look Alike 3000")
            self.assertIsNone(c.fingerprint_get("no_such_fact"))
            c.fingerprint_set("cudnn", "9")
            self.assertEqual(c.fingerprint_get("cudnn"), "9")
            c.fingerprint_set("cudnn", None)
            self.assertEqual(c.fingerprint_get("cudnn"), "")
            c.fingerprint_detect()
            self.assertEqual(c.fingerprint_get("flashinfer"), "0.6.16")  # what was stated stays

    def test_want(self):
        with client(DAEMON) as c:
            told = c.want(MODEL, LAYOUT)
            self.assertEqual((told.total, told.known + told.queued + told.refused), (TOTAL, TOTAL))
            self.assertEqual(c.want(keys=c.recipe_problems(MODEL, LAYOUT)).total, TOTAL)
            many = c.recipe_problems(MODEL, LAYOUT) * 20  # more than one message holds
            self.assertEqual(c.want(keys=many).total, len(many))

    def test_fallback_without_a_daemon(self):
        d = common.daemon()
        try:
            with client(d, state_dir=d.dir / "state", site_dir=d.dir / "site") as c:
                c.fallback_load()
                d.stop()
                answer = c.lookup(c.flashinfer_problem(common.file_key(8), MODEL, LAYOUT))
                self.assertEqual((answer.kind, answer.from_daemon), (Kind.HIT, False))
        finally:
            common.end(d)


class Tables(Raises):
    def test_whole(self):
        with client(DAEMON) as c:
            table = c.table(MODEL, LAYOUT)
            key = c.flashinfer_problem(common.file_key(4), MODEL, LAYOUT)
            problems = c.recipe_problems(MODEL, LAYOUT)
        gc.collect()
        self.assertEqual((table.covered, table.total, len(table)), (len(BUCKETS), TOTAL, len(BUCKETS)))
        self.assertEqual(len(table.digest), 64)
        self.assertEqual(table.header["fingerprint"], {"device": "Look Alike 3000", "flashinfer": "0.6.16"})
        self.assertLess(set(table.keys()), set(problems))
        problem = table.problem(key)
        self.assertEqual([json.loads(problem.at(n).tactic)[1] for n in (1, 2, 3, 4, 5, 8)], [1, 2, 4, 4, 8, 8])
        self.assertIs(problem.at(3), problem.at(4))
        row = table.find(key, 3)
        self.assertEqual(table.answer(row).key, key)
        self.assertEqual(table.answer(row).tactic, row.tactic)
        for nothing in (problem.at(-1), problem.at(2**70), problem.at(16), table.find("x", 1)):
            self.assertEqual((nothing.kind, nothing.tactic, nothing.index), (Kind.MISS, None, None))
        self.assertFails(Error.NOT_FOUND, table.answer, table.find("x", 1))
        self.assertIsNone(table.problem("x"))

    def test_bytes_of_another(self):
        with client(DAEMON) as c:
            first = c.table(MODEL, LAYOUT)
        again = tacticd.Table.read(first.text, first.digest)
        self.assertEqual((again.text, again.digest, again.keys()), (first.text, first.digest, first.keys()))
        self.assertFails(Error.DIGEST, tacticd.Table.read, first.text + b" ", first.digest)
        self.assertFails(Error.TABLE, tacticd.Table.read, b"{}")

    def test_problem_outlives_the_table(self):
        with client(DAEMON) as c:
            problem = c.table(MODEL, LAYOUT).problem(c.flashinfer_problem(common.file_key(4), MODEL, LAYOUT))
        gc.collect()
        self.assertIs(problem.at(4).kind, Kind.HIT)

    def test_flashinfer_files(self):
        with client(DAEMON) as c, tempfile.TemporaryDirectory() as folder:
            table = c.table(MODEL, LAYOUT)
            other = {**ENVIRONMENT, "cudnn_version": "92400"}
            for found in (ENVIRONMENT, json.dumps(ENVIRONMENT), other):
                text = json.loads(table.flashinfer(found))
                self.assertEqual(text.pop("_metadata"), json.loads(found) if isinstance(found, str) else found)
                self.assertEqual(text, common.entries())
            table.flashinfer_save(folder + "/f.json", other)
            with open(folder + "/f.json", "rb") as file:
                self.assertEqual(file.read(), table.flashinfer(other))
            self.assertFails(Error.SYSTEM, table.flashinfer_save, "/dev/null/f.json")
            self.assertFails(Error.ARGUMENT, table.flashinfer, "not JSON")
            c.fingerprint_set("flashinfer", "9")
            self.assertFails(Error.NOT_FOUND, c.table(MODEL, LAYOUT).flashinfer, other)  # it is empty


class Sharing(Raises):
    def test_two_threads_two_clients(self):
        told = {}

        def ask(number):
            with client(DAEMON) as c:
                key = c.flashinfer_problem(common.file_key(BUCKETS[number]), MODEL, LAYOUT)
                told[number] = {c.lookup(key).tactic for _ in range(300)}

        threads = [threading.Thread(target=ask, args=(n,)) for n in (0, 3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(told, {0: {"[32,1]"}, 3: {"[32,8]"}})

    def test_one_client_two_threads_is_an_error_at_once(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(folder + "/s")
            silent.listen()
            with tacticd.Client(socket=folder + "/s", timeout_ms=2000) as c:
                waiting = threading.Thread(target=lambda: self.assertFails(Error.TIMEOUT, c.lookup, "x"))
                waiting.start()
                connection, _ = silent.accept()  # now it is inside its call
                begun = time.monotonic()
                self.assertFails(Error.IN_USE, c.lookup, "x")
                self.assertFails(Error.IN_USE, c.fingerprint_get, "cuda")
                self.assertLess(time.monotonic() - begun, 1)
                waiting.join()
                connection.close()

    def test_fork(self):
        with client(DAEMON) as c:
            key = c.flashinfer_problem(common.file_key(4), MODEL, LAYOUT)
            self.assertIs(c.lookup(key).kind, Kind.HIT)
            children = []
            for _ in range(3):
                pid = os.fork()
                if pid == 0:  # no way back into the tests
                    good = False
                    try:
                        good = all(c.lookup(key).tactic == "[32,4]" for _ in range(50))
                    finally:
                        os._exit(0 if good else 1)
                children.append(pid)
            for _ in range(50):
                self.assertEqual(c.lookup(key).tactic, "[32,4]")
            self.assertEqual([os.waitpid(pid, 0)[1] for pid in children], [0, 0, 0])

    def test_fork_while_another_thread_asks(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(folder + "/s")
            silent.listen()
            with tacticd.Client(socket=folder + "/s", timeout_ms=1500) as c:
                waiting = threading.Thread(target=lambda: self.assertFails(Error.TIMEOUT, c.lookup, "x"))
                waiting.start()
                connection, _ = silent.accept()
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        c.timeout(100)
                        c.lookup("x")
                    except TacticError as e:
                        code = 0 if e.code is Error.TIMEOUT else 2
                    finally:
                        os._exit(code)
                self.assertEqual(os.waitpid(pid, 0)[1], 0)
                waiting.join()
                connection.close()

    def test_nothing_is_kept(self):
        """Clients, tables and answers give back descriptors and memory."""
        def use():
            with client(DAEMON) as c:
                table = c.table(MODEL, LAYOUT)
                c.lookup_many(table.keys() * 5)
                c.recipe_problems(MODEL, LAYOUT)
                for _ in range(8):
                    table.flashinfer(ENVIRONMENT)

        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        for _ in range(50):
            use()
        descriptors, before = len(os.listdir("/proc/self/fd")), resident()
        for _ in range(400):
            use()
        gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)
        self.assertLess(resident() - before, 4 << 20)  # any one of them kept each time would be 5 MiB and more
