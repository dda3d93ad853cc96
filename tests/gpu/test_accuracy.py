#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The accuracy harness over a worker whose truth is planted, and over oneDNN, whose figures are printed only.

usage: test_accuracy.py --build DIR [--long] [TEST...]
"""
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

HERE = pathlib.Path(__file__).resolve().parent
POLICIES = ["ours", "hot", "sequential-10", "interleaved-10", "interleaved-30"]


class Failure(AssertionError):
    pass


def expect(condition, message):
    if not condition:
        raise Failure(message)


def key(m=64, n=96, k=64):
    return (f"matmul,backend=onednn,a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1,m={m},n={n},k={k},"
            "epilogue=none,scale=none,workspace_bytes=0")


class Bench:
    def __init__(self, build, folder):
        self.accuracy = build / "tests/gpu/accuracy"
        self.fake = build / "tests/fake_worker"
        self.onednn = build / "daemon/workers/tactic-onednn"
        self.folder = folder
        self.begun = 0

    def run(self, out, *options, worker=(), problems=("planted",), status=0, seconds=60):
        self.begun += 1
        named = [f"--problem={name}={key(64 + i)}" for i, name in enumerate(problems)]
        command = [self.accuracy, f"--out={self.folder / out}", f"--seconds={seconds}", f"--seed={self.begun}", *named,
                   *options, *(["--", *worker] if worker else [])]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, check=False)
        expect(done.returncode == status, f"exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def fakes(self, out, *words, options=("--no-off",), **more):
        return self.run(out, *options, worker=[self.fake, *words], **more)

    def read(self, out, name="planted"):
        return json.loads((self.folder / out / f"{name}.json").read_text())

    def summary(self, out):
        return self.read(out, "summary")

    def figures(self, out):
        rows = self.summary(out)["policies"]
        return {row["policy"]: row for row in rows}


def near(a, b, most):
    return abs(a - b) <= most


# --- what is planted is found ---

# Candidate 1 is the best, native 25% behind, 2 by 50%; launched hot, 2 seems the best. 4 is slow, 5 wrong, 6 does not run.
PLANTED = ["times=100,80,120,90,700,70,60", "hot=1,1,0.5,1,1,1,1", "jitter=0.01", "check.5=lie", "look.6=fail:no"]


def the_planted_truth_is_found(b):
    b.fakes("truth", *PLANTED, options=("--sweeps=8", "--oracle-rounds=96"))
    rows, shape = b.figures("truth"), b.read("truth")
    expect([c["state"] for c in shape["candidates"]] ==
           ["live", "live", "live", "live", "slow", "wrong", "unsupported"], str(shape["candidates"]))
    for policy in POLICIES:
        expect(rows[policy]["sweeps"] == 8 and rows[policy]["pairs"] == 4, str(rows[policy]))
    for policy in ("ours", "ours-again", "sequential-10", "interleaved-10", "interleaved-30"):
        row = rows[policy]
        expect(row["mean"] == row["max"] == row["above"] == row["flips"] == 0, f"{policy} missed it: {row}")
    expect(all(near(r, 50, 1) for r in rows["hot"]["regret"]), f"hot's regret is not 120/80: {rows['hot']}")
    expect(rows["hot"]["above"] == rows["hot"]["above_sure"] == 100 and rows["hot"]["flips"] == 0, str(rows["hot"]))
    line = b.summary("truth")["shapes"][0]
    expect(near(line["native"], 25, 1) and line["winner"] == {"id": 1} and line["regret"] == 0, str(line))
    expect(near(line["best_us"], 80, 1) and line["live"] == 4 and line["oracle_rounds"] == 96, str(line))
    expect(line["se"] < 1 and near(line["aa"], 0, 1) and line["half"] == 0, str(line))
    # Three points between the bucket below and this one, 32 and 64.
    off = b.summary("truth")["off"]
    expect([o["tokens"] for o in off] == [40, 48, 56], str(off))
    expect(all(o["offered"] and o["regret"] == 0 and near(o["native"], 25, 2) for o in off), str(off))


def the_gpu_time_is_what_was_launched(b):
    b.fakes("time", "times=100,80,120", "jitter=0.001", "hot=1,1,1", options=("--no-off", "--sweeps=4", "--oracle-rounds=48"))
    rows = b.figures("time")
    one = 400 * 30  # of all, native twice
    expect(near(rows["interleaved-30"]["gpu_time"], 1, 0.01), str(rows["interleaved-30"]))
    expect(near(rows["interleaved-10"]["gpu_time"], 1 / 3, 0.01), str(rows["interleaved-10"]))
    expect(near(rows["sequential-10"]["gpu_time"], 300 * 10 / one, 0.01), str(rows["sequential-10"]))
    expect(near(rows["hot"]["gpu_time"], 300 * 13 / one, 0.01), str(rows["hot"]))
    # Two launches of each look, 8 rounds of all, 8 more of those that are not dropped.
    least, most = (600 + 8 * 400 + 8 * 280) / one, (600 + 16 * 400) / one
    expect(least - 0.01 <= rows["ours"]["gpu_time"] <= most + 0.01, f"{least} {most} {rows['ours']}")
    mean = statistics.fmean(w["gpu_us"] for w in b.read("time")["sweeps"] if w["policy"] == "interleaved-30")
    expect(near(mean, one, 0.01 * one), f"30 rounds took {mean} us, not {one}")


def levels(shape):
    """The oracle's levels, by another program: medians of log times less their round's."""
    live = [i for i, c in enumerate(shape["candidates"]) if c["state"] == "live"]
    logs = {i: [] for i in live}
    finer = shape.get("finer", [])
    for block in shape["blocks"] + finer:
        columns, width = block["columns"], len(block["columns"])
        centre = [i for i, c in enumerate(columns) if not finer or c in finer[0]["columns"]]
        rows = [[math.log(t) for t in block["us"][at:at + width]] for at in range(0, len(block["us"]), width)]
        of_block = statistics.median(row[i] for row in rows for i in centre)
        for row in rows:
            middle = of_block if finer else statistics.median(row)
            for column, value in zip(columns[:-1], row):
                logs[column].append(value - middle)
    return {i: statistics.median(v) for i, v in logs.items()}


def another_program_computes_the_same_regret(b):
    # Close enough to each other and noisy enough that all miss now and then.
    b.fakes("again", "times=100,99,98.5,98,99.5,101,98.2,99.1", "hot=1,1,1,1,1,1,1,1", "jitter=0.03", "run.3=foreign@30-33",
            options=("--no-off", "--sweeps=10", "--oracle-rounds=120"))
    shape, rows = b.read("again"), b.figures("again")
    level = levels(shape)
    best = min(level.values())
    for policy in POLICIES:
        picks = [w["pick"] for w in shape["sweeps"] if w["policy"] == policy]
        regret = [100 * math.expm1(level[p] - best) for p in picks]
        row = rows[policy]
        expect(near(row["mean"], statistics.fmean(regret), 1e-3), f"{policy}: {regret} {row}")
        expect(near(row["max"], max(regret), 1e-3) and near(row["above"], 100 * sum(r > 1 for r in regret) / 10, 1e-9), str(row))
        pairs = list(zip(picks[::2], picks[1::2]))
        expect(near(row["flips"], 100 * sum(x != y for x, y in pairs) / 5, 1e-9), str(row))
        apart = [math.exp(level[x]) / math.exp(level[y]) - 1 for x, y in pairs]
        expect(near(row["harmful"], 100 * sum(abs(a) > 0.01 for a in apart) / 5, 1e-9), str(row))
        expect(row["harm_surely"] <= row["harmful"] and row["above_sure"] <= row["above"], str(row))
    lost = sum(w["lost"] for w in shape["sweeps"]) + sum(x["lost"] for x in shape["blocks"])
    expect(lost == 4, f"{lost} rounds dropped, 4 were overlapped")
    expect(all(x["rounds"] == 12 for x in shape["blocks"]), "a dropped round was not run again")


def short_kernels_get_finer_rounds(b):
    # The last two are too slow to be the best; number 1 is never picked and close.
    b.fakes("finer", "times=30,29.8,29.5,29.6,40,41", "hot=1,1,1,1,1,1", "jitter=0.03",
            options=("--no-off", "--sweeps=12", "--oracle-rounds=144"))
    shape, rows = b.read("finer"), b.figures("finer")
    line = b.summary("finer")["shapes"][0]
    expect(line["complete"] == 1 and line["oracle_rounds"] >= 144 and line["finer_rounds"] >= 3 * 144, str(line))
    expect(all(x["columns"] == [0, 1, 2, 3, 0] for x in shape["finer"]), str(shape["finer"][0]["columns"]))
    level = levels(shape)
    best = min(level.values())
    for policy in POLICIES:
        regret = [100 * math.expm1(level[w["pick"]] - best) for w in shape["sweeps"] if w["policy"] == policy]
        expect(near(rows[policy]["mean"], statistics.fmean(regret), 1e-3), f"{policy}: {regret} {rows[policy]}")
    early = [w for w in shape["sweeps"] if w["policy"] == "interleaved-10"]
    expect(len(early) == 12 and all(near(w["gpu_us"] * 3, 30 * sum((30, 30, 29.8, 29.5, 29.6, 40, 41)), 100) for w in early), str(early[:2]))
    # What is there already is whole: nothing is added.
    b.fakes("finer", "times=30,29.8,29.5,29.6,40,41", "hot=1,1,1,1,1,1", "jitter=0.03",
            options=("--no-off", "--sweeps=12", "--oracle-rounds=144"))
    again = b.read("finer")
    expect(again["finer"] == shape["finer"] and again["blocks"] == shape["blocks"], "more rounds than wanted")


# --- runs come together ---

FEW = ("--no-off", "--sweeps=2", "--oracle-rounds=24")


def a_later_run_goes_on(b):
    b.fakes("later", *PLANTED, options=FEW)
    first = b.read("later")
    b.fakes("later", *PLANTED, options=("--no-off", "--sweeps=4", "--oracle-rounds=48"))
    second = b.read("later")
    expect(len(first["sweeps"]) == 10 and second["sweeps"][:10] == first["sweeps"], "the first run's sweeps are gone")
    expect(len(second["sweeps"]) == 20 and len(second["runs"]) == 2, str(second["runs"]))
    expect(second["blocks"][:len(first["blocks"])] == first["blocks"], "the first run's rounds are gone")
    expect(sum(x["rounds"] for x in second["blocks"]) == 48, "another count of rounds")
    done = b.fakes("later", *PLANTED, options=("--no-off", "--sweeps=4", "--oracle-rounds=48"))
    expect(b.read("later") == second and "100%" in done.stdout, "a complete shape was visited again")


def time_is_bounded_and_the_least_complete_goes_first(b):
    slow = ["times=100,80,120", "jitter=0.01", "flush_ms=1"]
    b.fakes("bounded", *slow, options=FEW, problems=("one",))
    begun = time.monotonic()
    done = b.fakes("bounded", *slow, options=("--no-off", "--sweeps=40"), problems=("one", "two"), seconds=4)
    expect(time.monotonic() - begun < 15, "it did not end in time")
    visited = [line.split()[1].rstrip(":") for line in done.stderr.splitlines() if line.endswith("%")]
    expect(visited[0] == "two", f"visited {visited}")
    expect(0 < b.summary("bounded")["complete"] < 1, "it is complete")
    b.fakes("bounded", *slow, options=("--no-off", "--sweeps=40"), problems=("one", "two"), seconds=4)
    expect(len(b.read("bounded", "two")["runs"]) + len(b.read("bounded", "one")["runs"]) >= 3, "the last run did nothing")


def merged(b, into, *names, status=0):
    return b.run(into, *[f"--merge={b.folder / n}" for n in names], *FEW, status=status)


def files_merge(b):
    for name in ("part1", "part2"):
        b.fakes(name, *PLANTED, options=FEW)
    merged(b, "whole", "part1", "part2")
    one, two, whole = b.read("part1"), b.read("part2"), b.read("whole")
    for part in ("sweeps", "blocks", "runs"):
        expect(whole[part] == one[part] + two[part], f"{part} are not both's")
    expect(b.figures("whole")["ours"]["sweeps"] == 4, "another count of sweeps")
    before = (b.folder / "whole/planted.json").read_bytes()
    done = merged(b, "whole", "part2", status=1)
    expect("one of them is here already" in done.stderr, done.stderr)
    expect((b.folder / "whole/planted.json").read_bytes() == before, "a refused file left a trace")


def renumber(shape, order):
    """The same file with its candidates in another order; native stays first."""
    to = {old: new for new, old in enumerate(order)}
    shape["candidates"] = [shape["candidates"][i] for i in order]
    for w in shape["sweeps"]:
        for field in ("pick", "again", "incumbent"):
            if field in w:
                w[field] = to[w[field]]
    for block in shape["blocks"]:
        block["columns"] = [to[c] for c in block["columns"]]
    for run in shape["runs"]:
        run["id"] += "-renumbered"


def candidates_are_known_by_their_tactics(b):
    b.fakes("plain", *PLANTED, options=FEW)
    shape = b.read("plain")
    order = [0, *random.Random(7).sample(range(1, len(shape["candidates"])), len(shape["candidates"]) - 1)]
    other = json.loads(json.dumps(shape))
    renumber(other, order)
    (b.folder / "shuffled").mkdir()
    (b.folder / "shuffled/planted.json").write_text(json.dumps(other))
    merged(b, "both", "plain", "shuffled")
    both = b.read("both")
    half = len(shape["sweeps"])
    expect(both["sweeps"][half:] == shape["sweeps"] and both["blocks"][len(shape["blocks"]):] == shape["blocks"],
           "numbers were taken over as they are")


def what_speaks_of_something_else_is_refused(b):
    b.fakes("mine", *PLANTED, options=FEW)
    before = (b.folder / "mine/planted.json").read_bytes()
    others = {"versions": ([*PLANTED, "fact.onednn=9.9"], "onednn: '2.6.3' there, '9.9' here"),
              "method": ([*PLANTED, "method=another-1"], "method: "),
              "space": (["times=100,80,120", "hot=1,1,1"], "space_digest: the candidates are others")}
    for name, (words, why) in others.items():
        b.fakes(name, *words, options=FEW)
        done = merged(b, "mine", name, status=1)
        expect(why in done.stderr, f"{name}: {done.stderr}")
        # Nor is anything added to a file by a worker that is another one.
        done = b.fakes("mine", *words, options=("--no-off", "--sweeps=4"), status=1)
        expect(why in done.stderr, f"{name}: {done.stderr}")
        expect((b.folder / "mine/planted.json").read_bytes() == before, f"{name}: a refused file left a trace")
    for text in ("", "{", "{}", before.decode().replace('"pick":', '"pick":9', 1), before.decode().replace('"us":[', '"us":[1,', 1)):
        (b.folder / "mine/planted.json").write_text(text)
        done = b.fakes("mine", *PLANTED, options=FEW, status=1)
        expect("planted.json" in done.stderr, f"{text[:40]!r}: {done.stderr}")
        expect((b.folder / "mine/planted.json").read_text() == text, "a file that cannot be read was written over")


# --- workers that fail ---

def a_worker_that_dies_is_written_down(b):
    b.fakes("killer", *PLANTED, "look.3=crash:11", options=FEW, problems=("planted", "other"))
    for name in ("planted", "other"):
        shape = b.read("killer", name)
        expect(shape["candidates"][3]["state"] == "killer" and "signal 11" in shape["losses"][0]["why"], str(shape["losses"]))
        expect(shape["losses"][0]["candidate"] == 3 and shape["losses"][0]["doing"] == "look", str(shape["losses"]))
        expect(len(shape["sweeps"]) == 10, "the run did not go on")
    mark = b.folder / "died once"
    b.fakes("round", *PLANTED[:3], "run.1=exit:3@40", f"once={mark}", options=FEW)
    shape = b.read("round")
    expect(shape["losses"][0]["doing"] == "run" and "status 3" in shape["losses"][0]["why"], str(shape["losses"]))
    expect(len(shape["sweeps"]) == 10 and len(shape["losses"]) == 1, "the run did not go on")
    done = b.fakes("open", *PLANTED, "open=exit:9", options=FEW)
    expect(len(b.read("open")["losses"]) == 8 and "status 9" in done.stderr, "it went on for ever, or gave up at once")
    done = b.fakes("none", "hello=exit:7", options=FEW, status=71)
    expect("status 7" in done.stderr, done.stderr)


def what_a_worker_refuses_is_written_down(b):
    done = b.fakes("refused", *PLANTED, "open=refuse:memory", options=FEW)
    expect(b.read("refused")["refused"].startswith("memory: ") and "refused: memory" in done.stdout, done.stdout)
    b.fakes("refused", *PLANTED, options=FEW)
    expect("refused" not in b.read("refused") and len(b.read("refused")["sweeps"]) == 10, "it was not tried again")
    done = b.fakes("cold", "times=100,80,120", options=FEW)
    expect("launches cold only" in done.stderr and "hot" not in b.figures("cold"), done.stderr)
    expect(b.summary("cold")["complete"] == 1, "it waits for sweeps that never come")
    done = b.fakes("native", *PLANTED, "check.0=lie", options=FEW)
    expect("native is wrong" in b.read("native")["refused"], str(b.read("native")["refused"]))


def options_are_checked(b):
    for wrong in (["--policies=theirs"], ["--sweeps=x"], ["--problem=a"], ["--problem=a/b=" + key()], ["--frob"]):
        done = b.run("wrong", *wrong, status=64)
        expect("usage: accuracy" in done.stderr, done.stderr)
    listed = subprocess.run([b.accuracy, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.split()[0] for line in listed]
    expect(len(set(names)) == 44 and sum(n.startswith("lt-") for n in names) == 32, f"{len(names)} shapes")


def it_is_drawn(b):
    b.fakes("drawn", *PLANTED, options=FEW)
    subprocess.run([sys.executable, HERE / "plot.py", b.folder / "drawn"], check=True, capture_output=True)
    drawn = xml.dom.minidom.parse(str(b.folder / "drawn/accuracy.svg"))
    words = "\n".join(t.firstChild.data for t in drawn.getElementsByTagName("text"))
    for part in ("cpu:fake", "matmul onednn", "ours", "interleaved 30", "regret of a sweep", "GPU time"):
        expect(part in words, f"'{part}' is not in it: {words}")


# --- a real library ---

def one_dnn_is_measured(b):
    if not b.onednn.exists():
        print("  this build has no oneDNN worker")
        return
    done = b.run("onednn", "--sweeps=2", "--oracle-rounds=24", worker=[b.onednn], problems=("tiny",), seconds=20)
    print(done.stdout)
    shape = b.read("onednn", "tiny")
    # What others leave of this machine decides how far it comes; the figures are for reading.
    expect(shape["method"] == "cpu-wall-layer-2" and len(shape["candidates"]) >= 2, f"it was not opened: {shape}")
    expect(not shape["losses"] and "refused" not in shape, f"{shape['losses']}")
    print(f"  {len(shape['sweeps'])} sweeps, {sum(x['rounds'] for x in shape['blocks'])} rounds of the oracle")


def one_dnn_at_length(b):
    shapes = [(m, n, k) for m in (1, 16, 128) for n, k in ((256, 256), (896, 512))]
    named = [f"--problem=m{m}-n{n}-k{k}={key(m, n, k)}" for m, n, k in shapes]
    done = subprocess.run(list(map(str, [b.accuracy, f"--out={b.folder / 'long'}", "--seconds=600", *named, "--", b.onednn])),
                          capture_output=True, text=True, timeout=900, check=False)
    print(done.stdout)
    expect(done.returncode == 0, done.stderr)
    expect(b.summary("long")["complete"] > 0.2, "hardly anything was measured in ten minutes")


TESTS = [the_planted_truth_is_found, the_gpu_time_is_what_was_launched, another_program_computes_the_same_regret,
         short_kernels_get_finer_rounds,
         a_later_run_goes_on, time_is_bounded_and_the_least_complete_goes_first, files_merge,
         candidates_are_known_by_their_tactics, what_speaks_of_something_else_is_refused,
         a_worker_that_dies_is_written_down, what_a_worker_refuses_is_written_down, options_are_checked, it_is_drawn,
         one_dnn_is_measured]


def main():
    args = sys.argv[1:]
    if len(args) < 2 or args[0] != "--build":
        sys.exit(__doc__)
    build, rest = pathlib.Path(args[1]).resolve(), args[2:]
    tests = [one_dnn_at_length] if rest == ["--long"] else [t for t in TESTS if not rest or t.__name__ in rest]
    if rest == ["--long"] and not (build / "daemon/workers/tactic-onednn").exists():
        print("SKIP: this build has no oneDNN worker")
        sys.exit(77)
    failed = 0
    for test in tests:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="accuracy.") as folder:
            try:
                test(Bench(build, pathlib.Path(folder)))
                print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
            except (Failure, subprocess.TimeoutExpired) as e:
                failed += 1
                print(f"not ok {test.__name__}: {e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
