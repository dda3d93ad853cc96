#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do sweeps from empty agree? N sweeps of each problem with the oneDNN worker, judged by all their rounds.

usage: agree.py --build DIR [--sweeps 20] [--seconds N] [--problems K | --all-problems] [--recipe qwen2.5-0.5b]

Each sweep starts with an empty state directory, so nothing is remembered. The judge is the pool of the rounds
of all N sweeps of a problem, read from their journals: per candidate the median over rounds of its log time
minus native's in the same round. A pair of sweeps agrees if it chose the same tactic, or tactics that the judge
puts within 1 %. Noisy and contaminated sweeps are counted apart; a contaminated one is asked again, at most
twice. With --seconds no more than the least number of sweeps begins after that time: on a CPU whose cache holds
hundreds of MiB one takes half a minute, for its weights must be cold.

Of 20 sweeps and more, 95 % of pairs must agree and at most 10 % may be noisy. Of fewer, one sweep that differs
spoils many pairs. So these fail where sweeps like the worst allowed ones (2.5 % differ from the rest, which makes
5 % of pairs; 10 % are noisy) would come out so once in a hundred times. Where others had more than 10 % of the
CPUs meanwhile, by the kernel's account of them, that is no judgement, and is skipped loudly (status 77).
"""
import argparse
import collections
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import harness  # noqa: E402

SAME = 0.01        # tactics that the pool puts closer than this are equal
WANT_PAIRS = 0.95  # share of pairs that must agree
MAX_NOISY = 0.10   # share of sweeps that may end noisy
FEW_SWEEPS = 20    # of each problem; with fewer, sweeps are counted, not pairs
BY_CHANCE = 0.01   # how seldom few sweeps of the worst allowed kind may come out worse than those at hand
MIN_SHARE = 0.5  # of a problem's sweeps must have an answer; others' programs may disturb the rest
MAX_OTHERS = 0.10  # share of the CPUs' time that others may have where it is to be judged
MAX_SWEEP_S = 300  # no sweep of these problems takes longer, also beside other load
LEAST_SWEEPS = 6    # of each problem, whatever --seconds says
AGAIN = 2          # a contaminated sweep is asked again so often


def recipe_keys(root, name, count):
    """The smallest `count` problems of a recipe (all if None), by the work they are."""
    recipe = json.loads((root / "tables/recipes" / f"{name}.json").read_text())
    keys = []
    for problem in recipe["layouts"][0]["problems"]:
        for bucket in problem.get("buckets", recipe["ladder"]["values"]):
            dims = dict(d.split("=", 1) for d in problem["key"].split(",")[1:])
            keys.append((bucket * int(dims["n"]) * int(dims["k"]), problem["key"].replace("m=*", f"m={bucket}")))
    keys.sort()
    if count is None:
        return [k for _, k in keys]
    # spread over sizes, the very large ones left out
    usable = keys[: max(count, len(keys) * 2 // 3)]
    return [usable[i * (len(usable) - 1) // max(1, count - 1)][1] for i in range(count)]


def read_journals(state, pool, kernels):
    """Adds the rounds of all journals below `state`: pool[key][tactic] = log time over native's, a round each."""
    for path in (state / "journal").glob("*.jsonl"):
        key, names = None, []
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row["say"] == "journal_begin":
                key = row["key"]
            elif row["say"] == "opened":
                names = [json.dumps(c["tactic"], sort_keys=True) for c in row["candidates"]]
                kernels[key] = dict(zip(names, (c["name"] for c in row["candidates"])))
            elif row["say"] == "samples" and not row.get("foreign") and row["order"].count(0) == 2:
                times = list(zip(row["order"], row["device_us"]))
                native = statistics.fmean(math.log(t) for c, t in times if c == 0)
                for c, t in times:
                    if c:
                        pool[key][names[c]].append(math.log(t) - native)


class Others:
    """What other programs had of the CPUs since it was made. Of ours counts who has ended and was waited for."""

    def __init__(self):
        self.began = self.look()

    @staticmethod
    def look():
        with open("/proc/stat") as stat:
            user, nice, system, idle, iowait, irq, softirq, *_ = map(int, stat.readline().split()[1:])
        busy, tick = user + nice + system + irq + softirq, os.sysconf("SC_CLK_TCK")
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return busy / tick, (busy + idle + iowait) / tick, sum(u.ru_utime + u.ru_stime for u in used)

    def share(self):
        busy, all_of_it, ours = (now - then for now, then in zip(self.look(), self.began))
        return max(0.0, busy - ours) / all_of_it if all_of_it else 0.0


def ask(daemon, key):
    """Sweeps one problem and stays until it ended."""
    try:
        daemon.tunectl("sweep", key, "--as", "cpu", "--wait", "--force", timeout=MAX_SWEEP_S)
    except subprocess.TimeoutExpired as e:
        raise harness.Failure(f"{key} did not end in {MAX_SWEEP_S} s: {json.dumps(daemon.status())}") from e


