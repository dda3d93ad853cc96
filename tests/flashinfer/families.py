# SPDX-License-Identifier: Apache-2.0
"""Calls FlashInfer's public operations up to the point where the tuner has chosen, and says what it chose.

The operation, its runner, its tuning configuration and the tuner are the real ones. A call ends at the last
choice: what would follow is the kernel.
"""
import contextlib
import dataclasses
import inspect

import torch
from flashinfer import gemm
from flashinfer.autotuner import AutoTuner
from flashinfer.fused_moe import core
from torch._subclasses.fake_tensor import FakeTensorMode

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
U8, I32 = torch.uint8, torch.int32


@dataclasses.dataclass
class Choice:
    op: str
    keys: list  # of all runners that were asked for, ProfilingCacheKey
    runner: str
    tactic: object
    config: object  # TuningConfig


class Chosen(Exception):
    """Ends a call."""


class Watch:
    """Sees the tuner's choices. Replaces nothing: each call is handed on."""

    def __init__(self, last):
        self.choices, self.keys, self.last = [], [], last

    def __enter__(self):
        self.real_key, self.real_choose = AutoTuner.__dict__["_get_cache_key"], AutoTuner.choose_one
        watch = self

        def key(cls, *args, **options):
            made = watch.real_key.__get__(None, cls)(*args, **options)
            if made not in watch.keys:
                watch.keys.append(made)
            return made

        def choose(*args, **options):
            asked = inspect.signature(watch.real_choose).bind(*args, **options).arguments
            watch.keys = []
            runner, tactic = watch.real_choose(*args, **options)
            watch.choices.append(Choice(asked["custom_op"], watch.keys, type(runner).__name__, tactic,
                                        asked["tuning_config"]))
            if len(watch.choices) == watch.last:
                raise Chosen
            return runner, tactic

        AutoTuner._get_cache_key, AutoTuner.choose_one = classmethod(key), choose
        return self

    def __exit__(self, *_):
        AutoTuner._get_cache_key, AutoTuner.choose_one = self.real_key, self.real_choose


FAKE = FakeTensorMode()


def tensors():
    """Real tensors where there is a GPU, else PyTorch's own tensors without memory."""
    return contextlib.nullcontext() if torch.cuda.is_available() else FAKE


def t(*shape, of=BF16):
    return torch.empty(*shape, dtype=of, device="cuda")


def rows(tokens):
    """Rows of a swizzled scale: whole blocks of 128."""
    return (tokens + 127) // 128 * 128


def routed(tokens, routing, experts, top_k):
    """The routing operand of an MoE as its callers hand it in."""
    if routing == "logits":
        return t(tokens, experts, of=F32)
    ids = t(tokens, top_k, of=I32)
    return ids if routing == "packed" else (ids, t(tokens, top_k))


