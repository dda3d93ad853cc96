#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worker for FlashInfer without a GPU: its room on a CPU (room.py), its products (products.py), what the real FlashInfer asks its tuner when the
families call it (asked.py, both releases), its mixtures of experts through the real FlashInfer (moe.py, both), and
sweeps below the real daemon with a fake FlashInfer on a CPU.

usage: worker.py --build DIR [--venvs DIR]    environments are made in DIR/flashinfer, or in VENVS (venv.sh)
Exit status 77 if the packages cannot be had.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(ROOT / "tests/spec"), str(ROOT / "client/python")]

from harness import Daemon, expect  # noqa: E402

VERSIONS = ("0.6.16", "0.7.4")
SKIPPED = 77
GEMM = ("cudnn_gemm,backend=flashinfer,a={a},b={b},out={out},batch={batch},m={m},n={n},k={k},a_scale={a_scale},"
        "b_scale={b_scale},a_major={a_major},b_major={b_major},bias={bias},pdl_choice={pdl}")
PLAIN = {"a": "bf16", "b": "bf16", "out": "bf16", "batch": 0, "m": 64, "n": 4096, "k": 1024, "a_scale": "none",
         "b_scale": "none", "a_major": "k", "b_major": "k", "bias": "no", "pdl": "caller"}
E4M3 = {"a": "e4m3", "b": "e4m3", "batch": 1, "a_scale": "scalar", "b_scale": "one"}


def gemm(**dims):
    return GEMM.format(**{**PLAIN, **dims})


ASKED = [gemm(), gemm(m=1), gemm(m=8192, out="f32", bias="yes"), gemm(a_major="m", b_major="n", out="f16"),
         gemm(batch=3, b_major="n"), gemm(**E4M3), gemm(**E4M3 | {"b": "e5m2", "batch": 5, "out": "f16", "a_scale": "one"})]
REFUSED = [gemm(a="mxfp8", b="mxfp8", a_scale="block", b_scale="block"), gemm(pdl="tuner"), gemm(batch=2, bias="yes"),
           gemm(a_scale="one"), gemm(b="e4m3"), gemm(m=1, a_major="m"), gemm(n=1, b_major="n"), gemm(**E4M3 | {"batch": 0}),
           gemm(**E4M3 | {"out": "f32"}), gemm(**E4M3 | {"b_major": "n"}), gemm(**E4M3 | {"a_scale": "none"})]


def run(python, *words, text=None):
    done = subprocess.run([python, *words], input=text, capture_output=True, text=True, check=False, timeout=600,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    expect(done.returncode == 0, f"{words[0]} ended with {done.returncode}", done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout


def check_asked(python, version, build):
    """Each problem is asked for under the key that stands for it in FlashInfer's files, or refused."""
    os.environ["TACTICD_LIBRARY"] = str(build / "client/libtactic.so.1")
    import tacticd

    told = run(python, HERE / "asked.py", "cudnn_gemm", text="\n".join(ASKED + REFUSED) + "\n")
    rows = {row["problem"]: row for line in told.splitlines() if "problem" in (row := json.loads(line))}
    expect(rows.keys() == {*ASKED, *REFUSED}, "not every problem was answered", rows)
    with tacticd.Client() as client:
        for problem in ASKED:
            expect("key" in rows[problem], "refused", rows[problem])
            back = client.flashinfer_problem(rows[problem]["key"])
            expect(back == problem, f"{version}: another problem is run", problem, back, rows[problem])
    for problem in REFUSED:
        expect("refused" in rows[problem], f"{version}: not refused", rows[problem])
    print(f"FlashInfer {version}: {len(ASKED)} problems are asked for as they are called, {len(REFUSED)} refused")


def check_sweep(python, build):
    """A sweep: the right winner, the wrong denied, who cannot run or falls back out, who grows the workspace too."""
    problem, cannot = gemm(m=16, n=600, k=128, bias="yes"), gemm(pdl="tuner")
    worker = {"command": f"{python} {HERE / 'cpu_worker.py'}", "backend": "flashinfer", "device": "cpu"}
    with Daemon(build, workers={"cpu": worker}, options={"log_level": "debug"}) as d:
        d.wait_ready("cpu", 60)
        d.lookup(problem)
        answer = d.wait_answer(problem, seconds=120)
        expect((answer["kind"], answer.get("tactic"), answer["state"]) == ("hit", [1, [[2, 10], [0, 1]]], "confirmed"),
               "not the right winner", answer)
        # A rule counts once it is on disk, which may be a moment after the entry.
        told = d.wait_for(lambda: (e := d.tunectl("explain", problem, "--as", "cpu")[1]) and len(e["deny"]) >= 2 and e, 10,
                          "two rules")
        denied = {rule["tactic"][0]: rule["reason"] for rule in told["deny"]}
        expect(denied.keys() == {4, 5} and "should be" in denied[4] and "never written" in denied[5], "not the guilty", told)
        (lines,) = d.journals().values()
        opened = next(line for line in lines if line["say"] == "opened")
        expect(opened["watches"] and opened["method"] == "torch-wall-cold-1" and opened["build_ms"], "opened oddly", opened)
        failed = {line["candidate"]: line["detail"] for line in lines if line["say"] == "failed"}
        names = {i: c["tactic"] for i, c in enumerate(opened["candidates"])}
        words = {names[i][0]: detail for i, detail in failed.items()}
        expect(words.keys() == {3, 6, 8} and "falling back" in words[3] and "workspace" in words[6] and "CUDNN" in words[8],
               "not those that cannot run", words)
        expect([7, []] in names.values(), "what is listed at one token only is not there", names)
        raced = {names[i][0] if i else -1 for ln in lines if ln["say"] == "samples" for i in ln["order"]}
        expect({-1, 1} <= raced <= {-1, 1, 2, 7}, "not who was to race", raced)
        d.lookup(cannot)
        d.wait_ended(cannot)
        told = str(d.tunectl("explain", cannot, "--as", "cpu")[1])
        expect("bf16_gemm_pdl_auto" in told, "not told why", told)
    print("a sweep on a CPU: the winner, two denied, three that cannot run, one refused problem")


def main():
    parser = argparse.ArgumentParser(description="the worker for FlashInfer, without a GPU")
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--venvs", type=pathlib.Path)
    args = parser.parse_args()
    build = args.build.resolve()
    venvs, skipped = (args.venvs or build / "flashinfer").resolve(), False
    for version in VERSIONS:
        made = subprocess.run([HERE / "venv.sh", version, venvs], check=False)
        if made.returncode == SKIPPED:
            skipped = True
            continue
        made.check_returncode()
        python = venvs / version / "bin/python"
        check_asked(python, version, build)
        print(run(python, HERE / "moe.py"), end="")
        if version == VERSIONS[0]:
            print(run(python, HERE / "room.py"), end="")
            print(run(python, HERE / "products.py"), end="")
            check_sweep(python, build)
    return SKIPPED if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
