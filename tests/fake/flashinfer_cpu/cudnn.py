# SPDX-License-Identifier: Apache-2.0
"""Stands for the cuDNN frontend, which the fake FlashInfer beside it does not use."""
__version__ = "1.32.0"
