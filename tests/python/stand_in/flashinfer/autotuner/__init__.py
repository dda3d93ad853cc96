# SPDX-License-Identifier: Apache-2.0
"""Stand-in: see flashinfer."""
from flashinfer.autotuner.autotuner import AutoTuner, _collect_metadata

__all__ = ["AutoTuner", "_collect_metadata"]
