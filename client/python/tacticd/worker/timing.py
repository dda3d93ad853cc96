# SPDX-License-Identifier: Apache-2.0
"""Launches of a library, timed as daemon/workers/gpu_time.c does it, with what PyTorch offers.

Method "torch-event-cold-1" (cuda events; all of L2 is written over, then another buffer is read, so that no line is
dirty; what a server has warm is read again; then a spinning kernel, which holds the stream while the host enqueues the
rest: event, launch, event). So the time between the events is the device's alone, however slow the host is, and the
host's cost is the time of the call. The flush of the next launch is enqueued with this one. gpu_time.c's stream is held
until the host lets it go; here it is for a time: three times what the host needed before. A spin that ended before the
host was done let the host's delay in: the launch is repeated with a longer one, and at last marked as disturbed.
On a CPU the launch is the work: wall time, for tests; method "torch-wall-cold-1".
"""
import gc
import math
import statistics
import time

from tacticd.worker import frame

METHODS = {True: "torch-event-cold-1", False: "torch-wall-cold-1"}  # by whether there is a GPU

FLUSH_FACTOR = 2  # times L2: what a flush writes, and then reads elsewhere
FLUSH_ROUNDS = 5
GATE_FIRST_US = 500.0
GATE_SLACK_US = 100.0
GATE_FACTOR = 3.0  # times what the host needed for the same call before
GATE_MAX_US = 20e3  # of real time: a library that waits for the device in its call waits so long
GATE_ATTEMPTS = 4
CLOCK_CYCLES = (100_000, 300_000)  # two spins: their difference has no launch in it
CLOCK_TIMES = 3  # the host may be late in one of them
CLOCK_FIRST_MHZ = 1000.0  # until one is measured
CLOCK_LEAST_MHZ, CLOCK_MOST_MHZ = 100.0, 5000.0  # beyond it is the host that was measured
CLOCK_OVER = 1.1  # times the device's own maximum: likewise


def now_us():
    return time.monotonic_ns() * 1e-3


