# SPDX-License-Identifier: Apache-2.0
from .autotuner import AutoTuner as AutoTuner
from .autotuner import _collect_metadata as _collect_metadata
