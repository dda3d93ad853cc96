# SPDX-License-Identifier: Apache-2.0
"""CUTLASS's fused mixtures of experts in FlashInfer: op cutlass_moe, cutlass_fused_moe.

FlashInfer tunes the two products apart and keeps an entry for each, so a problem is one of them, and a candidate a
number in the library's list, run by profile_ids with the other product at its default. What is timed is always the
whole call: the tuner's own profile of one product leaves out what a choice costs or spares elsewhere, as finalizing.
Native is [-1, -1], what runs without a file. The library's default of the second product is the first of *its* list,
not of gemm1's, which the tuner profiles under that name.
"""
from tacticd.worker import calls, frame, inputs, judge, launches, moe, tuner

OPS = ("cutlass_moe",)
RUNNER = "MoERunner"
TYPES = {("bf16", "bf16", "bf16"), ("f16", "f16", "f16"), ("e4m3", "e4m3", "bf16"), ("e4m3", "e4m3", "f16")}
# Compute capability -> FlashInfer's maker of the module (get_cutlass_fused_moe_module).
MAKERS = {89: "cutlass_moe_sm89", 90: "cutlass_moe_sm90", 100: "cutlass_moe_sm100", 103: "cutlass_moe_sm103",
          107: "cutlass_moe_sm100", 110: "cutlass_moe_sm100", 120: "cutlass_moe_sm120", 121: "cutlass_moe_sm120"}
# dimension -> the one word that this worker can make inputs for
ONLY = {"alltoall": "no", "w4_group": "no", "mxfp8_act": "no", "humming": "no", "min_latency": "no", "packed": "no"}
BIAS = ("none", "both")  # the library reads both where it has one
ALIGN_BYTES = 16  # of rows, for TMA
ACT_QUANT = 16.0  # e4m3: of what lies between the products; its usual size is below 1


def missing(device):
    tuner.alone()
    if device.capability not in MAKERS:
        return f"CUTLASS's mixtures of experts need compute capability 8.9 or more; {device.name or 'this device'} has less"
    return None


def _why_not(key):
    types = (key["act"], key["weights"], key["out"])
    for dim, word in ONLY.items():
        if key[dim] != word:
            return f"{dim}={key[dim]} cannot be swept yet"
    if types not in TYPES:
        return f"act={types[0]}, weights={types[1]}, out={types[2]} cannot be swept yet"
    if key["activation"] not in moe.PLAIN and key["activation"] not in ("swiglu", "geglu"):
        return f"activation={key['activation']} cannot be swept yet"
    if key["bias"] not in BIAS:
        return "the library takes a bias for both products or for none"
    if key["cluster"] != 1:
        return "clusters belong to the kernel for small batches"
    if key["top_k"] > key["local_experts"] * key["ep"]:
        return "more experts a token than there are"
    align = ALIGN_BYTES // (1 if key["act"] == "e4m3" else 2)
    if key["hidden"] % align or key["intermediate"] % align:
        return f"hidden and intermediate must be multiples of {align}"
    return None


def bytes_of(key):
    """Device memory of weights, inputs and the reference, without the library's workspace."""
    size = 1 if key["act"] == "e4m3" else 2
    rows = key["intermediate"] * (2 if moe.is_gated(key["activation"]) else 1)
    weights = key["local_experts"] * key["hidden"] * (rows + key["intermediate"]) * size
    layer = key["tokens"] * key["hidden"] * (size + 3 * 2 + 2 * 8)
    # Blocks of float64 in hand: rows of an expert on both sides of the activation, parts of weights.
    at_once = min(key["tokens"], moe.ROWS_AT_ONCE)
    blocks = 8 * at_once * (2 * rows + 2 * key["intermediate"] + 2 * key["hidden"]) + 3 * judge.CHUNK_BYTES
    return weights + layer + blocks


