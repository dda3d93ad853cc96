#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worker's mixtures of experts through the real Python of FlashInfer on a CPU: public functions, runners and tuner
are FlashInfer's; in the place of its compiled modules stand layers computed token by token. They have tactics that are
right, wrong, or do nothing, and say what they are given. Runs inside an environment with flashinfer-python (venv.sh).

usage: moe.py
"""
import contextlib
import itertools
import os
import pathlib
import sys
import tempfile
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "client/python")]
scratch = tempfile.TemporaryDirectory(prefix="flashinfer-")
os.environ.update(FLASHINFER_WORKSPACE_BASE=scratch.name, FLASHINFER_LOGGING_LEVEL="error", FLASHINFER_CUDA_ARCH_LIST="9.0a 10.3a 12.0a")

import torch  # noqa: E402
from flashinfer import tllm_enums, version  # noqa: E402
from flashinfer.fused_moe import core  # noqa: E402
from flashinfer.jit import fused_moe as jit  # noqa: E402
from flashinfer.jit import core as jit_core  # noqa: E402
from flashinfer.quantization import fp4_quantization  # noqa: E402

from tacticd import warm  # noqa: E402
from tacticd.worker import calls, device, frame, keys, launches, moe, timing  # noqa: E402
from tacticd.worker.families import cutlass_moe, trtllm_moe  # noqa: E402

IS_NEW = calls.numbers(version.__version__) >= (0, 7)
CAP_BYTES = 1 << 40
CUTLASS = ("cutlass_moe,backend=flashinfer,stage={stage},act={act},weights={act},out={out},tokens={tokens},top_k=3,"
           "local_experts=4,hidden=64,intermediate=32,activation={activation},tp={tp},ep={ep},cluster=1,alltoall=no,"
           "w4_group=no,mxfp8_act=no,humming=no,min_latency=no,pdl={pdl},packed=no,finalize={finalize},bias={bias}")
TRTLLM = ("trtllm_fp4_moe,backend=flashinfer,act={act},weights=mxfp4,out=bf16,tokens={tokens},top_k=3,experts=8,"
          "local_experts=4,shared_experts=0,hidden=256,hidden_out=256,intermediate=128,activation={activation},"
          "finalize={finalize},routing=precomputed,routing_method=none,weight_layout=major_k,shuffled=yes,packed=no,"
          "token_scale=none,lora=none")


def cutlass(**other):
    return keys.parse(CUTLASS.format(**{"stage": "gemm1", "act": "bf16", "out": "bf16", "tokens": 24, "activation": "swiglu", "tp": 1,
                                        "ep": 2, "pdl": "no", "finalize": "fused", "bias": "none", **other}))


def trtllm(**other):
    return keys.parse(TRTLLM.format(**{"act": "mxfp8", "tokens": 24, "activation": "situ", "finalize": "fused", **other}))


def silu(x):
    return x / (1.0 + torch.exp(-x))


ACTIVATIONS = {3: lambda x, g: x * silu(g), 4: lambda x, g: x * 0.5 * g * (1.0 + torch.erf(g / 2 ** 0.5)),
               10: lambda x, g: torch.tanh(x) * torch.tanh(g) / (1.0 + torch.exp(-g))}
PLAIN = {0: lambda x: 0.5 * x * (1.0 + torch.erf(x / 2 ** 0.5)), 1: torch.relu, 2: silu, 6: lambda x: torch.relu(x) ** 2,
         9: lambda x: x}


def layer(x, ids, scales, w1, b1, w2, b2, activation, first_expert=0, twist=lambda h: h):
    """Token by token; weights f32. What experts elsewhere do is left out."""
    out = torch.zeros(x.shape[0], w2.shape[1])
    for token, slot in itertools.product(range(ids.shape[0]), range(ids.shape[1])):
        expert = int(ids[token, slot]) - first_expert
        if not 0 <= expert < w2.shape[0]:
            continue
        h = w1[expert] @ x[token] + (0 if b1 is None else b1[expert].float())
        h = ACTIVATIONS[activation](*h.chunk(2)) if activation in ACTIVATIONS else PLAIN[activation](h)
        y = w2[expert] @ twist(h) + (0 if b2 is None else b2[expert].float())
        out[token] += float(scales[token, slot]) * y
    return out


# --- CUTLASS's module ---

COUNT1, COUNT2 = 4, 5
DOES_NOT_FIT, WRONG1, WRONG2, IDLE2 = 1, 3, 5, 6
WANTS = 37 + 3 * IS_NEW + IS_NEW  # arguments of run_moe; 0.7's are four more


class Module:
    """fused_moe_90: what its functions were given is kept."""

    def __init__(self):
        self.runs, self.inits, self.sizes, self.too_large = [], [], [], {DOES_NOT_FIT}
        self.interleave_moe_weights_for_sm90_mixed_gemm = None

    def set_deepgemm_jit_include_dirs(self, _folder):
        pass

    def init(self, *types_and_switches):
        self.inits.append(types_and_switches)
        return types.SimpleNamespace(
            get_gemm1_tactic_count=lambda: COUNT1, get_gemm2_tactic_count=lambda: COUNT2,
            get_tactic_occupancy=lambda t: 0 if t in self.too_large else 1, run_moe=self.run_moe,
            get_workspace_size=self.size)

    def size(self, *args):
        self.sizes.append(args)
        return 4096

    def run_moe(self, *args):
        self.runs.append(args)
        output, x, ids, scales, w1, b1, w2, b2, quant = args[:9]
        rest = args[13 + 3 * IS_NEW:]
        _swizzled, _tp, _tp_rank, _ep, ep_rank, _cluster, _rank, _alltoall, _latency, chosen, _pdl, activation, workspace = rest[:13]
        assert workspace.numel() >= 4096 and len(rest) == 13 + IS_NEW
        one, two = chosen
        if two == COUNT1 + IDLE2 - 4:
            return
        wide1, wide2 = w1.float(), w2.float()
        if quant:
            wide1, wide2 = wide1 * quant[0][:, None, None], wide2 * (quant[1] * quant[2])[:, None, None]
            x = x.float() * quant[3]
        made = layer(x.float(), ids, scales, wide1, b1, wide2, b2, int(activation), ep_rank * w2.shape[0])
        if one == WRONG1 or two == WRONG2:
            made[-1, -1] += 1.0
        output.copy_(made)


class Spec:
    def __init__(self, name, made, is_compiled=True):
        self.name, self.made, self.is_compiled = name, made, is_compiled

    def build_and_load(self):
        return self.made

    def get_library_path(self):
        return "none"

    def get_library_paths(self):
        return []


@contextlib.contextmanager
def stand_in(**more):
    """Names of core.py and jit/fused_moe.py that hold something else meanwhile."""
    before = []
    for module in (core, jit):
        for name, value in more.items():
            if hasattr(module, name):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, value)
    for cached in (core.get_cutlass_fused_moe_module, core._get_trtllm_moe_sm100_module_impl, calls.of, moe._module):
        cached.cache_clear()
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def on_cpu(capability):
    """What FlashInfer asks of a GPU."""
    torch.cuda.device = lambda _device: contextlib.nullcontext()
    torch.cuda.current_device = lambda: 0
    found = device.find("cpu")
    found.capability, found.l2_bytes = capability, 1 << 14
    return found


class Cutlass(unittest.TestCase):
    def setUp(self):
        self.module, self.device = Module(), on_cpu(90)
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.enter = stack.enter_context
        self.enter(self.stood_in())

    def stood_in(self, is_compiled=True):
        spec = Spec("fused_moe_90", self.module, is_compiled)
        return stand_in(gen_cutlass_fused_moe_sm90_module=lambda *_: spec, get_compute_capability=lambda _: (9, 0),
                        device_support_pdl=lambda _: False)

    def open(self, **other):
        problem = cutlass_moe.open(self.device, cutlass(**other), 5, CAP_BYTES, None)
        self.addCleanup(problem.close)
        return problem

    def test_who_is_listed(self):
        self.assertEqual([c.tactic for c in self.open().candidates], [-1, 2, 3])
        self.assertEqual([c.tactic for c in self.open(stage="gemm2").candidates], [-1, 5, 6, 7, 8])

    def test_only_the_librarys_own_number_is_left_out(self):
        self.module.too_large = {0, 4}  # what it runs without a file is not among what fits
        self.assertEqual([c.tactic for c in self.open().candidates], [-1, 1, 2, 3])
        self.assertEqual([c.tactic for c in self.open(stage="gemm2").candidates], [-1, 5, 6, 7, 8])

    def test_no_memory_for_the_timer(self):
        def none(_device):
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.addCleanup(setattr, timing, "timer_of", timing.timer_of)
        timing.timer_of = none
        with self.assertRaisesRegex(frame.Memory, "out of memory"):
            cutlass_moe.open(self.device, cutlass(), 5, CAP_BYTES, None)

    def test_each_is_run_with_the_other_product_at_its_default(self):
        for stage, at in (("gemm1", 0), ("gemm2", 1)):
            problem = self.open(stage=stage)
            for i, candidate in enumerate(problem.candidates):
                problem.launch(i)
                chosen = list(self.module.runs[-1][22 + 3 * IS_NEW])
                self.assertEqual(chosen[at], candidate.tactic)
                self.assertEqual(chosen[1 - at], -1)

    def test_right_and_wrong(self):
        problem = self.open()
        seen = {c.tactic: problem.check(i) for i, c in enumerate(problem.candidates)}
        self.assertEqual({t: s.ok for t, s in seen.items()}, {-1: True, 2: True, WRONG1: False})
        self.assertIn("should be", seen[WRONG1].reason)
        problem = self.open(stage="gemm2")
        seen = {c.tactic: problem.check(i) for i, c in enumerate(problem.candidates)}
        self.assertEqual({t: s.ok for t, s in seen.items()}, {-1: True, WRONG2: False, IDLE2: False, 7: True, 8: True})
        self.assertIn("never written", seen[IDLE2].reason)

    def test_every_kind_is_right(self):
        for other in ({"activation": "geglu"}, {"activation": "gelu"}, {"activation": "relu"}, {"activation": "silu"},
                      {"activation": "relu2"}, {"activation": "identity"}, {"bias": "both"}, {"finalize": "split"},
                      {"act": "f16", "out": "f16"}, {"act": "e4m3"}, {"act": "e4m3", "out": "f16", "bias": "both"},
                      {"tokens": 1}, {"tp": 4, "ep": 1}, {"pdl": "yes"}):
            problem = self.open(**other)
            seen = problem.check(0)
            self.assertTrue(seen.ok, (other, seen))
            # The layer above is computed in f32: only the result is rounded.
            self.assertLess(seen.max_error, 0.05, other)
            self.assertTrue(seen.repeatable)

    def test_what_the_library_is_told(self):
        problem = self.open(pdl="yes", finalize="split", tp=2)
        problem.launch(0)
        rest = self.module.runs[-1][13 + 3 * IS_NEW:]
        self.assertEqual(list(rest[1:9]), [2, 0, 2, 0, 1, 0, False, False])
        self.assertIs(rest[10], True)
        self.assertIs(self.module.inits[-1][7], False)
        self.assertEqual(self.module.sizes[-1][:5], (24, 64, 32, 8, 3))
        self.assertEqual(problem.candidates[0].workspace_bytes, 4096)

    def test_a_whole_look(self):
        problem = self.open()
        seen = problem.look(1, 0)
        self.assertTrue(seen.first_us > 0.0 and seen.timed.device_us > 0.0)
        self.assertTrue(problem.run(1).device_us > 0.0)

    def test_the_same_seed_is_the_same_problem(self):
        one, two = self.open(), self.open()
        self.assertTrue(torch.equal(one.w1, two.w1) and torch.equal(one.routed.ids, two.routed.ids))

    def test_who_is_refused(self):
        with self.assertRaises(frame.Memory):
            cutlass_moe.open(self.device, cutlass(), 5, 1 << 20, None)
        with self.assertRaisesRegex(frame.Unsupported, "alltoall"):
            cutlass_moe.open(self.device, keys.parse(str(cutlass()).replace("alltoall=no", "alltoall=yes")), 5, CAP_BYTES, None)
        with self.stood_in(False), self.assertRaisesRegex(frame.Unsupported, "fused_moe_90 is not compiled"):
            self.open()

    def test_a_module_that_raises(self):
        self.module.init = lambda *_: (_ for _ in ()).throw(RuntimeError("Could not construct fused moe op"))
        with self.stood_in(), self.assertRaisesRegex(frame.Unsupported, "Could not construct"):
            self.open(act="f16", out="f16")


# --- trtllm-gen's module ---

LISTS = {1: [[8, 1], [8, 4]], 16: [[8, 1], [16, 2]], 24: [[16, 2], [16, 7]], 32: [[16, 2], [32, 3]], 8192: [[256, 5]]}
WRONG = [32, 3]
IDLE = [16, 7]
CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def interleave(scales):
    """As the library lays scales out: blocks of 128 rows and 4 columns, rows of a block 32 apart side by side."""
    rows, columns = scales.shape
    return scales.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).contiguous().view(-1)


def back(scales):
    rows, columns = scales.shape
    return scales.reshape(rows // 128, columns // 4, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns)


class GenModule:
    """fused_moe_trtllm_sm100."""

    made = []  # none ends before the process: FlashInfer keeps lists of tactics by a module's id()

    def __init__(self):
        self.listed, self.runs, self.left = [], [], None
        self.made.append(self)

    def __getattr__(self, name):
        """FlashInfer takes all functions of a module; the worker calls none but those here."""
        def uncalled(*_args):
            raise AssertionError(f"{name} is called")
        return uncalled

    def trtllm_get_valid_moe_configs(self, *args):
        self.listed.append(args)
        return LISTS.get(args[-2], [])

    @staticmethod
    def unshuffled(packed, scales, rows_of):
        """f32 weights as they were before they were laid out, by the library's own orders."""
        order, scale_order = rows_of({}, packed, 128), rows_of({}, scales, 128, num_elts_per_sf=32)
        plain, plain_scales = torch.empty_like(packed), torch.empty_like(scales)
        plain[order] = packed
        plain_scales[scale_order] = back(scales)
        low, high = plain & 15, plain >> 4
        codes = torch.stack([low, high], 2).reshape(len(plain), -1).long()
        values = torch.tensor(CODES)[codes & 7] * (1 - 2 * (codes >> 3))
        return values * torch.exp2(plain_scales.float() - 127).repeat_interleave(32, 1)

    def trtllm_fp4_block_scale_moe(self, *args):
        self.runs.append(args)
        ids, scales = args[2:4]
        x, x_scales = args[5:7]
        shift = 1 if IS_NEW else 0  # gemm1_lora_delta
        w1, s1 = args[7:9]
        w2, s2 = args[13 + shift:15 + shift]
        at = next(i for i, a in enumerate(args) if isinstance(a, (list, tuple)) and len(a) == 2)
        output, tactic, activation = args[at - 1], list(args[at]), args[at - 2]
        do_finalize = args[at - 4]
        x = x.float()
        if x_scales is not None:
            x = x * torch.exp2(x_scales.view(torch.uint8).float() - 127).repeat_interleave(32, 1)
        wide1 = torch.stack([self.unshuffled(w, s.view(torch.uint8), core._maybe_get_cached_w3_w1_permute_indices)
                             for w, s in zip(w1, s1)])
        wide2 = torch.stack([self.unshuffled(w, s.view(torch.uint8), core.get_w2_permute_indices_with_cache)
                             for w, s in zip(w2, s2)])
        if do_finalize:
            if tactic != IDLE:
                output.copy_(layer(x, ids, scales, wide1, None, wide2, None, int(activation)) + (tactic == WRONG))
            return []
        # One row for each pair, in the order of its own; pairs of experts elsewhere have none.
        met = [(t, s) for t, s in itertools.product(range(ids.shape[0]), range(ids.shape[1])) if int(ids[t, s]) < w2.shape[0]][::-1]
        rows = torch.empty(len(met) + 5, w2.shape[1], dtype=torch.bfloat16) if self.left is None else self.left
        self.left = rows  # an allocator gives the same memory again
        places = torch.full((ids.numel(),), -1, dtype=torch.int32)
        ones = torch.ones(1, 1)
        for row, (token, slot) in enumerate(met):
            places[token * ids.shape[1] + slot] = row
            if tactic != IDLE:
                rows[row] = layer(x[token:token + 1], ids[token:token + 1, slot:slot + 1], ones, wide1, None, wide2, None,
                                  int(activation))[0] + (tactic == WRONG)
        return [rows, scales, places]


