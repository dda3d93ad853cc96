# SPDX-License-Identifier: Apache-2.0
"""python3 -m tacticd.worker [--hello]: see tacticd.worker.frame.main; --attach DIR ...: tacticd.worker.attach.main."""
import sys

import tacticd
from tacticd import flashinfer
from tacticd.worker import attach, device, facts, families, frame


def backend():
    gpu = device.find()
    metadata = flashinfer.metadata()
    if metadata is None:
        raise frame.Unavailable("FlashInfer cannot be imported, or does not tell its environment")
    found, missing = families.found(gpu)
    if not found:
        raise frame.Unavailable("; ".join(["no family of FlashInfer's kernels can run here", *missing.values()]))
    return frame.Backend("flashinfer", f"tacticd.worker {tacticd.__version__}",
                         {**gpu.facts(), **facts.of_metadata(metadata)}, found)


if __name__ == "__main__":
    if any(word == "--attach" or word.startswith("--attach=") for word in sys.argv[1:]):
        sys.exit(attach.main(sys.argv[1:]))
    sys.exit(frame.main(backend, sys.argv[1:]))
