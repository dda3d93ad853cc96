# SPDX-License-Identifier: Apache-2.0
"""A problem of a family on a device: everything of frame.Problem that is the same for all of FlashInfer's kernels.

A family's module has
    OPS              the ops that it opens, names of ops.def
    missing(device)  why none of them can run on this device, in words; None if one can
    open(device, key, seed, memory_cap_bytes, next)
                     a Launches, or frame.Unsupported or frame.Memory; key is a keys.Key, next another or None
and stands in families.MODULES. A Launches is built like this:

    class Problem(launches.Launches):
        def __init__(self, device, ...):
            super().__init__(device)
            self.candidates = [...]  # frame.Candidate, native first
            self.warm = (a,)         # tensors that a server has in L2 when the kernel begins
            self.output = out        # contiguous float tensor that launch() writes whole
            self.judge = judge.Judge(judge.Product(a, b, seed), judge.Limits("bf16", "bf16", "f32", k))

        def launch(self, i):         # enqueues candidate i once in torch's current stream, into self.output
            ...

launch() may raise what it likes: it becomes frame.Failed with the library's words, or ends the process if the device
is broken. What must not happen unseen is a library that runs something else: a warning that says "falling back" is
raised as an error for every candidate, and in look() any other warning, together with the kernels of native, is a
refusal too.
"""
import contextlib
import re
import sys
import warnings

from tacticd.worker import frame, names, timing

NATIVE = 0
FALLBACK = r"(?is).*\bfall(s|ing|en)?[- ]?back\b"


def say(sentence):
    print(sentence, file=sys.stderr, flush=True)


def refuse_fallbacks():
    """From now on a library that says it runs something else raises. Filters are the process's, and imports may change
    them: this is called with each problem."""
    warnings.filterwarnings("error", message=FALLBACK)


def names_of(device):
    """The process's one Names."""
    if not hasattr(device, "names"):
        device.names = names.Names(device, say)
    return device.names


def expect_memory(device, size_bytes, cap_bytes):
    """Raises frame.Memory if a problem needs more than the cap leaves beside what the worker holds for good, or than is
    free. Then nothing takes more than the cap."""
    needs, free = size_bytes + timing.timer_of(device).bytes, device.free_bytes()
    if needs > min(cap_bytes, free):
        raise frame.Memory(f"it needs {needs >> 20} MiB; the cap is {cap_bytes >> 20} MiB, and {free >> 20} MiB are free")
    device.cap(cap_bytes)


class Launches(frame.Problem):
    """See above. Memory of what it made counts until close()."""

    watches = True
    warm = ()
    output = judge = None

    def __init__(self, device):
        self.device, self.timer = device, timing.timer_of(device)
        self.method, self.flush_us = self.timer.method, self.timer.flush_us
        self.native_kernel = None
        self.run_hot = self._hot
        refuse_fallbacks()

    def launch(self, i):
        raise NotImplementedError

    def refused(self, i):
        """Asked after each look's launches: why this candidate, though it ran, must not be used; None: it may. Native
        may in any case."""
        return None

    # --- what the frame asks for ---

    def look(self, i, limit_ms):
        with self.device.guard():
            with self._hearing() as heard:
                first_us, kernel = names_of(self.device).of(lambda: self.timer.once(lambda: self.launch(i), limit_ms))
            self._compare(i, kernel, heard)
            sample = self.timer.cold(lambda: self.launch(i), self.warm, limit_ms)
            # Native too: all rounds with it would be lost, and the daemon would call that others' work. It is not
            # hopeless, for the host may be less busy at the next try.
            if sample.is_foreign:
                raise frame.Failed(f"its call waits for the device, or takes the host more than {timing.GATE_MAX_US / 1e3:.0f} "
                                   "ms: its own time cannot be told")
            why = self.refused(i)
            if why and i != NATIVE:
                raise frame.Failed(why)
            return frame.Look(first_us, sample, kernel)

    def check(self, i):
        with self.device.guard():
            return self.judge.check(lambda: self.timer.once(lambda: self.launch(i)), self.output, i == NATIVE)

    def run(self, i):
        with self.device.guard():
            return self.timer.cold(lambda: self.launch(i), self.warm)

    def _hot(self, i):
        with self.device.guard():
            return self.timer.hot(lambda: self.launch(i))

    def clock_mhz(self):
        with self.device.guard():
            return self.timer.clock_mhz()

    def close(self):
        device = self.device
        self.__dict__.clear()
        device.forget()

    # --- who ran ---

    @contextlib.contextmanager
    def _hearing(self):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            refuse_fallbacks()
            yield heard

    def _compare(self, i, kernel, heard):
        if i == NATIVE:
            self.native_kernel = kernel
        elif heard and kernel and kernel == self.native_kernel:
            words = re.sub(r"\s+", " ", str(heard[0].message))
            raise frame.Failed(f"it ran native's kernels and warned: {words}")
