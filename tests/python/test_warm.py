# SPDX-License-Identifier: Apache-2.0
"""Prewarming: each distinct thing once, before a server is ready; whatever fails is reported and never raised."""
import json
import sys
import types
import unittest
from types import SimpleNamespace
from unittest import mock

import common
from common import listening
from harness import Daemon, key

import tacticd
from tacticd import warm


def answer(prewarm, backend="flashinfer", m=1):
    text = prewarm if prewarm is None or isinstance(prewarm, str) else json.dumps(prewarm)
    return SimpleNamespace(key=f"op,backend={backend},m={m}", evidence=SimpleNamespace(prewarm=text))


class Prewarm(unittest.TestCase):
    def test_each_thing_once_libraries_then_modules_then_plans(self):
        did = []
        handlers = {("a", member): lambda value, member=member: did.append((member, value)) for member in warm.MEMBERS}
        plan = {"op": "gemm", "tactic": {"id": 3}}
        report = tacticd.prewarm([answer({"plan": plan, "modules": ["m", "n"], "workspace_bytes": 7}, "a"), answer(None, "a"),
                                  answer({"libraries": ["l"], "modules": ["n"], "workspace_bytes": 9}, "a"),
                                  answer({"plan": dict(reversed(plan.items()))}, "a"), answer({"modules": ["m"]}, "b"),
                                  answer({"later": 1}, "a")], handlers=handlers)
        self.assertEqual(did, [("libraries", "l"), ("modules", "m"), ("modules", "n"), ("plan", plan)])
        self.assertEqual([(s.member, s.value) for s in report.done], did)
        self.assertEqual([(s.backend, s.value, s.sentence) for s in report.left_out], [("b", "m", "nobody registered for it")])
        self.assertEqual((report.failed, report.workspace_bytes), ((), 9))
        self.assertGreaterEqual(report.seconds, 0)

    def test_nothing_is_raised(self):
        def breaks(value):
            raise OSError(f"no {value}")

        with listening() as heard:
            report = tacticd.prewarm([answer({"modules": ["m"]})], handlers={("flashinfer", "modules"): breaks})
        self.assertEqual([s.sentence for s in report.failed], ["OSError: no m"])
        self.assertIn("OSError: no m", heard[0])
        bad = ["{", "[]", {"modules": "m"}, {"modules": [1]}, {"plan": [1]}, {"workspace_bytes": -1}, {"workspace_bytes": True}]
        with listening():
            for prewarm in bad:
                report = tacticd.prewarm([answer(prewarm)])
                self.assertEqual((len(report.failed), report.done), (1, ()), prewarm)
            for thing in (None, 7, [None], SimpleNamespace(text=b"{")):
                self.assertEqual(len(tacticd.prewarm(thing).failed), 1, thing)

    def test_what_begins_too_late_is_left_out(self):
        now = mock.Mock(side_effect=iter(range(100)))
        with mock.patch.object(warm.time, "monotonic", now):
            report = tacticd.prewarm([answer({"modules": ["a", "b", "c"]})], max_s=2, handlers={("flashinfer", "modules"): print})
        self.assertEqual([s.value for s in report.done], ["a"])
        self.assertEqual([(s.value, s.sentence) for s in report.left_out], [("b", "max_s was over"), ("c", "max_s was over")])

    def test_a_handler_may_be_taken_away(self):
        report = tacticd.prewarm([answer({"modules": ["gemm"]})], handlers={("flashinfer", "modules"): None})
        self.assertEqual(len(report.left_out), 1)


class FlashInfer(unittest.TestCase):
    """The real package's functions stand in tests/flashinfer; here is what is done with them."""

    def setUp(self):
        self.built, self.known = [], {}
        core = types.ModuleType("flashinfer.jit.core")
        core.jit_spec_registry = SimpleNamespace(get_all_specs=lambda: self.known)
        gemm = types.ModuleType("flashinfer.jit.gemm")
        gemm.gen_gemm_module = lambda: self.spec("gemm")
        patch = mock.patch.dict(sys.modules, {"flashinfer.jit": types.ModuleType("flashinfer.jit"),
                                              "flashinfer.jit.core": core, "flashinfer.jit.gemm": gemm})
        patch.start()
        self.addCleanup(patch.stop)

    def spec(self, name):
        return SimpleNamespace(build_and_load=lambda: self.built.append(name))

    def test_modules(self):
        self.known["mine"] = self.spec("mine")
        with listening():
            report = tacticd.prewarm([answer({"modules": ["mine", "gemm", "../../evil", "fused_moe_90"]})])
        self.assertEqual(self.built, ["mine", "gemm"])
        self.assertEqual([s.value for s in report.failed], ["../../evil", "fused_moe_90"])
        self.assertIn("nobody here knows", report.failed[0].sentence)


class Carried(unittest.TestCase):
    def test_from_a_worker_to_a_server(self):
        prewarm = {"modules": ["m"], "plan": {"op": "matmul"}, "workspace_bytes": 64}
        d = Daemon(common.BUILD)
        d.fake("times=100,80,120", "jitter=0.002", "prewarm=" + json.dumps(prewarm, separators=(",", ":")))
        d.start()
        self.addCleanup(common.end, d)
        d.wait_ready()
        d.lookup(key(64))
        self.assertEqual(d.wait_answer(key(64))["prewarm"], prewarm)
        with tacticd.Client(socket=common.socket_of(d), as_="cpu", timeout_ms=15000) as client:
            got = client.lookup(key(64))
            self.assertEqual(json.loads(got.evidence.prewarm), prewarm)
            did = []
            report = tacticd.prewarm([got], handlers={("onednn", "modules"): did.append, ("onednn", "plan"): did.append})
        self.assertEqual((did, report.workspace_bytes), (["m", {"op": "matmul"}], 64))
        # And from the file that stands there.
        text = next((d.dir / "state/tables").glob("*.json")).read_bytes()
        report = tacticd.prewarm(SimpleNamespace(text=text))
        self.assertEqual([s.member for s in report.left_out], ["modules", "plan"])


if __name__ == "__main__":
    unittest.main()
