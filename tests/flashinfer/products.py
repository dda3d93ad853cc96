#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worker's products by cuDNN with a fake FlashInfer on a CPU: what one problem leaves to the next, and who is swept.
Runs inside an environment with PyTorch (venv.sh).

usage: products.py
"""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/fake/flashinfer_cpu")]

from flashinfer.gemm import gemm_base  # noqa: E402

from tacticd.worker import device, frame, keys, launches  # noqa: E402
from tacticd.worker.families import cudnn_gemm  # noqa: E402

CPU = device.find("cpu")
CPU.l2_bytes = 1 << 16
KEY = ("cudnn_gemm,backend=flashinfer,a=bf16,b=bf16,out=bf16,batch=0,m={m},n=60,k=32,a_scale=none,b_scale=none,a_major=k,"
       "b_major=k,bias=yes,pdl_choice=caller")
GROWS = 6


class Products(unittest.TestCase):
    def open(self, m=16):
        return cudnn_gemm.open(CPU, keys.parse(KEY.format(m=m)), 1, 1 << 40, None)

    def look(self, problem, engine):
        (i,) = (i for i, c in enumerate(problem.candidates) if i and c.tactic[0] == engine)
        problem.look(i, 0)

    def test_a_grown_workspace_is_not_the_next_problem_s(self):
        granted = gemm_base.DEFAULT_WORKSPACE_SIZE
        for m in (16, 32):
            problem = self.open(m)
            self.assertEqual({c.workspace_bytes for c in problem.candidates}, {granted})
            with self.assertRaisesRegex(frame.Failed, "more than FlashInfer's"):
                self.look(problem, GROWS)
            buffer = problem.workspace
            self.assertGreater(buffer.numel(), granted)
            problem.close()
            self.assertEqual((buffer.numel(), buffer.untyped_storage().nbytes()), (granted, granted))

    def test_no_graph_outlives_its_problem(self):
        kept = gemm_base.build_cudnn_gemm_bf16_graph.cache_info
        problem = self.open()
        self.assertGreater(kept().currsize, 0)
        problem.close()
        self.assertEqual(kept().currsize, 0)
        # Nor one that did not open.
        gemm_base.build_cudnn_gemm_bf16_graph(1)
        problem = self.open(8192)
        self.assertEqual(kept().misses, kept().currsize)
        problem.close()

    def cut(self, tactics):
        said = []
        self.addCleanup(setattr, launches, "say", launches.say)
        launches.say = said.append
        return cudnn_gemm.candidates_of(tactics, 5), said

    def test_each_plan_stands_once_and_in_order(self):
        found, said = self.cut([(3, ((1, 2),)), (1, ()), (3, ((1, 2),))])
        self.assertEqual(([c.tactic for c in found], said), ([-1, [1, []], [3, [[1, 2]]]], []))

    def test_no_engine_is_cut_off_and_it_is_said(self):
        many = [(engine, ((2, i),)) for engine, n in ((1, 700), (4, 3), (9, 300)) for i in range(n)]
        found, said = self.cut(many)
        self.assertEqual(len(found), frame.MAX_CANDIDATES)
        taken = {engine: [c.tactic[1][0][1] for c in found[1:] if c.tactic[0] == engine] for engine in (1, 4, 9)}
        self.assertEqual(taken, {1: list(range(254)), 4: list(range(3)), 9: list(range(254))})
        self.assertIn("of 1003 plans of 3 engines 511 are swept", said[0])


if __name__ == "__main__":
    unittest.main()
