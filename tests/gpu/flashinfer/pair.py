#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The two products of a cutlass_moe problem with both their tactics at once, as a server runs them that has loaded both
entries: the sweeps time each with the other at its default. Prints one JSON object: medians of cold rounds of native,
each alone, and both, and whether the output of both is right.

usage: pair.py KEY GEMM1 GEMM2    KEY of either product; tactics are numbers, -1 the default
Runs where the worker runs.
"""
import json
import random
import statistics
import sys

from tacticd.worker import device, keys, launches
from tacticd.worker.families import cutlass_moe

ROUNDS = 60
CAP_BYTES = 64 << 30
SEED = 1


def main():
    key, one, two = keys.parse(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    problem = cutlass_moe.open(device.find(), key, SEED, CAP_BYTES, None)
    runs = {"native": [-1, -1], "gemm1": [one, -1], "gemm2": [-1, two], "both": [one, two]}
    current = runs["native"]
    problem.launch = lambda _i: problem.run_pair(current)
    seen, checks = {name: [] for name in runs}, {}
    for name, current in runs.items():
        checks[name] = problem.check(launches.NATIVE if name == "native" else 1)._asdict()
    draw = random.Random(SEED)
    for _ in range(ROUNDS):
        for name in draw.sample(list(runs), len(runs)):
            current = runs[name]
            seen[name].append(problem.run(launches.NATIVE).device_us)
    print(json.dumps({"key": str(key), "tactics": [one, two], "rounds": ROUNDS, "checks": checks,
                      **{name: statistics.median(us) for name, us in seen.items()}}))
    problem.close()


if __name__ == "__main__":
    main()
