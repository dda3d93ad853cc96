# SPDX-License-Identifier: Apache-2.0
"""The files of a tree, and the words the checks share."""
import os
import shutil
import subprocess
from pathlib import Path

# What every file is compiled with, here as in meson.build.
HOUSE_FLAGS = (
    "-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes "
    "-Wmissing-prototypes -Wvla -Wswitch-enum -Werror -fno-strict-aliasing"
).split()
# Given by meson.build to the files that need them.
HOUSE_DEFINES = ['-DTACTICD_VERSION="0"', '-DTACTICD_PACKAGED_DIR="/"', '-DTACTICD_LIBEXEC_DIR="/"']


class Skip(Exception):
    """The check cannot run here; the text says why."""


def files(root):
    """Paths of all files, from the root, that are tracked or not ignored; without git, all."""
    root = Path(root)
    names = []
    if shutil.which("git") and (root / ".git").exists():
        # Git refuses a tree of another user's; then nothing is printed.
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True, check=False,
        )
        names = [n for n in done.stdout.decode().split("\0") if n]
    if not names:
        for folder, folders, some in os.walk(root):
            # Hidden folders and what .gitignore leaves out are not the tree.
            folders[:] = [f for f in folders if f[0] != "." and f not in ("__pycache__", "build")
                          and not (Path(folder) / f / "meson-private").is_dir()]
            names += [str((Path(folder) / name).relative_to(root)) for name in some]
    return sorted(n for n in set(names) if (root / n).is_file())


def c_files(root, suffixes=(".c", ".h")):
    return [n for n in files(root) if n.endswith(suffixes)]


def text(root, name):
    return (Path(root) / name).read_text(encoding="utf-8", errors="replace")


def plant(root, name, content):
    """Writes a file of a planted tree."""
    path = Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
