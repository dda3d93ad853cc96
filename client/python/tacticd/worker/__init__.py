# SPDX-License-Identifier: Apache-2.0
"""A worker of tacticd in Python, for libraries that live in an engine's environment: FlashInfer's kernels.

`python3 -m tacticd.worker --hello` says what it could sweep here. The daemon starts it by a [worker] section of
tacticd.conf and talks to it on file descriptor 3. Standard library alone, until a family needs more.
"""
