#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the modules that FlashInfer would compile on first use, for a machine with a GPU and without a network: the
package takes data/aot/NAME/NAME.so before it compiles anything. Runs under the Python of tests/flashinfer/venv.sh, with
that package's own sources and flags, one job at a time, and goes on where it was stopped. Needs CUDA's toolkit.

usage: build_modules.py WORK OUT [MODULE]...      all modules, or those named; OUT gets NAME/NAME.so

`fused_moe_90` whole is 7 hours of compiling and 110 MiB. What is built here runs one type, bf16: the files that the type
needs, its kernels gathered in few files, and a stub for each function of another type. Whoever calls a stub is aborted
with the function's name; the module offers exactly the tactics of the whole, for a type's list depends on no other.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ARCHITECTURE = "9.0a"
# 72 kernels in one file take 12.3 GB of memory, 36 take 8.5, and the whole hardly longer.
KERNELS_A_FILE = 36
MOE, MAKER = "fused_moe_90", "gen_cutlass_fused_moe_sm90_module"
SMALL = {"gemm": ("flashinfer.jit.gemm", "gen_gemm_module"),
         "mm_bf16_cublaslt": ("flashinfer.jit.gemm", "gen_mm_bf16_cublaslt_module"),
         "tinygemm2": ("flashinfer.jit.tinygemm2", "gen_tinygemm2_module"),
         "trtllm_utils": ("flashinfer.jit.tllm_utils", "gen_trtllm_utils_module")}
# Sources of single types and of dense products; of all others bf16 has need.
OTHER_TYPES = re.compile(r"moe_gemm_kernels_(?!bf16_bf16)\w+$")
# An instantiation in a generated file, and whether bf16 wants it.
HOPPER = re.compile(r"#if [^\n]*\n\s*INSTANTIATE_TMA_WARP_SPECIALIZED_MOE_GEMM\(.*?#endif", re.S)
HOPPER_BF16 = re.compile(r"\(Sm90, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16,")
AMPERE = re.compile(r"template void sm80_generic_fused_moe_gemm_kernelLauncher<.*?\);", re.S)
AMPERE_BF16 = re.compile(r"kernelLauncher<cutlass::bfloat16_t, cutlass::bfloat16_t,")
KINDS = [("hopper", HOPPER, HOPPER_BF16), ("ampere", AMPERE, AMPERE_BF16)]


def gather(sources, folder):
    """The instantiations of bf16 in FlashInfer's generated `sources`, in files of our own."""
    texts = [s.read_text() for s in sorted(sources)]
    files = []
    for kind, pattern, wanted in KINDS:
        of_kind = [(t, list(pattern.finditer(t))) for t in texts]
        of_kind = [(t, found) for t, found in of_kind if found]
        blocks = [m.group() for _, found in of_kind for m in found if wanted.search(m.group())]
        if not blocks:
            sys.exit(f"build_modules.py: no {kind} kernel of bf16 is instantiated: the generator writes otherwise")
        text, found = of_kind[0]
        head, tail = text[:found[0].start()], text[found[-1].end():]
        for i in range(0, len(blocks), KERNELS_A_FILE):
            path = folder / f"{kind}_bf16_{i // KERNELS_A_FILE}.cu"
            whole = head + "\n\n".join(blocks[i:i + KERNELS_A_FILE]) + tail
            if not path.exists() or path.read_text() != whole:
                path.write_text(whole)
            files.append(path)
        print(f"{kind}: {len(blocks)} kernels of bf16", flush=True)
    return files


