#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/replay/reference/*.txt: where each sweep starts in its trace, and what the rule of
race.c picks there when it is written a second time, in numpy, by other means.

usage: reference.py TRACES OUT        (numpy; run by hand when the rule changes, the output is committed)

The picks are those of the rule alone: no incumbent, no repetition for an A/A gap. numpy's generator is
not race.c's, so single picks may differ; tests/replay compares the figures.
"""
import pathlib
import sys

import numpy as np

FLUSH_US = 75.0  # GPU time a launch costs beyond its kernel
SWEEPS = 100
SEED = 20261202
FILES = ("lt_sync_dirty.bin", "moe.bin")


def problems(path):
    """Yields the times of each problem, [round][column] in us; column 0 and the last are native."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        n, rounds = np.frombuffer(data, "<i4", 8, at)[3:5]
        at += 32
        yield np.frombuffer(data, "<f4", n * rounds, at).reshape(rounds, n).astype(np.float64)
        at += 4 * (n * rounds + 2 * rounds)


def quarter(logs):
    """25th percentile by column of [..., round, column], each leading index choosing its own centring."""
    levelled = logs - np.median(logs, axis=-1, keepdims=True)
    low, high = np.percentile(logs, [25, 75], axis=-2)
    low_c, high_c = np.percentile(levelled, [25, 75], axis=-2)
    centre = (high_c - low_c).mean(-1) < 0.8 * (high - low).mean(-1)
    return np.where(centre[..., None], low_c, low)


def race(times, start, rng):
    """One sweep: the column picked, and the GPU time it took."""
    second, rounds_there = times.shape[1] - 1, len(times)
    look = times[start % rounds_there, :second]
    spent = (look + FLUSH_US).sum()
    live = {c for c in range(second) if c == 0 or look[c] <= 5 * look.min()}
    done, wanted = 0, 8
    while True:
        columns = sorted(live | {0, second})
        ahead = (start + 1 + np.arange(done, wanted)) % rounds_there
        spent += (times[np.ix_(ahead, columns)] + FLUSH_US).sum()
        done = wanted
        # Whoever is raced now was raced from the first round on.
        logs = np.log(times[np.ix_((start + 1 + np.arange(done)) % rounds_there, columns)])
        resamples = quarter(logs[rng.integers(done, size=(60, done))])
        at = quarter(logs)
        at[0] = at[[0, -1]].mean()
        place = {c: i for i, c in enumerate(columns)}
        leader = min(sorted(live), key=lambda c: at[place[c]])
        behind = at - at[place[leader]]
        error = (resamples - resamples[:, [place[leader]]]).std(axis=0)
        live = {c for c in live if c == leader or behind[place[c]] <= max(3 * error[place[c]], 0.002)}
        undecided = [c for c in live - {leader} if behind[place[c]] + 1.64 * error[place[c]] > 0.005]
        if done >= 160 or (done >= 16 and not undecided):
            break
        wanted = min(2 * done, 160)
    gain = at[0] - at[place[leader]]
    gain_error = (resamples[:, [0, -1]].mean(axis=1) - resamples[:, place[leader]]).std()
    tied = {c for c in live if behind[place[c]] <= 0.003}
    if leader != 0 and not gain > max(0.005, 2 * gain_error):
        return 0, spent, done
    return min(tied), spent, done  # native is column 0


def truth(times):
    logs = np.log(times)
    return np.exp(np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0))[:-1]


def measure(path, rng):
    regret, harmful, flips, spent, base, lines = [], 0, 0, 0.0, 0.0, []
    for number, times in enumerate(problems(path)):
        true = truth(times)
        starts = rng.integers(len(times), size=SWEEPS)
        picks = []
        for start in starts:
            pick, cost, _ = race(times, int(start), rng)
            picks.append(pick)
            spent += cost
        base += SWEEPS * 30 * (np.median(times, axis=0) + FLUSH_US).sum()
        regret += [100 * (true[p] / true.min() - 1) for p in picks]
        for a, b in zip(picks[0::2], picks[1::2]):
            flips += a != b
            harmful += abs(true[a] / true[b] - 1) > 0.01
        lines.append(f"starts {number} " + " ".join(map(str, starts)))
        lines.append(f"picks {number} " + " ".join(map(str, picks)))
    figures = dict(mean=np.mean(regret), p95=np.percentile(regret, 95), p99=np.percentile(regret, 99),
                   max=np.max(regret), above_1=100 * np.mean(np.array(regret) > 1), flips=flips,
                   harmful=harmful, gpu_time=spent / base)
    return [f"{k} {v:.6g}" for k, v in figures.items()], lines


def main():
    traces, out = map(pathlib.Path, sys.argv[1:3])
    for number, name in enumerate(FILES):
        figures, lines = measure(traces / name, np.random.default_rng([SEED, number]))
        head = [f"# Made by tests/replay/reference.py from {name}, seed {SEED}; regret and above_1 in %,",
                "# flips and harmful in pairs, gpu_time of 30 interleaved rounds; then by problem.",
                f"sweeps {SWEEPS}"]
        (out / name).with_suffix(".txt").write_text("\n".join(head + figures + lines) + "\n")
        print(name, *figures)


if __name__ == "__main__":
    main()
