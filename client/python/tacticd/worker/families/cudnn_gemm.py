# SPDX-License-Identifier: Apache-2.0
"""cuDNN's matrix products in FlashInfer: mm_bf16 and bmm_bf16, and bmm_fp8 (mm_fp8 of 0.7 asks the same tuner with a
batch of one), as a server calls them with backend="cudnn". A tactic is [engine, [[knob, value], ...]], the plan that
cuDNN is asked to build: legal at other token counts than the one whose list it stands in, or refused when it is built.
What such a table must not be used for: docs/python.md, servers that name another backend, or "auto"."""
import importlib
import itertools
import time

from tacticd.worker import calls, device as devices, frame, inputs, judge, ladder, launches, tuner

OPS = ("cudnn_gemm",)
ARCHITECTURES = {"bf16": (80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121), "fp8": (89, 90, 100, 103, 107, 110, 120, 121)}
LIST_S = 60.0  # after so long no further token count is asked: an open has a deadline
BUILD_MS = 30000  # cuDNN compiles some engines when their plan is built, and a graph for each
MARGIN_BYTES = 256 << 20  # what libraries take beside tensors: handles, modules, plans


def missing(device):
    tuner.alone()
    if device.is_cuda and device.capability not in ARCHITECTURES["bf16"]:
        return f"FlashInfer does not run cuDNN's matrix products on compute capability {device.capability}"
    try:
        importlib.import_module("cudnn")  # FlashInfer goes without it, and then has none of this
    except Exception as e:  # whatever its import meets
        return f"the cuDNN frontend (nvidia-cudnn-frontend) cannot be imported: {devices.words_of(e)}"
    return None


# --- what is asked ---


def _refuse(why):
    raise frame.Unsupported(why)


def _check(device, key):
    """Raises frame.Unsupported for what none of the public functions is."""
    if key["pdl_choice"] == "tuner":
        _refuse("FlashInfer asks bf16_gemm_pdl_auto only where other libraries may be taken (backend=\"auto\")")
    if (key["a_major"] == "m" and key.tokens == 1) or (key["b_major"] == "n" and key["n"] == 1):
        _refuse("a matrix of one row is contiguous both ways: FlashInfer asks for it as k")
    if key["a"] == "mxfp8" or key["b"] == "mxfp8":
        _refuse("mxfp8 runs on compute capability 10.0 and later only, and has no worker")
    if key["a"] == "bf16" and key["b"] == "bf16":
        if (key["a_scale"], key["b_scale"]) != ("none", "none"):
            _refuse("mm_bf16 and bmm_bf16 have no scales")
        if key["batch"] and key["bias"] == "yes":
            _refuse("bmm_bf16 has no bias")
        return
    if "bf16" in (key["a"], key["b"]):
        _refuse("FlashInfer has no product of bf16 with another type by cuDNN")
    if device.is_cuda and device.capability not in ARCHITECTURES["fp8"]:
        _refuse(f"bmm_fp8 does not run on compute capability {device.capability}")
    if key["batch"] < 1 or key["bias"] == "yes" or key["a_major"] != "k" or key["b_major"] != "k":
        _refuse("bmm_fp8 takes a batch of row-major a and column-major b without a bias")
    if "none" in (key["a_scale"], key["b_scale"]) or "block" in (key["a_scale"], key["b_scale"]):
        _refuse("bmm_fp8 takes a scale of one element for each")
    if key["out"] == "f32":
        _refuse("bmm_fp8 gives bf16 or f16")


