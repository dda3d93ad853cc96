# SPDX-License-Identifier: Apache-2.0
"""What the steps of gpu.sh work with: bundle, machine, worker sections, daemons, results."""
import collections
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests/spec"), str(ROOT / "client/python")]

import machine  # noqa: E402
from harness import Daemon, Failure, Skip, expect  # noqa: E402

SPARE_S = 25  # of a step's seconds, for its end
LOOKUP_MS = 50  # no lookup may take longer, whatever a worker does
# Facts of a dry run's workers.
DRY = {"device": "NVIDIA H200", "sm_count": "132", "mig_profile": "none", "driver": "0"}
MATMUL = ("matmul,backend=cublaslt,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m={m},n={n},k={k},epilogue=none,"
          "scale=none,workspace_bytes=33554432")
MOE = ("moe_grouped_matmul,backend=cudnn,a=bf16,b=bf16,out=bf16,acc=f32,mode=none,tokens={tokens},top_k={top_k},"
       "experts={experts},local_experts={local},n={n},k={k},workspace_bytes=134217728")
SMALL = {"cublaslt": MATMUL.format(m=16, n=1024, k=1024),
         "cudnn": MOE.format(tokens=64, top_k=2, experts=8, local=8, n=512, k=512)}
OPS = {"cublaslt": "matmul", "cudnn": "matmul,moe_grouped_matmul,convolution",
       "flashinfer": "cudnn_gemm"}  # what the workers claim


class Room:
    """What a step works with: the bundle, the machine, and where its results go."""

    def __init__(self, args):
        self.bundle = pathlib.Path(args.bundle).resolve()
        self.is_dry = args.dry
        self.end = time.monotonic() + args.seconds - SPARE_S
        self.out = pathlib.Path(args.out).resolve() / "-".join([args.step, *args.arguments]).replace("/", "_")
        self.resumed = pathlib.Path(args.out).resolve() / "resumed"
        self.out.mkdir(parents=True, exist_ok=True)
        self.facts = machine.facts(self.is_dry, self.bundle)
        self.torch = {} if self.is_dry else machine.torch_libraries()
        self.facts |= {name: value for name, value in self.torch.items() if name != "folders"}
        self.result = {"step": args.step, "arguments": args.arguments, **self.facts, "ended": "no"}
        os.environ["TACTICD_LIBRARY"] = str(next((self.bundle / "client").glob("libtactic.so.1")))
        self.note()

    def note(self, **found):
        self.result |= found
        part = self.out / ".result.json"
        part.write_text(json.dumps(self.result, indent=1) + "\n")
        part.rename(self.out / "result.json")

    def left(self):
        return max(0.0, self.end - time.monotonic())

    # --- worker sections ---

    def program(self, name):
        path = self.bundle / "daemon/workers" / name
        if not path.exists():
            raise Skip(f"the bundle has no {name}: it was built without CUDA's headers")
        return path

    def section(self, backend, library=None, folders=(), words=(), name=None):
        """`words` are for the scripted worker of a dry run, over what it is by itself."""
        if self.is_dry:
            scenario = self.out / f"{name or backend}.scenario"  # a line of a configuration is short
            facts = {**DRY, backend: "1.2.3"}
            scenario.write_text("\n".join([
                f"backend={backend}", f"op={OPS[backend]}", "times=100,80,120,101,150,95", "jitter=0.002",
                *(f"fact.{fact}={value}" for fact, value in facts.items()), *words]) + "\n")
            return {"command": f"{self.bundle}/tests/fake_worker @{scenario}", "backend": backend, "device": "cpu"}
        options = {"command": self.program(f"tactic-{backend}"), "backend": backend, "device": self.facts["card"]["uuid"]}
        if library:
            options["library"] = library
        if folders:
            options["env"] = "LD_LIBRARY_PATH=" + ":".join(folders)
        return options

    def sections(self, words=None):
        """{name: section}: what servers on PyTorch load. `words` by section."""
        words = words or {}
        lt, dnn = self.torch.get("libcublasLt"), self.torch.get("libcudnn")
        folders = [self.short(folder, i) for i, folder in enumerate(self.torch.get("folders", ()))]
        return {"lt": self.section("cublaslt", lt, folders, words.get("lt", ())),
                "cudnn": self.section("cudnn", dnn, folders, words.get("cudnn", ()))}

    def short(self, folder, i):
        """The same folder by a short name: a line of a configuration holds 197 bytes."""
        link = self.out / f"l{i}"
        if not link.is_symlink():
            link.symlink_to(folder)
        return str(link)

    def all_sections(self, words=None):
        """And the system's cuDNN, which is another version."""
        name, own = "cudnn-system", (words or {}).get("cudnn-system", ())
        if self.is_dry:
            return {**self.sections(words), name: self.section("cudnn", words=("fact.cudnn=1.1.0", *own), name=name)}
        system = machine.system_library("libcudnn.so")
        more = {} if not system or system == self.torch.get("libcudnn") else {name: self.section("cudnn", system)}
        return {**self.sections(), **more}

    # --- daemon ---

    @contextlib.contextmanager
    def daemon(self, sections, **sweep):
        """A daemon with recipes and no packaged tables: what it answers it has learned."""
        d = Daemon(self.bundle, workers=sections, sweep=sweep, options={"control_group": group()})
        shutil.copytree(ROOT / "tables/recipes", d.dir / "packaged/recipes")
        try:
            with d:
                try:
                    yield d
                finally:
                    self.export(d)
        finally:
            d.kill()

    def export(self, d):
        """Copies what the daemon has learned and said so far."""
        for name in ("tables", "journal", "deny"):
            source = d.dir / "state" / name
            if source.is_dir():
                shutil.copytree(source, self.out / name, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns(".*", "*.tmp"))
        for path in [d.log_path, *(d.dir / "state").glob("*.log"), *(d.dir / "run").glob("*.log")]:
            if path.is_file():
                shutil.copy(path, self.out / path.name)
        with contextlib.suppress(Failure, subprocess.TimeoutExpired):
            (self.out / "status.json").write_text(json.dumps(d.status(), indent=1) + "\n")

    def wait_ready(self, d, sections, seconds=180):
        """Until each section has said hello; fails with the words of one that has not."""
        for name in sections:
            d.wait_ready(name, min(seconds, self.left() or 1))
        rows = {row["section"]: row for row in d.status()["workers"]}
        failed = {name: rows[name].get("detail") for name in sections if rows[name]["state"] == "failed"}
        expect(not failed, "workers do not start", *failed.items())
        self.note(workers={name: rows[name]["fingerprint"] for name in sections})


