# SPDX-License-Identifier: Apache-2.0
"""What objects give away: the mind (layer 2) calls no clock, file or loop, and nothing in daemon/ but
log.c keeps mutable state at file scope."""
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tree

# Files of layer 2, as in includes.table.
MIND = re.compile(
    r"daemon/(store|store_build|sweep|sweep_\w+|queue|race|resample|dice|space|slow|report|events|sections|snapshot|jobs|jobs_file|upgrade)\.c"
)
# What they may call: memory, strings, numbers, texts in memory, assert; and functions of this tree.
HARMLESS = set(
    """
    malloc calloc realloc free qsort qsort_r bsearch abs labs strtol strtoul strtoull strtod abort
    memcpy memmove memset memcmp memchr memmem strlen strnlen strcmp strncmp strchr strrchr strstr
    strspn strcspn strpbrk strcpy strncpy strdup strndup stpcpy
    snprintf vsnprintf sscanf __isoc99_sscanf __ctype_b_loc __assert_fail __errno_location
    log log2 log1p exp expm1 sqrt fabs floor ceil rint round llround lround fmin fmax pow
    isnan isfinite __isnan __isfinite __stack_chk_fail _GLOBAL_OFFSET_TABLE_
    """.split()
)
# Static state that may be: what a log macro remembers of its call site.
SITE = re.compile(r"(log_)?site(_here)?(\.\d+)?$")


def symbols(root, name, folder):
    """(kind, symbol) of the object of a file, or None if it does not compile."""
    out = Path(folder) / (name.replace("/", "_") + ".o")
    # Without PIC, a constant table of pointers lies in .rodata and not among what is written.
    done = subprocess.run(
        ["gcc", *tree.HOUSE_FLAGS, *tree.HOUSE_DEFINES, "-O0", "-fno-pic", "-fno-pie", f"-I{root}", "-c",
         str(Path(root) / name), "-o", str(out)], capture_output=True, text=True,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or ["?"]
        return None, errors[0].replace(f"{root}/", "")
    listing = subprocess.run(["nm", str(out)], capture_output=True, text=True, check=True).stdout
    return [line.split()[-2:] for line in listing.splitlines()], None


def complaints(name, pairs, ours):
    for kind, symbol in pairs:
        if MIND.fullmatch(name) and kind == "U" and symbol not in HARMLESS and symbol not in ours:
            yield f"{name}:1: the mind calls {symbol}"
        if kind in "bBdDC" and name != "daemon/log.c" and not SITE.fullmatch(symbol):
            yield f"{name}:1: {symbol} is mutable and lives at file scope"


def check(root):
    if not shutil.which("gcc") or not shutil.which("nm"):
        raise tree.Skip("gcc or nm is not installed")
    names = [n for n in tree.c_files(root, (".c",)) if re.fullmatch(r"(daemon|proto)/\w+\.c", n)]
    with tempfile.TemporaryDirectory(prefix="lint_pure.") as folder, ThreadPoolExecutor(2) as pool:
        objects = dict(zip(names, pool.map(lambda n: symbols(root, n, folder), names)))
    found = [f"{n}:1: does not compile: {fault}" for n, (_, fault) in objects.items() if fault]
    if any(MIND.fullmatch(n) or n.startswith("proto/") for n, (_, fault) in objects.items() if fault):
        return found  # whose functions are whose is not known
    # What the mind may call of ours: itself and the vocabulary.
    ours = {
        symbol
        for n, (pairs, _) in objects.items()
        if pairs and (n.startswith("proto/") or MIND.fullmatch(n))
        for kind, symbol in pairs
        if kind in "TRD"
    }
    for name, (pairs, _) in objects.items():
        found += complaints(name, pairs or [], ours)
    return found


def planted(root):
    tree.plant(root, "proto/key.c", "int key_x(void);\nint key_x(void)\n{\n    return 1;\n}\n")
    tree.plant(root, "daemon/queue.c",
        "#include <time.h>\nint key_x(void);\nlong queue_x(void);\nlong queue_x(void)\n{\n"
        "    static int calls;\n    return (long)time(0) + key_x() + ++calls;\n}\n")
    tree.plant(root, "daemon/broken.c", "int broken(\n")
    return [
        "daemon/broken.c:1: does not compile", "daemon/queue.c:1: calls.0 is mutable",
        "daemon/queue.c:1: the mind calls time",
    ]
