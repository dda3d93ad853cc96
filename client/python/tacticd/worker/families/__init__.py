# SPDX-License-Identifier: Apache-2.0
"""The kernels that this worker can sweep: one module a family, by the op that it opens. A family is what
tacticd.worker.frame.Backend says."""

FAMILIES = {}
