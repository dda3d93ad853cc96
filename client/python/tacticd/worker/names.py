# SPDX-License-Identifier: Apache-2.0
"""The names of the kernels that a launch runs, through PyTorch's profiler (Kineto over CUPTI). It records during such
launches only, because it may slow others down. A process that somebody else traces has no names: two tracers collide.

A kernel's name is its identity when numbers change between releases: what is cut for people keeps a digest of the
whole.
"""
import contextlib
import hashlib
import re
import warnings

from tacticd.worker import frame

PLAIN_BYTES = 240  # longer names are templates, and shortened
MEMORY = re.compile(r"mem(cpy|set)\b|\[mem", re.IGNORECASE)
SHAPE = re.compile(r"tuple<((?:\s*(?:cute::)?(?:_|C<|constant<int,\s*)\(?-?\d+\)?>?,?)+)\s*>")
SCHEDULE = re.compile(r"\b(Kernel(?:Tma|Ptr|Cp|Multistage|Warp)\w+|\w*Persistent\w*Scheduler|StreamK\w*)")
MOST_SHAPES = 2  # tile and cluster


def short(name):
    """A kernel's name without its parameters; a template's as base, tiles, schedule and the digest of the whole."""
    whole = name.removeprefix("void ").strip()
    name = _without_parameters(whole)
    if len(name.encode()) <= PLAIN_BYTES:
        return name
    shapes = ["x".join(re.findall(r"-?\d+", shape)) for shape in SHAPE.findall(name)][:MOST_SHAPES]
    schedule = SCHEDULE.search(name)
    digest = hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()
    base = name.split("<", 1)[0][-PLAIN_BYTES // 2:]
    return " ".join([base, *shapes, *([schedule.group(1)] if schedule else []), f"#{digest}"])


def _without_parameters(name):
    """The text before the parentheses that end it, if they do."""
    if not name.endswith(")"):
        return name
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[i], 0)
        if depth == 0:
            return name[:i] or name
    return name


def joined(names):
    """Each once, in order, "a + b"; None if there are none. Where not all fit whole, those that do and a digest of all:
    a fused layer runs ten kernels, and the one that tells two tactics apart is among the last."""
    each = list(dict.fromkeys(map(short, names)))
    whole = " + ".join(each)
    if len(whole.encode()) <= frame.KERNEL_BYTES:
        return whole or None
    last, text = f"#{hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()}", ""
    for name in each:
        if len(f"{text}{name} + {last}".encode()) <= frame.KERNEL_BYTES:
            text += f"{name} + "
    return text + last


class Names:
    """Of one process. The first failure is said on stderr, and from then on nothing has a name."""

    def __init__(self, device, say):
        self.device, self.say = device, say
        self.is_nameless = not device.is_cuda
        if not self.is_nameless and _is_traced(device.torch):
            self._give_up("this process is traced by somebody else")

    def _give_up(self, why):
        self.is_nameless = True
        self.say(f"gpu: kernels have no names here: {why}")

    def of(self, launch):
        """(what launch() returns, names as joined() has them or None). launch() waits for the device itself; what it
        raises passes through."""
        if self.is_nameless:
            return launch(), None
        profiler = self._begin()
        try:
            out = launch()
        finally:
            seen = self._end(profiler)
        return out, joined(seen)

    def _begin(self):
        torch = self.device.torch
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                profiler.__enter__()
            return profiler
        except Exception as e:  # whatever Kineto meets
            self._give_up(f"{type(e).__name__}: {e}")
            return None

    def _end(self, profiler):
        if profiler is None:
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                profiler.__exit__(None, None, None)
                events = [e for e in profiler.events() if _is_kernel(e)]
            return [e.name for e in sorted(events, key=lambda e: e.time_range.start)]
        except Exception as e:  # as above
            self._give_up(f"{type(e).__name__}: {e}")
            return []


def _is_kernel(event):
    return "CUDA" in str(event.device_type) and not MEMORY.match(event.name)


def _is_traced(torch):
    with contextlib.suppress(Exception):
        return bool(torch.autograd.profiler._is_profiler_enabled)
    return False
