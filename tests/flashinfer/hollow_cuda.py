#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts hollow CUDA libraries where an installed torch looks for NVIDIA's, so that it can be imported without
the gigabytes of wheels it depends on. Every function in them returns 100, "no device" (those that return text
return that text); nothing is computed.

usage: hollow_cuda.py SITE-PACKAGES
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE alike
FIRST = ["libtorch_global_deps.so", "libtorch_python.so"]  # what import torch loads
TEXT = re.compile(r"\w+(String|ErrorName|LastError)")
OURS = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp)\.so\.\d+|ld-linux.*")
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
FILE, NAME = re.compile(r"File: (\S+)"), re.compile(r"Name: (\S+)")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def closure(lib):
    """Torch's own libraries that an import loads, and the names of those that are not here."""
    have, missing, todo = [], set(), list(FIRST)
    while todo:
        path = lib / todo.pop()
        if path in have or OURS.fullmatch(path.name):
            continue
        if not path.exists():
            missing.add(path.name)
            continue
        have.append(path)
        todo += NEEDED.findall(output("readelf", "-dW", path))
    return have, missing


def version_homes(path):
    """{name of a symbol version: library it is wanted from}"""
    homes, where = {}, None
    for line in output("readelf", "-VW", path).splitlines():
        if "Version definition section" in line:
            where = None
        elif FILE.search(line):
            where = FILE.search(line).group(1)
        elif where and NAME.search(line):
            homes[NAME.search(line).group(1)] = where
    return homes


def stem(library):
    return library.split(".so")[0].removeprefix("lib").lower()


def home_by_name(symbol, libraries):
    """The library an unversioned symbol belongs to by its prefix, or None."""
    fits = [n for n in libraries if symbol.lower().startswith(stem(n))]
    return max(fits, key=lambda n: len(stem(n)), default=None)


def wanted(have, missing):
    """{library: {version or "": {symbols}}}"""
    found = collections.defaultdict(lambda: collections.defaultdict(set))
    for name in missing:
        found[name]  # also one of which nothing is wanted must exist
    for path in have:
        homes = version_homes(path)
        for line in output("nm", "-D", "--undefined-only", path).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            home = homes.get(version) if version else home_by_name(symbol, missing)
            if home in missing:
                found[home][version].add(symbol)
    return found


def function(symbol):
    if TEXT.fullmatch(symbol):
        return f'const char *{symbol}(void)\n{{\n    return "no device";\n}}\n'
    return f"int {symbol}(void)\n{{\n    return {NO_DEVICE};\n}}\n"


def build(folder, library, versions):
    with tempfile.TemporaryDirectory() as work:
        code, script = pathlib.Path(work, "hollow.c"), pathlib.Path(work, "hollow.map")
        symbols = sorted(s for group in versions.values() for s in group)
        code.write_text("".join(function(s) for s in symbols))
        script.write_text("".join(
            f"{v} {{ global: {' '.join(s + ';' for s in sorted(group))} }};\n" for v, group in versions.items() if v))
        args = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        subprocess.run(["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}", *args, "-o",
                        str(folder / library), str(code)], check=True)
    return len(symbols)


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    have, missing = closure(site / "torch/lib")
    folder = site / "nvidia/cu13/lib"  # stands in torch's own search path
    folder.mkdir(parents=True, exist_ok=True)
    for library, versions in sorted(wanted(have, missing).items()):
        count = build(folder, library, versions)
        print(f"stub: {library}: {count} functions that return {NO_DEVICE}")


if __name__ == "__main__":
    main()
