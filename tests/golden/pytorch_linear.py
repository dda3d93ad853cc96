#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""client/examples/pytorch_linear.py says the numbers and sizes that cublasLt.h says, and ends with 77 without a GPU.

usage: pytorch_linear.py [FOLDER]       of CUDA's headers; default /usr/local/cuda/include. Skipped where there is none.
"""
import ctypes
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "client/examples/pytorch_linear.py"
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("pytorch_linear", EXAMPLE)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

CONFIGS = {"tile": "TILE_ID", "splitk": "SPLITK_NUM", "reduction": "REDUCTION_SCHEME", "swizzle": "CTA_SWIZZLING",
           "custom": "CUSTOM_OPTION", "stages": "STAGES_ID", "inner": "INNER_SHAPE_ID", "cluster": "CLUSTER_SHAPE_ID"}


def said_by_header(include):
    """What a C program that includes the header says, in the order of `ours`."""
    words = ["CUBLAS_COMPUTE_32F", "CUDA_R_32F", "CUDA_R_16BF", "CUBLAS_OP_T", "CUBLASLT_MATMUL_DESC_TRANSA",
             *(f"CUBLASLT_ALGO_CONFIG_{CONFIGS[name]}" for name in example.ALGORITHM),
             "sizeof(cublasLtMatmulAlgo_t)", "sizeof(cublasLtMatmulHeuristicResult_t)",
             "offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize)", "offsetof(cublasLtMatmulHeuristicResult_t, state)"]
    lines = "".join(f'printf("%lld\\n", (long long)({word}));\n' for word in words)
    program = f"#include <cublasLt.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{ {lines} return 0; }}\n"
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "a.c")
        source.write_text(program)
        subprocess.run(["cc", f"-isystem{include}", "-o", f"{folder}/a", source], check=True)
        out = subprocess.run([f"{folder}/a"], capture_output=True, text=True, check=True).stdout
    return dict(zip(words, map(int, out.split())))


def main():
    include = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/local/cuda/include")
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False,
                          env={"PYTHONPATH": str(ROOT / "client/python"), "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 77 and done.stdout.count("\n") == 1 and "needs PyTorch and an NVIDIA GPU" in done.stdout, done
    assert example.ALGORITHM.keys() == CONFIGS.keys()
    if not (include / "cublasLt.h").is_file() or not shutil.which("cc"):
        print(f"skipped: no cublasLt.h in {include}")
        return 77
    ours = [example.COMPUTE_32F, example.R_32F, example.R_16BF, example.OP_T, example.DESC_TRANSA,
            *(number for number, _ in example.ALGORITHM.values()), ctypes.sizeof(example.Algo), ctypes.sizeof(example.Heuristic),
            example.Heuristic.workspace_bytes.offset, example.Heuristic.status.offset]
    header = said_by_header(include)
    wrong = [(word, theirs, mine) for (word, theirs), mine in zip(header.items(), ours) if theirs != mine]
    assert not wrong and len(header) == len(ours), wrong
    print(f"{len(ours)} numbers are cublasLt.h's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
