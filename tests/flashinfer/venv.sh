#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes DIRECTORY/VERSION, a virtual environment in which the real flashinfer-python VERSION can be imported on a
# machine without a GPU: pins.txt, no NVIDIA wheel, hollow libraries in their place. Wheels are kept in
# DIRECTORY/wheels for the next version.
#   venv.sh VERSION DIRECTORY
# Exit status 77: the packages cannot be had; a sentence says why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$1
mkdir -p "$2/wheels"
directory=$(cd "$2" && pwd)
venv=$directory/$version
want=$(cat "$here/pins.txt" "$here/hollow_cuda.py" "$here/venv.sh" | sha256sum)
[ "$(cat "$venv/made-from" 2>/dev/null)" = "$want" ] && exit 0

skip() {
    echo "skipped: flashinfer-python $version cannot be tried here: $1"
    tail -3 "$directory/log" 2>/dev/null || true
    exit 77
}

command -v gcc readelf nm >/dev/null || skip "gcc and binutils are not installed"
rm -rf "$venv"
python3 -m venv "$venv" >"$directory/log" 2>&1 || skip "python3 -m venv fails (Debian: python3-venv)"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" download -q --no-deps --only-binary :all: --find-links "$directory/wheels" -d "$directory/wheels" \
    -r "$here/pins.txt" "flashinfer-python==$version" >"$directory/log" 2>&1 || skip "the package index does not answer"
"${pip[@]}" install -q --no-deps --no-compile --no-index --find-links "$directory/wheels" -r "$here/pins.txt" \
    "flashinfer-python==$version" >"$directory/log" 2>&1 || { cat "$directory/log" && exit 1; }
"$venv/bin/python" "$here/hollow_cuda.py" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
echo "$want" >"$venv/made-from"
echo "flashinfer-python $version: $(du -sm "$directory/wheels" | cut -f1) MB of wheels, $(du -sm "$venv" | cut -f1) MB installed, ${SECONDS} s"
