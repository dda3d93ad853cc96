# SPDX-License-Identifier: Apache-2.0
"""A stand-in for FlashInfer: the few doors that tacticd.flashinfer uses, behaving as 0.6.16's and 0.7.4's do.
No kernel, no torch. tests/flashinfer has the real packages."""