class Trtllm(unittest.TestCase):
    def setUp(self):
        self.module, self.device = GenModule(), on_cpu(103)
        spec = Spec("fused_moe_trtllm_sm100", self.module)
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        before = fp4_quantization.block_scale_interleave
        fp4_quantization.block_scale_interleave = interleave
        self.addCleanup(setattr, fp4_quantization, "block_scale_interleave", before)
        stack.enter_context(stand_in(gen_trtllm_gen_fused_moe_sm100_module=lambda *_, **__: spec,
                                     get_compute_capability=lambda _: (10, 3), device_support_pdl=lambda _: False,
                                     setup_cubin_loader=lambda _: None))

    def open(self, **other):
        problem = trtllm_moe.open(self.device, trtllm(**other), 5, CAP_BYTES, None)
        self.addCleanup(problem.close)
        return problem

    def test_lists_of_several_token_counts_are_joined(self):
        problem = self.open()
        self.assertEqual([c.tactic for c in problem.candidates], [-1, [16, 2], [16, 7], [8, 1], [32, 3], [8, 4], [256, 5]])
        self.assertEqual(problem.candidates[4].family, "tile 32")
        self.assertEqual(sorted({args[-2] for args in self.module.listed}), [1, 16, 24, 32, 8192])
        # 0.6.16 gives the library 13 values, 0.7.4 the width of the result and the experts in all besides.
        self.assertEqual({len(args) for args in self.module.listed}, {15 if IS_NEW else 13})
        self.assertEqual(self.module.listed[0][3:7], (3, 256, 256, 128) if IS_NEW else (3, 256, 128, 4))

    def test_the_tactic_arrives(self):
        problem = self.open()
        for i, want in enumerate([[-1, -1], *(c.tactic for c in problem.candidates[1:])]):
            problem.launch(i)
            self.assertIn(want, [list(a) for a in self.module.runs[-1] if isinstance(a, (list, tuple)) and len(a) == 2])

    def test_right_and_wrong(self):
        for other in ({}, {"finalize": "deferred"}):
            problem = self.open(**other)
            self.module.left = None
            seen = {str(c.tactic): problem.check(i) for i, c in enumerate(problem.candidates[:5])}
            self.assertEqual({t: s.ok for t, s in seen.items()},
                             {"-1": True, "[16, 2]": True, str(IDLE): False, "[8, 1]": True, str(WRONG): False}, other)
            self.assertIn("never written", seen[str(IDLE)].reason)
            self.assertLess(seen["-1"].max_error, 0.05)

    def test_every_kind_is_right(self):
        for other in ({"activation": "swiglu"}, {"activation": "geglu"}, {"act": "bf16"}, {"tokens": 1},
                      {"act": "bf16", "finalize": "deferred", "activation": "swiglu"}):
            self.module.left = None
            seen = self.open(**other).check(0)
            self.assertTrue(seen.ok and seen.max_error < 0.05, (other, seen))

    def test_a_whole_look(self):
        problem = self.open()
        self.assertTrue(problem.look(1, 0).timed.device_us > 0.0 and problem.run(2).device_us > 0.0)

    def test_more_than_a_sweep_takes(self):
        self.addCleanup(LISTS.__setitem__, 24, LISTS[24])
        LISTS[24] = [[64, i] for i in range(600)]
        said = []
        self.addCleanup(setattr, launches, "say", launches.say)
        launches.say = said.append
        self.assertEqual(len(self.open().candidates), frame.MAX_CANDIDATES)
        self.assertIn("511 are swept", said[0])

    def test_nothing_is_listed(self):
        self.module.trtllm_get_valid_moe_configs = lambda *_: []
        with self.assertRaisesRegex(frame.Unsupported, "lists no tactic"):
            self.open(tokens=23)


