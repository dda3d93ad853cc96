#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gathers what gpu.sh needs on a machine with a GPU that is not Debian and has no network: the programs, built here, and
# the libraries of Debian that they need, found through a path relative to each program. The folder looks as a build
# folder does, so what starts a daemon in tests starts one from it.
#   bundle.sh DIR           builds build/gpu and gathers it in DIR, which is made anew
#   bundle.sh DIR BUILD     gathers what is built in BUILD: for a machine that has the libraries in the same places
set -euo pipefail
cd "$(dirname "$0")/../.."

MAX_MIB=40
# Not here: the C library, the driver's and CUDA's, and what only programs for CPUs need.
SYSTEM='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|cuda|nvidia-.*|cudart|cublas|cublasLt|cudnn.*|cupti))\.so'
LEFT_OUT='/(tactic-onednn|matmul_server|ctl_man)$'

[ $# -ge 1 ] || { echo "usage: bundle.sh DIR [BUILD]" >&2 && exit 2; }
dir=$1 build=${2:-build/gpu}

# The programs and libtactic, as paths below the build folder.
programs() {
    meson introspect --targets "$build" | python3 -c '
import json, os, re, sys
build, left_out = os.path.realpath(sys.argv[1]), sys.argv[2]
for target in json.load(sys.stdin):
    path = os.path.relpath(target["filename"][0], build)
    kept = re.match(r"(daemon|client|tests/gpu)/|tests/fake_worker$", path) and not re.search(left_out, path)
    if target["type"] in ("executable", "shared library") and kept:
        print(path)' "$build" "$LEFT_OUT"
}

if [ $# -lt 2 ]; then
    # RPATH, not RUNPATH: it also counts for the libraries of libraries.
    [ -f "$build/build.ninja" ] || meson setup "$build" --buildtype=release \
        -Dc_link_args='-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib' >/dev/null
    # shellcheck disable=SC2046
    ninja -C "$build" $(programs) >/dev/null
fi

rm -rf "$dir" && mkdir -p "$dir"
for program in $(programs); do
    [ -f "$build/$program" ] || continue
    folder=$dir/$(dirname "$program")
    mkdir -p "$folder"
    strip -o "$dir/$program" "$build/$program"
    # Each folder has libraries of its own: a worker must not meet the C++ library that came for libzmq when it opens
    # the kernel library of an engine.
    while read -r name _ path _; do
        if [ -f "$path" ] && ! [[ $name =~ $SYSTEM ]] && [[ $name != libtactic.so* ]]; then
            mkdir -p "$folder/lib"
            cp -Ln "$path" "$folder/lib/$name"
        fi
    done < <(ldd "$build/$program")
done
# Programs find libtactic where the build folder has it; Python by this name.
ln -sf "$(basename "$(ls "$dir"/client/libtactic.so.*)")" "$dir/client/libtactic.so.1"
git log -1 --format=%H >"$dir/commit" 2>/dev/null || echo unknown >"$dir/commit"
git diff --quiet HEAD 2>/dev/null || echo "with changes that are not committed" >>"$dir/commit"

if [ $# -lt 2 ]; then
    for program in $(programs); do
        if foreign=$(LD_LIBRARY_PATH='' ldd "$dir/$program" | grep -E 'not found|=> /' |
            grep -v "=> $(realpath "$dir")/" | awk '{print $1}' | grep -vE "$SYSTEM"); then
            echo "bundle.sh: $program finds these outside of the bundle: ${foreign//$'\n'/ }" >&2
            exit 1
        fi
    done
fi
mib=$(du -sm "$dir" | cut -f1)
[ "$mib" -lt $MAX_MIB ] || { echo "bundle.sh: $mib MiB; at most $MAX_MIB may travel" >&2 && exit 1; }
echo "$dir: $mib MiB, $(programs | wc -l) programs"
