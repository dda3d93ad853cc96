#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/gpu.sh does on a machine with a GPU, with scripted workers in place of the GPU's: the bundle, each step,
the results, and an interruption. What the GPU's workers say there only a GPU shows.

usage: gpu_script.py --build DIR [TEST...]
"""
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import types

GPU = pathlib.Path(__file__).resolve().parents[1] / "gpu"
sys.dont_write_bytecode = True
sys.path += [str(GPU), str(GPU.parents[1] / "client/python")]

import serverlike  # noqa: E402
import steps_flashinfer  # noqa: E402
import steps_kinds  # noqa: E402
from harness import Failure, expect, run  # noqa: E402
from tacticd.worker import frame  # noqa: E402


class Site:
    """A bundle and a folder for results."""

    def __init__(self, build, work):
        self.bundle, self.out = pathlib.Path(work) / "bundle", pathlib.Path(work) / "out"
        made = subprocess.run([GPU / "bundle.sh", self.bundle, build], capture_output=True, text=True, check=False)
        expect(made.returncode == 0, "no bundle", made.stdout, made.stderr)

    def command(self, *words):
        return [GPU / "gpu.sh", "--bundle", self.bundle, "--out", self.out, "--seconds", "150", *words]

    def gpu(self, *words, status=0):
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=280, check=False)
        expect(done.returncode == status, f"ended with {done.returncode}", done.stdout[-4000:], done.stderr[-2000:])
        return done.stdout

    def results(self):
        """{path: text} of results.tar.gz"""
        with tarfile.open(self.out / "results.tar.gz") as tar:
            return {m.name.removeprefix("./"): tar.extractfile(m).read().decode() for m in tar.getmembers() if m.isfile()}

    def result(self, step):
        return json.loads(self.results()[f"{step}/result.json"])


def test_every_step_and_its_results(build):
    with tempfile.TemporaryDirectory() as work:
        site = Site(build, work)
        said = site.gpu("--dry", "hello", "+", "smoke", "+", "planted", "+", "giveback", "1", "+", "sweep",
                        "kimi-k3-bf16", "ep=8,tp=1", "+", "accuracy", "+", "examples", "+", "fi_gemm", "nowhere", "+",
                        "fi_serve", "nowhere", "+", "fi_moe", "nowhere")
        for step in ("hello", "smoke", "planted", "giveback 1", "sweep kimi-k3-bf16 ep=8,tp=1", "examples",
                     "fi_gemm nowhere", "fi_moe nowhere"):
            expect(f"ok {step} (" in said and f"not ok {step}" not in said, f"{step} has not passed", said)
        expect("skipped accuracy" in said, "a dry run judges no accuracy", said)
        expect("skipped fi_serve" in said and site.result("fi_gemm-nowhere")["answered"] == [3, 3], "FlashInfer's steps", said)
        found = site.results()
        swept = site.result("sweep-kimi-k3-bf16-ep=8,tp=1")
        expect(swept["answered"] == {"lt": [93, 93], "cudnn": [42, 42]} and swept["ended"] == "passed" and swept["whole"],
               "not all is answered", swept)
        tables = [name for name in found if name.startswith("sweep-") and "/tables/kimi-k3-bf16," in name]
        expect(len(tables) == 2, "a table for each backend's versions", *found)
        expect(list(site.out.glob("journals.tar.gz.*")), "no journals", *site.out.iterdir())
        expect(len(list(site.out.iterdir())) <= 8, "more files than come back", *site.out.iterdir())
        asked = site.result("planted")["asker"]
        expect(asked["failed"] == 0 and asked["kinds"].get("hit"), "lookups failed", asked)

        # A second run goes on from the first one's results.
        before = pathlib.Path(work) / "before.tar.gz"
        shutil.copy(site.out / "results.tar.gz", before)
        said = site.gpu("--dry", "--resume", before, "sweep", "kimi-k3-bf16", "ep=8,tp=1")
        expect("lt ep=8,tp=1: 0 queued, 93 known" in said and "cudnn ep=8,tp=1: 0 queued, 42 known" in said, "it was swept again", said)


# What cuBLASLt's worker takes of ops.def's words, and the sizes that are tried beside them.
LT_WORDS = {"a": "f32 f16 bf16 e4m3 s8", "out": "f32 f16 bf16 e4m3 s8 s32", "acc": "f32 f16 tf32 s32", "layout": "tn nn",
            "batch": "1 4", "epilogue": "none bias relu gelu bias_relu bias_gelu", "scale": "none tensor row",
            "workspace_bytes": "0 33554432"}


def test_every_kind_of_problem_and_what_cannot_be(build):
    kinds, cannot = [*steps_kinds.KINDS], [*steps_kinds.CANNOT, *steps_kinds.SYSTEM, *steps_kinds.CARD]
    for cases in (kinds, cannot):
        keys = [(case.section, case.key) for case in cases]
        expect(len(set(keys)) == len(keys), "a problem stands twice", *sorted(key for key in keys if keys.count(key) > 1))
    own = [dict(word.split("=") for word in case.key.split(",")[1:]) for case in kinds if case.section == "lt"]
    for dim, words in LT_WORDS.items():
        expect({dims[dim] for dims in own} == set(words.split()), f"not every {dim}", {dims[dim] for dims in own})
    with tempfile.TemporaryDirectory() as work:
        site = Site(build, work)
        said = site.gpu("--dry", "kinds", "+", "badinput")
        expect("ok kinds (" in said and "ok badinput (" in said and "NOT OK" not in said, "not all passed", said)
        result = site.result("kinds")
        expect(len(result["problems"]) == len(kinds) and not result["wrong"] and
               sum(result["came"].values()) == len(kinds), "not every problem has a row", result)
        answered = [row for row in result["problems"] if row["came"] == "answered"]
        expect(all(row["checked"] == row["candidates"] == 6 and row["native"]["limit"] == 0.001 for row in answered),
               "what its journal says is not there", *answered)
        result = site.result("badinput")
        came = {(row["section"], row["key"]): row["came"] for row in result["problems"]}
        missing = [case.key for case in cannot if (case.section, case.key) not in came]
        expect(not missing and not result["wrong"], "not all were asked for", *missing, *result["wrong"])
        expect(result["asker"]["failed"] == 0 and result["gone"]["state"] == "failed", "another end", result)
        # Some of them only, and none.
        said = site.gpu("--dry", "kinds", "cudnn", "moe")
        rows = site.result("kinds-cudnn-moe")["problems"]
        expect(rows and all(row["key"].startswith("moe_") for row in rows), "others than those with the words", rows)
        expect("no problem has these words" in site.gpu("--dry", "kinds", "no-such-word", status=1), "another reason", said)


def test_what_a_sweep_came_to_is_told_from_its_journal(_):
    case = steps_kinds.KINDS[0]
    opened = {"say": "opened", "candidates": [{}, {}]}
    wrong = {"say": "checked", "candidate": 0, "ok": False, "max_error": 0.5, "limit": 0.1, "repeatable": True, "reason": "row 8"}

    def read(answer, *lines):
        row = steps_kinds.read({"answer": answer}, [opened, *lines])
        return row, steps_kinds.trouble(case, row)

    # Native is wrong: the sweep fails, and the daemon's reason is what is said.
    row, trouble = read({"kind": "miss"}, wrong, {"say": "journal_end", "verdict": "failed",
                                                  "detail": "the library's own pick is wrong: row 8"})
    expect(row["native"]["max_error"] == 0.5 and row["wrong"] == 1 and row["first_wrong"]["reason"] == "row 8", "lost", row)
    expect(trouble == "failed, not answered: the library's own pick is wrong: row 8", "another reason", trouble)
    # A candidate is wrong: that is what checks are for.
    right = {**wrong, "ok": True, "max_error": 0.01}
    row, trouble = read({"kind": "hit", "state": "confirmed"}, right, {**wrong, "candidate": 1},
                        {"say": "journal_end", "verdict": "hit", "detail": ""})
    expect(row["checked"] == 2 and row["wrong"] == 1 and trouble is None, "a candidate's fault is the sweep's", row, trouble)
    # An older answer stands while the new sweep fails.
    row, trouble = read({"kind": "hit", "state": "confirmed"}, {"say": "journal_end", "verdict": "failed", "detail": "deaths"})
    expect(trouble == "failed, not answered: deaths", "an old answer hides a fault", row, trouble)
    # Refused, where that is not foreseen, and for another reason than the one foreseen.
    end = ({"say": "refused", "reason": "unsupported", "detail": "k: no"}, {"say": "journal_end", "verdict": "failed",
                                                                          "detail": "the worker refused the problem: k: no"})
    row, trouble = read({"kind": "miss"}, *end)
    expect(trouble.startswith("refused, not answered: "), "not said", trouble)
    foreseen = case._replace(may=steps_kinds.EITHER, reason="k: ")
    expect(steps_kinds.trouble(foreseen, row) is None, "foreseen", row)
    expect(steps_kinds.trouble(foreseen._replace(reason="n: "), row) ==
           "refused for another reason than 'n: ': unsupported: k: no", "any reason will do", row)
    # Nothing is known of it.
    expect(steps_kinds.trouble(case, steps_kinds.read({}, [])), "silence is no answer")


def test_what_flashinfer_s_steps_say_of_the_time(_):
    # Answered, refused, ended without an answer, not begun.
    row = {"problem": "p", "kind": "hit", "refused": None, "ended": ""}
    refused, none = {**row, "kind": "miss", "refused": "k: no", "ended": "refused"}, {**row, "kind": "miss", "ended": None}
    for rows, is_over, wanted in (([row, refused], False, 0), ([row, none, none], True, 2)):
        expect(steps_flashinfer.left_for_time(rows, is_over) == wanted, "another number", rows)
    for rows, is_over in (([row, none], False), ([row, {**none, "ended": "native is wrong"}], True)):
        try:
            steps_flashinfer.left_for_time(rows, is_over)
        except Failure as e:
            expect("1 of 2 are not answered" in str(e), "another reason", e)
        else:
            raise Failure("an unanswered problem is not noticed", rows)
    # A probe that would take all the time is ended, and its words are kept.
    notes, real = {}, steps_flashinfer.LIKE
    room = types.SimpleNamespace(is_dry=True, left=lambda: 3.0, note=lambda **found: notes.update(found))
    with tempfile.TemporaryDirectory() as work:
        steps_flashinfer.LIKE = pathlib.Path(work) / "slow.py"
        steps_flashinfer.LIKE.write_text("import time\nprint('found', flush=True)\ntime.sleep(60)\n")
        begun = time.monotonic()
        try:
            steps_flashinfer.probe(steps_flashinfer.Site(room, None, None))
        finally:
            steps_flashinfer.LIKE = real
    expect(time.monotonic() - begun < 20 and notes == {"probe": "found\n", "probe_ended": False}, "the probe is not bounded", notes)


class Judged:
    """A problem of serverlike.py: candidates by the time that they take; None for one that does not run."""

    def __init__(self, *us):
        self.us = us
        self.candidates = [types.SimpleNamespace(tactic=i - 1) for i in range(len(us))]

    def look(self, i, _limit_ms):
        return types.SimpleNamespace(timed=self.run(i))

    def check(self, _):
        return types.SimpleNamespace(ok=True)

    def run(self, i):
        if self.us[i] is None:
            raise frame.Failed("it does not run")
        return types.SimpleNamespace(device_us=self.us[i])


def test_an_oracle_that_loses_candidates(_):
    soon = time.monotonic() + 60

    def row_of(*us):
        row = serverlike.measured(Judged(*us), 20, soon, soon)
        return row, serverlike.line_of(row)

    row, line = row_of(30.0, 20.0, 25.0)
    expect(row["us"] == [[-1, 30.0], [0, 20.0], [1, 25.0]] and "native 30.0 us, best 20.0 us 0" in line, "not its times", row, line)
    row, line = row_of(None, 20.0, 25.0)
    expect("native lost, best 20.0 us 0" in line and row["lost"] == [[-1, "it does not run"]], "a survivor is native", row, line)
    row, line = row_of(None, None)
    expect(row["us"] == [] and line == "none of 2 is right: it does not run", "none is left", row, line)
    expect(serverlike.regret(row, -1) is None, "a regret of nothing")
    try:
        serverlike.measured(Judged(30.0), 20, soon, time.monotonic() - 1)
    except serverlike.TimeIsUp:
        return
    raise Failure("it goes on after its end")


def test_an_interruption_keeps_what_was_done(build):
    with tempfile.TemporaryDirectory() as work:
        site = Site(build, work)
        process = subprocess.Popen(site.command("--dry", "giveback", "500"), stdout=subprocess.PIPE, text=True)
        while "'ms'" not in (line := process.stdout.readline()):
            expect(line, "it ended before")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        expect(process.returncode == 143, f"ended with {process.returncode}")
        result = site.result("giveback-500")
        expect(result["times"] and result["ended"] == "no", "what was done is lost", result)


def test_words_that_cannot_be(build):
    with tempfile.TemporaryDirectory() as work:
        site = Site(build, work)
        site.gpu(status=2)
        site.gpu("--nonsense", status=2)
        said = site.gpu("--dry", "sweep", "no-such-model", status=1)
        expect("no such recipe" in said, "another reason", said)
        if not shutil.which("nvidia-smi"):
            said = site.gpu("hello", status=77)
            expect(said.startswith("gpu.sh: no NVIDIA GPU here") and said.count("\n") == 1, "not one line", said)


if __name__ == "__main__":
    run([test_every_step_and_its_results, test_every_kind_of_problem_and_what_cannot_be,
         test_what_a_sweep_came_to_is_told_from_its_journal, test_what_flashinfer_s_steps_say_of_the_time,
         test_an_oracle_that_loses_candidates, test_an_interruption_keeps_what_was_done, test_words_that_cannot_be])
