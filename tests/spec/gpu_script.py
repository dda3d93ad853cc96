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
import tarfile
import tempfile

from harness import expect, run

GPU = pathlib.Path(__file__).resolve().parents[1] / "gpu"


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
                        "kimi-k3-bf16", "ep=8,tp=1", "+", "accuracy", "+", "examples")
        for step in ("hello", "smoke", "planted", "giveback 1", "sweep kimi-k3-bf16 ep=8,tp=1", "examples"):
            expect(f"ok {step} (" in said and f"not ok {step}" not in said, f"{step} has not passed", said)
        expect("skipped accuracy" in said, "a dry run judges no accuracy", said)
        found = site.results()
        swept = site.result("sweep-kimi-k3-bf16-ep=8,tp=1")
        expect(swept["answered"] == {"lt": [93, 93], "cudnn": [42, 42]} and swept["ended"] == "passed" and swept["whole"],
               "not all is answered", swept)
        tables = [name for name in found if name.startswith("sweep-") and "/tables/kimi-k3-bf16," in name]
        expect(len(tables) == 2, "a table for each backend's versions", *found)
        expect(list(site.out.glob("journals.tar.xz.*")), "no journals", *site.out.iterdir())
        expect(len(list(site.out.iterdir())) <= 8, "more files than come back", *site.out.iterdir())
        asked = site.result("planted")["asker"]
        expect(asked["failed"] == 0 and asked["kinds"].get("hit"), "lookups failed", asked)

        # A second run goes on from the first one's results.
        before = pathlib.Path(work) / "before.tar.gz"
        shutil.copy(site.out / "results.tar.gz", before)
        said = site.gpu("--dry", "--resume", before, "sweep", "kimi-k3-bf16", "ep=8,tp=1")
        expect("lt: 0 queued, 93 known" in said and "cudnn: 0 queued, 42 known" in said, "it was swept again", said)


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
    run([test_every_step_and_its_results, test_an_interruption_keeps_what_was_done, test_words_that_cannot_be])
