# SPDX-License-Identifier: Apache-2.0
"""Caches on which real.py is tried: such as must be taken, such as must be refused, and such that it must find
fault with, or it would find fault with nothing."""
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess

import lookalike

REAL = pathlib.Path(__file__).with_name("real.py")
OTHER_VERSION = "0.7.0"  # neither of those tried
ELSEWHERE = {"routing": "logits", "act": "nvfp4", "finalize": False, "tune_max": 12288}
PATIENCE_S = 300  # for one program; an import takes 5 to 10 s
AT_ONCE = max(2, (os.cpu_count() or 2) // 4)


@dataclasses.dataclass
class Case:
    name: str
    args: list  # of real.py
    status: int  # that it must have


@dataclasses.dataclass
class Result:
    version: str
    case: Case
    status: int
    rows: list  # what real.py printed
    errors: str

    @property
    def ok(self):
        # A program that broke is not one that found fault.
        return self.status == self.case.status and any("verdict" in r for r in self.rows)

    def line(self):
        text = f"{'ok' if self.ok else 'FAIL'} {self.version} {self.case.name}: exit status {self.status}"
        return text if self.ok else f"{text}: {self.rows[-1:]} {self.errors[-800:]}"


def run(python, *args, **environment):
    """A program of FlashInfer's, without what the caller's environment says to it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FLASHINFER_", "PYTHON"))}
    return subprocess.run([python, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                          env={**clean, **{k: str(v) for k, v in environment.items()}})


def v1(version, meta, work):
    table = lookalike.entries(version, lookalike.PROBLEM)
    less = {k: v for k, v in meta.items() if k != "cublas_version"}
    another = ",".join(f"{k}={v}" for k, v in ELSEWHERE.items())
    theirs = lookalike.entries(version, {**lookalike.PROBLEM, **ELSEWHERE})
    stranger = {lookalike.moe_key(version, 3000, lookalike.PROBLEM): [8, 1]}  # 3000 is no bucket

    def case(name, meta, expect, status=0, table=table, *more):
        path = work / f"{name}.json".replace(" ", "_")
        lookalike.write_v1(path, meta, table)
        return Case(name, ["--cache", path, "--expect", expect, *more], status)

    return [
        case("same", meta, "True"),
        case("other version", {**meta, "flashinfer_version": OTHER_VERSION}, "False"),
        case("other gpu", {**meta, "gpu": "another"}, "False"),
        case("field missing", less, "False"),
        case("all any", dict.fromkeys(meta, "*"), "True"),
        case("unknown", {**meta, "cuda_version": "unknown"}, "False"),
        case("another problem", meta, "True", 0, theirs, "--problem", another),
        # From here on real.py must find fault.
        case("taken, though refusal was expected", meta, "False", 1),
        case("refused, though taking was expected", less, "True", 1),
        case("an entry that nothing asks for", meta, "True", 1, {**table, **stranger}),
        case("entries of another problem", meta, "True", 1, theirs),
    ]


def v2(version, meta, work):
    table = lookalike.entries(version, lookalike.PROBLEM)
    other = {**meta, "flashinfer_version": OTHER_VERSION}

    def case(name, metas, expect, status=0):
        root = work / f"store {name}".replace(" ", "_")
        folders = [lookalike.write_v2(root, m, table) for m in metas]
        return Case(f"store {name}", ["--store", root, "--expect", expect], status), folders[0]

    moved, folder = case("with an entry under another's name", [meta], "True", 1)
    first, second = sorted((folder / "entries").iterdir())[:2]
    first.write_text(second.read_text())
    return [
        case("same", [meta], "True")[0],
        case("beside another", [other, meta], "True")[0],
        case("other version", [other], "False")[0],
        case("found, though absence was expected", [meta], "False", 1)[0],
        moved,
    ]


def given(folder):
    """Caches made elsewhere: FOLDER/NAME/ with `expect` (True or False), `cache.json` or `store/`, perhaps
    `problem`."""
    found = []
    for path in sorted(p for p in folder.glob("*/") if (p / "expect").exists()):
        args = ["--cache", path / "cache.json"] if (path / "cache.json").exists() else ["--store", path / "store"]
        args += ["--expect", (path / "expect").read_text().strip()]
        if (path / "problem").exists():
            args += ["--problem", (path / "problem").read_text().strip()]
        found.append(Case(f"given {path.name}", args, 0))
    return found


def judge_all(version, meta, work, program, more=()):
    """Results of all cases; program(arguments) runs a python program of that version's FlashInfer."""
    found = v1(version, meta, work)
    if not version.startswith("0.6."):
        found += v2(version, meta, work)

    def judge(case):
        done = program([REAL, *case.args])
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Result(version, case, done.returncode, rows, done.stderr)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(judge, [*found, *more])
