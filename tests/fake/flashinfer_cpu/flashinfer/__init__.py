# SPDX-License-Identifier: Apache-2.0
"""Stands for FlashInfer on a CPU with PyTorch: the names, the calls and the habits that the worker's families meet, and
planted tactics. Nothing of the real package is in it."""
__version__ = "0.6.16"
