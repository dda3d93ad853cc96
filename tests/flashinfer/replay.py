#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs of the real FlashInfer left in tests/fixtures/flashinfer, against our own code: buckets, keys, files.

usage: replay.py --build DIR
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIXTURES = ROOT / "tests/fixtures/flashinfer"
VERSIONS = ("0.6.16", "0.7.4")
LAST_TOKENS = 20000
# Of the fixtures' keys: those that leave nothing out, and those that Kimi-K3's recipe completes.
WHOLE = {"0.6.16": 18, "0.7.4": 75}
BY_RECIPE = {"0.6.16": 21, "0.7.4": 0}
PROBLEM = ("trtllm_fp4_moe,backend=flashinfer,act=mxfp8,weights=mxfp4,out=bf16,tokens={},top_k=16,experts=896,local_experts=112,"
           "shared_experts=0,hidden=3584,hidden_out=3584,intermediate=3072,activation=situ,finalize=fused,routing=precomputed,"
           "routing_method=none,weight_layout=major_k,shuffled=yes,packed=no,token_scale=none,lora=none")
failures = 0


def check(ok, what, *facts):
    global failures
    failures += not ok
    print(f"{'ok' if ok else 'FAIL'} {what}", *(() if ok else facts), flush=True)


def tunectl(build, *args):
    return subprocess.run([build / "client/tunectl", *map(str, args)], capture_output=True, text=True, check=False, timeout=60,
                          env={"TACTICD_RECIPES": str(ROOT / "tables/recipes")})


# --- buckets ---

def table_of(tune_max, buckets):
    """A table that names each bucket by its tactic."""
    header = {"format": 1, "method": "m", "model": "m", "fingerprint": {"device": "d", "flashinfer": "v"},
              "ladder": {"kind": "hybrid", "max": tune_max, "above": "clamp"}}
    rows = [json.dumps({"key": PROBLEM.format(b), "tactic": [b, 0], "state": "imported"}, separators=(",", ":"))
            for b in buckets]
    return '{"header":' + json.dumps(header, separators=(",", ":")) + ',"entries":[\n' + ",\n".join(rows) + "\n]}\n"


def theirs(runs, tokens):
    return [bucket for first, bucket in runs if first <= tokens][-1]


def replay_buckets():
    sys.path.insert(0, str(ROOT / "client/python"))
    import tacticd

    for version in VERSIONS:
        for tune_max, ladder in json.loads((FIXTURES / version / "buckets.json").read_text())["hybrid"].items():
            table = tacticd.Table.read(table_of(int(tune_max), ladder["buckets"]).encode())
            problem = table.problem(PROBLEM.format("*"))
            bucket = {n: json.loads(problem.at(n).tactic)[0] for n in range(1, LAST_TOKENS + 1)}
            wrong = [n for n, b in bucket.items() if b != theirs(ladder["runs"], n)]
            check(not wrong and len(table) == len(ladder["buckets"]),
                  f"{version} tune_max {tune_max}: 1..{LAST_TOKENS} in {len(ladder['buckets'])} buckets", wrong[:5])


# --- keys ---

def without_keys(path):
    """The table as if it had been swept here."""
    lines = path.read_text().splitlines()
    header = json.loads(lines[0][len('{"header":'):-len(',"entries":[')])
    rows = [json.loads(line.rstrip(",")) for line in lines[1:-1]]
    metadata = header.pop("flashinfer")["metadata"]
    for row in rows:
        del row["file_key"], row["file_value"]
    path.write_text('{"header":' + json.dumps(header, separators=(",", ":")) + ',"entries":[\n' +
                    ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]}\n")
    return metadata


def tactic_for(row):
    """A tactic of the form that the operation has; what it says does not matter here."""
    if row["runner"].startswith("Cudnn"):
        return [7, [[2, 1]]]
    if "_moe" in row["op"] and "trtllm" in row["custom_op"] and "fused_moe" not in row["custom_op"]:
        return [8, 43]
    return -1 if row["runner"].startswith("CuteDSL") else 3