def trtllm_fp4_moe(tokens, hidden=3584, intermediate=3072, top_k=16, experts=896, local=112, act="mxfp8",
                   routing="packed", finalize=True, activation=3, tune_max=8192):
    block = 16 if act == "nvfp4" else 32
    width = hidden // 2 if act == "nvfp4" else hidden
    states = t(tokens, width, of={"nvfp4": U8, "mxfp8": E4M3, "bf16": BF16}[act])
    scale = None if act == "bf16" else t(tokens, hidden // block, of=E4M3)
    operands = {
        "routing_bias": None, "hidden_states": states, "hidden_states_scale": scale,
        "gemm1_weights": t(local, 2 * intermediate, hidden // 2, of=U8),
        "gemm1_weights_scale": t(local, 2 * intermediate, hidden // block, of=E4M3),
        "gemm1_bias": None, "gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None,
        "gemm2_weights": t(local, hidden, intermediate // 2, of=U8),
        "gemm2_weights_scale": t(local, hidden, intermediate // block, of=E4M3), "gemm2_bias": None,
        "output1_scale_scalar": t(local, of=F32), "output1_scale_gate_scalar": t(local, of=F32),
        "output2_scale_scalar": t(local, of=F32), "num_experts": experts, "top_k": top_k, "n_group": None,
        "topk_group": None, "intermediate_size": intermediate, "local_expert_offset": 0,
        "local_num_experts": local, "routed_scaling_factor": None, "routing_method_type": 1,
        "do_finalize": finalize, "enable_pdl": False, "activation_type": activation,
        "tune_max_num_tokens": tune_max,
    }
    if routing == "logits":
        core.trtllm_fp4_block_scale_moe(routed(tokens, routing, experts, top_k), **operands)
    else:
        core.trtllm_fp4_block_scale_routed_moe(routed(tokens, routing, experts, top_k), **operands)


def trtllm_fp8_block_moe(tokens, hidden=7168, intermediate=2048, top_k=8, experts=256, local=32, tune_max=8192):
    core.trtllm_fp8_block_scale_moe(
        t(tokens, experts, of=F32), t(experts), t(tokens, hidden, of=E4M3), t(hidden // 128, tokens, of=F32),
        t(local, 2 * intermediate, hidden, of=E4M3), t(local, 2 * intermediate // 128, hidden // 128, of=F32),
        t(local, hidden, intermediate, of=E4M3), t(local, hidden // 128, intermediate // 128, of=F32), experts,
        top_k, 8, 4, intermediate, 0, local, 2.5, 2, enable_pdl=False, tune_max_num_tokens=tune_max)


def trtllm_fp8_tensor_moe(tokens, hidden=5120, intermediate=8192, top_k=1, experts=128, local=16, tune_max=8192):
    core.trtllm_fp8_per_tensor_scale_moe(
        t(tokens, experts), None, t(tokens, hidden, of=E4M3), t(local, 2 * intermediate, hidden, of=E4M3),
        t(local, of=F32), t(local, of=F32), t(local, hidden, intermediate, of=E4M3), t(local, of=F32), experts,
        top_k, None, None, intermediate, 0, local, None, True, 3, enable_pdl=False, tune_max_num_tokens=tune_max)


def trtllm_bf16_moe(tokens, hidden=2048, intermediate=768, top_k=8, experts=128, local=128, tune_max=8192):
    core.trtllm_bf16_moe(
        t(tokens, experts), None, t(tokens, hidden), t(local, hidden // 64, 2 * intermediate, 64),
        t(local, intermediate // 64, hidden, 64), experts, top_k, None, None, intermediate, 0, local, None, 1,
        enable_pdl=False, tune_max_num_tokens=tune_max)


def cutlass_moe(tokens, hidden=2048, intermediate=768, top_k=8, experts=128, act="bf16", tune_max=8192):
    of = {"bf16": BF16, "fp16": torch.float16, "fp8": E4M3}[act]
    scales = [t(experts, of=F32), t(1, of=F32), t(experts, of=F32), t(1, of=F32)] if act == "fp8" else []
    out = torch.float16 if act == "fp16" else BF16
    core.cutlass_fused_moe(
        t(tokens, hidden, of=of), t(tokens, top_k, of=I32), t(tokens, top_k, of=F32),
        t(experts, 2 * intermediate, hidden, of=of), t(experts, hidden, intermediate, of=of), out, scales,
        output=t(tokens, hidden, of=out), enable_pdl=False, tune_max_num_tokens=tune_max)


def fp4_gemm(tokens, n=4096, k=7168, backend="cutlass"):
    gemm.mm_fp4(t(tokens, k // 2, of=U8), t(n, k // 2, of=U8).t(), t(rows(tokens), k // 16, of=E4M3),
                t(n, k // 16, of=E4M3).t(), t(1, of=F32), BF16, backend=backend, skip_check=True)


def bf16_gemm(tokens, n=4096, k=7168, backend="cutlass"):
    gemm.mm_bf16(t(tokens, k), t(n, k).t(), backend=backend, skip_check=True)


def mxfp8_gemm(tokens, n=4096, k=7168, backend="cutlass"):
    gemm.mm_mxfp8(t(tokens, k, of=E4M3), t(n, k, of=E4M3).t(), t(rows(tokens) * (k // 32), of=U8),
                  t(n * (k // 32), of=U8), backend=backend, skip_check=True)


def fp8_gemm(tokens, n=4096, k=7168, batch=2, backend="cublas"):
    gemm.bmm_fp8(t(batch, tokens, k, of=E4M3), t(batch, n, k, of=E4M3).transpose(1, 2), t(1, of=F32),
                 t(1, of=F32), BF16, backend=backend, skip_check=True)


# operation -> (its call, how often the tuner is asked in one)
FAMILIES = {
    "trtllm_fp4_moe": (trtllm_fp4_moe, 1),
    "trtllm_fp8_block_moe": (trtllm_fp8_block_moe, 1),
    "trtllm_fp8_tensor_moe": (trtllm_fp8_tensor_moe, 1),
    "trtllm_bf16_moe": (trtllm_bf16_moe, 1),
    "cutlass_moe": (cutlass_moe, 2),
    "fp4_gemm": (fp4_gemm, 1),
    "bf16_gemm": (bf16_gemm, 1),
    "mxfp8_gemm": (mxfp8_gemm, 1),
    "fp8_gemm": (fp8_gemm, 1),
}


def ask(op, tokens, **dims):
    """The choices of one call."""
    call, last = FAMILIES[op]
    with Watch(last) as watch, tensors(), contextlib.suppress(Chosen):
        call(tokens, **dims)
    if len(watch.choices) != last or not all(c.keys for c in watch.choices):
        raise RuntimeError(f"{op}: the tuner was asked {len(watch.choices)} times, not {last}")
    return watch.choices
