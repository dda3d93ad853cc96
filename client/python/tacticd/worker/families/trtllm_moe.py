# SPDX-License-Identifier: Apache-2.0
"""trtllm-gen's four-bit mixtures of experts in FlashInfer, for B200 and B300: op trtllm_fp4_moe,
trtllm_fp4_block_scale_routed_moe with mxfp4 weights.

The library lists a tactic, [tile_n, number], only for tiles near tokens x top_k / local experts, though its launcher
takes every tile, and the fastest is often outside. So it is asked at several token counts, and all that it names are
candidates. The public function is run whole; the tuner that it asks says the tactic of the candidate in hand.

Weights are random four-bit codes with random block scales, so that the reference needs no quantizer of the library:
what a code stands for is exact.
"""
import math

from tacticd.worker import calls, frame, inputs, judge, ladder, launches, moe, tuner

OPS = ("trtllm_fp4_moe",)
CAPABILITIES = (100, 103)
OPERATION, RUNNER = "flashinfer::trtllm_fp4_block_scale_moe", "MoERunner"
# dimension -> the words that this worker can make inputs for
ONLY = {"act": ("mxfp8", "bf16"), "weights": ("mxfp4",), "activation": ("swiglu", "geglu", "situ"),
        "routing": ("precomputed",), "routing_method": ("none",), "weight_layout": ("major_k",), "shuffled": ("yes",),
        "packed": ("no",), "token_scale": ("none",), "lora": ("none",)}
BLOCK = 32  # elements to a scale
ALIGN = 128  # rows of a tile: what weights are shuffled by
RENORMALIZE = 1  # RoutingMethodType; tokens come routed, and nothing is chosen by it
LINEAR = 2  # SfLayout: the scales of activations as they are
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1 without its sign
CODE_SD = 2.0
SIGN = 8
SCALE_BIAS = 127  # of e8m0, which is an exponent of two
ACT_SD, ACT_EXPONENT = 32.0, -5  # of mxfp8's codes and scales: together about 1


def missing(device):
    tuner.alone()
    if device.capability not in CAPABILITIES:
        return (f"trtllm-gen's mixtures of experts need compute capability 10.0 or 10.3; {device.name or 'this device'} "
                "has another")
    return None


def _why_not(key):
    for dim, words in ONLY.items():
        if key[dim] not in words:
            return f"{dim}={key[dim]} cannot be swept yet"
    if key["shared_experts"] or key["hidden_out"] != key["hidden"]:
        return "shared experts, and results of another width, cannot be swept yet"
    if key["top_k"] > key["experts"] or key["local_experts"] > key["experts"]:
        return "more experts are wanted than there are"
    if key["hidden"] % ALIGN or key["intermediate"] % ALIGN:
        return f"hidden and intermediate must be multiples of {ALIGN}"
    return None