def key_comes_back(build, work, version, key, runner, tactic):
    """How a key fares: whole (written back the same), carried, left out (asked for), or what is wrong."""
    source, table = work / "k.json", work / "t.json"
    meta = {"flashinfer_version": version, "cuda_version": "13.0", "cublas_version": "13.1.0", "cudnn_version": "91900",
            "cudnn_frontend_version": "1.26.0", "cutlass_dsl_version": "4", "gpu": "Look Alike 3000"}
    source.write_text(json.dumps({"_metadata": meta, key: [runner, tactic]}))
    done = tunectl(build, "import", "--out", table, source)
    how = "whole"
    if done.returncode == 2 and "not guessed" in done.stderr:
        how = "by recipe"
        done = tunectl(build, "import", "--recipe", "kimi-k3", "--layout", "ep=8,tp=1", "--out", table, source)
        if done.returncode:
            return "left out"
    if done.returncode:
        return f"refused: {done.stderr}"
    if "0 entries" in done.stdout:
        return "carried"
    metadata = without_keys(table)
    out = json.loads(tunectl(build, "export", table, "--metadata", metadata).stdout or "{}")
    return how if key in out else f"became {[k for k in out if k[0] == '(']}"


def replay_keys(build, work):
    for version in VERSIONS:
        fate = collections.defaultdict(list)
        for row in json.loads((FIXTURES / version / "keys.json").read_text()):
            for key in row["keys"]:
                runner = key.split("', '")[1].split("'")[0]
                fate[key_comes_back(build, work, version, key, runner, tactic_for({**row, "runner": runner}))].append(key)
        known = {"whole", "by recipe", "carried", "left out"}
        wrong = {how: keys[:2] for how, keys in fate.items() if how not in known}
        check(not wrong and len(fate["whole"]) == WHOLE[version] and len(fate["by recipe"]) == BY_RECIPE[version],
              f"{version} keys: " + ", ".join(f"{len(fate[how])} {how}" for how in sorted(known)), wrong)


# --- files ---

def recipe_of(build, work):
    """A recipe whose problems are those of the 0.7 file, whose keys say everything: what 0.6 leaves out."""
    tables = work / "whole"
    tables.mkdir()
    tunectl(build, "import", "--out", tables, FIXTURES / "0.7.4/v1.json")
    keys = set()
    for path in tables.iterdir():
        rows = [json.loads(line.rstrip(",")) for line in path.read_text().splitlines()[1:-1]]
        keys |= {re.sub(r"(,tokens|,m)=[0-9]+", r"\1=*", row["key"]) for row in rows}
    path = work / "small.json"
    path.write_text(json.dumps({
        "format": 1, "model": "small", "ladder": {"kind": "hybrid", "max": 8192, "above": "clamp"},
        "layouts": [{"layout": "tp=1", "problems": [{"name": f"p{i}", "key": k} for i, k in enumerate(sorted(keys))]}]}))
    return path


def replay_files(build, work):
    recipe = recipe_of(build, work)
    for version in VERSIONS:
        source, table = FIXTURES / version / "v1.json", work / "v1"
        table.mkdir(exist_ok=True)
        for old in table.iterdir():
            old.unlink()
        done = tunectl(build, "import", "--recipe", recipe, "--layout", "tp=1", "--out", table, source)
        made = sorted(table.iterdir())
        texts = {tunectl(build, "export", path).stdout for path in made}
        check(done.returncode == 0 and texts == {source.read_text()}, f"{version} v1.json: in and out, {len(made)} tables",
              done.stderr)
    for store in sorted((FIXTURES / "0.7.4/v2").iterdir()):
        tables, root = work / "v2", work / "root"
        tables.mkdir()
        done = tunectl(build, "import", "--out", tables, store)
        for path in sorted(tables.iterdir()):
            tunectl(build, "export", "--v2", root, path)
        made = {p.relative_to(root / "v2"): p.read_bytes() for p in root.rglob("*.json")}
        want = {p.relative_to(store.parent): p.read_bytes() for p in store.rglob("*.json")}
        check(done.returncode == 0 and made == want, f"0.7.4 store {store.name}: in and out, {len(want)} files", done.stderr,
              [str(p) for p in want if made.get(p) != want[p]])


def main():
    parser = argparse.ArgumentParser(description="fixtures of the real FlashInfer")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.resolve()
    os.environ["TACTICD_LIBRARY"] = str(build / "client/libtactic.so.1")
    with tempfile.TemporaryDirectory() as work:
        replay_buckets()
        replay_keys(build, pathlib.Path(work))
        replay_files(build, pathlib.Path(work))
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