class Tensors:
    """What a call is given, for at most `rows` rows of a: at(m) gives it for fewer, with nothing copied."""

    def __init__(self, device, key, rows, seeds=None):
        """Without seeds nothing is filled: good for asking what is legal."""
        torch = device.torch
        self.key, self.torch = key, torch
        self.batch, n, k = max(1, key["batch"]), key["n"], key["k"]
        types = {side: inputs.dtype_of(torch, key[side]) for side in ("a", "b", "out")}
        make = (lambda shape, side, sd: inputs.bell(device, shape, types[side], sd, seeds)) if seeds else \
            (lambda shape, side, sd: torch.empty(shape, dtype=types[side], device=device.where))
        is_narrow = key["a"] != "bf16"
        self.flat_a = make((self.batch * rows * k,), "a", 1.0)
        # Eight bits hold no small weights: their scale does.
        stored = (self.batch, n, k) if key["b_major"] == "k" else (self.batch, k, n)
        self.b = make(stored, "b", 1.0 if is_narrow else k ** -0.5)
        self.b = self.b.transpose(1, 2) if key["b_major"] == "k" else self.b  # [batch, k, n]
        self.bias = make((n,), "b", 0.5) if key["bias"] == "yes" else None
        self.flat_out = torch.empty(self.batch * rows * n, dtype=types["out"], device=device.where)
        self.scales = [torch.full(() if key[f"{side}_scale"] == "scalar" else (1,), value, device=device.where)
                       for side, value in (("a", 0.75), ("b", k ** -0.5))] if is_narrow else None

    def a(self, m):
        k = self.key["k"]
        flat = self.flat_a[:self.batch * m * k]
        return flat.view(self.batch, m, k) if self.key["a_major"] == "k" else flat.view(self.batch, k, m).transpose(1, 2)

    def out(self, m):
        return self.flat_out[:self.batch * m * self.key["n"]].view(self.batch, m, self.key["n"])

    def scale(self):
        return 1.0 if self.scales is None else float(self.scales[0]) * float(self.scales[1])

    def call(self, m):
        """The public function's call, without arguments."""
        a, b, out, bias = self.a(m), self.b, self.out(m), self.bias
        if self.scales is not None:
            function, (a_scale, b_scale) = calls.of("bmm_fp8"), self.scales
            return lambda: function(a, b, a_scale, b_scale, out.dtype, out=out, backend="cudnn")
        if self.key["batch"]:
            function = calls.of("bmm_bf16")
            return lambda: function(a, b, out=out, out_dtype=out.dtype, backend="cudnn")
        function, a, b, out = calls.of("mm_bf16"), a[0], b[0], out[0]
        return lambda: function(a, b, bias=bias, pdl=False, out=out, out_dtype=out.dtype, backend="cudnn")


def asked_of(key):
    """(operation of the tuner, runner) that the call asks for."""
    return ("bf16_gemm", "CudnnBf16GemmRunner") if key["a"] == "bf16" else ("fp8_gemm", "CudnnFp8GemmRunner")


# --- candidates ---


def json_of(tactic):
    """As FlashInfer's files keep it."""
    engine, knobs = tactic
    return [int(engine), [[int(knob), int(value)] for knob, value in knobs]]


def tactic_of(value):
    """As FlashInfer reads it from its files."""
    engine, knobs = value
    return (engine, tuple((knob, setting) for knob, setting in knobs))


def candidates_of(tactics, workspace_bytes):
    """Native, then each tactic once, by engine and knobs. Of more than a sweep takes, each engine's first ones: those of
    the nearest token counts. Their workspace is what FlashInfer grants: a plan's own is known once it is built."""
    by_engine, most = {}, frame.MAX_CANDIDATES - 1
    for engine, knobs in dict.fromkeys(tactics):
        by_engine.setdefault(engine, []).append((engine, knobs))
    in_turn = [t for turn in itertools.zip_longest(*by_engine.values()) for t in turn if t is not None]
    if len(in_turn) > most:
        launches.say(f"cudnn_gemm: of {len(in_turn)} plans of {len(by_engine)} engines {most} are swept, as many of each engine")
    found = [frame.Candidate(tuner.NATIVE, "what FlashInfer runs untuned: cuDNN's first plan", "native", workspace_bytes)]
    for engine, knobs in sorted(in_turn[:most]):
        words = " ".join(f"{knob}={value}" for knob, value in knobs)
        found.append(frame.Candidate(json_of((engine, knobs)), f"engine {engine} {words}".rstrip(), f"engine {engine}",
                                     workspace_bytes))
    return found


