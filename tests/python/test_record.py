# SPDX-License-Identifier: Apache-2.0
"""tacticd.flashinfer.record: what FlashInfer's tuner missed is wished for. The tuner is a stand-in
(stand_in/flashinfer), once as 0.6.16 and once as 0.7.4 calls it; the daemon is real."""
import os
import threading
import time
from unittest import mock

import common
import flashinfer.autotuner.autotuner as stand_in
from common import ENVIRONMENT, EP, MODEL, OPERATION, TOTAL, TP, Case, client, listening, shapes

from tacticd import flashinfer, recorder

DAEMON = None


def setUpModule():
    global DAEMON
    DAEMON = common.daemon(sweep={"when": "never"})


def tearDownModule():
    common.end(DAEMON)


class Record(Case):
    def setUp(self):
        super().setUp()
        os.environ["TACTICD_SOCKET"] = common.socket_of(DAEMON)
        self.tuner()._file_configs.update((k, tuple(v)) for k, v in common.entries().items())
        self.client = client(DAEMON)
        self.addCleanup(self.client.close)

    def record(self, **options):
        return flashinfer.record(MODEL, EP, TP, **{"client": self.client, **options})

    def search(self, tokens, width=3584, operation=OPERATION, runners=None, **keywords):
        return self.tuner().search_cache(operation, runners or [stand_in.MoERunner()], shapes(tokens, width), None, **keywords)

    def assertUntouched(self):
        self.assertNotIn("search_cache", vars(self.tuner()))
        self.assertEqual(self.search(4)[:2], (True, 0))

    def test_hits_and_misses(self):
        for newer in (False, True):
            stand_in.NEWER = newer
            keywords = {"validation_profile": None, "require_profiling_policy": False} if newer else {}
            with listening() as heard, self.record() as seen:
                for tokens in (1, 3, 4, 8, 3):
                    self.assertTrue(self.search(tokens, **keywords)[0])
                for tokens in (9, 16, 33, 9):
                    self.assertEqual(self.search(tokens, inputs=[1], **keywords), (False, 0, -1, None))
                self.assertFalse(self.search(2, width=0, **keywords)[0])
                self.assertFalse(self.search(2, operation="an::unknown_op", **keywords)[0])
            self.assertEqual(heard, [])
            self.assertIsNone(seen.failed)
            counts = seen.counts()
            self.assertEqual((counts["hits"], counts["misses"], counts["keys"]), (5, 6, 4))  # 9 and 16: one bucket
            self.assertEqual((counts["named"], counts["unnamed"], counts["dropped"]), (3, 1, 0))
            self.assertEqual(counts["wanted"]["total"], 3)
            self.assertEqual(counts["wanted_recipe"]["total"], TOTAL)
            self.assertIn((OPERATION, common.file_key(16)), seen.keys)
            self.assertUntouched()

    def test_each_runner_s_key(self):
        with self.record() as seen:
            self.search(16, runners=[stand_in.MoERunner(), stand_in.OtherRunner()])
        self.assertEqual([key.split("'")[3] for _, key in seen.keys], ["MoERunner", "OtherRunner"])
        self.assertEqual((seen.misses, seen.named + seen.unnamed), (1, 2))

    def test_strict_replay(self):
        """A miss that FlashInfer raises is a miss, and is raised."""
        stand_in.NEWER = True
        with self.record() as seen:
            with self.assertRaisesRegex(RuntimeError, "strict replay"):
                self.search(16, require_profiling_policy=True)
        self.assertEqual((seen.misses, seen.named), (1, 1))
        self.assertUntouched()

    def test_nothing_missed_asks_nobody(self):
        os.environ["TACTICD_SOCKET"] = "/nowhere/at/all"
        with listening() as heard, self.record(client=None) as seen:
            self.search(4)
        self.assertEqual((heard, seen.wanted, seen.failed, seen.hits), ([], None, None, 1))

    def test_without_a_daemon(self):
        os.environ["TACTICD_SOCKET"] = "/nowhere/at/all"
        begun = time.monotonic()
        with listening() as heard, self.record(client=None) as seen:
            self.search(16)
        self.assertLess(time.monotonic() - begun, 2)
        self.assertEqual(len(heard), 1)
        self.assertIn("/nowhere/at/all", seen.failed)
        self.assertUntouched()

    def test_without_flashinfer(self):
        with mock.patch.dict("sys.modules", {"flashinfer": None}), listening() as heard, self.record() as seen:
            pass
        self.assertEqual(len(heard), 1)
        self.assertIn("cannot be imported", seen.failed)

    def test_an_exception_inside_passes(self):
        for error in (ValueError("of the caller"), KeyboardInterrupt()):
            with self.assertRaises(type(error)), self.record() as seen:
                self.search(16)
                raise error
            self.assertEqual(seen.misses, 1)
            self.assertUntouched()

    def test_a_failure_inside_the_record_stays_there(self):
        with mock.patch.object(stand_in.AutoTuner, "_get_cache_key", None), listening() as heard, self.record() as seen:
            with mock.patch.object(stand_in.AutoTuner, "_search", lambda *a: (False, 0, -1, None)):
                self.assertEqual(self.search(16), (False, 0, -1, None))
        self.assertIn("TypeError", seen.failed)
        self.assertEqual((len(heard), seen.misses), (1, 1))
        self.assertUntouched()

    def test_one_in_another(self):
        with self.record() as outer:
            with self.record() as inner:
                self.search(16)
            self.search(32)
        self.assertEqual((outer.misses, inner.misses), (2, 1))
        self.assertUntouched()

    def test_left_in_the_wrong_order(self):
        outer, inner = recorder.Record(), recorder.Record()
        outer.attach(self.tuner())
        inner.attach(self.tuner())
        outer.detach()
        self.search(16)
        self.assertEqual((outer.misses, inner.misses), (0, 1))
        inner.detach()
        self.search(16)
        self.assertEqual((outer.misses, inner.misses), (0, 1))

    def test_bounded(self):
        with mock.patch.object(recorder, "MAX_KEYS", 3), self.record() as seen:
            for power in range(4, 12):
                self.search(2**power)
        self.assertEqual((seen.misses, len(seen.keys), seen.dropped), (8, 3, 5))

    def test_threads(self):
        def ask():
            for _ in range(500):
                self.search(4)
                self.search(16)

        with self.record() as seen:
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual((seen.hits, seen.misses, len(seen.keys)), (2000, 2000, 1))

    def test_a_key_is_made_once(self):
        """A miss that comes again costs no key; a hit never does."""
        def made():
            before = self.tuner().keys_made
            for _ in range(100):
                self.search(4)
                self.search(16)
            return self.tuner().keys_made - before

        plain = made()
        with self.record():
            self.assertEqual(made(), plain + 1)

    def test_in_the_process_s_environment(self):
        with self.record() as seen:
            self.search(16)
        self.assertIsNone(seen.failed)
        self.assertEqual(self.client.fingerprint_get("flashinfer"), ENVIRONMENT["flashinfer_version"])
