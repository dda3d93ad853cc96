# SPDX-License-Identifier: Apache-2.0
"""Each header compiles alone, so an include line says all that it needs."""
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import tree


# Where a CUDA toolkit's headers are, if there is one; meson.build looks in the same places.
CUDA = [f"-isystem{folder}" for folder in
        (os.path.dirname(os.path.dirname(shutil.which("nvcc") or "")) + "/include", "/usr/local/cuda/include")
        if os.path.exists(folder + "/cuda.h")]
# What only a build with CUDA compiles, as the build without it says by itself.
WITHOUT_CUDA = re.compile(r"fatal error: (cuda|cublasLt|cudnn|cudnn_backend)\.h: No such file")


def compile_alone(root, name):
    # Included by a file, not compiled itself: #pragma once in a main file is a warning.
    done = subprocess.run(
        ["gcc", *tree.HOUSE_FLAGS, *tree.HOUSE_DEFINES, "-fsyntax-only", "-x", "c", f"-I{root}", f"-I{root}/client", *CUDA, "-"],
        input=f'#include "{name}"\ntypedef int nothing_else;\n', capture_output=True, text=True,
    )
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    if done.returncode == 0 or WITHOUT_CUDA.search(done.stderr):
        return None
    first = errors[0].replace(f"{root}/", "") if errors else done.stderr.strip()
    return f"{name}:1: does not compile alone: {first}"


def check(root):
    if not shutil.which("gcc"):
        raise tree.Skip("gcc is not installed")
    headers = tree.c_files(root, (".h",))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda n: (n, compile_alone(root, n)), headers))
    found = [r for _, r in results if r]
    found += [f"{n}:1: no #pragma once" for n in headers if "#pragma once\n" not in tree.text(root, n)]
    return found


def planted(root):
    tree.plant(root, "good.h", "#pragma once\n#include <stddef.h>\nsize_t good_len(void);\n")
    tree.plant(root, "bad.h", "#pragma once\nsize_t bad_len(void);\n")
    tree.plant(root, "twice.h", "int twice(void);\n")
    return ["bad.h:1: does not compile alone: bad.h:2:", "twice.h:1: no #pragma once"]
