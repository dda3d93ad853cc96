# SPDX-License-Identifier: Apache-2.0
"""Steps of gpu.sh with FlashInfer's own kernels: WHEELS is a folder as wheels.py gathers it, the release a version in
it. Each takes at most its seconds and leaves what it has; later ones use what earlier ones left, also of
an earlier run (--resume)."""
import atexit
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from room import ROOT

from harness import Failure, Skip, expect

RELEASE = "0.6.16"
PROCESSES = 8
PROBE_PART = 3  # of the time
RECIPE = "gpu-fi-gemm"
LIKE = ROOT / "tests/gpu/serverlike.py"
sys.path.insert(0, str(LIKE.parent))

import serverlike  # noqa: E402


class Site:
    """FlashInfer of that release, installed for this step, and programs that use it."""

    def __init__(self, room, wheels, release):
        self.room, self.release, self.python = room, release, sys.executable
        # Not among the results, which are packed every 30 s.
        self.folder, self.path = pathlib.Path(tempfile.mkdtemp(prefix="fi-site-")), [str(ROOT / "client/python")]
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        if not room.is_dry:
            self.install(pathlib.Path(wheels))
            self.path.append(str(self.folder))
        self.env = {**os.environ, "PYTHONPATH": ":".join(self.path), "PYTHONUNBUFFERED": "1", "FLASHINFER_DISABLE_JIT": "1",
                    "FLASHINFER_NO_DOWNLOAD": "1", "FLASHINFER_WORKSPACE_BASE": str(self.folder / "workspace"),
                    "FLASHINFER_LOGGING_LEVEL": "error"}

    def install(self, wheels):
        found = [path for name in ("apache_tvm_ffi-*", "nvidia_cudnn_frontend-*", f"flashinfer_python-{self.release}-*")
                 for path in sorted(wheels.glob(f"{name}.whl"))]
        if len(found) < 3:
            raise Skip(f"{wheels} has no wheels of FlashInfer {self.release} (wheels.py)")
        begun = time.monotonic()
        done = subprocess.run([self.python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile",
                               "--no-cache-dir", "--disable-pip-version-check", "--target", self.folder, *found],
                              capture_output=True, text=True, check=False, timeout=300)
        expect(done.returncode == 0, "the wheels are not installed", done.stderr[-2000:])
        print(f"  FlashInfer {self.release} installed in {time.monotonic() - begun:.1f} s", flush=True)

    def run(self, *words, seconds=None):
        """A program's exit status and output, which is shown; the status is None if it did not end in time."""
        seconds = seconds or max(self.room.left(), 20)
        try:
            done = subprocess.run([self.python, *map(str, words)], capture_output=True, check=False, env=self.env,
                                  timeout=seconds)
            status, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as e:
            status, out, err = None, e.stdout or b"", (e.stderr or b"") + f"ended after {seconds:.0f} s".encode()
        out, err = (text.decode(errors="replace") for text in (out, err))
        print("".join(f"  {line}\n" for line in (out + err[-1500:]).splitlines()), end="", flush=True)
        return status, out

    def section(self):
        if self.room.is_dry:
            words = ("fact.cublas=13.1.0", "fact.cudnn=91900", "fact.cudnn_frontend=1.32.0",
                     f"fact.flashinfer={self.release}")
            return self.room.section("flashinfer", words=words)
        script = self.room.out / "fi_worker.sh"  # a line of a configuration is short
        exports = "".join(f"export {name}={json.dumps(value)}\n" for name, value in self.env.items()
                          if name.startswith(("FLASHINFER", "PYTHON")))
        script.write_text(f"#!/bin/sh\n{exports}exec {self.python} -m tacticd.worker\n")
        script.chmod(0o755)
        return {"command": self.room.short(script, 99), "backend": "flashinfer", "device": self.room.facts["card"]["uuid"]}


def shapes(room):
    return [serverlike.shape(s) for s in serverlike.SHAPES[:1 if room.is_dry else None]]


def buckets(room):
    return serverlike.BUCKETS[:3] if room.is_dry else serverlike.BUCKETS


