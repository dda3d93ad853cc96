# SPDX-License-Identifier: Apache-2.0
"""python3 -m tacticd.worker [--hello]: see tacticd.worker.frame.main."""
import sys

import tacticd
from tacticd import flashinfer
from tacticd.worker import facts, frame
from tacticd.worker.families import FAMILIES


def backend():
    if not FAMILIES:
        raise frame.Unavailable("no family of FlashInfer's kernels can run here: this tacticd brings none")
    metadata = flashinfer.metadata()
    if metadata is None:
        raise frame.Unavailable("FlashInfer cannot be imported, or does not tell its environment")
    return frame.Backend("flashinfer", f"tacticd.worker {tacticd.__version__}", facts.of_metadata(metadata), FAMILIES)


if __name__ == "__main__":
    sys.exit(frame.main(backend, sys.argv[1:]))
