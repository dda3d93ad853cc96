#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process like a server at its start, with FlashInfer's bf16 products by cuDNN: it tunes by itself, or takes what was
swept before; and what either is worth, by an oracle. Runs where flashinfer and PyTorch are, on one GPU.

usage: serverlike.py probe                                        plans that cuDNN lists here, for bf16 and e4m3
       serverlike.py metadata                                     the environment that a FlashInfer file must carry here
       serverlike.py serve --out FILE [--load FILE] [PROBLEMS]    one start, then the time of each product
       serverlike.py oracle --out FILE [--seconds N] [PROBLEMS]   all candidates, many interleaved rounds
       serverlike.py report DIR                                   DIR/{tuned,prepared}-*.json and DIR/oracle.json as one
PROBLEMS: --shapes N,K... --buckets M...; the default is one layer of llama-3.1-8b at eight token counts.

`serve` without --load calls FlashInfer's own autotune(); with it, load_configs(). Both are followed by one call of each
product, which builds its plan. Times of products are those of the public function, cold, by tacticd's worker's method.
"""
import argparse
import json
import math
import pathlib
import random
import statistics
import sys
import time

BEGUN = time.monotonic()
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))

SHAPES = ["6144,4096", "4096,4096", "28672,4096", "4096,14336"]  # qkv, out, gate_up, down
BUCKETS = [1, 16, 64, 256, 512, 1024, 2048, 4096]
ROUNDS = 30  # of `serve`
LEAST_ROUNDS = 16  # of the oracle, unless the time is over
KEY = ("cudnn_gemm,backend=flashinfer,a={a},b={a},out=bf16,batch={batch},m={m},n={n},k={k},a_scale={scale},b_scale={scale},"
       "a_major=k,b_major=k,bias=no,pdl_choice=caller")
SEED = 20261203
PROBE_M = 64
TOO_SLOW = 3.0  # times the best look: no oracle needs to know how slow


def key_of(m, n, k, a="bf16"):
    is_narrow = a != "bf16"
    return KEY.format(a=a, batch=int(is_narrow), m=m, n=n, k=k, scale="scalar" if is_narrow else "none")


def name_of(m, n, k):
    return f"m={m},n={n},k={k}"


def plain(tactic):
    """A tactic as files have it."""
    return [plain(t) for t in tactic] if isinstance(tactic, (tuple, list)) else tactic


def write(path, told):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told, indent=1) + "\n")
    part.replace(path)


def opened(gpu, key):
    from tacticd.worker import keys
    from tacticd.worker.families import cudnn_gemm

    return cudnn_gemm.open(gpu, keys.parse(key), SEED, gpu.memory_bytes, None)


# --- probe ---


def probe():
    from tacticd.worker import device, frame

    gpu = device.find()
    print(f"{gpu.name}, compute capability {gpu.capability}, {gpu.sm_count} SMs")
    for a in ("bf16", "e4m3"):
        begun = time.monotonic()
        try:
            problem = opened(gpu, key_of(PROBE_M, 4096, 4096, a))
        except (frame.Unsupported, frame.Memory) as e:
            print(f"{a} {PROBE_M}: refused: {e}", flush=True)
            continue
        print(f"{a} {PROBE_M}: {len(problem.candidates) - 1} plans listed in {time.monotonic() - begun:.1f} s, flush "
              f"{problem.flush_us:.0f} us", flush=True)
        for i in (0, 1):
            try:
                print(f"  {problem.candidates[i].name}: {problem.look(i, 60000)}\n  {problem.check(i)}", flush=True)
            except frame.Failed as e:
                print(f"  {problem.candidates[i].name}: failed: {e}", flush=True)
        problem.close()
    return 0


def metadata():
    from tacticd import flashinfer

    print(json.dumps(flashinfer.metadata()))
    return 0


# --- a server's start ---


class Chosen:
    """What the tuner answers, seen and handed on."""

    def __init__(self, auto):
        self.real, self.last = auto.choose_one, None
        auto.choose_one = self.choose

    def choose(self, *args, **more):
        runner, tactic = self.real(*args, **more)
        self.last = [type(runner).__name__, plain(tactic)]
        return runner, tactic


def serve(args):
    import torch
    from flashinfer.autotuner import AutoTuner, autotune

    from tacticd.worker import device, inputs, keys, timing
    from tacticd.worker.families import cudnn_gemm

    gpu = device.find()
    loaded_s = time.monotonic() - BEGUN
    sites = {(n, k): cudnn_gemm.Tensors(gpu, keys.parse(key_of(max(args.buckets), n, k)), max(args.buckets), inputs.Seeds(SEED))
             for n, k in args.shapes}
    torch.cuda.synchronize()
    begun, tuner = time.monotonic(), AutoTuner.get()
    if args.load:
        if tuner.load_configs(str(args.load)) is not True:
            sys.exit("FlashInfer does not take the file")
    else:
        with autotune(True, tuning_buckets=tuple(args.buckets)):
            for tensors in sites.values():
                tensors.call(max(args.buckets))()
    torch.cuda.synchronize()
    tuned_s, calls = time.monotonic() - begun, {}
    seen = Chosen(tuner)
    found = {}
    for (n, k), tensors in sites.items():
        for m in args.buckets:
            calls[m, n, k] = tensors.call(m), (tensors.flat_a[:m * k],)
            calls[m, n, k][0]()
            found[name_of(m, n, k)] = {"runner": seen.last[0], "tactic": seen.last[1], "device_us": [], "host_us": []}
    torch.cuda.synchronize()
    first_s = time.monotonic() - begun - tuned_s
    timer, order = timing.timer_of(gpu), list(calls)
    for _ in range(ROUNDS):
        random.shuffle(order)
        for at in order:
            sample = timer.cold(*calls[at])
            found[name_of(*at)]["device_us"].append(round(sample.device_us, 3))
            found[name_of(*at)]["host_us"].append(round(sample.host_us, 3))
    if args.save:
        tuner.save_configs(str(args.save))
    write(args.out, {"how": "prepared" if args.load else "tuned", "imports_s": round(loaded_s, 3), "tuned_s": round(tuned_s, 3),
                     "first_calls_s": round(first_s, 3), "method": timer.method, "problems": found})
    print(f"{args.out.name}: {'loaded' if args.load else 'tuned'} in {tuned_s:.2f} s, first calls {first_s:.2f} s", flush=True)
    return 0


# --- the oracle ---


class TimeIsUp(Exception):
    """In the midst of a problem: it is left out."""


def expect_time(end):
    if time.monotonic() > end:
        raise TimeIsUp


def judged(problem, end):
    """({candidate: look's device time} of those that run, are right and are not hopeless, {candidate: why} of the
    others). Raises TimeIsUp."""
    from tacticd.worker import frame

    looks, lost = {}, {}
    for i in range(len(problem.candidates)):
        expect_time(end)
        try:
            looks[i] = problem.look(i, 60000).timed.device_us
        except frame.Failed as e:
            lost[i] = str(e)
    best = min(looks.values(), default=0.0)
    for i in [i for i, us in looks.items() if us > TOO_SLOW * best and i]:
        lost[i] = f"slow: {looks.pop(i):.1f} us"
    for i in list(looks):
        expect_time(end)
        try:
            told = problem.check(i)
            why = None if told.ok else told.reason
        except frame.Failed as e:
            why = str(e)
        if why:
            lost[i] = why
            del looks[i]
    return looks, lost


def measured(problem, most_rounds, until, end):
    """A problem's row in oracle.json: as many rounds as there is time for until then, and no fewer than LEAST_ROUNDS.
    Raises TimeIsUp."""
    from tacticd.worker import frame

    looks, lost = judged(problem, end)
    samples, rounds = {i: [] for i in looks}, 0
    while samples and rounds < most_rounds and (time.monotonic() < until or rounds < LEAST_ROUNDS):
        expect_time(end)
        order = list(samples)
        random.shuffle(order)
        for i in order:
            try:
                samples[i].append(problem.run(i).device_us)
            except frame.Failed as e:
                lost[i] = str(e)
                del samples[i]
        rounds += 1
    tactics = [plain(c.tactic) for c in problem.candidates]
    # Rounds are centred by their median, as the daemon does.
    middle = [statistics.median(s[r] for s in samples.values()) for r in range(rounds if samples else 0)]
    level = statistics.median(middle) if middle else 0.0
    return {"listed": len(tactics), "rounds": len(middle),
            "us": [[tactics[i], round(level * statistics.median(us / m for us, m in zip(s, middle)), 3)]
                   for i, s in samples.items()],
            "lost": [[tactics[i], why] for i, why in lost.items()]}


def line_of(row):
    """A row of oracle.json for people."""
    times = {json.dumps(tactic): us for tactic, us in row["us"]}
    if not times:
        return f"none of {row['listed']} is right: {row['lost'][0][1] if row['lost'] else 'none is listed'}"
    best = min(times, key=times.get)
    native = f"{times['-1']:.1f} us" if "-1" in times else "lost"
    return f"{len(times)} of {row['listed']} judged, {row['rounds']} rounds, native {native}, best {times[best]:.1f} us {best}"


def oracle(args):
    """A problem more at each turn, so that who stops this has whole problems."""
    from tacticd.worker import device, frame

    gpu, end, told = device.find(), BEGUN + args.seconds, json.loads(args.out.read_text()) if args.out.exists() else {}
    todo = [(m, n, k) for n, k in args.shapes for m in args.buckets if name_of(m, n, k) not in told]
    for left, at in zip(range(len(todo), 0, -1), todo):
        if time.monotonic() > end - 5:
            break
        until = time.monotonic() + (end - time.monotonic()) / left
        try:
            problem = opened(gpu, key_of(*at))
        except (frame.Unsupported, frame.Memory) as e:
            print(f"{name_of(*at)}: refused: {e}", flush=True)
            continue
        try:
            told[name_of(*at)] = measured(problem, args.rounds, until, end)
        except TimeIsUp:
            print(f"{name_of(*at)}: no time is left", flush=True)
            break
        problem.close()
        write(args.out, told)
        print(f"{name_of(*at)}: {line_of(told[name_of(*at)])}", flush=True)
    print(f"oracle: {len(told)} problems", flush=True)
    return 0


# --- the report ---


def regret(truth, tactic):
    """How much slower than the oracle's best; None if it did not judge that tactic."""
    times = {json.dumps(t): us for t, us in truth["us"]}
    mine = times.get(json.dumps(tactic))
    return None if mine is None else mine / min(times.values()) - 1


def percent(values):
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    at95 = known[min(len(known) - 1, math.ceil(0.95 * len(known)) - 1)]
    return {"n": len(known), "unknown": len(values) - len(known), "mean": round(100 * statistics.fmean(known), 3),
            "p95": round(100 * at95, 3), "most": round(100 * known[-1], 3)}


def summarize(runs, truth):
    """Of one kind of start: how long, whether processes agree, how fast, how far from the best."""
    names = list(runs[0]["problems"])
    picks = {name: [run["problems"][name]["tactic"] for run in runs] for name in names}
    agree = [name for name in names if len({json.dumps(p) for p in picks[name]}) == 1]
    steady = {name: round(statistics.median(statistics.median(run["problems"][name]["device_us"]) for run in runs), 3)
              for name in names}
    regrets = {name: [regret(truth[name], p) for p in picks[name]] for name in names if name in truth}
    return {"processes": len(runs), "tuned_s": [run["tuned_s"] for run in runs],
            "first_calls_s": [run["first_calls_s"] for run in runs], "problems": len(names), "agree": len(agree),
            "differ": len(names) - len(agree), "native": sum(p == -1 for ps in picks.values() for p in ps),
            "steady_us": steady, "picks": picks,
            "regret_percent": percent([r for rs in regrets.values() for r in rs]),
            "regret_by_problem": {name: [None if r is None else round(r, 5) for r in rs] for name, rs in regrets.items()}}


def report(folder):
    truth = json.loads((folder / "oracle.json").read_text()) if (folder / "oracle.json").exists() else {}
    told = {"oracle": truth}
    for how in ("tuned", "prepared"):
        runs = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{how}-*.json"))]
        if runs:
            told[how] = summarize(runs, truth)
    native = percent([regret(t, -1) for t in truth.values()])
    told["native"] = {"regret_percent": native}
    write(folder / "serverlike.json", told)
    for how in ("tuned", "prepared"):
        if how in told:
            one = told[how]
            print(f"{how}: {one['processes']} processes; start {statistics.median(one['tuned_s']):.2f} s + first calls "
                  f"{statistics.median(one['first_calls_s']):.2f} s; {one['agree']} of {one['problems']} problems agree; regret "
                  f"{one['regret_percent']}")
    print(f"native: regret {native}")
    if "tuned" in told and "prepared" in told:
        print(f"{'steady us':>24} {'tuned':>10} {'prepared':>10}")
        for name, us in told["tuned"]["steady_us"].items():
            print(f"{name:>24} {us:10.1f} {told['prepared']['steady_us'].get(name, math.nan):10.1f}")
    return 0


def shape(text):
    n, k = text.split(",")
    return int(n), int(k)


def main():
    parser = argparse.ArgumentParser(description="a process like a server at its start")
    parser.add_argument("what", choices=["probe", "metadata", "serve", "oracle", "report"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    for name in ("out", "load", "save"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    parser.add_argument("--shapes", nargs="+", type=shape, default=[shape(s) for s in SHAPES])
    parser.add_argument("--buckets", nargs="+", type=int, default=BUCKETS)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    if args.what == "report":
        return report(args.folder)
    return {"probe": probe, "metadata": metadata}[args.what]() if args.what in ("probe", "metadata") else \
        {"serve": serve, "oracle": oracle}[args.what](args)


if __name__ == "__main__":
    sys.exit(main())
