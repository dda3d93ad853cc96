#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The real FlashInfer, both versions, on a machine with an NVIDIA GPU: its Python on caches of ours, with the GPU
# and the versions that PyTorch finds there, not stubs. Nothing is compiled and nothing of the GPU is changed. Needs
# python3 (3.12) with PyTorch; no network. Results are JSON lines in OUT (machine.py says which).
#   flashinfer.sh WHEELS OUT [GIVEN]    WHEELS as wheels.py gathers them, GIVEN caches made elsewhere (cases.py)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheels=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for version in 0.6.16 0.7.4; do
    python3 -m pip install -q --no-index --no-deps --no-cache-dir --disable-pip-version-check --target "$work/$version" \
        "$wheels"/apache_tvm_ffi-*.whl "$wheels"/nvidia_cudnn_frontend-*.whl "$wheels/flashinfer_python-$version"-*.whl
    python3 "$here/../flashinfer/machine.py" "$version" "$work/$version" "$out" "${@:3}" || failed=1
done
echo "flashinfer on $(hostname -s 2>/dev/null || echo here): $([ $failed = 0 ] && echo ok || echo FAILED), ${SECONDS} s"
exit $failed
