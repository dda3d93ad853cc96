#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon with one table and one recipe, and runs bench_lookup against it.

usage: bench_lookup.py --build DIR
"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "spec"))
import harness  # noqa: E402

FACTS = {"device": "NVIDIA H200", "sm_count": "132", "mig_profile": "none", "driver": "580.65.06",
         "cublaslt": "13.1.0"}
LADDER = {"kind": "hybrid", "max": 8192, "round": "ceil", "above": "miss"}
BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 8192]


def key(m):
    return (f"matmul,backend=cublaslt,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m={m},n=4864,k=896,"
            "epilogue=none,scale=none,workspace_bytes=33554432")


def entry(m):
    return {"key": key(m), "tactic": {"algo": 66, "cluster": 7, "splitk": 1, "stages": 36, "tile": 24},
            "name": "tile 24 stages 36 cluster 7", "family": "66/24", "state": "confirmed", "device_us": 11.25,
            "host_us": 2.5, "native_device_us": 12.375, "native_host_us": 2.5, "gain": 0.1, "gain_se": 0.0007,
            "spread": 0.0113, "rounds": 32, "ties": ["tile 20"], "aa_gap": 0.00041, "workspace_bytes": 33554432,
            "max_error": 0.0039, "error_limit": 0.0078, "repeatable": True, "space_digest": "9c1d0a5be2f34c77",
            "candidates": 184, "sweep": "20261202-053134-00017", "date": "2026-12-02T05:31:34Z"}


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def main():
    args = harness.arguments()
    daemon = harness.Daemon(args.build, sweep={"when": "never"})
    header = {"format": 1, "method": "bench", "model": "bench", "layout": "tp=1", "fingerprint": FACTS, "ladder": LADDER}
    lines = ",\n".join(compact(entry(m)) for m in BUCKETS)
    (daemon.dir / "site/bench.json").write_text(f'{{"header":{compact(header)},"entries":[\n{lines}\n]}}\n')
    (daemon.dir / "site/recipes").mkdir()
    (daemon.dir / "site/recipes/bench.json").write_text(compact(
        {"format": 1, "model": "bench", "ladder": LADDER,
         "layouts": [{"layout": "tp=1", "problems": [{"name": "gate_up", "key": key("*")}]}]}))
    program = pathlib.Path(args.build) / "tests/bench/bench_lookup"
    with daemon:
        worst = 0
        for job in ([], ["llm-7"]):
            print("in a job:" if job else "of no job:", flush=True)
            done = subprocess.run([str(program), str(daemon.dir / "run/lookup.sock"), compact(FACTS), "bench", key(2048),
                                   key(1999), *job], check=False)
            worst = max(worst, done.returncode)
        return worst


if __name__ == "__main__":
    sys.exit(main())