class Problem(launches.Launches):
    build_ms = BUILD_MS

    def __init__(self, device, key, seed):
        super().__init__(device)
        self.key, self.m = key, key.tokens
        self.list_name = "cudnn_bf16_tactics" if key["a"] == "bf16" else "cudnn_fp8_tactics"
        self.tuner = tuner.Tuner(*asked_of(key))
        tactics, self.workspace_bytes = self._list()
        self.candidates = candidates_of(tactics, self.workspace_bytes)
        seeds = inputs.Seeds(seed)
        tensors = Tensors(device, key, self.m, seeds)
        self.call, self.scales = tensors.call(self.m), tensors.scales
        self.output = tensors.out(self.m)
        self.warm = (tensors.flat_a, *([tensors.bias] if tensors.bias is not None else []))
        reference = judge.Product(tensors.a(self.m), tensors.b.transpose(1, 2), seeds.next(), tensors.scale(), tensors.bias)
        self.judge = judge.Judge(reference, judge.Limits(key["a"], key["out"], "f32", key["k"]))
        self.workspace = self.tuner.listen(self.call).inputs[-1]

    def _list(self):
        """Tactics of all token counts asked, and the workspace that FlashInfer grants. The lists beside the bucket's own
        are a bonus: one that cuDNN refuses is left out."""
        counts = ladder.asked_at(self.m)
        tensors = Tensors(self.device, self.key, max(counts))
        found, begun = [], time.monotonic()
        for m in counts:
            if found and time.monotonic() - begun > LIST_S:
                break
            try:
                asked = self.tuner.listen(tensors.call(m))
                runner = asked.runner(self.tuner.runner)
                found += [tactic_of(json_of(t)) for t in calls.on(self.list_name, runner)(asked.inputs, None)]
                workspace_bytes = asked.inputs[-1].numel()
            except Exception as e:  # whatever cuDNN raises for a graph that it has no plan for
                if m == self.m or devices.is_ours(e) or self.device.is_broken():
                    raise
                launches.say(f"cudnn_gemm: not listed at {m} tokens: {devices.words_of(e)}")
        if not found:
            _refuse("cuDNN lists no plan for it")
        return found, workspace_bytes

    def launch(self, i):
        tactic = self.candidates[i].tactic
        self.workspace.resize_(self.workspace_bytes)
        self.tuner.run(self.call, tuner.NATIVE if i == launches.NATIVE else tactic_of(tactic))

    def refused(self, i):
        """A plan that wants more than FlashInfer grants makes 0.6.16 grow the server's buffer, whose size stands in the
        keys of bf16_gemm (FlashInfer #3868): after its first launch no answer would be found."""
        wanted = self.workspace.numel()
        if wanted <= self.workspace_bytes or self.tuner.op != "bf16_gemm":
            return None
        return f"it wants a workspace of {wanted} bytes, more than FlashInfer's {self.workspace_bytes}"

    def close(self):
        # The buffer is FlashInfer's, for the whole process: as the last launch left it, it would be the next grant.
        self.workspace.resize_(self.workspace_bytes)
        held = self.workspace.untyped_storage()
        if held.nbytes() > self.workspace_bytes:
            held.resize_(self.workspace_bytes)
        calls.of("forget_cudnn_graphs")()
        super().close()


# --- opening ---


def need_bytes(key):
    """Of the tensors, listing and checking included; a lower bound of what is taken."""
    rows, batch = max(ladder.asked_at(key.tokens)), max(1, key["batch"])
    width = {"f32": 4, "e4m3": 1, "e5m2": 1}
    of = {side: width.get(key[side], 2) for side in ("a", "b", "out")}
    listing = rows * key["k"] * of["a"] + rows * key["n"] * of["out"]
    checking = key.tokens * (key["k"] * of["a"] + 3 * key["n"] * of["out"])
    return batch * (key["n"] * key["k"] * of["b"] + max(listing, checking)) + 2 * judge.CHUNK_BYTES + MARGIN_BYTES


def open(device, key, seed, memory_cap_bytes, next):
    del next  # plans are built in the order in which they are asked for
    _check(device, key)
    with device.guard(frame.Unsupported):
        calls.of("forget_cudnn_graphs")()  # of a problem that did not open
        device.forget()
        launches.expect_memory(device, need_bytes(key), memory_cap_bytes)
        return Problem(device, key, seed)
