# SPDX-License-Identifier: Apache-2.0
"""What a problem is fed with, and what its results hold before: tensors from a seed, and poison. Works on every device
of torch's. Values are the same for the same seed on the same kind of device, not across kinds."""
import importlib

MASK = (1 << 64) - 1
CHUNK = 1 << 24  # elements drawn at once

# Words of ops.def, and torch's names for them.
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
          "s8": "int8", "u8": "uint8", "s32": "int32"}


def dtype_of(torch, word):
    """torch's type for a word of ops.def; KeyError if it is none of DTYPES."""
    return getattr(torch, DTYPES[word])


class Seeds:
    """Seeds from a seed (splitmix64, as bench_random): next() for each tensor, in a fixed order."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = (self.state ^ self.state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def generator(self, torch, where):
        """A torch.Generator on that device."""
        made = torch.Generator(device=where)
        made.manual_seed(self.next() >> 1)
        return made


def bell(device, shape, dtype, sd, seeds):
    """A contiguous tensor of bell-shaped values with standard deviation sd, rounded to the type: what activations and
    weights look like. device: a Device; dtype: torch's, a float."""
    torch = device.torch
    out = torch.empty(shape, dtype=dtype, device=device.where)
    flat, generator = out.view(-1), seeds.generator(torch, device.where)
    for first in range(0, flat.numel(), CHUNK):
        part = flat[first:first + CHUNK]
        part.copy_(torch.randn(part.numel(), generator=generator, device=device.where).mul_(sd))
    return out


def poison(tensor, which):
    """Fills a float tensor with NaN, in another way for which = 0 and 1, so that what a kernel leaves unwritten is
    seen, and differs between two runs. In the stream; the tensor is contiguous."""
    torch = importlib.import_module("torch")
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    # All ones is NaN in every float type here, and so it is without the sign bit.
    ones = {1: 0xFF, 2: -1, 4: -1}[tensor.element_size()]
    positive = {1: 0x7F, 2: 0x7FFF, 4: 0x7FFFFFFF}[tensor.element_size()]
    tensor.view(as_integers).fill_(positive if which else ones)


def same_bytes(a, b):
    """Whether two contiguous tensors of one type hold equal bytes: NaN is itself."""
    torch = importlib.import_module("torch")
    return bool(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)))
