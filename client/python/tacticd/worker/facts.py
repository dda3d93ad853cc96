# SPDX-License-Identifier: Apache-2.0
"""The facts of this process as FlashInfer itself tells them: the same that tacticd.flashinfer states when it asks, so
that askers and workers spell an environment alike."""
from tacticd.worker._lines import FLASHINFER


def of_metadata(metadata):
    """Facts by name, from what FlashInfer writes into its cache files. What it does not know is left out."""
    return {fact: metadata[name] for name, fact in FLASHINFER.items() if isinstance(metadata.get(name), str)}
