# SPDX-License-Identifier: Apache-2.0
"""Writes autotune caches of FlashInfer without FlashInfer: a table of our own making, as v1 file and v2 store.

Tactics are made up. Keys are put together here by the rules that the exporter follows, so a file that the real
package serves whole shows that the rules hold.
"""
import hashlib
import json
import pathlib

MOE = "flashinfer::trtllm_fp4_block_scale_moe"
# FlashInfer's numbers of its tensor types (0.7 puts them into keys).
MX_E4M3, MX_E2M1, E2M1, BFLOAT16 = 17827853, 17826828, 17826818, 1052672
# What makes an MoE problem, with the values of one layer of a large model.
PROBLEM = {
    "hidden": 3584, "intermediate": 3072, "top_k": 16, "experts": 896, "local": 112, "act": "mxfp8",
    "routing": "packed", "finalize": True, "activation": 3, "tune_max": 8192,
}


def buckets(tune_max):
    """The hybrid ladder."""
    steps = [1 << i for i in range(9)] + list(range(512, 2049, 256)) + list(range(2560, 4097, 512))
    while steps[-1] < tune_max:
        steps.append(steps[-1] * 2)
    return [b for b in steps if b < tune_max] + [tune_max]


def bucket_of(tokens, tune_max):
    """Rounded up, and the last one beyond it."""
    return next((b for b in buckets(tune_max) if b >= tokens), tune_max)


def moe_key(version, bucket, problem):
    """(op, runner, shapes, extras) of the trtllm-gen fp4 MoE."""
    p, none = problem, (0,)
    width, block = (p["hidden"] // 2, 16) if p["act"] == "nvfp4" else (p["hidden"], 32)
    shapes = (
        (bucket, p["hidden"] if p["finalize"] else 0),
        (bucket, p["experts"]) if p["routing"] == "logits" else none,
        (bucket, p["top_k"]),
        (bucket, p["top_k"]),
        (bucket, width),
        none if p["act"] == "bf16" else (bucket, p["hidden"] // block),
        none,
        none,
    )
    if version.startswith("0.6."):
        return MOE, "MoERunner", shapes, ()
    act = {"mxfp8": MX_E4M3, "nvfp4": E2M1, "bf16": BFLOAT16}[p["act"]]
    weights = E2M1 if p["act"] == "nvfp4" else MX_E2M1
    extras = ("Module", p["top_k"], p["local"], p["experts"], 0, act, weights, 0, p["hidden"], p["hidden"],
              p["intermediate"], p["activation"], True, 0, False, False)
    return MOE, "MoERunner", shapes, extras


def entries(version, problem):
    """{key: tactic} of the look-alike table: one made-up tactic a bucket."""
    return {moe_key(version, b, problem): [8 << i % 5, 11 + 3 * i]
            for i, b in enumerate(buckets(problem["tune_max"]))}


def metadata(version, environment):
    found = {"flashinfer_version": version, **environment}
    if version.startswith("0.6."):
        del found["cutlass_dsl_version"]
    return found


def write_v1(path, meta, table):
    """A v1 file; `meta` None leaves the metadata out."""
    text = {} if meta is None else {"_metadata": meta}
    text.update((str(key), [key[1], tactic]) for key, tactic in sorted(table.items(), key=str))
    pathlib.Path(path).write_text(json.dumps(text, indent=2))


def encode(value):
    return {"__tuple__": [encode(v) for v in value]} if isinstance(value, tuple) else value


def folder_name(manifest):
    """Of an environment's directory in a v2 store."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def entry_name(key):
    """Of an entry's file there."""
    return hashlib.sha256(str(key).encode()).hexdigest()[:24] + ".json"


def write_v2(root, meta, table):
    """A v2 store; answers its environment's directory."""
    manifest = {**meta, "cache_schema": "v2"}
    folder = pathlib.Path(root, "v2", folder_name(manifest))
    (folder / "entries").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True))
    for key, tactic in table.items():
        entry = {"key": str(key), "runner": key[1], "tactic": tactic, "key_fields": encode(key)}
        (folder / "entries" / entry_name(key)).write_text(json.dumps(entry, indent=2, sort_keys=True))
    return folder
