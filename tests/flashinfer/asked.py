#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the real FlashInfer asks its tuner when the worker's families call it: reads problems, a line each, and prints a
JSON object for each: {"problem", "op", "runners", "key" of the worker's runner as files have it, "workspace"}, or
{"problem", "refused"}. Runs inside an environment with flashinfer-python (venv.sh), with stubs for GPU and versions, and
ends before a kernel would run.

usage: asked.py FAMILY < problems
"""
import importlib
import json
import os
import pathlib
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "client/python")]
scratch = tempfile.TemporaryDirectory(prefix="flashinfer-")
os.environ.update(FLASHINFER_WORKSPACE_BASE=scratch.name, FLASHINFER_LOGGING_LEVEL="error")

import stubs  # noqa: E402

HOPPER = {**stubs.LOOK_ALIKE, "gpu": "NVIDIA H200", "capability": (9, 0)}


def cudnn():
    """Enough of a frontend for a runner to be made: no plan is."""
    from flashinfer.gemm import gemm_base

    gemm_base.CUDNN_AVAILABLE = True
    gemm_base.cudnn = types.SimpleNamespace(__version__=HOPPER["cudnn_frontend_version"],
                                            backend_version=lambda: int(HOPPER["cudnn_version"]))
    for name in ("_get_cache_buf", "_get_stream_cache_buf"):
        if hasattr(gemm_base, name):
            setattr(gemm_base, name, lambda name, size, device, **_: torch.empty(size, dtype=torch.uint8, device=device))
    stubs.say("cuDNN: a version, and no plans")


def main():
    import families  # of these tests: what watches the tuner

    from tacticd.worker import frame, keys, tuner

    family = importlib.import_module(f"tacticd.worker.families.{sys.argv[1]}")
    device = types.SimpleNamespace(torch=torch, where=torch.device("cuda", 0), is_cuda=True, capability=90)
    with families.Watch(last=0) as watch, families.tensors():
        for line in sys.stdin:
            key = keys.parse(line.strip())
            try:
                family._check(device, key)
                op, runner = family.asked_of(key)
                asked = tuner.Tuner(op, runner).listen(family.Tensors(device, key, key.tokens).call(key.tokens))
                asked.runner(runner)
            except frame.Unsupported as e:
                print(json.dumps({"problem": str(key), "refused": str(e)}))
                continue
            texts = [k.file_key for k in watch.choices[-1].keys]
            print(json.dumps({"problem": str(key), "op": asked.op, "runners": [type(r).__name__ for r in asked.runners],
                              "key": next(k for k in texts if runner in k), "workspace": asked.inputs[-1].numel()}))


if __name__ == "__main__":
    import flashinfer.gemm  # noqa: F401
    import torch

    stubs.install(HOPPER)
    cudnn()
    main()
