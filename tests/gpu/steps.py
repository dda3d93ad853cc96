#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The steps of gpu.sh, one a call.

usage: steps.py --bundle DIR --out DIR [--seconds N] [--dry] STEP [ARGUMENT...]

Results go below OUT/STEP: result.json (what was found, with card, driver, versions and date), the daemon's log, and
what it learned. They are written as the step goes on, not only at its end.
"""
import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True

import machine  # noqa: E402
from room import HERE, LOOKUP_MS, MATMUL, MOE, ROOT, SMALL, Asker, Room, backend_of, sweep_one  # noqa: E402
from steps_flashinfer import step_fi_gemm, step_fi_oracle, step_fi_serve  # noqa: E402,F401
from steps_kinds import step_badinput, step_kinds  # noqa: E402,F401
from steps_moe import step_fi_moe  # noqa: E402,F401

from harness import SKIPPED, Failure, Skip, expect  # noqa: E402

SPEAK_S = 15  # between two lines of progress
FREE_MIB = 64  # memory of the card that counts as given back: what the driver keeps differs by so much
# A problem whose workers hold much memory for long: two layers' worth of experts.
LARGE = {"cublaslt": MATMUL.format(m=8192, n=163840, k=7168),
         "cudnn": MOE.format(tokens=8192, top_k=16, experts=896, local=112, n=6144, k=3584)}


class Foreign:
    """foreign.py beside the sweeps."""

    def __init__(self, room):
        self.process = subprocess.Popen([sys.executable, HERE / "foreign.py", *(["--cpu"] if room.is_dry else [])],
                                        stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        expect(self.process.stdout.readline() == "begun\n", "the foreign process did not begin")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        words = self.process.communicate(timeout=60)[0].strip()
        return {"status": self.process.returncode, "said": words}

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


# --- steps ---

def step_hello(room):
    """What each worker says of itself, asked without a daemon and by one."""
    sections, told = room.all_sections(), {}
    for name, options in sections.items():
        if room.is_dry:
            continue
        library = ["--library", str(options["library"])] if "library" in options else []
        env = {**os.environ, **dict([options["env"].split("=", 1)] if "env" in options else [])}
        done = subprocess.run([options["command"], *library, "--hello"], capture_output=True, text=True, timeout=120,
                              env={**env, "CUDA_VISIBLE_DEVICES": options["device"]}, check=False)
        told[name] = {"status": done.returncode, "said": done.stdout.strip(), "stderr": done.stderr.strip()[-1000:]}
        print(f"  {name}: {done.returncode} {done.stdout.strip() or done.stderr.strip()[-500:]}", flush=True)
    room.note(hello=told)
    with room.daemon(sections, when="never") as d:
        for name in sections:
            d.wait_ready(name, 180)
        rows = {row["section"]: row for row in d.status()["workers"]}
        room.note(workers=rows)
        for name, row in rows.items():
            facts = row.get("fingerprint", {})
            words = " ".join(f"{fact}={facts[fact]}" for fact in ("device", "driver", "cublaslt", "cudnn") if fact in facts)
            print(f"  {name}: {row['state']} {words}{row.get('detail', '')}", flush=True)
        # A cuDNN without MoE says so and is no failure; those of PyTorch must work.
        bad = [name for name in room.sections() if rows[name]["state"] == "failed"]
        expect(not bad, "workers do not start", *((name, rows[name].get("detail")) for name in bad))


def step_smoke(room):
    """One small problem of each backend: a miss, a sweep, an answer with its evidence."""
    sections = room.sections()
    with room.daemon(sections) as d:
        room.wait_ready(d, sections)
        for name in sections:
            problem = SMALL[backend_of(sections, name)]
            before = d.lookup(problem, name)
            expect(before["kind"] == "miss", "known before it was swept", before)
            begun = time.monotonic()
            answer = sweep_one(d, name, problem, room.left())
            explained = d.tunectl("explain", problem, "--as", name)[1]
            room.note(**{name: {"seconds": round(time.monotonic() - begun, 2), "answer": answer, "explain": explained}})
            expect(answer["state"] in ("confirmed", "noisy"), "its output was not checked", answer)
            print(f"  {name}: {answer['kind']} {answer.get('name', '')} gain {answer.get('gain', 0) * 100:.1f} %, "
                  f"{answer.get('candidates')} candidates, {time.monotonic() - begun:.1f} s", flush=True)


def coverage(d, recipe, layouts, sections):
    """{section: (answered, problems of its backend)}, of all these layouts together"""
    each = [coverage_of(d, recipe, layout, sections) for layout in layouts]
    return {name: (sum(one[name][0] for one in each), sum(one[name][1] for one in each)) for name in sections}


def coverage_of(d, recipe, layout, sections):
    problems = json.loads((ROOT / "tables/recipes" / f"{recipe}.json").read_text())
    chosen = next(one for one in problems["layouts"] if one["layout"] == layout)
    found = {}
    for name, options in sections.items():
        # Buckets of the hybrid ladder: 21 up to 8192.
        own = [p for p in chosen["problems"] if f",backend={options['backend']}," in p["key"]]
        ladder = problems["ladder"]
        each = len(ladder["values"]) if "values" in ladder else 21
        total = sum(len(p.get("buckets", ())) or each for p in own)
        told = d.tunectl("table", recipe, "--layout", layout, "--as", name)[1]
        found[name] = (told["covered"] if told else 0, total)
    return found


def snapshot_of_both(d, sections, recipe, layout):
    """How many problems the snapshot answers for a server that has loaded what all the sections have."""
    import tacticd

    with tacticd.Client(socket=str(d.dir / "run/lookup.sock"), timeout_ms=5000) as client:
        for row in d.status()["workers"]:
            for fact, value in row.get("fingerprint", {}).items() if row["section"] in sections else ():
                client.fingerprint_set(fact, value)
        return client.table(recipe, layout).covered


def step_sweep(room, recipe, layout=None, section=None):
    """A recipe's layout, or `all` of them, until all is answered or the time is over; what is learned is exported as it
    comes. `section`: only the problems of this worker, `lt` or `cudnn`."""
    path = ROOT / "tables/recipes" / f"{recipe}.json"
    if not path.is_file():
        raise Failure(f"no such recipe: {recipe}")
    layouts = [one["layout"] for one in json.loads(path.read_text())["layouts"]]
    layout = layout or layouts[0]
    expect(layout in layouts or layout == "all", f"{recipe} has no layout {layout}", layouts)
    layouts = layouts if layout == "all" else [layout]
    sections = {name: options for name, options in room.sections().items()
                if f",backend={options['backend']}," in path.read_text() and section in (None, name)}
    expect(sections, f"{recipe} has nothing for {section}")
    begun = time.monotonic()
    with room.daemon(sections) as d:
        if room.resumed.is_dir():
            (d.dir / "state/tables").mkdir(exist_ok=True)
            for table in room.resumed.glob("sweep-*/tables/*.json"):
                shutil.copy(table, d.dir / "state/tables")
            d.tunectl("reload")
        room.wait_ready(d, sections)
        for name, layout in itertools.product(sections, layouts):
            code, told, err = d.tunectl("sweep", "--recipe", recipe, "--layout", layout, "--as", name)
            expect(told, f"sweep was not taken ({code})", err)
            print(f"  {name} {layout}: {told['queued']} queued, {told['known']} known", flush=True)
        spoken, history = 0.0, []
        while True:
            status, answered = d.status(), coverage(d, recipe, layouts, sections)
            busy = status["queued"] or any(row["phase"] != "queued" for row in status["sweeps"])
            is_whole = all(covered >= total for covered, total in answered.values())
            if time.monotonic() - spoken > SPEAK_S or is_whole or not busy:
                spoken = time.monotonic()
                now = next((row for row in status["sweeps"] if row["phase"] != "queued"), None)
                history.append({"seconds": round(spoken - begun, 1), **{name: a[0] for name, a in answered.items()}})
                print(f"  {spoken - begun:.0f} s: " + ", ".join(f"{n} {c} of {t}" for n, (c, t) in answered.items()) +
                      (f"; {now['phase']} {now.get('done', 0)}/{now.get('total', 0)} {now['key']}" if now else ""), flush=True)
                room.export(d)
                room.note(answered=answered, progress=history)
            if is_whole or not room.left() or not busy:
                break
            time.sleep(0.5)
        joined = sum(snapshot_of_both(d, sections, recipe, layout) for layout in layouts)
        expect(joined == sum(covered for covered, _ in answered.values()), "a server with both libraries gets another number",
               joined, answered)
        entries = collections.Counter()
        for table in sorted((d.dir / "state/tables").glob(f"{recipe},*.json")):
            for entry in json.loads(table.read_text())["entries"]:
                entries["hit" if "tactic" in entry else "noisy" if entry["state"] == "noisy" else "default"] += 1
        ended = {"answered": answered, "entries": dict(entries), "denied": status["denied"],
                 "joined": joined,
                 "seconds": round(time.monotonic() - begun, 1), "whole": is_whole}
        room.note(**ended, counters=status["counters"])
        print(f"  {ended}", flush=True)
        expect(is_whole or busy, "the queue is empty and problems have no answer", answered,
               *[(row["key"], row.get("why")) for row in status["sweeps"][:8]])


# What a planted fault must be denied with: any of these words stand in the rule's reason.
PLANTED = {"fault": ("killed its worker",), "hang": ("a launch hung",), "late_hang": ("hung", "deadline", "did not answer"),
           "wrong": ("wrong output",), "nan": ("wrong output", "finite")}


def planted_section(room):
    """(section, problem, {fault: how its tactic is known})"""
    if room.is_dry:
        options = room.section("cublaslt", words=(
            "times=100,80,120,101,150,95,90", "look.2=crash:11", "look.3=hang", "check.4=lie", "check.5=nan", "check.6=hang"))
        return options, SMALL["cublaslt"], {"fault": {"id": 2}, "host_hang": {"id": 3}, "wrong": {"id": 4}, "nan": {"id": 5},
                                            "late_hang": {"id": 6}}
    path = room.bundle / "tests/gpu/planted"
    if not path.exists():
        raise Skip("the bundle has no tests/gpu/planted: it was built without CUDA")
    options = {**room.sections()["lt"], "command": path}
    return options, SMALL["cublaslt"], {fault: {"planted": fault} for fault in ("fault", "hang", "wrong", "nan")}


def left_out_of(d, problem):
    """{tactic: why} of those that a sweep lost its worker over and did not deny."""
    found = {}
    for lines in d.journals().values():
        if lines[0]["key"] != problem:
            continue
        opened = next((line for line in lines if line["say"] == "opened"), {"candidates": []})
        for line in lines:
            if "obituary" in line and "candidate" in line:
                tactic = opened["candidates"][line["candidate"]]["tactic"]
                found[json.dumps(tactic, sort_keys=True)] = f"left out, {line['why']}: {line['obituary']}"
    return found


def step_planted(room):
    """A worker with tactics that fault, hang and compute nonsense, beside somebody who asks and somebody who computes."""
    options, problem, planted = planted_section(room)
    other = MATMUL.format(m=3, n=128, k=128)
    with contextlib.ExitStack() as stack:
        foreign = Foreign(room)
        stack.callback(foreign.kill)
        # Rounds beside a stranger would not count, and this one stays.
        ignore = pathlib.Path(sys.executable).resolve().name
        d = stack.enter_context(room.daemon({"lt": options}, look_deadline_min="1s", idle_ignore=ignore))
        room.wait_ready(d, {"lt"})
        asker = Asker(d, "lt", problem, other)
        answer = sweep_one(d, "lt", problem, room.left())
        found = {"answer": answer, "asker": asker.end(), "foreign": foreign.end()}
        rules = d.tunectl("explain", problem, "--as", "lt")[1]["deny"]
        found["rules"] = rules
        room.note(**found)
        reasons = {json.dumps(rule["tactic"], sort_keys=True): rule["reason"] for rule in rules}
        left_out = left_out_of(d, problem)
        for fault, tactic in planted.items():
            reason = reasons.pop(json.dumps(tactic, sort_keys=True), None)
            # Whoever does not even come to launch may be compiling: left out of this sweep, and nothing more.
            if reason is None and fault == "host_hang":
                reason = left_out.get(json.dumps(tactic, sort_keys=True))
            expect(reason is not None, f"the tactic that {fault}s is not denied", tactic, rules)
            expect(any(word in reason.lower() for word in PLANTED.get(fault, ("",))), f"{fault}: another reason", reason)
            print(f"  {fault}: {reason.splitlines()[0][:150]}", flush=True)
        expect(not reasons, "an innocent tactic is denied", *reasons.items())
        expect(answer.get("tactic") not in list(planted.values()), "a planted tactic is served", answer)
        print(f"  asked {found['asker']}", f"foreign {found['foreign']}", sep="\n  ", flush=True)
        expect(found["asker"]["failed"] == 0 and found["asker"]["lookups"] > 10, "lookups failed", found["asker"])
        expect(found["asker"]["slowest_ms"] < LOOKUP_MS or room.is_dry, "a lookup waited for it", found["asker"])
        expect(found["foreign"]["status"] == 0, "the foreign process was harmed", found["foreign"])


def on_card(room, d):
    """(memory in MiB, processes) that are there because of sweeps."""
    return (0, sorted(d.children())) if room.is_dry else machine.memory_mib(room.facts["card"]["uuid"])


def step_giveback(room, times="7"):
    """A sweep is stopped while its worker holds much memory: how long until the card is as before."""
    dnn = room.section("cudnn", words=("sleep=1", "flush_ms=20")) if room.is_dry else room.sections()["cudnn"]
    problem, took, one = LARGE["cudnn"], [], {"cudnn": dnn}
    for _ in range(int(times)):
        if room.left() < 40:
            break
        before = 0 if room.is_dry else machine.memory_mib(room.facts["card"]["uuid"])[0]
        with room.daemon(one) as d:
            room.wait_ready(d, one)
            d.tunectl("sweep", problem, "--as", "cudnn")
            d.wait_for(lambda: any(row["phase"] not in ("queued", "opening", "open") and row.get("done")
                                   for row in d.status()["sweeps"]), min(120, room.left()), "a sweep under way")
            held, pids = on_card(room, d)
            begun = time.monotonic()
            d.process.send_signal(signal.SIGTERM)
            while True:
                now, left = on_card(room, d)
                if now <= before + FREE_MIB and not set(left) & set(pids):
                    break
                expect(time.monotonic() - begun < 30, "not given back in 30 s", now, before, left)
            took.append({"ms": round((time.monotonic() - begun) * 1e3), "held_mib": held - before, "processes": len(pids)})
            d.process.wait(20)
        room.note(times=took)  # before it is said: whoever reads the line may stop us
        print(f"  {took[-1]}", flush=True)
    expect(took, "no time for one")
    ms = sorted(one["ms"] for one in took)
    # nvidia-smi takes some 20 to 50 ms itself, which is in each of the times.
    room.note(median_ms=statistics.median(ms), worst_ms=ms[-1])
    print(f"  median {statistics.median(ms):.0f} ms, worst {ms[-1]} ms, of {len(ms)}", flush=True)


def step_accuracy(room, *arguments):
    """tests/gpu/accuracy (README.md there) with the workers that the chosen shapes need, equal times; --resume goes on."""
    program = room.bundle / "tests/gpu/accuracy"
    if not program.exists():
        raise Skip("the bundle has no tests/gpu/accuracy")
    if room.is_dry:
        raise Skip("a dry run has nothing to judge; test_accuracy.py runs it over the scripted worker")
    listed = subprocess.run([str(program), "--list", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout
    sections = {name: options for name, options in room.sections().items() if f",backend={options['backend']}," in listed}
    expect(sections, "no shape is chosen", listed, arguments)
    for i, (name, options) in enumerate(sections.items()):
        share = int(room.left() / (len(sections) - i)) - 10
        merges = [word for folder in room.resumed.glob(f"accuracy*/shapes-{name}") for word in ("--merge", str(folder))]
        names, value = options.get("env", "=").split("=", 1)
        with open(room.out / f"{name}.txt", "w+") as out:
            done = subprocess.run(
                [str(program), "--out", str(room.out / f"shapes-{name}"), "--seconds", str(max(share, 20)), *merges,
                 *arguments, "--", str(options["command"]), "--library", str(options["library"])],
                stdout=out, stderr=subprocess.STDOUT, timeout=max(share, 20) + 60, check=False,
                env={**os.environ, **({names: value} if names else {}), "CUDA_VISIBLE_DEVICES": options["device"]})
            out.seek(0)
            print(out.read()[-5000:], flush=True)
        room.note(**{name: {"status": done.returncode, "command": done.args}})
        expect(done.returncode == 0, f"{name}: accuracy ended with {done.returncode}")


def example_runs(room):
    """(name, command, problems that it asks for by section)"""
    server = MATMUL.format(m="{m}", n=4096, k=4096)
    moe = MOE.format(tokens="{tokens}", top_k=16, experts=896, local=112, n=6144, k=3584)
    down = MOE.format(tokens="{tokens}", top_k=16, experts=896, local=112, n=3584, k=3072)
    lines = [("pytorch_linear", [sys.executable, ROOT / "client/examples/pytorch_linear.py"],
              {"lt": [server.format(m=m) for m in (1, 16, 256, 2048)]})]
    program = room.bundle / "client/examples/moe_layer"
    if program.exists():
        lines.append(("moe_layer", [program, "--tokens", "1,64,512,2048"],
                      {"cudnn": [key.format(tokens=t) for t in (1, 64, 512, 2048) for key in (moe, down)]}))
    return lines


def step_examples(room):
    """Each example without a daemon, with one that knows nothing, and with one that has swept what it asks for."""
    sections = room.sections()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "client/python"),
           "LD_LIBRARY_PATH": ":".join(room.torch.get("folders", ())), "TACTICD_SOCKET": str(room.out / "nobody.sock")}

    def example(name, command, how, **more):
        with open(room.out / f"{name}-{how}.txt", "w+") as out:
            done = subprocess.run([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT,
                                  env={**env, **more}, timeout=max(room.left(), 20), check=False)
            out.seek(0)
            print(f"--- {name}, {how}: {done.returncode}\n{out.read()[-4000:]}", flush=True)
        room.note(**{f"{name}-{how}": done.returncode})
        allowed = (0, SKIPPED) if room.is_dry else (0,)
        expect(done.returncode in allowed, f"{name} {how} ended with {done.returncode}")

    runs = example_runs(room)
    for name, command, _ in runs:
        example(name, command, "no-daemon")
    with room.daemon(sections) as d:
        room.wait_ready(d, sections)
        asked = {"TACTICD_SOCKET": str(d.dir / "run/lookup.sock")}
        for name, command, problems in runs:
            for section, keys in problems.items():
                for problem in keys:
                    if room.left() > 60:
                        sweep_one(d, section, problem, room.left())
            example(name, command, "swept", **asked)
            room.export(d)


STEPS = {name[5:]: function for name, function in list(globals().items()) if name.startswith("step_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=int, default=480)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("step", choices=sorted(STEPS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER)  # also what begins with a dash
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        room = Room(args)
    except machine.Lacking as e:
        print(f"skipped: {e}")
        return SKIPPED
    try:
        STEPS[args.step](room, *args.arguments)
    except Skip as e:
        room.note(ended=f"skipped: {e}")
        print(f"skipped: {e}")
        return SKIPPED
    except (Failure, AssertionError, machine.Lacking, subprocess.TimeoutExpired, TypeError) as e:
        room.note(ended=f"failed: {e}")
        print(f"failed: {e}")
        return 1
    room.note(ended="passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
