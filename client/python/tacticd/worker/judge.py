# SPDX-License-Identifier: Apache-2.0
"""Is this output right? verify.h's judgement in torch: float64 on the device the outputs are on, whole outputs, and the
limits of daemon/workers/verify_limit.c (a test holds both to the same numbers). No timing counts before this.

Two references. Product: a matrix product, all of it in blocks of 256 columns, each row of a block summed with random
weights and compared with the same sum from the inputs (a . (b . r), never the product itself), and sampled elements one
by one. Exact: values somebody computed, every element compared: for what is not linear.

Errors are in units of the outputs' root mean square, so that one limit serves all shapes.
"""
import importlib
import math

from tacticd.worker import frame, inputs

BLOCK_COLUMNS = 256
SAMPLES = 1024
CHUNK_BYTES = 256 << 20  # of float64 in hand at once

# Mantissa bits of what verify_limit.c calls dtype_roundoff; e5m2 is FlashInfer's alone.
MANTISSA_BITS = {"f32": 23, "f16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2}
NARROW = ("e4m3", "e5m2")
# As in verify_limit.c, where the reasons stand.
NATIVE_FLOORS = 4.0
NARROW_ROUNDOFF = 2.0 ** -14
CUT_RUN = 8.0
NARROW_RUN = 128


def roundoff(word):
    """Half a step of a float type, relative."""
    return 2.0 ** (-MANTISSA_BITS[word] - 1)


class Worst:
    """The largest error so far, in units of the outputs' root mean square, and where it is. NaN once an output was
    not finite."""

    def __init__(self):
        self.error, self.where = 0.0, ""

    def note(self, error, where):
        if error > self.error:
            self.error, self.where = error, where

    def note_not_finite(self, row, column):
        self.error, self.where = math.nan, f"element [{row},{column}] is not finite or was never written"


class Limits:
    """How wrong an output may be, and who sets the yardstick: verify_limit.h. Words of float types of ops.def: `taken`
    the inputs', `out` the result's, `acc` the accumulation's; k: products added up for one element. Where several
    products follow each other, k is their sum, and `taken` the narrowest type between them."""

    def __init__(self, taken, out, acc, k):
        run, terms = min(float(k), float(NARROW_RUN)), math.sqrt(float(k))
        if acc == "f32" and taken != "f32":
            terms = max(terms, float(k) / CUT_RUN)
        self.floor = 6.0 * roundoff(out) + 2.0 * roundoff(acc) * terms
        if taken in NARROW:
            self.floor += 2.0 * NARROW_ROUNDOFF * math.sqrt(run)
        self.most = NATIVE_FLOORS * self.floor
        self.native_error = None

    def limit(self, is_native):
        twice = 0.0 if self.native_error is None else 2.0 * self.native_error
        if is_native or twice > self.most:
            return self.most
        return max(twice, self.floor)

    def judge(self, first, again, is_native):
        """A frame.Check of the Worst of the first run, and of the second where their bytes differ (else None). The
        first right output of native sets the yardstick: a candidate may be twice as wrong as that or reach the floor
        of its types, whichever is more, but never 4 floors; native itself is held to 4 floors, so that a broken
        library cannot bless its own mistakes."""
        # A NaN is the worst of all.
        worst = again if again and not math.isnan(first.error) and not again.error <= first.error else first
        limit = self.limit(is_native)
        ok = worst.error <= limit
        if ok and is_native and self.native_error is None:
            self.native_error = worst.error
        return frame.Check(ok, worst.error, limit, again is None, "" if ok else worst.where)


def _rows_at_once(columns):
    return max(1, CHUNK_BYTES // (8 * max(1, columns)))


def _first_not_finite(rows):
    """(row, column) of a [rows, columns] tensor, or None."""
    bad = ~rows.isfinite()
    if not bool(bad.any()):
        return None
    at = int(bad.reshape(-1).nonzero()[0])
    return at // rows.shape[1], at % rows.shape[1]


def _rows(tensor, batch, row):
    """Those rows in float64. Not every version indexes eight-bit floats."""
    if tensor.element_size() > 1:
        return tensor[batch, row].double()
    torch = importlib.import_module("torch")
    return tensor.view(torch.uint8)[batch, row].view(tensor.dtype).double()


class Exact:
    """Every element of values, [rows, columns] in float64, on the device of the outputs; the outputs have the same
    number of elements in the same order. rms: None takes that of the values."""

    def __init__(self, values, rms=None):
        self.values = values
        self.rms = rms or float(values.square().mean().sqrt()) or 1.0

    def measure(self, output):
        """A Worst."""
        worst, (rows, columns) = Worst(), self.values.shape
        output = output.reshape(rows, columns)
        for first in range(0, rows, step := _rows_at_once(columns)):
            got, want = output[first:first + step].double(), self.values[first:first + step]
            at = _first_not_finite(got)
            if at:
                worst.note_not_finite(first + at[0], at[1])
                return worst
            errors = (got - want).abs()
            at = int(errors.argmax())
            row, column = at // columns, at % columns
            worst.note(float(errors[row, column]) / self.rms,
                       f"element [{first + row},{column}] is {float(got[row, column]):.6g}, "
                       f"should be {float(want[row, column]):.6g}")
        return worst


class Product:
    """out[batch][m][n] = scale x a . b^T + bias. a: [batch, m, k] and b: [batch, n, k], any float type and strides,
    borrowed while this is made; bias: [n] as the library sees it, or None. The reference costs
    batch x (k x n + m x n x k / 256) multiply-adds, and memory for batch x (m x n / 256 + n x k / 256) float64."""

    def __init__(self, a, b, seed, scale=1.0, bias=None):
        torch = importlib.import_module("torch")
        self.torch, self.scale = torch, scale
        self.batch, self.m, self.k = a.shape
        self.n, self.blocks = b.shape[1], -(-b.shape[1] // BLOCK_COLUMNS)
        seeds = inputs.Seeds(seed)
        draw = torch.Generator().manual_seed(seeds.next() >> 1)
        self.weights = self._padded(self._draw_weights(draw).to(a.device))
        self.norms = self.weights.square().sum(1).sqrt()
        bias = torch.zeros(self.n, dtype=torch.float64, device=a.device) if bias is None else bias.double()
        self._sample(a, b, bias, draw)
        self._sum(a, b, bias)

    def _draw_weights(self, draw):
        """Of changing size, not just sign: two swapped columns of equal sign would cancel."""
        torch = self.torch
        size = torch.rand(self.n, generator=draw, dtype=torch.float64) + 0.5
        return torch.where(torch.rand(self.n, generator=draw) < 0.5, size, -size)

    def _padded(self, columns):
        """[blocks, BLOCK_COLUMNS], zero behind the last column."""
        out = columns.new_zeros(self.blocks * BLOCK_COLUMNS)
        out[:self.n] = columns
        return out.view(self.blocks, BLOCK_COLUMNS)

    def _sample(self, a, b, bias, draw):
        torch = self.torch

        def places(n):
            return torch.randint(n, (SAMPLES,), generator=draw)

        batch, row, column = places(self.batch), places(self.m), places(self.n)
        # The first four are corners: edges are where tilings go wrong.
        row[:4] = torch.tensor([0, self.m - 1, 0, self.m - 1])
        column[:4] = torch.tensor([0, 0, self.n - 1, self.n - 1])
        self.at = tuple(t.to(a.device) for t in (batch, row, column))
        batch, row, column = self.at
        parts = [self.scale * (_rows(a, batch[i:i + 256], row[i:i + 256]) * _rows(b, batch[i:i + 256], column[i:i + 256]))
                 .sum(1) for i in range(0, SAMPLES, 256)]
        self.samples = torch.cat(parts) + bias[column]
        self.rms = float(self.samples.square().mean().sqrt()) or 1.0

    def _sum(self, a, b, bias):
        torch = self.torch
        self.sums = torch.empty(self.batch, self.m, self.blocks, dtype=torch.float64, device=a.device)
        of_bias = (self.weights * self._padded(bias)).sum(1)
        step = max(1, CHUNK_BYTES // (8 * BLOCK_COLUMNS * self.k))
        for batch in range(self.batch):
            projected = torch.empty(self.blocks, self.k, dtype=torch.float64, device=a.device)
            for block in range(0, self.blocks, step):
                self._project(b[batch], projected, block, min(block + step, self.blocks))
            for first in range(0, self.m, rows := _rows_at_once(self.k)):
                part = a[batch, first:first + rows].double()
                self.sums[batch, first:first + rows] = self.scale * (part @ projected.t()) + of_bias

    def _project(self, b, projected, first, end):
        """projected[first:end] = weighted sums of those blocks' columns."""
        columns = b[first * BLOCK_COLUMNS:end * BLOCK_COLUMNS].double()
        whole = columns.shape[0] // BLOCK_COLUMNS
        weights = self.weights[first:end]
        if whole:
            blocks = columns[:whole * BLOCK_COLUMNS].reshape(whole, BLOCK_COLUMNS, self.k)
            projected[first:first + whole] = self.torch.bmm(weights[:whole, None, :], blocks).squeeze(1)
        rest = columns[whole * BLOCK_COLUMNS:]
        if len(rest):
            projected[first + whole] = weights[whole, :len(rest)] @ rest

    def measure(self, output):
        """A Worst."""
        worst, output = Worst(), output.reshape(self.batch, self.m, self.n)
        for batch in range(self.batch):
            for first in range(0, self.m, step := _rows_at_once(2 * self.n)):
                got = output[batch, first:first + step].double()
                at = _first_not_finite(got)
                if at:
                    worst.note_not_finite(first + at[0], at[1])
                    return worst
                self._note_sums(worst, got, batch, first)
        self._note_samples(worst, output)
        return worst

    def _note_sums(self, worst, got, batch, first):
        padded = self.torch.nn.functional.pad(got, (0, self.blocks * BLOCK_COLUMNS - self.n))
        sums = (padded.view(-1, self.blocks, BLOCK_COLUMNS) * self.weights).sum(2)
        errors = (sums - self.sums[batch, first:first + len(got)]).abs() / (self.rms * self.norms)
        at = int(errors.argmax())
        row, block = at // self.blocks, at % self.blocks
        error, last = float(errors[row, block]), min(self.n, (block + 1) * BLOCK_COLUMNS) - 1
        worst.note(error, f"row {first + row}, columns {block * BLOCK_COLUMNS} to {last}: their weighted sum is off by "
                          f"{error:.3g}")

    def _note_samples(self, worst, output):
        got = output[self.at].double()
        errors = (got - self.samples).abs()
        i = int(errors.argmax())
        worst.note(float(errors[i]) / self.rms, f"element [{int(self.at[1][i])},{int(self.at[2][i])}] is "
                                                f"{float(got[i]):.6g}, should be {float(self.samples[i]):.6g}")


class Judge:
    """A reference (Exact, Product, or what measures likewise) with its Limits."""

    def __init__(self, reference, limits):
        self.reference, self.limits = reference, limits

    def check(self, launch, output, is_native):
        """A frame.Check: launch() runs the candidate once into `output`, a contiguous float tensor, and has finished
        with it when it returns; it is called twice, over different poison. Memory: one more output."""
        inputs.poison(output, 0)
        launch()
        first = output.clone()
        inputs.poison(output, 1)
        launch()
        again = None if inputs.same_bytes(first, output) else self.reference.measure(output)
        return self.limits.judge(self.reference.measure(first), again, is_native)
