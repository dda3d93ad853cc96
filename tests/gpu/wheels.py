#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gathers what tests/gpu/flashinfer.sh installs on a machine without a network: FlashInfer's wheels with nothing
but their Python, and the two packages that such a machine lacks, for its Python 3.12.

usage: wheels.py DIRECTORY
"""
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


def slim(source, target):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        names = [n for n in old.namelist() if KEPT.fullmatch(n) and not LEFT_OUT.match(n)]
        for name in names:
            new.writestr(name, old.read(name))
        record = next(n for n in old.namelist() if n.endswith(".dist-info/RECORD"))
        new.writestr(record, "".join(f"{n},,\n" for n in [*names, record]))


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    download(out, *TARGET, *BESIDE)
    for package in FLASHINFER:
        with tempfile.TemporaryDirectory() as work:
            download(work, package)
            (wheel,) = pathlib.Path(work).glob("*.whl")
            slim(wheel, out / wheel.name)
    for wheel in sorted(out.glob("*.whl")):
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB {wheel.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