def symbols(path, *options):
    """name -> letters of nm."""
    lines = subprocess.run(["nm", *options, path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {w[-1].split("@")[0]: w[-2] for w in (line.split() for line in lines) if len(w) >= 2}


def missing(objects):
    """What the objects call of other types, which none of them has."""
    has, wants = set(), set()
    for path in objects:
        for name, kind in symbols(path).items():
            (wants if kind == "U" else has).add(name)
    names = sorted(n for n in wants - has if n.startswith("_Z") and "tensorrt_llm" in n)
    tables = [n for n in names if re.match(r"_ZT[VIS]", n)]
    if tables:
        sys.exit(f"build_modules.py: a stub cannot stand for {tables[0]}")
    return names


STUBS = """#include <stdio.h>
#include <stdlib.h>
static void missing(const char *name)
{
    fprintf(stderr, "fused_moe_90: built for bf16 alone, without %s\\n", name);
    abort();
}
"""


def write_stubs(names, path):
    path.write_text(STUBS + "".join(f'void stub_{i}(void) __asm__("{n}");\nvoid stub_{i}(void) {{ missing("{n}"); }}\n'
                                    for i, n in enumerate(names)))


def ninja(folder, file, targets=()):
    subprocess.run(["nice", "-n", "10", "ninja", "-v", "-j1", "-C", folder, "-f", file, *map(str, targets)], check=True)


def build_moe():
    from flashinfer.jit import env
    from flashinfer.jit.cpp_ext import generate_ninja_build_for_op, get_cuda_path
    from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm90_module
    spec = gen_cutlass_fused_moe_sm90_module()
    folder = env.FLASHINFER_JIT_DIR / MOE
    folder.mkdir(parents=True, exist_ok=True)
    generated = [s for s in spec.sources if s.name.endswith(".generated.cu")]
    sources = [s for s in spec.sources if s not in generated and not OTHER_TYPES.match(s.stem)]
    # The longest last, so that what does not compile is known early.
    sources = sorted(sources, key=lambda s: s.stat().st_size) + gather(generated, folder)
    file = folder / "build.ninja"
    text = generate_ninja_build_for_op(MOE, sources, spec.extra_cflags, spec.extra_cuda_cflags, spec.extra_ldflags,
                                       spec.extra_include_dirs)
    file.write_text(text)
    objects = [pathlib.Path(o) for o in re.findall(r"^build (\S+\.o):", text, re.M)]
    for o in objects:  # one by one, for the record of seconds
        begun = time.monotonic()
        ninja(folder, file, [o])
        print(f"{time.monotonic() - begun:7.1f} s {o.stat().st_size // 1024:7} KiB {o.name}", flush=True)
    names = missing(objects)
    write_stubs(names, folder / "stubs.c")
    print(f"{len(names)} stubs", flush=True)
    cuda = get_cuda_path()
    library = folder / f"{MOE}.so"
    subprocess.run(["cc", "-O1", "-fPIC", "-c", folder / "stubs.c", "-o", folder / "stubs.o"], check=True)
    subprocess.run(["c++", *objects, folder / "stubs.o", "-shared", f"-L{cuda}/lib64", f"-L{cuda}/lib64/stubs",
                    "-lcudart", "-lcuda", *spec.extra_ldflags, "-o", library], check=True)
    return library


def build_small(name):
    import importlib
    module, function = SMALL[name]
    spec = getattr(importlib.import_module(module), function)()
    if spec.name != name:
        sys.exit(f"build_modules.py: {function} builds {spec.name}, not {name}")
    spec.build(verbose=True)
    return spec.jit_library_path


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    work, out = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    names = sys.argv[3:] or [*SMALL, MOE]
    unknown = [n for n in names if n != MOE and n not in SMALL]
    if unknown:
        sys.exit(f"build_modules.py: no module {unknown[0]}; there are {', '.join([*SMALL, MOE])}")
    # FlashInfer reads them when it is imported.
    os.environ.update(FLASHINFER_WORKSPACE_BASE=str(work), FLASHINFER_CUDA_ARCH_LIST=ARCHITECTURE, MAX_JOBS="1")
    os.environ.pop("FLASHINFER_DISABLE_JIT", None)
    for name in names:
        begun = time.monotonic()
        library = build_moe() if name == MOE else build_small(name)
        target = out / name / f"{name}.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        shutil.copy(library, part)
        subprocess.run(["strip", part], check=True)
        part.rename(target)
        print(f"{name}: {time.monotonic() - begun:.0f} s, {target.stat().st_size / 2**20:.1f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
