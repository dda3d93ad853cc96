# SPDX-License-Identifier: Apache-2.0
"""What answers need before their first use is done before a server is ready: modules loaded or compiled, plans built.
docs/python.md says what an answer's `prewarm` holds."""
import importlib
import json
import logging
import re
import time
from dataclasses import dataclass
from typing import NamedTuple, Tuple

log = logging.getLogger("tacticd")

MEMBERS = ("libraries", "modules", "plan")  # in this order: a plan may need a module
MAX_STEPS = 4096  # distinct things to do in one call; more are left out


class Step(NamedTuple):
    """One thing to have ready."""

    backend: str  # of the problems that need it
    member: str  # of MEMBERS
    value: object  # a name, or the plan
    sentence: str = ""  # why it failed or was left out


@dataclass(frozen=True)
class Warmed:
    """What became of it all."""

    done: Tuple[Step, ...]
    failed: Tuple[Step, ...]
    left_out: Tuple[Step, ...]  # nobody registered for them, or max_s was over
    seconds: float
    workspace_bytes: int  # the greatest that one answer wants; nothing of it was allocated


# --- FlashInfer ---

# The functions of flashinfer.jit that make a module's specification; both releases, 0.6.16 and 0.7.4, have them all.
FLASHINFER_SPECS = {
    "gemm": ("flashinfer.jit.gemm", "gen_gemm_module"),
    "mm_bf16_cublaslt": ("flashinfer.jit.gemm", "gen_mm_bf16_cublaslt_module"),
    "tinygemm2": ("flashinfer.jit.tinygemm2", "gen_tinygemm2_module"),
    "trtllm_utils": ("flashinfer.jit.tllm_utils", "gen_trtllm_utils_module"),
    "fused_moe_89": ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm89_module"),
    "fused_moe_90": ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm90_module"),
    "fused_moe_90_h20_prebuilt_d": ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm90_module"),  # 0.7.4 on an H20
    "fused_moe_100": ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm100_module"),
    "fused_moe_103": ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm103_module"),
    "fused_moe_120": ("flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm120_module"),
    "fused_moe_trtllm_sm100": ("flashinfer.jit.fused_moe", "gen_trtllm_gen_fused_moe_sm100_module"),
}


def flashinfer_module(name):
    """Loads a compiled module of FlashInfer, built before if it is not there: by FlashInfer's own specification of it."""
    spec = importlib.import_module("flashinfer.jit.core").jit_spec_registry.get_all_specs().get(name)
    if spec is None:
        if name not in FLASHINFER_SPECS:
            raise LookupError("nobody here knows how FlashInfer specifies it")
        module, function = FLASHINFER_SPECS[name]
        spec = getattr(importlib.import_module(module), function)()
    spec.build_and_load()


HANDLERS = {("flashinfer", "modules"): flashinfer_module}


# --- what is to be done ---


def _rows(answers):
    """(key, prewarm) of a Table, or of answers. Prewarm is JSON text, or parsed already."""
    if hasattr(answers, "text"):
        return [(entry["key"], entry.get("prewarm")) for entry in json.loads(answers.text)["entries"]]
    return [(answer.key, answer.evidence.prewarm) for answer in answers]


def _backend(key):
    found = re.search(r",backend=([^,]+)", key or "")
    return found.group(1) if found else ""


def _values(member, value):
    """The distinct steps of a member. Raises ValueError."""
    if member == "plan":
        if not isinstance(value, dict):
            raise ValueError("a plan is an object")
        return [value]
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise ValueError(f"{member} are a list of names")
    return value


def _steps(rows):
    """Distinct steps, in the order in which they are to be done; those that cannot be; the greatest workspace."""
    steps, bad, workspace = {member: {} for member in MEMBERS}, {}, 0
    for key, said in rows:
        backend = _backend(key)
        try:
            prewarm = json.loads(said) if isinstance(said, str) else said
            if prewarm is None:
                continue
            if not isinstance(prewarm, dict):
                raise ValueError("it is no object")
            size = prewarm.get("workspace_bytes", 0)
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ValueError("workspace_bytes is no number of bytes")
            workspace = max(workspace, size)
            for member in MEMBERS:
                for value in _values(member, prewarm.get(member, {} if member == "plan" else [])):
                    if value:
                        steps[member][backend, json.dumps(value, sort_keys=True)] = Step(backend, member, value)
        except ValueError as e:
            bad.setdefault((backend, str(e)), Step(backend, "prewarm", said, f"{key}: {e}"))
    return [step for member in MEMBERS for step in steps[member].values()], list(bad.values()), workspace


# --- doing it ---


def _do(step, handler):
    """None, or why it failed. Whatever a library raises ends here: a server starts without it, only later."""
    try:
        handler(step.value)
    except Exception as e:  # all of them mean the same
        return f"{type(e).__name__}: {e}"
    return None


def prewarm(answers, max_s=60.0, handlers=None):
    """Does what a table, or an iterable of answers, needs before its first use, each thing once. `handlers` adds to or
    replaces what is built in, HANDLERS: functions of a value by (backend, member), members as in MEMBERS; None takes
    one away. What would begin after `max_s` seconds is left out; what has begun by then is finished.
    Never raises (but for KeyboardInterrupt and SystemExit): returns a Warmed."""
    begun = time.monotonic()
    known = {**HANDLERS, **(handlers or {})}
    done, failed, left_out = [], [], []
    try:
        steps, failed, workspace = _steps(_rows(answers))
    except Exception as e:  # a table that is none, or what only looks like answers
        steps, workspace = [], 0
        failed.append(Step("", "prewarm", None, f"what is to be prewarmed cannot be read: {e}"))
    for i, step in enumerate(steps):
        handler = known.get((step.backend, step.member))
        if handler is None:
            left_out.append(step._replace(sentence="nobody registered for it"))
        elif i >= MAX_STEPS or time.monotonic() - begun >= max_s:
            left_out.append(step._replace(sentence="max_s was over" if i < MAX_STEPS else "there is too much"))
        else:
            why = _do(step, handler)
            (failed if why else done).append(step._replace(sentence=why or ""))
    for step in failed:
        log.warning("not prewarmed: %s of %s, %.200s: %s", step.member, step.backend or "?", step.value, step.sentence)
    return Warmed(tuple(done), tuple(failed), tuple(left_out), time.monotonic() - begun, workspace)