def sweep_once(build, keys, chosen, noisy, contaminated, pool, kernels):
    daemon = harness.Daemon(build)
    daemon.workers["cpu"] = {"command": daemon.build / "daemon/workers/tactic-onednn", "backend": "onednn",
                             "device": "cpu", "nice": "0"}
    daemon.write_config()
    with daemon:
        daemon.wait_ready()
        for key in keys:
            for attempt in range(1 + AGAIN):
                ask(daemon, key)
                answer = daemon.lookup(key)
                if answer["kind"] != "miss":
                    break
                contaminated[key] += 1
            if answer["kind"] == "miss":
                continue
            if answer["state"] == "noisy":
                noisy[key] += 1
            tactic = answer.get("tactic")
            chosen[key].append(json.dumps(tactic, sort_keys=True) if tactic else None)
        read_journals(daemon.dir / "state", pool, kernels)


def judge(key, chosen, pool):
    """(pairs, agreeing pairs, sweeps that differ from the most chosen, distinct choices, worst distance) of one problem."""
    value = {None: 0.0, **{t: statistics.median(v) for t, v in pool[key].items()}}
    picks = chosen[key]

    def apart(a, b):
        return abs(math.expm1(value.get(a, 0.0) - value.get(b, 0.0))) if a != b else 0.0

    distances = [apart(a, b) for i, a in enumerate(picks) for b in picks[i + 1:]]
    most = collections.Counter(picks).most_common(1)
    return (len(distances), sum(d <= SAME for d in distances), sum(apart(p, most[0][0]) > SAME for p in picks),
            len(set(picks)), max(distances, default=0.0))


def most_by_chance(count, share):
    """The most of `count` that may be so where each is so with this probability: more come once in a hundred times."""
    most, beyond = -1, 1.0
    while beyond > BY_CHANCE:
        most += 1
        beyond -= math.comb(count, most) * share ** most * (1 - share) ** (count - most)
    return most


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--problems", type=int, default=3)
    parser.add_argument("--all-problems", action="store_true")
    parser.add_argument("--recipe", default="qwen2.5-0.5b")
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    keys = recipe_keys(root, args.recipe, None if args.all_problems else args.problems)
    chosen, noisy = collections.defaultdict(list), collections.Counter()
    contaminated, kernels = collections.Counter(), {}
    pool = collections.defaultdict(lambda: collections.defaultdict(list))

    if not (pathlib.Path(args.build) / "daemon/workers/tactic-onednn").exists():
        print("skipped: this build has no oneDNN worker")
        return 77
    others, begun = Others(), time.monotonic()
    for i in range(args.sweeps):
        if i >= LEAST_SWEEPS and time.monotonic() - begun > args.seconds:
            print(f"the time is over after {i} of {args.sweeps} sweeps of each problem")
            args.sweeps = i
            break
        sweep_once(args.build, keys, chosen, noisy, contaminated, pool, kernels)
        print(f"sweep {i + 1}/{args.sweeps} done", file=sys.stderr, flush=True)

    print(f"{'m':>4} {'n':>6} {'k':>5}  sweeps  choices  pairs agree  worst   noisy  contaminated  most chosen")
    total_pairs = total_agree = total_differ = total = 0
    for key in keys:
        dims = dict(d.split("=", 1) for d in key.split(",")[1:])
        pairs, agree, differ, choices, worst = judge(key, chosen, pool)
        total_pairs, total_agree, total = total_pairs + pairs, total_agree + agree, total + len(chosen[key])
        total_differ += differ
        most = collections.Counter(chosen[key]).most_common(1)
        name = kernels.get(key, {}).get(most[0][0], "native") if most else "-"
        print(f"{dims['m']:>4} {dims['n']:>6} {dims['k']:>5}  {len(chosen[key]):>6}  {choices:>7}  "
              f"{agree:>5}/{pairs:<5}  {100 * worst:5.2f} %  {noisy[key]:>5}  {contaminated[key]:>12}  {name}")
    share = total_agree / total_pairs if total_pairs else 1.0
    noise = sum(noisy.values()) / total if total else 0.0
    print(f"pairs that agree or differ by at most 1 %: {100 * share:.1f} % of {total_pairs}; "
          f"noisy: {100 * noise:.1f} % of {total} sweeps; contaminated and repeated: {sum(contaminated.values())}")
    missing = args.sweeps * len(keys) - total
    if missing:
        print(f"{missing} sweeps gave no answer: the machine was too busy")
    print(f"others had {100 * others.share():.1f} % of the CPUs")
    if args.sweeps < FEW_SWEEPS:
        may_differ, may_be_noisy = (most_by_chance(total, p) for p in (1 - math.sqrt(WANT_PAIRS), MAX_NOISY))
        print(f"few sweeps: {total_differ} differ from the rest, at most {may_differ}; "
              f"{sum(noisy.values())} noisy, at most {may_be_noisy}")
        is_bad = total_differ > may_differ or sum(noisy.values()) > may_be_noisy
    else:
        is_bad = share < WANT_PAIRS or noise > MAX_NOISY
    if is_bad:
        if others.share() <= MAX_OTHERS:
            return 1
        print("skipped: others took this machine's CPUs; they agree too seldom, or were noisy too often, for whatever reason")
        return 77
    if any(len(chosen[key]) < MIN_SHARE * args.sweeps for key in keys):
        print("skipped: others took this machine's CPUs too often for a judgement")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