def write_recipe(d, room):
    problems = [{"name": f"gemm.{n}x{k}", "key": serverlike.key_of("*", n, k)} for n, k in shapes(room)]
    recipe = {"format": 1, "model": RECIPE, "about": "one layer of llama-3.1-8b in bf16 by cuDNN through FlashInfer",
              "ladder": {"kind": "list", "values": buckets(room), "round": "ceil", "above": "clamp"},
              "layouts": [{"layout": "tp=1", "problems": problems}]}
    (d.dir / f"packaged/recipes/{RECIPE}.json").write_text(json.dumps(recipe))


def earlier(room, pattern):
    """What another step, or an earlier run, left: the newest such file, or None."""
    found = [path for base in (room.out.parent, room.resumed) for path in base.glob(f"fi_*/{pattern}")]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def sweep_all(room, d):
    """Until all is answered, nothing is left to do or the time is over; returns (answered, seconds)."""
    begun, total, told, spoken = time.monotonic(), len(shapes(room)) * len(buckets(room)), None, 0.0
    code, queued, err = d.tunectl("sweep", "--recipe", RECIPE, "--layout", "tp=1", "--as", "fi")
    expect(queued, f"sweep was not taken ({code})", err)
    while True:
        told, status = d.tunectl("table", RECIPE, "--layout", "tp=1", "--as", "fi")[1], d.status()
        covered = told["covered"] if told else 0
        busy = status["queued"] or any(row["phase"] != "queued" for row in status["sweeps"])
        is_end = covered >= total or not busy or not room.left()
        if is_end or time.monotonic() - spoken > 15:
            spoken = time.monotonic()
            now = next((f"{row['phase']} {row['key']}" for row in status["sweeps"] if row["phase"] != "queued"), "")
            print(f"  {time.monotonic() - begun:.0f} s: {covered} of {total} {now}", flush=True)
            room.export(d)
            room.note(answered=[covered, total])
        if is_end:
            return covered, time.monotonic() - begun
        time.sleep(0.5)


def describe(room, d):
    """A line a problem: candidates, what came of them, winner, gain, kernels; from the journals and the answers."""
    rows = []
    journals = {lines[0]["key"]: lines for lines in d.journals().values() if lines and lines[0].get("key")}
    for (n, k), m in itertools.product(shapes(room), buckets(room)):
        key = serverlike.key_of(m, n, k)
        answer, lines = d.lookup(key, "fi") or {}, journals.get(key, [])
        said = {say: [line for line in lines if line.get("say") == say]
                for say in ("opened", "looked", "failed", "checked", "refused", "journal_end")}
        kernels = {line["candidate"]: line.get("kernel") for line in said["looked"]}
        opened = said["opened"][0]["candidates"] if said["opened"] else []
        won = next((i for i, c in enumerate(opened) if c["tactic"] == answer.get("tactic")), 0)
        row = {"problem": key, "kind": answer.get("kind"), "state": answer.get("state"), "tactic": answer.get("tactic"),
               "gain": answer.get("gain"), "device_us": answer.get("device_us"), "native_us": answer.get("native_device_us"),
               "listed": len(opened), "looked": len(kernels), "failed": len(said["failed"]),
               "wrong": [(line["candidate"], line.get("reason")) for line in said["checked"] if not line.get("ok")],
               "rounds": answer.get("rounds"), "native_kernel": kernels.get(0), "kernel": kernels.get(won),
               "failures": sorted({line["detail"] for line in said["failed"]})[:5],
               "refused": said["refused"][0]["detail"] if said["refused"] else None,
               "ended": said["journal_end"][-1].get("detail") or "" if said["journal_end"] else None}
        rows.append(row)
        print(f"  {serverlike.name_of(m, n, k)}: {row['kind']} {row['tactic']} native {row['native_us']} us, best "
              f"{row['device_us']} us; listed {row['listed']}, failed {row['failed']}, wrong {len(row['wrong'])}\n"
              f"    {row['native_kernel']} -> {row['kernel']}", flush=True)
    room.note(problems=rows)
    return rows


def left_for_time(rows, is_over):
    """How many problems were. Raises Failure for those that are neither answered nor refused for another reason."""
    missing = [row for row in rows if row["kind"] not in ("hit", "default") and row["refused"] is None]
    failed = [f"{row['problem']}: {row['ended'] or 'no reason is known'}" for row in missing
              if row["ended"] is not None or not is_over]
    expect(not failed, f"{len(failed)} of {len(rows)} are not answered", *failed)
    return len(missing)


