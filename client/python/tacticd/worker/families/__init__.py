# SPDX-License-Identifier: Apache-2.0
"""The kernels that this worker can sweep: one module a family, as tacticd.worker.launches says. They import FlashInfer
and PyTorch, so they are imported when they are looked for, and not before."""
import functools
import importlib

MODULES = ("cudnn_gemm", "cutlass_moe", "trtllm_moe")


def found(device):
    """(how to open the ops that run on this device, as frame.Backend has it; why others do not, by module)."""
    families, missing = {}, {}
    for name in MODULES:
        module = importlib.import_module(f"{__name__}.{name}")
        why = module.missing(device)
        if why:
            missing[name] = why
        else:
            families.update({op: functools.partial(module.open, device) for op in module.OPS})
    return families, missing