def bytes_of(key):
    """Device memory of weights, inputs and the reference, without the library's workspace."""
    per_expert = 3 * key["hidden"] * key["intermediate"]
    weights = key["local_experts"] * (per_expert // 2 + per_expert // BLOCK)
    rows = min(key["tokens"] * key["top_k"], key["tokens"] * key["local_experts"]) + key["local_experts"] * 2 * ALIGN
    between = rows * (2 * key["hidden"] + 3 * key["intermediate"])
    layer = key["tokens"] * key["hidden"] * (2 + 4 * 4 + 2 * 8)
    # One expert's codes as floats, twice, beside what moe.reference has in hand.
    blocks = 16 * per_expert + 8 * moe.ROWS_AT_ONCE * (4 * key["intermediate"] + 2 * key["hidden"]) + 3 * judge.CHUNK_BYTES
    return weights + between + layer + blocks


# --- four bits ---


def draw_weights(device, rows, columns, seeds):
    """([rows, columns / 2] packed codes, [rows, columns / BLOCK] scales), both uint8, of weights whose deviation is
    about columns^-0.5."""
    torch = device.torch
    values = inputs.bell(device, (rows, columns), torch.float32, CODE_SD, seeds)
    bounds = torch.tensor([(a + b) / 2 for a, b in zip(CODES, CODES[1:])], device=device.where)
    codes = torch.bucketize(values.abs(), bounds).to(torch.uint8) + SIGN * (values < 0).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    exponent = round(-0.5 * math.log2(columns) - math.log2(CODE_SD))
    return packed, draw_scales(device, rows, columns, exponent, seeds)


def draw_scales(device, rows, columns, exponent, seeds):
    """[rows, columns / BLOCK] uint8: 2^exponent, half of it and twice it."""
    torch = device.torch
    generator = seeds.generator(torch, device.where)
    steps = torch.randint(-1, 2, (rows, columns // BLOCK), generator=generator, device=device.where)
    return (steps + (SCALE_BIAS + exponent)).to(torch.uint8)


def scaled(torch, values, scales):
    """values x their block's scale, float64."""
    factors = torch.exp2(scales.double() - SCALE_BIAS)
    return values.double() * factors.repeat_interleave(BLOCK, 1)


def weights_of(torch, packed, scales):
    """What codes and scales stand for, float64."""
    table = torch.tensor([*CODES, *(-c for c in CODES)], dtype=torch.float64, device=packed.device)
    codes = torch.stack([packed & 15, packed >> 4], 2).reshape(packed.shape[0], -1)
    return scaled(torch, table[codes.long()], scales)


class Problem(moe.Problem):
    def __init__(self, device, key, seed, memory_cap_bytes):
        self.tuner = tuner.Tuner(OPERATION, RUNNER)
        super().__init__(device, key, seed, memory_cap_bytes, "trtllm_moe_module", bytes_of(key))

    # --- inputs ---

    def _make(self, seeds):
        key, device, torch = self.key, self.device, self.device.torch
        hidden, tokens = key["hidden"], key["tokens"]
        self.routed = moe.Routed(device, tokens, key["top_k"], key["experts"], key["local_experts"], torch.bfloat16, seeds)
        self.x_scales = None
        if key["act"] == "mxfp8":
            self.x = inputs.bell(device, (tokens, hidden), torch.float8_e4m3fn, ACT_SD, seeds)
            self.x_scales = draw_scales(device, tokens, hidden, ACT_EXPONENT, seeds)
        else:
            self.x = inputs.bell(device, (tokens, hidden), torch.bfloat16, 1.0, seeds)
        self.seeds = [seeds.next() for _ in range(key["local_experts"])]
        self._lay_out()
        self.is_fused = key["finalize"] == "fused"
        # Results that the caller adds up are added up here in f32.
        kind = torch.bfloat16 if self.is_fused else torch.float32
        self.output = torch.empty(tokens, hidden, dtype=kind, device=device.where)
        self.warm = tuple(t for t in (self.x, self.x_scales, self.routed.ids, self.routed.scales) if t is not None)

    def _codes(self, expert):
        """An expert's weights as drawn, packed1, scales1, packed2, scales2: the same each time."""
        hidden, inner, seeds = self.key["hidden"], self.key["intermediate"], inputs.Seeds(self.seeds[expert])
        return (*draw_weights(self.device, 2 * inner, hidden, seeds), *draw_weights(self.device, hidden, inner, seeds))

    def _lay_out(self):
        """All experts' weights, as the kernels want them: rows shuffled by tiles, those of gemm1 with linear and gate
        in turns, scales shuffled likewise and interleaved."""
        torch, rows, parts = self.device.torch, None, ([], [], [], [])
        for expert in range(self.key["local_experts"]):
            codes = self._codes(expert)
            rows = rows or self._rows(*codes)
            for i, (part, order) in enumerate(zip(codes, rows)):
                laid = part[order].contiguous()
                parts[i].append(calls.of("interleave_scales")(laid).reshape(part.shape) if i % 2 else laid)
        self.w1, self.s1, self.w2, self.s2 = (torch.stack(part) for part in parts)

    def _rows(self, packed1, scales1, packed2, scales2):
        """The order of rows of each. The library keeps what it found by shape alone, so each has a place of its own."""
        return tuple(order.to(self.device.where) for order in (
            calls.of("gemm1_rows")({}, packed1, ALIGN), calls.of("gemm1_rows")({}, scales1, ALIGN, num_elts_per_sf=BLOCK),
            calls.of("gemm2_rows")({}, packed2, ALIGN), calls.of("gemm2_rows")({}, scales2, ALIGN, num_elts_per_sf=BLOCK)))

    # --- the library ---

    def _as_scales(self, tensor):
        """The library takes bytes of scales under the name of another type of one byte."""
        return None if tensor is None else tensor.view(self.device.torch.float8_e4m3fn)

    def _run(self):
        key, call = self.key, calls.row("trtllm_fp4_moe", calls.release())
        more = {"hidden_states_scale_layout": LINEAR} if "hidden_states_scale_layout" in call.keywords else {}
        return calls.of("trtllm_fp4_moe")(
            (self.routed.ids, self.routed.scales), None, self.x, self._as_scales(self.x_scales), self.w1,
            self._as_scales(self.s1), None, None, None, None, self.w2, self._as_scales(self.s2), None, None, None, None,
            key["experts"], key["top_k"], None, None, key["intermediate"], 0, key["local_experts"], None,
            routing_method_type=RENORMALIZE, do_finalize=self.is_fused, activation_type=moe.NUMBERS[key["activation"]],
            output=self.output if self.is_fused else None, **more)

    def _list(self):
        key, torch = self.key, self.device.torch
        asked = self.tuner.listen(self._run)
        tactics_of = calls.on("trtllm_moe_tactics", asked.runner(RUNNER))
        found = {}
        for tokens in ladder.asked_at(key["tokens"]):
            # The library looks at the number of rows alone.
            rows = torch.empty((tokens, self.x.shape[1]), dtype=self.x.dtype, device="meta")
            told = tactics_of([rows if t is self.x else t for t in asked.inputs], None)
            found.update(dict.fromkeys(tuple(map(int, tactic)) for tactic in told))
        if not found:
            raise frame.Unsupported("FlashInfer lists no tactic for this problem")
        most = frame.MAX_CANDIDATES - 1
        if len(found) > most:
            launches.say(f"trtllm_fp4_moe: of {len(found)} tactics {most} are swept, those for the nearest token counts")
        prewarm = {"modules": [self.module]}
        return [frame.Candidate(tuner.NATIVE, "native", "native", prewarm=prewarm),
                *(frame.Candidate([tile, number], f"tile {tile}, number {number}", f"tile {tile}", prewarm=prewarm)
                  for tile, number in list(found)[:most])]

    def launch(self, i):
        self.result = self.tuner.run(self._run, self.candidates[i].tactic)

    # --- what is right ---

    def check(self, i):
        if self.is_fused:
            return super().check(i)
        with self.device.guard():
            return self.judge.check(lambda: self._finalize(i), self.output, i == 0)

    def _finalize(self, i):
        """Runs it, and adds the experts' results up as the caller would. They lie in memory of the library's own
        choosing: what the launch before left there is spoiled first."""
        torch = self.device.torch
        self.timer.once(lambda: self.launch(i))
        inputs.poison(self.result[0], 0)
        self.result = None
        self.timer.once(lambda: self.launch(i))
        rows, scales, places = self.result
        places = places.view(self.output.shape[0], -1).long()
        met = rows[places.clamp(min=0)].double() * scales.double()[..., None]
        met[places < 0] = 0.0
        self.output.copy_(torch.sum(met, 1))

    def _judge(self):
        key, torch = self.key, self.device.torch

        def weights(expert):
            packed1, scales1, packed2, scales2 = self._codes(expert)
            return weights_of(torch, packed1, scales1), None, weights_of(torch, packed2, scales2), None

        x = self.x if self.x_scales is None else scaled(torch, self.x, self.x_scales)
        values = moe.reference(torch, x, self.routed, key["activation"], weights)
        narrow = "e4m3" if key["act"] == "mxfp8" else "bf16"
        adds = key["top_k"] if self.is_fused else 0
        return judge.Judge(judge.Exact(values), moe.limits(narrow, narrow, "bf16", key["hidden"] + key["intermediate"], adds))


open = moe.opener(Problem, _why_not)