class Problem(moe.Problem):
    def __init__(self, device, key, seed, memory_cap_bytes):
        super().__init__(device, key, seed, memory_cap_bytes, MAKERS[device.capability], bytes_of(key))

    # --- inputs ---

    def _make(self, seeds):
        key, device, torch = self.key, self.device, self.device.torch
        local, hidden, inner = key["local_experts"], key["hidden"], key["intermediate"]
        rows = 2 * inner if moe.is_gated(key["activation"]) else inner
        dtype, out = inputs.dtype_of(torch, key["act"]), inputs.dtype_of(torch, key["out"])
        is_narrow = key["act"] == "e4m3"
        # Eight bits have no room for small weights: those get their size from the scales, as a checkpoint's do.
        self.size1, self.size2 = hidden ** -0.5, inner ** -0.5
        sd1, sd2 = (1.0, 1.0) if is_narrow else (self.size1, self.size2)
        self.routed = moe.Routed(device, key["tokens"], key["top_k"], local * key["ep"], local, torch.float32,
                                 seeds)
        self.x = inputs.bell(device, (key["tokens"], hidden), dtype, 1.0, seeds)
        self.w1 = inputs.bell(device, (local, rows, hidden), dtype, sd1, seeds)
        self.w2 = inputs.bell(device, (local, hidden, inner), dtype, sd2, seeds)
        self.b1 = self.b2 = None
        if key["bias"] == "both":
            self.b1 = inputs.bell(device, (local, rows), out, 0.5, seeds)
            self.b2 = inputs.bell(device, (local, hidden), out, 0.5, seeds)
        self.scales = self._scales(torch, local) if is_narrow else []
        self.output = torch.empty(key["tokens"], hidden, dtype=out, device=device.where)
        self.warm = (self.x, self.routed.ids, self.routed.scales)
        self.workspace_bytes = self._workspace_bytes(dtype, out)
        self.workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=device.where)

    def _scales(self, torch, local):
        """gemm1's result, what gemm2 takes, gemm2's result, and the input's."""
        def each(value):
            return torch.full((local,), value, dtype=torch.float32, device=self.device.where)

        def one(value):
            return torch.tensor(value, dtype=torch.float32, device=self.device.where)

        return [each(self.size1), one(ACT_QUANT), each(self.size2 / ACT_QUANT), one(1.0)]

    def _weights(self, expert):
        b1, b2 = (None, None) if self.b1 is None else (self.b1[expert], self.b2[expert])
        if not self.scales:
            return self.w1[expert], b1, self.w2[expert], b2
        return self.w1[expert].double() * self.size1, b1, self.w2[expert].double() * self.size2, b2

    # --- the library ---

    def _workspace_bytes(self, dtype, out):
        key = self.key
        return calls.of("cutlass_moe_workspace")(
            key["tokens"], key["hidden"], key["intermediate"], key["local_experts"] * key["ep"], key["top_k"],
            x_dtype=dtype, weight_dtype=dtype, output_dtype=out, activation_type=moe.NUMBERS[key["activation"]],
            tp_size=key["tp"], tp_rank=0, ep_size=key["ep"], ep_rank=0, use_fused_finalize=key["finalize"] == "fused")

    def run_pair(self, profile_ids):
        """Both products by their numbers, or None: as the tuner says."""
        key = self.key
        calls.of("cutlass_fused_moe")(
            self.x, self.routed.ids, self.routed.scales, self.w1, self.w2, self.output.dtype, self.scales,
            fc1_expert_biases=self.b1, fc2_expert_biases=self.b2, tp_size=key["tp"], tp_rank=0, ep_size=key["ep"],
            ep_rank=0, output=self.output, enable_pdl=key["pdl"] == "yes", activation_type=moe.NUMBERS[key["activation"]],
            use_fused_finalize=key["finalize"] == "fused", profile_ids=profile_ids, workspace_buffer=self.workspace)

    def _list(self):
        """Native, and the tactics of this product that fit the device, less the library's own, which native is and which
        may not be among them: the first number of either product (setRunnerProfiles). Token counts change nothing here:
        the list is the type's."""
        asked = tuner.Tuner(f"trtllm::fused_moe::{self.key['stage']}", RUNNER).listen(lambda: self.run_pair(None))
        runner = asked.runner(RUNNER)
        found = calls.on("cutlass_moe_tactics", runner)(asked.inputs, None)
        own = 0 if self.key["stage"] == "gemm1" else runner.fused_moe_runner.get_gemm1_tactic_count()
        numbers = [n for n in sorted(map(int, found)) if n not in (tuner.NATIVE, own)]
        if len(numbers) >= frame.MAX_CANDIDATES:
            raise frame.Unsupported(f"{len(numbers)} tactics are more than a sweep takes")
        return [self._candidate(tuner.NATIVE), *map(self._candidate, numbers)]

    def _candidate(self, number):
        name = "native" if number == tuner.NATIVE else f"{self.key['stage']} {number}"
        return frame.Candidate(number, name, self.key["stage"], self.workspace_bytes,
                               prewarm={"modules": [self.module], "workspace_bytes": self.workspace_bytes})

    def launch(self, i):
        number = self.candidates[i].tactic
        self.run_pair([number, tuner.NATIVE] if self.key["stage"] == "gemm1" else [tuner.NATIVE, number])

    # --- what is right ---

    def _judge(self):
        key = self.key
        values = moe.reference(self.device.torch, self.x, self.routed, key["activation"], self._weights)
        adds = key["top_k"] if key["finalize"] == "fused" else 0
        limits = moe.limits(key["act"], key["act"], key["out"], key["hidden"] + key["intermediate"], adds)
        return judge.Judge(judge.Exact(values), limits)


open = moe.opener(Problem, _why_not)
