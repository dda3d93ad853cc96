# SPDX-License-Identifier: Apache-2.0
"""What mixtures of experts have in common, whichever library runs them: routing as tensors, the whole layer in float64
on the device, and how wrong a layer may be.

out[token] = sum over the token's experts of scale x (act(x[token] . w1^T + b1) . w2^T + b2), for the experts that are
here. w1 of a gated activation has two halves of rows, the linear one and then the gate's, as both CUTLASS's and
trtllm-gen's kernels have it.
"""
import functools
import math

from tacticd.worker import calls, frame, inputs, judge, launches, routing

# Deviation of a rounding's error in parts of the most it can be, and the deviations that the worst of millions reaches.
DEVIATION = 0.41
WORST = 6.0
ROWS_AT_ONCE = 1024


@functools.cache
def _module(maker):
    return calls.of(maker)()


def expect_module(maker):
    """The name of the compiled module that a call of calls.py makes. Raises frame.Unsupported if nobody has compiled it:
    that takes longer than the daemon waits for a problem to open."""
    module = _module(maker)
    if not module.is_compiled:
        raise frame.Unsupported(f"FlashInfer's module {module.name} is not compiled here: start a server once, or put "
                                "it where prebuilt modules lie (flashinfer/data/aot)")
    return module.name


class Problem(launches.Launches):
    """A mixture of experts that is open. A family says how to make its inputs (_make(seeds)), and then which candidates
    there are (_list()) and what is right (_judge())."""

    def __init__(self, device, key, seed, memory_cap_bytes, maker, size_bytes):
        """maker: the call that names the compiled module; size_bytes: what the problem takes of the device's memory."""
        super().__init__(device)
        self.key, self.module = key, expect_module(maker)
        launches.expect_memory(device, size_bytes, memory_cap_bytes)
        self._make(inputs.Seeds(seed))
        self.candidates = self._list()
        self.judge = self._judge()


def opener(problem, why_not):
    """A family's open(): of a Problem, for keys of which why_not(key) finds nothing to say."""
    def open_problem(device, key, seed, memory_cap_bytes, next):
        del next  # nothing can be made ahead
        why = why_not(key)
        if why:
            raise frame.Unsupported(why)
        with device.guard(frame.Unsupported):
            device.forget()  # of a problem that did not open
            return problem(device, key, seed, memory_cap_bytes)
    return open_problem


class Routed:
    """The seeded routing of daemon/workers/routing.c, as tensors on a device: ids [tokens, top_k] int32, of all
    experts, and scales [tokens, top_k] of `dtype`. `here` has of each local expert that is met (expert, token indices,
    factors in float64)."""

    def __init__(self, device, tokens, top_k, experts, local_experts, dtype, seeds):
        torch, where = device.torch, device.where
        chosen = routing.draw(tokens, top_k, experts, local_experts,
                              routing.seed_of(tokens, top_k, experts, local_experts))
        scales = routing.scales(tokens, top_k, seeds.next())
        self.ids = torch.tensor(chosen, dtype=torch.int32, device=where)
        self.scales = torch.tensor(scales, dtype=dtype, device=where)
        found = {}
        for expert, token, slot in routing.rows(chosen, local_experts):
            of_expert = found.setdefault(expert, ([], []))
            of_expert[0].append(token)
            of_expert[1].append(slot)
        self.here = []
        for expert, (of_tokens, slots) in found.items():
            at = torch.tensor(of_tokens, device=where)
            self.here.append((expert, at, self.scales[at, torch.tensor(slots, device=where)].double()))


def _gelu(torch, x):
    return torch.nn.functional.gelu(x)


def _silu(torch, x):
    return x * torch.sigmoid(x)


def _relu(torch, x):
    return torch.relu(x)


# By word of ops.def. Those that a release gives parameters of its own (swiglu_bias, swiglu_step, clamped_relu2, powlu)
# are not here, and not swept. SiTU has alpha = beta = 1, as without these tensors.
PLAIN = {"gelu": _gelu, "relu": _relu, "silu": _silu, "relu2": lambda t, x: _relu(t, x).square(),
         "identity": lambda _, x: x}
GATED = {"swiglu": lambda t, linear, gate: linear * _silu(t, gate),
         "geglu": lambda t, linear, gate: linear * _gelu(t, gate),
         "situ": lambda t, linear, gate: t.tanh(linear) * t.tanh(gate) * t.sigmoid(gate)}

# FlashInfer's ActivationType.
NUMBERS = {"gelu": 0, "relu": 1, "silu": 2, "swiglu": 3, "geglu": 4, "relu2": 6, "identity": 9, "situ": 10}


def is_gated(activation):
    return activation in GATED


def _activate(torch, activation, h):
    if activation in PLAIN:
        return PLAIN[activation](torch, h)
    half = h.shape[1] // 2
    return GATED[activation](torch, h[:, :half], h[:, half:])


def _rows(torch, x, at):
    """Not every version of torch indexes eight-bit floats."""
    return x[at] if x.element_size() > 1 else x.view(torch.uint8)[at].view(x.dtype)


def _times(torch, a, b):
    """a . b^T in float64, b converted in parts."""
    step = max(1, judge.CHUNK_BYTES // (8 * b.shape[1]))
    return torch.cat([a @ b[i:i + step].double().t() for i in range(0, b.shape[0], step)], 1)


def reference(torch, x, routed, activation, weights):
    """[tokens, hidden_out] float64. x: [tokens, hidden], any float type. weights(expert) gives (w1, b1, w2, b2) of a
    local expert, [n, k] in any float type, the biases None or [n]."""
    out = None
    for expert, tokens, factors in routed.here:
        w1, b1, w2, b2 = weights(expert)
        if out is None:
            out = torch.zeros(x.shape[0], w2.shape[0], dtype=torch.float64, device=x.device)
        for i in range(0, len(tokens), ROWS_AT_ONCE):
            at = tokens[i:i + ROWS_AT_ONCE]
            h = _times(torch, _rows(torch, x, at).double(), w1)
            h = _activate(torch, activation, h if b1 is None else h + b1.double())
            y = _times(torch, h, w2)
            y = y if b2 is None else y + b2.double()
            out.index_add_(0, at, y * factors[i:i + ROWS_AT_ONCE, None])
    return out


def limits(taken, between, out, k, adds=0):
    """judge.Limits of such a layer. `taken` is the inputs' type, `between` that of what lies between the products, as
    both are rounded there first to the result's and then to that; k: elements of both inner dimensions; adds: how
    often results are added up in the result's own type, top_k where the second product does it, else 0."""
    made = judge.Limits(taken, out, "f32", k)
    made.floor += WORST * DEVIATION * (judge.roundoff(out) * (1.0 + math.sqrt(adds)) + judge.roundoff(between))
    made.most = judge.NATIVE_FLOORS * made.floor
    return made
