# SPDX-License-Identifier: Apache-2.0
"""The mixtures of experts of the Python worker, as far as they need neither PyTorch nor FlashInfer: their routing against
routing.c, what they refuse, and how wrong they may be. The rest is in tests/flashinfer."""
import random
import subprocess
import types
import unittest

import common

from tacticd.worker import judge, keys, moe, routing
from tacticd.worker.families import cutlass_moe, trtllm_moe

CUTLASS = ("cutlass_moe,backend=flashinfer,stage=gemm1,act=bf16,weights=bf16,out=bf16,tokens=64,top_k=8,local_experts=16,"
           "hidden=1024,intermediate=512,activation=swiglu,tp=1,ep=4,cluster=1,alltoall=no,w4_group=no,mxfp8_act=no,"
           "humming=no,min_latency=no,pdl=yes,packed=no,finalize=fused,bias=none")
TRTLLM = ("trtllm_fp4_moe,backend=flashinfer,act=mxfp8,weights=mxfp4,out=bf16,tokens=64,top_k=16,experts=896,"
          "local_experts=112,shared_experts=0,hidden=3584,hidden_out=3584,intermediate=3072,activation=situ,finalize=fused,"
          "routing=precomputed,routing_method=none,weight_layout=major_k,shuffled=yes,packed=no,token_scale=none,lora=none")


def key(text, **other):
    made = keys.parse(text)
    made.dims.update(other)
    return keys.parse(str(made))


class Routing(unittest.TestCase):
    def assertSame(self, tokens, top_k, experts, local_experts, seed):
        shape = (tokens, top_k, experts, local_experts, seed)
        told = subprocess.run([common.BUILD / "tests/routing_rows", *map(str, shape)], capture_output=True, text=True,
                              check=True).stdout
        chosen = routing.draw(*shape)
        self.assertEqual([tuple(map(int, line.split())) for line in told.splitlines()], routing.rows(chosen, local_experts), shape)
        self.assertTrue(all(len(of_token) == top_k == len(set(of_token)) for of_token in chosen), shape)

    def test_as_in_c(self):
        for shape in ((1, 1, 1, 1), (1, 1, 896, 1), (7, 3, 8, 8), (64, 8, 64, 16), (100, 16, 896, 112), (9, 8, 8, 3),
                      (3000, 16, 896, 112), (5, 64, 64, 64)):
            for seed in (0, 1, (1 << 64) - 1, 0x9E3779B97F4A7C15):
                self.assertSame(*shape, seed)

    def test_as_in_c_at_random(self):
        draw = random.Random(11)
        for _ in range(40):
            experts = draw.randint(1, 300)
            self.assertSame(draw.randint(1, 200), draw.randint(1, min(experts, 20)), experts, draw.randint(1, experts),
                            draw.getrandbits(64))

    def test_what_no_router_does(self):
        for shape in ((1, 0, 4, 4), (1, 5, 4, 4), (1, 1, 4, 0), (1, 1, 4, 5)):
            self.assertRaises(ValueError, routing.draw, *shape, 1)

    def test_a_shape_has_the_seed_that_it_has_in_c(self):
        self.assertEqual(routing.seed_of(50, 4, 64, 16), 0xb365b19199b1b70)  # tests/unit/test_routing.c

    def test_scales(self):
        for of_token in routing.scales(50, 7, 3):
            self.assertAlmostEqual(sum(of_token), 1.0)
            self.assertEqual(of_token, sorted(of_token, reverse=True))
            self.assertGreater(of_token[-1], 0.0)
        self.assertEqual(routing.scales(5, 3, 9), routing.scales(5, 3, 9))
        self.assertNotEqual(routing.scales(5, 3, 9), routing.scales(5, 3, 10))


