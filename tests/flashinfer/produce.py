#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets the real FlashInfer of this virtual environment make the fixtures of its version.

usage: produce.py DIRECTORY    writes buckets.json, keys.json, v1.json, v2/, loads.json there
"""
import copy
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
scratch = tempfile.TemporaryDirectory(prefix="flashinfer-")
os.environ.update(FLASHINFER_WORKSPACE_BASE=scratch.name, FLASHINFER_LOGGING_LEVEL="error")

import lookalike  # noqa: E402
import stubs  # noqa: E402

TUNE_MAX = [8192, 12288, 16384]
MOST_TOKENS = 20000
TOKENS = [1, 100, 300]
SMALL = {"hidden": 1024, "intermediate": 512, "top_k": 4, "experts": 32, "local": 8}
# (operation, what differs from its defaults); each is asked with each of TOKENS.
ASKED = [
    *[("trtllm_fp4_moe", {"act": a, "routing": r}) for a in ("mxfp8", "bf16", "nvfp4")
      for r in ("packed", "unpacked", "logits")],
    ("trtllm_fp4_moe", {"finalize": False}),
    ("trtllm_fp4_moe", {"finalize": False, "routing": "logits"}),
    ("trtllm_fp4_moe", {"tune_max": 256}),
    ("trtllm_fp4_moe", {"activation": 4}),
    ("trtllm_fp4_moe", {"experts": 448}),
    ("trtllm_fp4_moe", {"intermediate": 1536}),
    ("trtllm_fp4_moe", SMALL),
    ("trtllm_fp4_moe", {**SMALL, "local": 32}),
    ("trtllm_fp8_block_moe", {}),
    ("trtllm_fp8_tensor_moe", {}),
    ("trtllm_bf16_moe", {}),
    *[("cutlass_moe", {"act": a}) for a in ("bf16", "fp16", "fp8")],
    *[("fp4_gemm", {"backend": b}) for b in ("cutlass", "cudnn", "trtllm")],
    *[("bf16_gemm", {"backend": b}) for b in ("cutlass", "cudnn", "tgv", "cublaslt")],
    *[("mxfp8_gemm", {"backend": b}) for b in ("cutlass", "cudnn", "trtllm")],
    *[("fp8_gemm", {"backend": b}) for b in ("cutlass", "cudnn", "cublas")],
]
# Operations whose choices become look-alike entries of the caches.
KEPT = [
    ("trtllm_fp4_moe", 100, SMALL), ("trtllm_fp4_moe", 300, SMALL), ("cutlass_moe", 100, {"act": "fp8"}),
    ("fp4_gemm", 100, {"backend": "cudnn"}), ("bf16_gemm", 100, {"backend": "tgv"}),
]
TACTICS = [[16, 7], [32, 9], 4, 5, [7, [[2, 1]]], 12]
NAMESPACE = "look_alike"


def write(path, value):
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def runs(function):
    """[[first number of tokens, bucket], ...]: a row where the bucket changes, from 0 on."""
    rows = []
    for n in range(MOST_TOKENS + 1):
        bucket = function(n)
        if not rows or rows[-1][1] != bucket:
            rows.append([n, bucket])
    return rows


def bucket_fixture():
    from flashinfer.fused_moe import utils

    ladders = {str(m): {"buckets": list(utils.get_hybrid_num_tokens_buckets(m)),
                        "runs": runs(lambda n, m=m: utils.map_to_hybrid_bucket(n, m))} for m in TUNE_MAX}
    return {"last_tokens": MOST_TOKENS, "hybrid": ladders,
            "uncapped": {"runs": runs(utils.map_to_hybrid_bucket_uncapped)}}


def key_fixture():
    import families

    rows = []
    for op, dims in ASKED:
        for n in TOKENS:
            for choice in families.ask(op, n, **dims):
                rows.append({"op": op, "dims": dims, "tokens": n, "custom_op": choice.op, "runner": choice.runner,
                             "keys": [k.file_key for k in choice.keys]})
    return rows


def kept():
    """(key, tactic, tuning configuration) of the look-alike entries."""
    import families

    choices = [c for op, n, dims in KEPT for c in families.ask(op, n, **dims)]
    return [(c.keys[0], copy.deepcopy(t), c.config) for c, t in zip(choices, TACTICS, strict=True)]


def hashable(tactic):
    return tuple(hashable(v) for v in tactic) if isinstance(tactic, list) else tactic


def fill(tuner, entries):
    """Puts entries where tuning puts them."""
    for number, (key, tactic, config) in enumerate(entries):
        tuner.profiling_cache[key] = (hashable(tactic), None)
        if hasattr(tuner, "_profiling_cache_policies") and number != 1:  # one entry without provenance
            tuner._profiling_cache_policies[(None, key)] = tuner._profiling_policy(config)
            if number != 2:
                times = [0.5 + number, 0.25 + number, float("inf")]
                tuner._profiling_cache_selections[(None, key)] = tuner._selection_record(times, 1)


def v1_fixture(path, entries):
    from flashinfer.autotuner import AutoTuner

    tuner = AutoTuner()
    fill(tuner, entries)
    if hasattr(tuner, "publish_namespaced_records"):
        tuner.publish_namespaced_records(NAMESPACE, {"a": {"tile": [64, 128], "ok": True}})
    tuner.save_configs(str(path))
    path.write_text(path.read_text() + "\n")


def v2_fixture(root, entries):
    from flashinfer.autotune_cache import ManagedAutotuneCache
    from flashinfer.autotuner import AutoTuner, _collect_metadata

    meta = _collect_metadata()
    assert all(meta[name] == stubs.LOOK_ALIKE[name] for name in stubs.FIELDS)
    store = ManagedAutotuneCache(meta, root)
    for number, (key, tactic, config) in enumerate(entries):
        policy = None if number == 1 else AutoTuner._profiling_policy(config)
        store.publish(key.file_key, key.runner_class_name, tactic, key.key_fields, policy)


def variants(meta):
    """{name: metadata to try, or None for a file without any}"""
    found = {"same": meta, "absent": None, "empty": {}, "not_an_object": "text", "all_any": dict.fromkeys(meta, "*"),
             "all_unknown": dict.fromkeys(meta, "unknown"), "one_more_field": {**meta, "another_version": "1"}}
    values = {"other": "0", "any": "*", "unknown": "unknown", "None": "None", "null": None}
    for field in meta:
        found.update((f"{field}_{name}", {**meta, field: value}) for name, value in values.items())
        found[f"{field}_missing"] = {k: v for k, v in meta.items() if k != field}
    found["unknown_and_other"] = {**meta, "cudnn_version": "unknown", "cublas_version": "0"}
    return found


def load(tuner, path):
    try:
        return tuner.load_configs(str(path))
    except Exception as e:  # which one is the result
        return type(e).__name__


def outcome(path, text, old, new):
    """What load_configs answers for a file with `text`, and what save_configs then makes of the file."""
    from flashinfer.autotuner import AutoTuner, _collect_metadata

    path.write_text(text)
    tuner = AutoTuner()
    loaded = load(tuner, path)
    entries = len(tuner._file_configs)
    tuner = AutoTuner()  # one that did not load it: what is kept comes from the file
    fill(tuner, [new])
    tuner.save_configs(str(path))
    after = path.read_text()
    if after == text:
        return {"load": loaded, "entries": entries, "save": "keeps"}
    held = json.loads(after)
    assert new[0].file_key in held
    saved = "merges" if old in held else "replaces"
    row = {"load": loaded, "entries": entries, "save": saved}
    if held["_metadata"] != _collect_metadata():
        row["metadata_after"] = held["_metadata"]
    return row


def odd_entries(path, meta, key, tactic):
    """Rows for entries of other forms than [runner, tactic]."""
    from flashinfer.autotuner import AutoTuner

    odd = {"more_members": [key.runner_class_name, tactic, ["a", 1], {"b": 2}, "c"],
           "runner_alone": [key.runner_class_name], "not_a_list": 5,
           "cudnn_plan_number": ["CudnnLookAlike", 3], "cudnn_plan_name": ["CudnnLookAlike", "x"]}
    for name, value in odd.items():
        path.write_text(json.dumps({"_metadata": meta, key.file_key: value}))
        tuner = AutoTuner()
        yield {"name": f"entry_{name}", "value": value, "load": load(tuner, path), "entries": len(tuner._file_configs)}


def load_fixture(entries):
    from flashinfer.autotuner import _collect_metadata

    (key, tactic, _), new = entries[0], entries[1]
    body = {key.file_key: [key.runner_class_name, tactic]}

    def row(path, name, tried):
        file = body if tried is None else {"_metadata": tried, **body}
        return {"name": name, "metadata": tried, **outcome(path, json.dumps(file), key.file_key, new)}

    meta = _collect_metadata()
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work, "cache.json")
        rows = [row(path, name, tried) for name, tried in variants(meta).items()]
        rows += odd_entries(path, meta, key, tactic)
        # The same where the process does not know its own cuDNN.
        stubs.versions({**stubs.LOOK_ALIKE, "cudnn_version": "unknown"})
        ignorant = _collect_metadata()
        values = {"unknown": "unknown", "known": meta["cudnn_version"], "any": "*", "null": None}
        unsure = [row(path, name, {**meta, "cudnn_version": value}) for name, value in values.items()]
        stubs.versions(stubs.LOOK_ALIKE)
    return {"current": meta, "variants": rows, "cudnn_unknown": {"current": ignorant, "variants": unsure}}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    import flashinfer

    stubs.install(stubs.LOOK_ALIKE)
    write(out / "buckets.json", bucket_fixture())
    write(out / "keys.json", key_fixture())
    entries = kept()
    v1_fixture(out / "v1.json", entries)
    write(out / "loads.json", load_fixture(entries))
    if not flashinfer.__version__.startswith("0.6."):
        v2_fixture(out, entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
