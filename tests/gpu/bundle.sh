#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gathers what gpu.sh needs on a machine with a GPU that is not Debian and has no network: the programs, built here, and
# the libraries of Debian that they need, found through a path relative to each program. The folder looks as a build
# folder does, so what starts a daemon in tests starts one from it.
#   bundle.sh DIR           builds build/gpu and gathers it in DIR, which is made anew
#   bundle.sh DIR BUILD     gathers what is built in BUILD: for a machine that has the libraries in the same places
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: bundle.sh DIR [BUILD]" >&2 && exit 2; }
dir=$(realpath -m -- "$1") build=$(realpath -m -- "${2:-$(dirname "$0")/../../build/gpu}")
cd "$(dirname "$0")/../.."

MAX_MIB=40
# Not here: the C library, the driver's and CUDA's, and what only programs for CPUs need.
SYSTEM='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|cuda|nvidia-.*|cudart|cublas|cublasLt|cudnn.*|cupti))\.so'
CXX='^lib(stdc\+\+|gcc_s)\.so'
LEFT_OUT='/(tactic-onednn|matmul_server|ctl_man)$'

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
    # shellcheck disable=SC2016 # the loader expands $ORIGIN
    [ -f "$build/build.ninja" ] || meson setup "$build" --buildtype=release \
        -Dc_link_args='-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib' >/dev/null
    ninja -C "$build" build.ninja >/dev/null # what there is to build may have changed
    # shellcheck disable=SC2046
    ninja -C "$build" $(programs) >/dev/null
fi

# is_there LIBRARY PROGRAM: the machine itself has it. Who is linked with NVIDIA's libraries takes the C++ library they take.
is_there() {
    [[ $1 =~ $SYSTEM ]] || { [[ $1 =~ $CXX ]] && ldd "$2" | grep -q libcudnn; }
}

rm -rf "$dir" && mkdir -p "$dir"
for program in $(programs); do
    [ -f "$build/$program" ] || continue
    folder=$dir/$(dirname "$program")
    mkdir -p "$folder"
    strip -o "$dir/$program" "$build/$program"
    # Each folder has libraries of its own: a worker must not meet the C++ library that came for libzmq when it opens
    # the kernel library of an engine.
    while read -r name _ path _; do
        if [ -f "$path" ] && [[ $name != libtactic.so* ]] && ! is_there "$name" "$build/$program"; then
            mkdir -p "$folder/lib"
            cp -Ln "$path" "$folder/lib/$name"
        fi
    done < <(ldd "$build/$program")
done
# Programs find libtactic where the build folder has it; Python by this name.
mv "$dir"/client/libtactic.so.*.* "$dir/client/libtactic.so.1"
git log -1 --format=%H >"$dir/commit" 2>/dev/null || echo unknown >"$dir/commit"
git diff --quiet HEAD 2>/dev/null || echo "with changes that are not committed" >>"$dir/commit"

if [ $# -lt 2 ]; then
    for program in $(programs); do
        program=${program/%libtactic.so.*/libtactic.so.1}
        program=${program/%libtactic.so.*/libtactic.so.1}
        while read -r name arrow path _; do
            if [ "$arrow" = '=>' ] && [[ $path != $dir/* ]] && ! is_there "$name" "$dir/$program"; then
                echo "bundle.sh: $program finds $name outside of the bundle: $path" >&2
                exit 1
            fi
        done < <(LD_LIBRARY_PATH='' ldd "$dir/$program")
    done
fi
mib=$(du -sm "$dir" | cut -f1)
[ "$mib" -lt $MAX_MIB ] || { echo "bundle.sh: $mib MiB; at most $MAX_MIB may travel" >&2 && exit 1; }
echo "$dir: $mib MiB, $(programs | wc -l) programs"
