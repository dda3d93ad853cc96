# SPDX-License-Identifier: Apache-2.0
"""C files are as clang-format would write them."""
import shutil
import subprocess
from pathlib import Path

import tree

LOCATION = ": error: code should be clang-formatted"


def check(root):
    if not shutil.which("clang-format"):
        raise tree.Skip("clang-format is not installed")
    names = tree.c_files(root)
    if not names:
        return []
    done = subprocess.run(
        ["clang-format", "--dry-run", "-Werror", "--style=file", *names], cwd=root,
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    first = {}
    for line in done.stderr.splitlines():
        if LOCATION in line:
            first.setdefault(line.split(":")[0], line.split(LOCATION)[0])
    if done.returncode and not first:
        return [f"clang-format: {done.stderr.strip()}"]
    return [f"{place}: clang-format -i {name}" for name, place in first.items()]


def planted(root):
    style = Path(__file__).resolve().parents[2] / ".clang-format"
    tree.plant(root, ".clang-format", style.read_text())
    tree.plant(root, "good.c", "int good(void)\n{\n    return 1;\n}\n")
    tree.plant(root, "bad.c", "int bad(void) {\n  return 1;\n}\n")
    return ["bad.c:1:"]
