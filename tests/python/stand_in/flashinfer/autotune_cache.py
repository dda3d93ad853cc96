# SPDX-License-Identifier: Apache-2.0
"""Stand-in: see flashinfer. What a test may set: ROOT."""
import pathlib

ROOT = None


def get_default_cache_root():
    return pathlib.Path(ROOT)
