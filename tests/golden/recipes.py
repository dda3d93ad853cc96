#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The packaged recipes are what their models' published dimensions say, are good recipes, and are installed.

usage: recipes.py --build DIR

The shapes are worked out here once more, from the fields of each model's config.json.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ROOT / "tables/recipes"

DENSE = {
    "qwen2.5-0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
                     "head_dim": 64, "vocab_size": 151936},
    "tinyllama-1.1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
                       "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    "llama-3.1-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256},
    "llama-3.1-70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
                      "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256},
}
KIMI_K3 = {"hidden_size": 7168, "routed_expert_hidden_size": 3584, "moe_intermediate_size": 3072, "num_experts": 896,
           "num_experts_per_token": 16, "num_shared_experts": 2, "vocab_size": 163840}
LAYOUTS = {"qwen2.5-0.5b": ["tp=1"], "tinyllama-1.1b": ["tp=1"], "llama-3.1-8b": ["tp=1"],
           "llama-3.1-70b": ["tp=8", "tp=4"], "kimi-k3": ["ep=8,tp=1", "ep=1,tp=8"]}
HYBRID = [1, 2, 4, 8, 16, 32, 64, 128, *range(256, 2048, 256), 2048, 2560, 3072, 3584, 4096, 8192]


def dense(c, tp):
    """{name: (n, k)} on one of tp devices."""
    heads = (c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * c["head_dim"]
    return {"attention.qkv": (heads // tp, c["hidden_size"]),
            "attention.out": (c["hidden_size"], c["num_attention_heads"] * c["head_dim"] // tp),
            "mlp.gate_up": (2 * c["intermediate_size"] // tp, c["hidden_size"]),
            "mlp.down": (c["hidden_size"], c["intermediate_size"] // tp),
            "lm_head": (c["vocab_size"] // tp, c["hidden_size"])}


def kimi_k3(c, tp):
    latent, shared = c["routed_expert_hidden_size"], c["num_shared_experts"] * c["moe_intermediate_size"] // tp
    return {"moe.gate_up": (2 * c["moe_intermediate_size"] // tp, latent),
            "moe.down": (latent, c["moe_intermediate_size"] // tp),
            "latent.in": (latent, c["hidden_size"]), "latent.out": (c["hidden_size"], latent),
            "shared.gate_up": (2 * shared, c["hidden_size"]), "shared.down": (c["hidden_size"], shared),
            "lm_head": (c["vocab_size"] // tp, c["hidden_size"])}


def dims(key):
    op, *pairs = key.split(",")
    return op, dict(pair.split("=") for pair in pairs)


def expected_types(model, op, name):
    if op == "moe_grouped_matmul":
        return {"backend": "cudnn", "a": "bf16", "b": "bf16", "out": "bf16", "acc": "f32", "mode": "none"}
    if model in ("qwen2.5-0.5b", "tinyllama-1.1b"):
        return {"backend": "onednn", "a": "f32", "b": "f32", "out": "f32", "scale": "none"}
    if model.endswith("-fp8") and name != "lm_head":
        return {"backend": "cublaslt", "a": "e4m3", "b": "e4m3", "out": "bf16", "scale": "tensor"}
    return {"backend": "cublaslt", "a": "bf16", "b": "bf16", "out": "bf16", "acc": "f32", "scale": "none"}


def wrong_of(recipe):
    model = recipe["model"]
    base = model.removesuffix("-fp8").removesuffix("-bf16")
    if [layout["layout"] for layout in recipe["layouts"]] != LAYOUTS[base]:
        yield f"its layouts are not {LAYOUTS[base]}"
    for layout in recipe["layouts"]:
        cut = {name: int(number) for name, number in (part.split("=") for part in layout["layout"].split(","))}
        shapes = kimi_k3(KIMI_K3, cut["tp"]) if base == "kimi-k3" else dense(DENSE[base], cut["tp"])
        have = {p["name"]: dims(p["key"]) for p in layout["problems"]}
        if {name: (int(d["n"]), int(d["k"])) for name, (_, d) in have.items()} != shapes:
            yield f"{layout['layout']}: shapes are {have}, not {shapes}"
        for name, (op, d) in have.items():
            wanted = expected_types(model, op, name)
            if op == "moe_grouped_matmul":
                wanted |= {"top_k": str(KIMI_K3["num_experts_per_token"]), "experts": str(KIMI_K3["num_experts"]),
                           "local_experts": str(KIMI_K3["num_experts"] // cut["ep"])}
            differs = {dim: d[dim] for dim, word in wanted.items() if d[dim] != word}
            if differs:
                yield f"{layout['layout']} {name}: {differs}, not {wanted}"
        buckets = {p["name"]: p.get("buckets") for p in layout["problems"]}
        if any(some for name, some in buckets.items() if name != "lm_head"):
            yield f"{layout['layout']}: only the head runs for fewer tokens than there are"
    ladder = recipe["ladder"]
    if ladder["kind"] == "hybrid" and (ladder["max"] != 8192 or len(HYBRID) != 21):
        yield "its ladder has not 21 buckets"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    build = pathlib.Path(parser.parse_args().build)
    found = sorted(RECIPES.glob("*.json"))
    wrong = []
    done = subprocess.run([build / "client/tunectl", "check", *found], capture_output=True, text=True, check=False)
    if done.returncode:
        wrong.append(done.stdout + done.stderr)
    installed = (ROOT / "tables/meson.build").read_text()
    for path in found:
        if f"'recipes/{path.name}'" not in installed:
            wrong.append(f"{path.name}: tables/meson.build does not install it")
        if path.name != "kimi-k3.json":  # fused operations of FlashInfer: no shapes of products
            wrong += [f"{path.name}: {fault}" for fault in wrong_of(json.loads(path.read_text()))]
    tables = sorted(ROOT.glob("tables/*/*,*.json"))
    done = subprocess.run([build / "client/tunectl", "check", *tables], capture_output=True, text=True, check=False)
    if done.returncode:
        wrong.append(done.stdout + done.stderr)
    print("\n".join(wrong) or f"{len(found)} recipes and {len(tables)} tables are good")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
