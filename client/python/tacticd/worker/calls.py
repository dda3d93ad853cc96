# SPDX-License-Identifier: Apache-2.0
"""Every call that the families make into FlashInfer, each once: where it is and what it is given. The same table serves
the call and the test that holds it against the real packages (tests/flashinfer/signatures.py), so a call that is not
here, or is made otherwise than here, cannot be made.

A new one: CALLS["name"] = Call(dotted path of the function in the package, positional parameters, keywords), then
calls.of("name")(a, b, out=c) for a function of a module, calls.on("name", object)(...) for a method of an object that
FlashInfer made. A path may lead through a function to what is defined in it. `since` and `before` are releases, where
a call differs between them: the first row whose range holds is taken.
"""
import functools
import importlib
import re
from typing import NamedTuple, Optional


class Call(NamedTuple):
    path: str  # flashinfer.module.name, flashinfer.module.Class.method, flashinfer.module.function.Class.method
    positional: tuple = ()  # names of the parameters, in order, without self
    keywords: tuple = ()  # of what may be given by name
    since: Optional[str] = None
    before: Optional[str] = None


GEMM = "flashinfer.gemm.gemm_base"
TUNER = "flashinfer.autotuner.autotuner"
MOE = "flashinfer.fused_moe.core"
JIT_MOE = "flashinfer.jit.fused_moe"

# The same in every release, but for what 0.7 wants to be told.
TRTLLM_FP4 = ("topk_ids", "routing_bias", "hidden_states", "hidden_states_scale", "gemm1_weights", "gemm1_weights_scale",
              "gemm1_bias", "gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit", "gemm2_weights", "gemm2_weights_scale",
              "gemm2_bias", "output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar", "num_experts",
              "top_k", "n_group", "topk_group", "intermediate_size", "local_expert_offset", "local_num_experts",
              "routed_scaling_factor")
TRTLLM_FP4_KEYWORDS = ("routing_method_type", "do_finalize", "activation_type", "output")