def probe(site):
    """What cuDNN lists here. A step that gets no further than this has shown nothing: it takes a part of the time."""
    status, told = site.run(LIKE, "probe", seconds=site.room.left() / PROBE_PART)
    site.room.note(probe=told, probe_ended=status is not None)
    expect(status in (0, None), "the probe failed")


def step_fi_gemm(room, wheels, release=RELEASE):
    """cuDNN's bf16 products through FlashInfer, swept by the daemon; first whether there are e4m3 plans. Leaves
    flashinfer.json, which servers of that environment take."""
    site = Site(room, wheels, release)
    if not room.is_dry:
        probe(site)
        code, meta = site.run(LIKE, "metadata", seconds=120)
        expect(code == 0, f"what FlashInfer says of its environment ended with {code}")
        (room.out / "metadata.json").write_text(meta.splitlines()[-1] + "\n")
    section = site.section()
    with room.daemon({"fi": section}) as d:
        write_recipe(d, room)
        d.tunectl("reload")
        room.wait_ready(d, {"fi": section})
        covered, seconds = sweep_all(room, d)
        rows = describe(room, d)
        room.export(d)
        room.note(seconds=round(seconds, 1), seconds_a_problem=round(seconds / max(covered, 1), 2), release=release)
        print(f"  {covered} answers in {seconds:.0f} s, {seconds / max(covered, 1):.1f} s each", flush=True)
        expect(covered, "nothing was answered", d.status()["sweeps"][:4])
        left = left_for_time(rows, not room.left())
        room.note(left_for_time=left)
        if left:
            print(f"  {left} of {len(rows)} were left for time", flush=True)
        expect(all(row["listed"] > 1 or row["kind"] is None for row in rows), "a problem without candidates", rows)
        tables = sorted((d.dir / "state/tables").glob(f"{RECIPE},*.json"))
        expect(len(tables) == 1, "not one table", tables)
        if not room.is_dry:
            code, _, err = d.tunectl("export", str(tables[0]), "--metadata", str(room.out / "metadata.json"), "--out",
                                     str(room.out / "flashinfer.json"))
            expect((room.out / "flashinfer.json").exists(), f"no file for servers ({code})", err)


def step_fi_serve(room, wheels, release=RELEASE):
    """Processes like servers at their start, by turns: one tunes itself, one takes fi_gemm's file."""
    if room.is_dry:
        raise Skip("a dry run starts no server")
    site, given = Site(room, wheels, release), earlier(room, "flashinfer.json")
    expect(given, "there is no file of fi_gemm")
    longest = 0.0
    for i in range(PROCESSES):
        for how, words in (("tuned", ["--save", room.out / f"cache-{i}.json"]), ("prepared", ["--load", given])):
            begun = time.monotonic()
            if room.left() < 1.3 * longest + 10:
                print(f"  no time is left for process {i}", flush=True)
                break
            code, _ = site.run(LIKE, "serve", "--out", room.out / f"{how}-{i}.json", *words)
            if code is None:
                break
            expect(code == 0, f"a process ended with {code}")
            longest = max(longest, time.monotonic() - begun)
    gather(room)


def step_fi_oracle(room, wheels, release=RELEASE):
    """All candidates of each problem, many rounds; goes on where an earlier run ended."""
    if room.is_dry:
        raise Skip("a dry run has no oracle")
    site, out, before = Site(room, wheels, release), room.out / "oracle.json", earlier(room, "oracle.json")
    if before and before != out:
        shutil.copy(before, out)
    code, _ = site.run(LIKE, "oracle", "--out", out, "--seconds", f"{room.left():.0f}", seconds=room.left() + 10)
    gather(room)  # what there is, however it ended: each problem is whole
    expect(code in (0, None), f"the oracle ended with {code}")


def gather(room):
    """What the steps have so far, as one report."""
    found = [path for base in (room.resumed, room.out.parent) for path in
             [*base.glob("fi_serve*/tuned-*.json"), *base.glob("fi_serve*/prepared-*.json"), *base.glob("fi_oracle*/oracle.json")]]
    folder = room.out / "report"
    folder.mkdir(exist_ok=True)
    for path in found:
        shutil.copy(path, folder / path.name)
    if not found:
        raise Failure("there is nothing to report")
    serverlike.report(folder)
