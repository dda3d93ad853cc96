#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tacticd on a machine with an NVIDIA GPU, step by step; runs without a network and outside of Debian. Needs python3
# with PyTorch, and a bundle made beforehand (bundle.sh). Nothing of the GPU's settings is changed.
#   gpu.sh [--bundle DIR] [--out DIR] [--seconds N] [--resume TAR] [--dry] STEP [ARGUMENT...] [+ STEP [ARGUMENT...]]...
# Steps (steps.py and steps_*.py say what each looks at):
#   hello                     each worker says what it loaded: PyTorch's cuBLASLt and cuDNN, and the system's cuDNN
#   smoke                     one small problem of each worker is missed, swept and answered
#   sweep RECIPE [LAYOUT [SECTION]]  all problems of a recipe's layout, or of `all`; of one worker, `lt` or `cudnn`
#   kinds [WORD]...           one small problem of every kind the workers claim; WORDs (cudnn, e4m3, gelu, ...) choose
#   badinput                  what no library can do is refused once, in words, and the next problem is swept as if nothing was
#   planted                   tactics that fault, hang and compute nonsense are denied, and nobody else notices
#   giveback [TIMES]          how soon the GPU's memory is free when a sweep is stopped
#   accuracy [ARGUMENT...]    tests/gpu/accuracy on this machine's libraries
#   examples                  client/examples/moe_layer and pytorch_linear.py, with and without answers
#   fi_gemm WHEELS [RELEASE]  cuDNN's products through FlashInfer are swept; WHEELS as wheels.py gathers them
#   fi_serve WHEELS [RELEASE] processes like servers at their start: tuning, or with fi_gemm's file
#   fi_oracle WHEELS [RELEASE] all candidates of those products, many rounds; what both starts are worth
#   fi_moe WHEELS [FINALIZE]  CUTLASS's mixtures of experts through FlashInfer are swept; WHEELS with fused_moe_90
#                             (flashinfer/build_modules.py, wheels.py --built)
# Each step gets at most --seconds (default 480). OUT (default gpu-results) gets results.tar.gz, renewed every 30 s, so
# that whoever stops this script keeps what was done, and after each step the sweeps' journals, in parts of 15 MiB.
# --resume takes such a results.tar.gz and sweeps what it does not answer yet. --dry has scripted workers in place of the GPU's.
# Exit status: 0 all steps passed, 1 one failed, 2 usage, 77 there is no GPU here.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

bundle=$here/../../build/gpu-bundle out=gpu-results seconds=480 resume='' dry=()
usage() {
    sed -n '/^#   gpu.sh/,/^# Each step/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --bundle | --out | --seconds | --resume)
        [ -n "${2:-}" ] || usage
        declare "${1#--}=$2"
        shift
        ;;
    --dry) dry=(--dry) ;;
    --*) usage ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || usage
if [ ! -x "$bundle/daemon/tacticd" ]; then
    echo "gpu.sh: $bundle is no bundle; make one with tests/gpu/bundle.sh" >&2
    exit 2
fi
if [ ${#dry[@]} -eq 0 ] && ! said=$(nvidia-smi -L 2>&1); then
    echo "gpu.sh: no NVIDIA GPU here: ${said##*$'\n'}"
    exit 77
fi
mkdir -p "$out" || exit 1
work=$(mktemp -d) child='' packer=''

pack() {
    # A file may grow while it is read; the next packing has the rest. Two may pack at once.
    local part=$out/.results.$BASHPID
    tar -cz -f "$part" -C "$work" --exclude=journal --exclude=./resumed . 2>/dev/null
    [ -s "$part" ] && mv -f "$part" "$out/results.tar.gz"
}
pack_all() {
    pack
    if find "$work" -path '*/journal/*' -type f | grep -q .; then
        (cd "$work" && find . -path '*/journal/*' -type f) >"$work.list"
        tar -cz -C "$work" -T "$work.list" 2>/dev/null | split -b 15m - "$out/journals.tar.gz."
        rm -f "$work.list"
    fi
}
# shellcheck disable=SC2317 # the trap calls it
clean_up() {
    trap '' INT TERM HUP
    [ -z "$packer" ] || kill "$packer" 2>/dev/null
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null
        wait "$child" 2>/dev/null
    fi
    pack_all
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
pack_on() {
    local nap=''
    trap '[ -z "$nap" ] || kill "$nap"; exit 0' TERM
    while true; do
        sleep 30 &
        nap=$!
        wait "$nap"
        pack
    done
}
pack_on </dev/null >/dev/null 2>&1 &
packer=$!

if [ -n "$resume" ]; then
    mkdir "$work/resumed" && tar -xzf "$resume" -C "$work/resumed" || exit 1
fi

# run STEP [ARGUMENT...]: one step, at most its seconds.
failed=0 steps=0
run() {
    local status begun=$SECONDS
    steps=$((steps + 1))
    printf '\n== %s\n' "$*"
    timeout -k 30 "$seconds" python3 -u "$here/steps.py" --bundle "$bundle" --out "$work" --seconds "$seconds" \
        "${dry[@]}" "$@" </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=''
    case $status in
    0) echo "ok $* ($((SECONDS - begun)) s)" ;;
    77) echo "skipped $* ($((SECONDS - begun)) s)" ;;
    *) echo "not ok $*: $status ($((SECONDS - begun)) s)" && failed=1 ;;
    esac
    pack_all
}
step=()
for word in "$@" +; do
    if [ "$word" != + ]; then
        step+=("$word")
    elif [ ${#step[@]} -gt 0 ]; then
        run "${step[@]}"
        step=()
    fi
done
echo
echo "$steps steps, $([ $failed = 0 ] && echo "none failed" || echo "some failed"), $SECONDS s; results in $out"
exit $failed
