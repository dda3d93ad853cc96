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

GPU = pathlib.Path(__file__).resolve().parents[1] / "gpu"
sys.dont_write_bytecode = True
sys.path.append(str(GPU))

import steps_kinds  # noqa: E402
from harness import expect, run  # noqa: E402


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
         test_what_a_sweep_came_to_is_told_from_its_journal, test_an_interruption_keeps_what_was_done, test_words_that_cannot_be])
