#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do modules that build_modules.py made load as the unmodified FlashInfer loads them? Without a GPU: each module is loaded
with compiling forbidden and all its functions bound, and the mixture of experts made for bf16, which must get as far as
asking CUDA for its device.
Runs under the Python of tests/flashinfer/venv.sh.

usage: try_modules.py OUT    the folder that build_modules.py filled
"""
import ctypes
import importlib
import importlib.machinery
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import build_modules

CUDA = pathlib.Path("/usr/local/cuda/lib64")
LOADED = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libnvrtc.so.13")


NO_DEVICE = 100


def libraries(folder, modules):
    """CUDA's, by full path, and a driver whose functions all say that there is no device: without it no module links."""
    driver, source = folder / "libcuda.so.1", folder / "driver.c"
    wanted = sorted({name for path in modules for name, kind in build_modules.symbols(path, "-D").items()
                     if kind == "U" and re.match(r"cu[A-Z]", name)})
    source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in wanted))
    subprocess.run(["cc", "-shared", "-fPIC", source, "-Wl,-soname,libcuda.so.1", "-o", driver], check=True)
    for path in (driver, *(CUDA / name for name in LOADED)):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def prebuilt(out):
    """FlashInfer's own way to prebuilt modules: a package that says where they lie. Nothing is put into the
    environment."""
    cache = types.ModuleType("flashinfer_jit_cache")
    cache.__spec__ = importlib.machinery.ModuleSpec("flashinfer_jit_cache", None)
    cache.get_jit_cache_dir = lambda: str(out)
    cache.__version__ = importlib.metadata.version("flashinfer-python")
    sys.modules["flashinfer_jit_cache"] = cache


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as work:
        os.environ.update(FLASHINFER_DISABLE_JIT="1", FLASHINFER_WORKSPACE_BASE=work, FLASHINFER_CUDA_ARCH_LIST="9.0a")
        libraries(pathlib.Path(work), sorted(out.glob("*/*.so")))
        prebuilt(out)
        failures = 0
        for name in [*build_modules.SMALL, build_modules.MOE]:
            if not (out / name).exists():
                print(f"{name}: is not there")
                continue
            module, function = build_modules.SMALL.get(name, ("flashinfer.jit.fused_moe", build_modules.MAKER))
            try:
                made = getattr(importlib.import_module(module), function)()
                # FlashInfer binds functions when they are called; here all of them must be there, first.
                ctypes.CDLL(str(out / name / f"{name}.so"), mode=os.RTLD_NOW)
                loaded = made.build_and_load()
                print(f"{name}: loads{try_moe(loaded) if name == build_modules.MOE else ''}")
            except Exception as e:  # whatever the loader says
                failures += 1
                print(f"{name}: {type(e).__name__}: {e}")
    return failures > 0


def try_moe(loaded):
    import torch

    bf16 = torch.bfloat16
    try:
        loaded.init(bf16, bf16, bf16, False, False, False, False, True, False)
    except Exception as e:  # there is no GPU
        words = str(e).strip().splitlines()[0]
        if "cudaGetDevice" not in str(e):
            raise
        return f", and asks CUDA for its device: {words[:100]}"
    return ", and is made for bf16"


if __name__ == "__main__":
    sys.exit(main())
