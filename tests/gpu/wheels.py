#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gathers what tests/gpu/flashinfer.sh and the steps fi_* of gpu.sh install on a machine without a network: FlashInfer's
wheels with nothing but their Python, and the two packages that such a machine lacks, for its Python 3.12.

usage: wheels.py DIRECTORY [--modules VENVS] [--built VERSION=FOLDER]...
With --modules the wheels also hold compiled modules that FlashInfer takes in place of building them (data/aot):
trtllm_utils, which its tuner times with. Built here with nvcc for sm_90a, in environments that tests/flashinfer/venv.sh
makes in VENVS; 15 s each. With --built the wheel of VERSION holds what flashinfer/build_modules.py built in FOLDER.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

FLASHINFER = ["flashinfer-python==0.6.16", "flashinfer-python==0.7.4"]
BESIDE = ["apache-tvm-ffi==0.1.15.post2", "nvidia-cudnn-frontend==1.32.0"]
TARGET = ["--python-version", "3.12", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64", "--platform",
          "manylinux_2_27_x86_64", "--platform", "manylinux_2_24_x86_64"]
# Sources of kernels and of other operations, which no import of the MoE and its tuner loads.
LEFT_OUT = re.compile(r"flashinfer/(data|moe_ep/kernel_src)/")
KEPT = re.compile(r"[^/]+\.dist-info/(METADATA|WHEEL)|flashinfer/.*\.py")


def download(folder, *what):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                    "--only-binary", ":all:", "-d", folder, *what], check=True)


BUILD = """
import sys
from flashinfer.jit.tllm_utils import gen_trtllm_utils_module
spec = gen_trtllm_utils_module()
spec.build(False)
path = getattr(spec, "jit_library_path", None) or spec.get_library_path()
sys.stderr.write(f"\\nbuilt {path}\\n")
"""


def modules(venvs, release):
    """{path in the wheel: file} of what is compiled for a release."""
    here = pathlib.Path(__file__).resolve().parent
    subprocess.run([here.parent / "flashinfer/venv.sh", release, venvs], check=True)
    venvs = venvs.resolve()
    done = subprocess.run([venvs / release / "bin/python", "-c", BUILD], check=True, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "FLASHINFER_WORKSPACE_BASE": str(venvs / "modules"), "MAX_JOBS": "2",
                               "FLASHINFER_CUDA_ARCH_LIST": "9.0a"})
    path = pathlib.Path(re.search(r"^built (.+)$", done.stderr, re.M).group(1))
    return {f"flashinfer/data/aot/{path.stem}/{path.name}": path}


def slim(source, target, more):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        names = [n for n in old.namelist() if KEPT.fullmatch(n) and not LEFT_OUT.match(n)]
        for name in names:
            new.writestr(name, old.read(name))
        for name, path in more.items():
            new.write(path, name)
        record = next(n for n in old.namelist() if n.endswith(".dist-info/RECORD"))
        new.writestr(record, "".join(f"{n},,\n" for n in [*names, *more, record]))


def built(words):
    """{version: {path in the wheel: file}}"""
    found = {}
    for version, folder in (word.split("=", 1) for word in words):
        files = sorted(pathlib.Path(folder).glob("*/*.so"))
        if version not in [package.split("==")[1] for package in FLASHINFER] or not files:
            sys.exit(f"wheels.py: {version}={folder}: no such version, or no modules there")
        found[version] = {f"flashinfer/data/aot/{path.parent.name}/{path.name}": path for path in files}
    return found


def main():
    parser = argparse.ArgumentParser(description="what FlashInfer needs on a machine without a network")
    parser.add_argument("out", type=pathlib.Path, metavar="DIRECTORY")
    parser.add_argument("--modules", type=pathlib.Path, metavar="VENVS")
    parser.add_argument("--built", action="append", default=[], metavar="VERSION=FOLDER")
    args = parser.parse_args()
    out, more = args.out, built(args.built)
    out.mkdir(parents=True, exist_ok=True)
    download(out, *TARGET, *BESIDE)
    for package in FLASHINFER:
        version = package.split("==")[1]
        with tempfile.TemporaryDirectory() as work:
            download(work, package)
            (wheel,) = pathlib.Path(work).glob("*.whl")
            slim(wheel, out / wheel.name, {**(modules(args.modules, version) if args.modules else {}), **more.get(version, {})})
    for wheel in sorted(out.glob("*.whl")):
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB {wheel.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
