# SPDX-License-Identifier: Apache-2.0
"""cuDNN's products as FlashInfer 0.6.16 calls them, computed by PyTorch on a CPU. Engines:
  1  right, the fastest         2  right, slower than native    3  its plan fails: warns, and runs -1
  4  one element is wrong       5  leaves a row unwritten       6  wants more workspace than there is
  7  listed at one token only, and right at all others           8  raises what is no refusal of cuDNN's
"""
import functools
import time
import warnings

import torch

from ..autotuner import AutoTuner

DEFAULT_WORKSPACE_SIZE = 1 << 20
NATIVE_S, SLOW_S, FAST_S, OTHER_S = 40e-3, 60e-3, 20e-3, 24e-3
_buffers = {}


def _workspace(name):
    return _buffers.setdefault(name, torch.empty(DEFAULT_WORKSPACE_SIZE, dtype=torch.uint8))


def _product(a, b, scale, bias, out):
    values = (a.float() @ b.float()) * scale
    out.copy_(values if bias is None else values + bias.float())


def _run(a, b, scale, bias, out, workspace, tactic):
    engine = -1 if tactic == -1 else tactic[0]
    if engine == 3:
        warnings.warn("cuDNN bf16 GEMM tactic failed; falling back to default tactic=-1. (no plan)", stacklevel=2)
        engine = -1
    if engine == 6 and workspace.numel() < 2 * DEFAULT_WORKSPACE_SIZE:
        workspace.resize_(2 * DEFAULT_WORKSPACE_SIZE)
    if engine == 8:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
    time.sleep({-1: NATIVE_S, 1: FAST_S, 2: SLOW_S}.get(engine, OTHER_S))
    rows = slice(0, -1) if engine == 5 else slice(None)
    _product(a[..., rows, :], b, scale, bias, out[..., rows, :])
    if engine == 4:
        out.view(-1)[-1] += 1


@functools.lru_cache(maxsize=2048)
def build_cudnn_gemm_bf16_graph(m):
    return [m]


def clear_cudnn_graph_cache():
    build_cudnn_gemm_bf16_graph.cache_clear()
    AutoTuner.get().clear_cache()


def _plans(m):
    build_cudnn_gemm_bf16_graph(m)
    return [(n, ((2, 10 * n), (0, 1))) for n in (3, 1, 2, 4, 5, 6, 8)] + ([(7, ())] if m == 1 else [])


def _cudnn_gemm_bf16_runner(is_a_k_major=None, is_b_k_major=None):
    class CudnnBf16GemmRunner:
        def get_valid_tactics(self, inputs, profile):
            return _plans(inputs[0].shape[-2])

        def __call__(self, inputs, tactic=-1):
            a, b, bias, _, out, workspace = inputs
            _run(a, b, 1.0, bias, out, workspace, tactic)

    return CudnnBf16GemmRunner()


def _cudnn_gemm_fp8_runner():
    class CudnnFp8GemmRunner:
        def get_valid_tactics(self, inputs, profile):
            return _plans(inputs[0].shape[-2])

        def __call__(self, inputs, tactic=-1):
            a, b, scale_a, scale_b, out, workspace = inputs
            _run(a, b, scale_a * scale_b, None, out, workspace, tactic)

    return CudnnFp8GemmRunner()


def _choose(op, runner, inputs):
    runner, tactic = AutoTuner.get().choose_one(op, [runner], None, inputs)
    runner(inputs=inputs, tactic=tactic)
    return inputs[4]


def mm_bf16(a, b, bias=None, pdl=False, out=None, out_dtype=torch.bfloat16, backend="cudnn"):
    return _choose("bf16_gemm", _cudnn_gemm_bf16_runner(), [a, b, bias, pdl, out, _workspace("mm")])


def bmm_bf16(A, B, out=None, out_dtype=torch.bfloat16, backend="cudnn"):
    return _choose("bf16_gemm", _cudnn_gemm_bf16_runner(), [A, B, None, False, out, _workspace("bmm")])


def bmm_fp8(A, B, A_scale, B_scale, dtype, out=None, backend="cublas"):
    return _choose("fp8_gemm", _cudnn_gemm_fp8_runner(), [A, B, A_scale, B_scale, out, _workspace("fp8")])
