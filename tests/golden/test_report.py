#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README.md shows what the packaged tables say, and tables/report.py notices when it does not.

usage: test_report.py
"""
import bisect
import importlib.util
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tables/report.py"
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("report", SCRIPT)
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)

HEADER = {"format": 1, "method": "cuda-event-cold-1", "model": "kimi-k3-bf16", "layout": "ep=8,tp=1",
          "fingerprint": {"device": "NVIDIA H200", "driver": "580.0", "cudnn": "91900"},
          "ladder": {"kind": "hybrid", "max": 8192}}


def run(*words, root=None, status=0):
    done = subprocess.run([sys.executable, SCRIPT, *words, *(["--root", root] if root else [])], capture_output=True,
                          text=True, check=False)
    assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout


def near(value, wanted, share=0.02):
    assert abs(value - wanted) <= share * wanted, (value, wanted)


def moe(tokens, n=6144, k=3584):
    return (f"moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens={tokens},top_k=16,"
            f"experts=896,local_experts=112,n={n},k={k},workspace_bytes=134217728")


def linear(m, a="bf16", n=3584, k=7168):
    return (f"matmul,backend=cublaslt,a={a},b={a},out=bf16,acc=f32,layout=tn,batch=1,m={m},n={n},k={k},epilogue=none,"
            "scale=none,workspace_bytes=33554432")


def test_floors():
    # Every expert is met: 4.93 GB of weights, by hand 4.932e9 / 4.3e12 = 1147 us, and little for rows and results.
    least, of = report.floor(moe(1024))
    assert of == "memory"
    near(least, 1157)
    # 16,384 rows: 2 x 16384 x 6144 x 3584 / 790e12 = 913 us, still below the weights.
    assert report.floor(moe(8192))[1] == "memory"
    # One token is two rows here: two experts of 44 MB at most.
    least, of = report.floor(moe(1))
    near(least, 2 * 6144 * 3584 * 2 / 4.3e12 * 1e6)
    assert report.floor(linear(1))[1] == "memory" and report.floor(linear(8192))[1] == "compute"
    near(report.floor(linear(8192))[0], 2 * 8192 * 3584 * 7168 / 790e12 * 1e6, 0.001)
    assert report.floor(linear(16, "e4m3")) is None  # that speed was not measured
    assert report.rows_of(report.dims(moe(1024))[1]) == 2048


def met(tokens, top_k, experts, local, draw):
    """The workers' routing, played: how many of the first experts get a token."""
    popularity = [(rank + 1) ** -report.SKEW for rank in range(experts)]
    draw.shuffle(popularity)
    upto, hit = list(itertools.accumulate(popularity)), set()
    for _ in range(tokens):
        chosen = set()
        while len(chosen) < top_k:
            chosen.add(bisect.bisect_left(upto, draw.random() * upto[-1]))
        hit |= chosen
    return sum(expert < local for expert in hit)


def test_experts_met():
    draw = random.Random(3)
    for tokens in (1, 8, 64, 256):
        _, d = report.dims(moe(tokens))
        played = statistics.fmean(met(tokens, d["top_k"], d["experts"], d["local_experts"], draw) for _ in range(60))
        near(report.experts_met(d), max(1.0, played), 0.12 if tokens == 1 else 0.03)
    near(report.experts_met(report.dims(moe(8192))[1]), 112, 1e-6)
    header = ROOT / "daemon/workers/routing.h"
    if header.is_file():
        assert f"#define ROUTING_SKEW {report.SKEW}\n" in header.read_text(), "the workers' routing is another"


def site(folder, entries=(), readme=None):
    root = pathlib.Path(folder)
    (root / "tables/NVIDIA_H200").mkdir(parents=True)
    (root / "tables/recipes").mkdir()
    name = "kimi-k3-bf16.json"
    (root / "tables/recipes" / name).write_text((ROOT / "tables/recipes" / name).read_text())
    if entries:
        (root / "tables/NVIDIA_H200/t.json").write_text(json.dumps({"header": HEADER, "entries": list(entries)}))
    (root / "README.md").write_text(readme or f"a\n{report.BEGIN}\n{report.END}\nb\n")
    return root


def test_a_table_is_written_once_and_checked():
    hit = {"tactic": {"engine": 7}, "state": "confirmed", "device_us": 1157.0, "native_device_us": 1357.0, "gain": 0.173}
    entries = [{"key": moe(256), **hit}, {"key": moe(512), "state": "confirmed", "device_us": 1400.0},
               {"key": moe(256, 3584, 3072), **hit, "state": "noisy"},
               {"key": linear(16), **hit, "device_us": 12.3, "native_device_us": 14.0, "gain": 0.138},
               {"key": linear(32), "state": "confirmed", "device_us": 14.0}]
    with tempfile.TemporaryDirectory() as folder:
        root = site(folder, entries)
        assert "stale" in run("--check", root=root, status=1)
        assert (root / "README.md").read_text().endswith(f"{report.END}\nb\n")
        run(root=root)
        text = (root / "README.md").read_text()
        assert text.startswith("a\n") and text.endswith("\nb\n")
        for words in ("| 256 | 1,357 | 1,157 | 17.3 % | 1,", "memory | 1,357 | noisy | - |", "| 512 | 1,400 | default | - |",
                      "| latent.in | 3,584 x 7,168 | 2 | 1 | 13.8 % | 13.8 % at 16 | 0 |", "cudnn 91900", "4.3 TB/s"):
            assert words in text, (words, text)
        run("--check", root=root)
        run(root=root)
        assert (root / "README.md").read_text() == text


def test_without_a_table_nothing_is_shown():
    with tempfile.TemporaryDirectory() as folder:
        root = site(folder)
        assert "no packaged table" in run("--check", root=root)
    with tempfile.TemporaryDirectory() as folder:
        root = site(folder, readme=f"a\n{report.BEGIN}\nan invented row\n{report.END}\n")
        assert "README.md shows one" in run("--check", root=root, status=1)
    with tempfile.TemporaryDirectory() as folder:
        root = site(folder, readme="no markers\n")
        run("--check", root=root, status=1)


def test_readme_is_up_to_date():
    print(run("--check").strip())


def main():
    for test in (test_floors, test_experts_met, test_a_table_is_written_once_and_checked,
                 test_without_a_table_nothing_is_shown, test_readme_is_up_to_date):
        test()
        print(f"ok {test.__name__}")


if __name__ == "__main__":
    main()