class Timer:
    """Of one device, for the whole process. Takes `bytes` of the device for good. `call` is a function without
    arguments that enqueues one launch in torch's current stream; `warm` are tensors read after each flush, at most
    half of L2 of each. Times are microseconds. What `call` raises passes through."""

    def __init__(self, device):
        self.device, self.torch = device, device.torch
        self.method = METHODS[device.is_cuda]
        n = FLUSH_FACTOR * device.l2_bytes // 4
        self.bytes = 2 * 4 * n
        self.written = self.torch.zeros(n, dtype=self.torch.int32, device=device.where)
        self.read = self.torch.zeros(n, dtype=self.torch.int32, device=device.where)
        self.sinks = {kind: self.torch.zeros(1, dtype=kind, device=device.where) for kind in (self.torch.int32, self.torch.uint8)}
        self.turn, self.is_cold, self.gate_us = 0, False, GATE_FIRST_US
        is_told = CLOCK_LEAST_MHZ <= device.max_clock_mhz <= CLOCK_MOST_MHZ
        self.told_mhz = device.max_clock_mhz if is_told else None
        self.mhz = self.now_mhz = self.told_mhz or CLOCK_FIRST_MHZ  # what the gate counts by; the last one measured
        self.flush_us = self._measure_flush()
        if device.is_cuda:
            self.torch.cuda._sleep(CLOCK_CYCLES[0])  # the first loads the kernel, which takes the host long
            device.wait()
        self.clock_mhz()

    # --- cold ---

    def _flush(self):
        self.turn += 1
        # Not one value everywhere: memory may be compressed.
        self.torch.arange(self.turn, self.turn + len(self.written), dtype=self.torch.int32, out=self.written)
        self._read(self.read)
        self.is_cold = True

    def _read(self, flat):
        # In the type that is there: a sum would be taken of a wider copy, whose lines would be dirty.
        self.torch.amax(flat, dim=0, keepdim=True, out=self.sinks[flat.dtype])

    def _touch(self, warm):
        for tensor in warm:
            flat = tensor.view(-1).view(self.torch.uint8)[:self.device.l2_bytes // 2]
            words = len(flat) // 4 * 4 if flat.data_ptr() % 4 == 0 else 0
            if len(flat):
                self._read(flat[:words].view(self.torch.int32) if words else flat)

    def _measure_flush(self):
        self._flush()
        return statistics.median(self._timed(self._flush) for _ in range(FLUSH_ROUNDS))

    def _timed(self, work):
        self.device.wait()
        if not self.device.is_cuda:
            start_us = now_us()
            work()
            return now_us() - start_us
        start, end = self._events()
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def _events(self):
        return tuple(self.torch.cuda.Event(enable_timing=True) for _ in range(2))

    # --- launches ---

    def once(self, call, limit_ms=0):
        """One launch, waited for: all that happened, by the wall clock. Device.wait says what limit_ms is."""
        self.is_cold = False
        start_us = now_us()
        call()
        self.device.wait(limit_ms)
        return now_us() - start_us

    def cold(self, call, warm=(), limit_ms=0):
        """A frame.Sample of one cold launch."""
        return self._sample(call, warm, limit_ms, True)

    def hot(self, call):
        """The same without flush, after one untimed launch: only for comparisons of methods."""
        call()
        return self._sample(call, (), 0, False)

    def _sample(self, call, warm, limit_ms, is_cold):
        had_gc = gc.isenabled()
        gc.disable()  # a collection would count as the launch's cost
        try:
            if not self.device.is_cuda:
                return self._on_cpu(call, warm, is_cold)
            for _ in range(GATE_ATTEMPTS):
                sample, was_held = self._gated(call, warm, limit_ms, is_cold)
                if was_held:
                    return sample
            return sample._replace(is_foreign=True)
        finally:
            if had_gc:
                gc.enable()

    def _on_cpu(self, call, warm, is_cold):
        if is_cold:
            self._flush()
            self._touch(warm)
        start_us = now_us()
        call()
        us = now_us() - start_us
        return frame.Sample(us, us)

    def _gated(self, call, warm, limit_ms, is_cold):
        """A sample, and whether the stream was held until the host was done."""
        start, end = self._events()
        if is_cold and not self.is_cold:
            self._flush()
        if is_cold:
            self._touch(warm)
        self.is_cold = False
        self.torch.cuda._sleep(int(min(self.gate_us * self.mhz, GATE_MAX_US * self.now_mhz)))
        start.record()
        start_us = now_us()
        call()
        host_us = now_us() - start_us
        end.record()
        was_held = not start.query()
        if is_cold:
            self._flush()
        self.device.wait(limit_ms, end)
        least = GATE_FACTOR * host_us + GATE_SLACK_US
        self.gate_us = min(GATE_MAX_US, least if was_held else max(least, 2.0 * self.gate_us))
        return frame.Sample(start.elapsed_time(end) * 1e3, host_us), was_held

    # --- clock ---

    def clock_mhz(self):
        """The SM clock, by spins of known cycles in the stream; None on a CPU, and where no sane number was found. The
        gate counts by the fastest that the device can be, or was so far if that is not told: an idle one is slow, and
        would open it too soon."""
        if not self.device.is_cuda:
            return None
        is_cold = self.is_cold  # and stays so: a spin touches nothing
        gaps = []
        for _ in range(CLOCK_TIMES):
            short_us, long_us = (self._timed(lambda n=n: self.torch.cuda._sleep(n)) for n in CLOCK_CYCLES)
            gaps.append(long_us - short_us)
        self.is_cold = is_cold
        gap_us = statistics.median(gaps)
        found = (CLOCK_CYCLES[1] - CLOCK_CYCLES[0]) / gap_us if gap_us > 0 else math.inf
        most = CLOCK_OVER * self.told_mhz if self.told_mhz else CLOCK_MOST_MHZ
        if not CLOCK_LEAST_MHZ <= found <= most:
            return None
        self.now_mhz = found
        if not self.told_mhz:
            self.mhz = max(self.mhz, found)
        return found


def timer_of(device):
    """The process's one Timer, made when it is first asked for."""
    if not hasattr(device, "timer"):
        device.timer = Timer(device)
    return device.timer