def group():
    import grp

    return grp.getgrgid(os.getgid()).gr_name


def backend_of(sections, name):
    return sections[name]["backend"]


def sweep_one(d, section, problem, seconds):
    """Sweeps a problem; returns its answer, which must be one."""
    code, _, err = d.tunectl("sweep", problem, "--as", section, "--wait", "--force", timeout=seconds)
    answer = d.lookup(problem, section)
    expect(answer and answer["kind"] in ("hit", "default"), f"{section}: no answer ({code})", problem, answer, err)
    return answer


class Asker:
    """A server that asks all the time, through libtactic: how often, how long the slowest took, what failed."""

    def __init__(self, d, section, *problems):
        import tacticd

        self.client = tacticd.Client(socket=str(d.dir / "run/lookup.sock"), as_=section, timeout_ms=1000)
        self.problems, self.kinds = problems, collections.Counter()
        self.slowest_ms, self.faults, self.done = 0.0, [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        import tacticd

        while not self.done.wait(0.002):
            for problem in self.problems:
                before = time.monotonic()
                try:
                    self.kinds[self.client.lookup(problem).kind.name.lower()] += 1
                except tacticd.TacticError as e:
                    self.faults.append(str(e))
                self.slowest_ms = max(self.slowest_ms, (time.monotonic() - before) * 1e3)

    def end(self):
        self.done.set()
        self.thread.join(10)
        return {"lookups": sum(self.kinds.values()), "kinds": dict(self.kinds), "failed": len(self.faults),
                "first_failure": self.faults[:1], "slowest_ms": round(self.slowest_ms, 2)}