class Refused(unittest.TestCase):
    def assertRefused(self, family, text, other, word):
        why = family._why_not(key(text, **other))
        self.assertIsNotNone(why, other)
        self.assertIn(word, why)

    def test_cutlass(self):
        for other in ({}, {"stage": "gemm2"}, {"act": "f16", "weights": "f16", "out": "f16"}, {"activation": "relu2"},
                      {"act": "e4m3", "weights": "e4m3"}, {"bias": "both"}, {"finalize": "split"}, {"tp": 8}):
            self.assertIsNone(cutlass_moe._why_not(key(CUTLASS, **other)), other)
        for other, word in (({"alltoall": "yes"}, "alltoall"), ({"w4_group": "yes"}, "w4_group"), ({"humming": "yes"}, "humming"),
                            ({"min_latency": "yes"}, "min_latency"), ({"packed": "yes"}, "packed"),
                            ({"mxfp8_act": "yes"}, "mxfp8_act"), ({"act": "u8"}, "act=u8"), ({"out": "f16"}, "out=f16"),
                            ({"activation": "situ"}, "activation=situ"), ({"activation": "swiglu_bias"}, "swiglu_bias"),
                            ({"bias": "gemm1"}, "bias"), ({"cluster": 2}, "clusters"), ({"top_k": 65}, "more experts"),
                            ({"hidden": 1020}, "multiples of 8"),
                            ({"act": "e4m3", "weights": "e4m3", "intermediate": 520}, "multiples of 16")):
            self.assertRefused(cutlass_moe, CUTLASS, other, word)

    def test_trtllm(self):
        for other in ({}, {"finalize": "deferred"}, {"act": "bf16"}, {"activation": "geglu"}):
            self.assertIsNone(trtllm_moe._why_not(key(TRTLLM, **other)), other)
        for other, word in (({"act": "nvfp4", "weights": "nvfp4"}, "act=nvfp4"), ({"activation": "relu2"}, "activation=relu2"),
                            ({"routing": "logits", "routing_method": "topk"}, "routing=logits"), ({"lora": "gemm1"}, "lora"),
                            ({"token_scale": "token"}, "token_scale"), ({"shuffled": "no"}, "shuffled"),
                            ({"shared_experts": 1}, "shared"), ({"hidden_out": 2880}, "another width"),
                            ({"top_k": 897}, "more experts"), ({"local_experts": 897}, "more experts"),
                            ({"intermediate": 96}, "multiples of 128")):
            self.assertRefused(trtllm_moe, TRTLLM, other, word)

    def test_devices(self):
        h200, b300, old = (types.SimpleNamespace(capability=n, name=name)
                           for n, name in ((90, "NVIDIA H200"), (103, "NVIDIA B300"), (80, "NVIDIA A100")))
        self.assertIsNone(cutlass_moe.missing(h200))
        self.assertIsNone(cutlass_moe.missing(b300))
        self.assertIn("A100", cutlass_moe.missing(old))
        self.assertIsNone(trtllm_moe.missing(b300))
        self.assertIn("NVIDIA H200", trtllm_moe.missing(h200))


class Limits(unittest.TestCase):
    def test_what_each_rounding_costs(self):
        plain = judge.Limits("bf16", "bf16", "f32", 1536).floor
        split, fused = (moe.limits("bf16", "bf16", "bf16", 1536, adds) for adds in (0, 8))
        narrow = moe.limits("e4m3", "e4m3", "bf16", 1536)
        self.assertTrue(plain < split.floor < fused.floor < narrow.floor < 0.25)
        for made in (split, fused, narrow):
            self.assertEqual(made.most, 4.0 * made.floor)

    def test_a_lost_expert_is_beyond_them(self):
        # One of sixteen is a quarter of the usual size, and the worst of many elements four times that.
        self.assertLess(moe.limits("bf16", "bf16", "bf16", 6656, 16).most, 0.5)


class Memory(unittest.TestCase):
    def test_kimi(self):
        # 112 experts of 3 x 3,584 x 3,072 four-bit weights are 1.8 GB and their scales 0.1.
        self.assertTrue(1.9e9 < trtllm_moe.bytes_of(key(TRTLLM)) < 4.5e9)
        self.assertTrue(5e7 < cutlass_moe.bytes_of(key(CUTLASS)) < 2e9)