class Names(unittest.TestCase):
    def test_numbers_are_flashinfers(self):
        for name, number in moe.NUMBERS.items():
            self.assertEqual(tllm_enums.ActivationType[name.capitalize()].value, number)
        self.assertEqual(tllm_enums.SfLayout.layout_linear.value, trtllm_moe.LINEAR)
        self.assertEqual(tllm_enums.RoutingMethodType.Renormalize.value, trtllm_moe.RENORMALIZE)

    def test_servers_know_every_module_that_answers_name(self):
        made = {"gen_jit_spec": lambda name, *_, **__: types.SimpleNamespace(name=name), "get_artifact": lambda *_: b"all",
                "get_meta_hash": lambda *_: "", "ensure_symlink": lambda *_: None, "verify_symlinked_headers": lambda *_: None,
                "trtllm_gen_fused_moe_build_inputs": lambda *_, **__: ([], [], [])}
        makers = {*cutlass_moe.MAKERS.values(), "trtllm_moe_module"}
        with stand_in(**made):
            for maker, is_h20 in [*((m, False) for m in makers), ("cutlass_moe_sm90", IS_NEW)]:
                with stand_in(_should_enable_sm90_moe_prebuilt_d_descriptor=lambda is_h20=is_h20: is_h20):
                    name = calls.of(maker)().name
                self.assertEqual(".".join(warm.FLASHINFER_SPECS[name]), calls.row(maker, version.__version__).path)

    def test_specs_say_whether_they_are_compiled(self):
        self.assertIsInstance(jit_core.JitSpecNvcc.is_compiled, property)


if __name__ == "__main__":
    ended = unittest.main(exit=False).result
    print(f"FlashInfer {version.__version__}: mixtures of experts on a CPU, {ended.testsRun} tests")
    sys.exit(not ended.wasSuccessful())
