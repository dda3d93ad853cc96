#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worker for FlashInfer on a CPU: all of it but the device, with tests/fake/flashinfer_cpu in FlashInfer's place."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/fake/flashinfer_cpu")]

from tacticd import flashinfer  # noqa: E402
from tacticd.worker import device, facts, families, frame  # noqa: E402

L2_BYTES = 1 << 18  # a flush that tests can wait for


def backend():
    cpu = device.find("cpu")
    cpu.l2_bytes = L2_BYTES
    cpu.torch.set_num_threads(1)  # threads that wait for each other make times of their own on a busy machine
    found, _ = families.found(cpu)
    return frame.Backend("flashinfer", "cpu_worker 1", facts.of_metadata(flashinfer.metadata()), found)


if __name__ == "__main__":
    sys.exit(frame.main(backend, sys.argv[1:]))