CALLS = {
    # The public functions: native is what they run.
    "mm_bf16": [Call(f"{GEMM}.mm_bf16", ("a", "b"), ("bias", "pdl", "out", "out_dtype", "backend"))],
    "bmm_bf16": [Call(f"{GEMM}.bmm_bf16", ("A", "B"), ("out", "out_dtype", "backend"))],
    "bmm_fp8": [Call(f"{GEMM}.bmm_fp8", ("A", "B", "A_scale", "B_scale", "dtype"), ("out", "backend"))],
    # The tuner that they ask, and what it asks of a runner. choose_one is stood in for by one that is called alike.
    "tuner": [Call(f"{TUNER}.AutoTuner.get")],
    "choose_one": [Call(f"{TUNER}.AutoTuner.choose_one", ("custom_op", "runners", "tuning_config", "inputs"))],
    "cudnn_bf16_tactics": [Call(f"{GEMM}._cudnn_gemm_bf16_runner.CudnnBf16GemmRunner.get_valid_tactics",
                                ("inputs", "profile"))],
    "cudnn_fp8_tactics": [Call(f"{GEMM}._cudnn_gemm_fp8_runner.CudnnFp8GemmRunner.get_valid_tactics",
                               ("inputs", "profile"))],
    "forget_cudnn_graphs": [Call(f"{GEMM}.clear_cudnn_graph_cache")],
    # CUTLASS's mixture of experts: the public function, its workspace, the runner that it hands to the tuner, and who
    # makes the compiled module. None of the makers' switches is used.
    "cutlass_fused_moe": [Call(f"{MOE}.cutlass_fused_moe",
                               ("input", "token_selected_experts", "token_final_scales", "fc1_expert_weights",
                                "fc2_expert_weights", "output_dtype", "quant_scales"),
                               ("fc1_expert_biases", "fc2_expert_biases", "tp_size", "tp_rank", "ep_size", "ep_rank",
                                "output", "enable_pdl", "activation_type", "use_fused_finalize", "profile_ids",
                                "workspace_buffer"))],
    "cutlass_moe_workspace": [Call(f"{MOE}.cutlass_fused_moe_workspace_size",
                                   ("max_num_tokens", "hidden_size", "intermediate_size", "num_experts_total", "top_k"),
                                   ("x_dtype", "weight_dtype", "output_dtype", "activation_type", "tp_size", "tp_rank",
                                    "ep_size", "ep_rank", "use_fused_finalize"))],
    "cutlass_moe_tactics": [Call(f"{MOE}.get_cutlass_fused_moe_module.MoERunner.get_valid_tactics", ("inputs", "profile"))],
    **{f"cutlass_moe_sm{sm}": [Call(f"{JIT_MOE}.gen_cutlass_fused_moe_sm{sm}_module")] for sm in (89, 90, 100, 103, 120)},
    # trtllm-gen's four-bit mixture of experts, routed beforehand; how its weights are laid out.
    "trtllm_fp4_moe": [Call(f"{MOE}.trtllm_fp4_block_scale_routed_moe", TRTLLM_FP4, TRTLLM_FP4_KEYWORDS, before="0.7"),
                       Call(f"{MOE}.trtllm_fp4_block_scale_routed_moe", TRTLLM_FP4,
                            (*TRTLLM_FP4_KEYWORDS, "hidden_states_scale_layout"), since="0.7")],
    "trtllm_moe_tactics": [Call(f"{MOE}._get_trtllm_moe_sm100_module_impl.MoERunner.get_valid_tactics",
                                ("inputs", "profile"), before="0.7"),
                           Call("flashinfer.fused_moe.backends.trtllm.sm100_runner.MoERunner.get_valid_tactics",
                                ("inputs", "profile"), since="0.7")],
    "trtllm_moe_module": [Call(f"{JIT_MOE}.gen_trtllm_gen_fused_moe_sm100_module")],
    "gemm1_rows": [Call(f"{MOE}._maybe_get_cached_w3_w1_permute_indices",
                        ("_cache_permute_indices", "dst_w3_w1_weight", "epilogue_tile_m"), ("num_elts_per_sf",))],
    "gemm2_rows": [Call(f"{MOE}.get_w2_permute_indices_with_cache",
                        ("_cache_permute_indices", "dst_w2_weight", "epilogue_tile_m"), ("num_elts_per_sf",))],
    "interleave_scales": [Call("flashinfer.quantization.fp4_quantization.block_scale_interleave", ("unswizzled_sf",))],
}


def numbers(release):
    """(0, 7, 4) of "0.7.4" or "0.7.4.post1": comparable."""
    return tuple(int(n) for n in re.findall(r"\d+", release.split("+")[0])[:3])


def row(name, release):
    """The Call of that name in a release of FlashInfer. KeyError if there is none."""
    for call in CALLS[name]:
        if (call.since is None or numbers(release) >= numbers(call.since)) and \
                (call.before is None or numbers(release) < numbers(call.before)):
            return call
    raise KeyError(f"{name}: not in FlashInfer {release}")


@functools.cache
def release():
    """Of the FlashInfer that is loaded."""
    return importlib.import_module("flashinfer").__version__


def _checked(call, function):
    known = frozenset(call.keywords)

    @functools.wraps(function)
    def made(*args, **kwargs):
        if len(args) != len(call.positional) or not known.issuperset(kwargs):
            raise AssertionError(f"{call.path} is not called as the table says")
        return function(*args, **kwargs)

    return made


@functools.cache
def of(name):
    """The function of that name, importable as its path says, or a method of a class without an object."""
    call = row(name, release())
    parts = call.path.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return _checked(call, found)
    raise AssertionError(f"{call.path} is nowhere")


def on(name, thing):
    """The method of that name of `thing`, whose class has the name that the path says."""
    call = row(name, release())
    owner, method = call.path.split(".")[-2:]
    if owner not in (c.__name__ for c in type(thing).__mro__):
        raise AssertionError(f"{type(thing).__name__} is no {owner}")
    return _checked(call, getattr(thing, method))
