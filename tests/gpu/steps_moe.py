# SPDX-License-Identifier: Apache-2.0
"""A step of gpu.sh: CUTLASS's mixtures of experts in the real FlashInfer, by the worker in Python."""
import itertools
import json
import shutil
import subprocess

from harness import Failure, expect
from room import HERE, sweep_one
from steps_flashinfer import Site

RELEASE = "0.6.16"  # whose module is built beforehand
MODULE = "flashinfer/data/aot/fused_moe_90/fused_moe_90.so"
KEY = ("cutlass_moe,backend=flashinfer,stage={stage},act=bf16,weights=bf16,out=bf16,tokens={tokens},top_k={top_k},"
       "local_experts={local},hidden={hidden},intermediate={inner},activation=swiglu,tp=1,ep={ep},cluster=1,alltoall=no,"
       "w4_group=no,mxfp8_act=no,humming=no,min_latency=no,pdl=yes,packed=no,finalize={finalize},bias=none")
# The layers of known models: 128 experts, 8 a token; and a rank's 112 of 896, 16 a token.
LAYERS = {"qwen3-30b-a3b": {"top_k": 8, "local": 128, "hidden": 2048, "inner": 768, "ep": 1},
          "kimi-k3,ep=8": {"top_k": 16, "local": 112, "hidden": 3584, "inner": 3072, "ep": 8}}
TOKENS = (64, 1, 1024, 8192)
STAGES = ("gemm1", "gemm2")
LEAST_S = 45  # for a layer to be begun
START_S = 180  # importing PyTorch and FlashInfer from a cold disk
ADDS_UP = 0.02  # of native: how far both tactics together may be from what each gains alone


def section(room, site):
    if room.is_dry:
        return room.section("flashinfer", words=("op=cutlass_moe", f"fact.flashinfer={RELEASE}", "fact.cuda=13.0"))
    expect((site.folder / MODULE).exists(), f"the wheel of {RELEASE} does not carry {MODULE}: flashinfer/build_modules.py and "
                                            "wheels.py --built")
    return site.section()


def together(room, site, key, answers):
    """What both tactics do in one call, or None: there is no device here, or nothing won."""
    tactics = [a["tactic"] if a["kind"] == "hit" else -1 for a in answers]
    if room.is_dry or tactics == [-1, -1]:
        return None
    site.env["CUDA_VISIBLE_DEVICES"] = room.facts["card"]["uuid"]
    status, said = site.run(HERE / "flashinfer/pair.py", key, *tactics)
    expect(status == 0, "both tactics together", said[-500:])
    told = json.loads(said.splitlines()[-1])
    expect(all(check["ok"] for check in told["checks"].values()), "the output is wrong", told)
    gain = {name: told["native"] - told[name] for name in (*STAGES, "both")}
    told["adds_up"] = abs(gain["both"] - gain["gemm1"] - gain["gemm2"]) <= ADDS_UP * told["native"]
    return told


def step_fi_moe(room, wheels, finalize="fused"):
    """Both products of two layers at several token counts, swept; then both winners in one call, as a server runs them.
    WHEELS: a folder as wheels.py gathers it, with the module built beforehand."""
    rows, site = [], Site(room, wheels, RELEASE)
    with room.daemon({"fi": section(room, site)}) as d:
        room.wait_ready(d, {"fi"}, START_S)
        for tokens, (name, layer) in itertools.product(TOKENS, LAYERS.items()):
            if room.left() < LEAST_S:
                break
            try:
                rows.append(sweep_layer(room, d, site, name, tokens, {**layer, "finalize": finalize}))
            except (Failure, subprocess.TimeoutExpired) as e:  # the others are still to be seen
                rows.append({"layer": name, "tokens": tokens, "failed": str(e)})
                print(f"  {name}, {tokens} tokens: {e}", flush=True)
            room.note(rows=rows)
            room.export(d)
    shutil.rmtree(site.folder, ignore_errors=True)
    expect(rows, "no time for one layer")
    failed = [f"{row['layer']}, {row['tokens']} tokens: {row['failed']}" for row in rows if "failed" in row]
    expect(not failed, "not all layers were swept", *failed)
    expect(all(a["state"] in ("confirmed", "noisy") for row in rows for a in row["answers"]), "an output was not checked", rows)


def sweep_layer(room, d, site, name, tokens, layer):
    keys = [KEY.format(stage=stage, tokens=tokens, **layer) for stage in STAGES]
    answers = [sweep_one(d, "fi", key, room.left()) for key in keys]
    told = together(room, site, keys[0], answers)
    words = ", ".join(f"{stage} {a.get('tactic', 'default')} gain {a.get('gain', 0) * 100:.1f} % of {a.get('candidates')}"
                      for stage, a in zip(STAGES, answers))
    both = "" if told is None else (f"; together {told['native']:.1f} -> {told['both']:.1f} us"
                                    + ("" if told["adds_up"] else ", which is not what each gains"))
    print(f"  {name}, {tokens} tokens: {words}{both}", flush=True)
    return {"layer": name, "tokens": tokens, "answers": answers, "together": told}
