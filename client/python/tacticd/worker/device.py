# SPDX-License-Identifier: Apache-2.0
"""The device of a worker in Python: what it is, its faults, and the wait for it. One device a process, the first that
CUDA_VISIBLE_DEVICES leaves; everything runs on torch's current stream there. PyTorch is imported by find() and not
before. On a CPU (find("cpu"), for tests) everything works but what has no meaning there.

A fault that breaks the context (an illegal address, a trap, a reset) cannot be mended in this process: guard() says so
in a line on stderr and ends it with EXIT_STICKY. The daemon reads that as the death of the candidate in hand.
"""
import contextlib
import importlib
import os
import pathlib
import re
import sys
import time

from tacticd.worker import frame

# As daemon/workers/gpu.h has them.
EXIT_STICKY = 70
EXIT_HUNG = 72

POLL_S = 100e-6  # between two looks at a launch that takes long
PACKAGE = pathlib.Path(__file__).resolve().parents[1]  # tacticd
SENTENCE_BYTES = 200  # of a library's words
UNKNOWN_L2_BYTES = 64 << 20


def end(status, sentence):
    """os._exit: handlers of libraries would wait for a device that no longer answers."""
    print(f"worker: {frame.plain(sentence)}", file=sys.stderr, flush=True)
    os._exit(status)


def words_of(error):
    """An exception's first line, with its type if the words alone say little."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return frame.plain(f"{type(error).__name__}: {text}" if len(text) < 40 else text, SENTENCE_BYTES)


class Device:
    """Facts of the one device. `torch` is the module, so that families need not import it; `where` its torch.device.

    name, uuid, driver   as their drivers spell them; "" if unknown
    capability           90 for compute capability 9.0; 0 on a CPU
    sm_count, l2_bytes, memory_bytes
    max_clock_mhz        of its SMs; 0 if unknown
    """

    def __init__(self, torch, where):
        self.torch, self.where, self.is_cuda = torch, where, where.type == "cuda"
        self.name = self.uuid = self.driver = ""
        self.capability = self.sm_count = self.memory_bytes = self.max_clock_mhz = 0
        self.l2_bytes = UNKNOWN_L2_BYTES
        if self.is_cuda:
            self._describe(torch.cuda.get_device_properties(where))

    def _describe(self, told):
        self.name, self.uuid = told.name, _uuid(told)
        self.capability = 10 * told.major + told.minor
        self.sm_count, self.memory_bytes = told.multi_processor_count, told.total_memory
        self.l2_bytes = getattr(told, "L2_cache_size", 0) or UNKNOWN_L2_BYTES
        self.max_clock_mhz = getattr(told, "clock_rate", 0) * 1e-3  # kHz; torch has it since 2.8
        self.driver = _driver()

    def facts(self):
        """What FlashInfer's own metadata leaves out, by the names of fingerprint.def, spelled as client/facts.c has
        it. Empty on a CPU."""
        if not self.is_cuda:
            return {}
        return {"device": self.name, "sm_count": str(self.sm_count), "driver": self.driver}

    def free_bytes(self):
        """Memory that a problem could still take. On a CPU: a lot."""
        return self.torch.cuda.mem_get_info(self.where)[0] if self.is_cuda else 1 << 40

    def cap(self, cap_bytes):
        """From now on PyTorch's allocator takes at most so much of the device; more raises frame.Memory in guard()."""
        if self.is_cuda and self.memory_bytes:
            self.torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / self.memory_bytes), self.where)

    def forget(self):
        """Gives memory that nobody holds back to the device."""
        if self.is_cuda:
            with self.guard():
                self.torch.cuda.empty_cache()

    def wait(self, limit_ms=0, event=None):
        """Until the stream is idle, or the event has come. Who keeps the device busy for longer than limit_ms,
        counted from this call, hangs and cannot be recalled: the process ends with EXIT_HUNG. 0: for ever."""
        if not self.is_cuda:
            return
        if event is None:
            event = self.torch.cuda.Event()
            event.record()
        if not limit_ms:
            event.synchronize()
            return
        until = time.monotonic() + limit_ms * 1e-3
        while not event.query():
            if time.monotonic() > until:
                end(EXIT_HUNG, f"gpu: a launch keeps the device busy for more than {limit_ms} ms: it hangs")
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def guard(self, refusal=frame.Failed):
        """Around everything that touches the device. What the library raises becomes `refusal` with its words; no
        memory becomes `refusal` too, or frame.Memory where that is frame.Unsupported; a broken device ends the
        process. The frame's own errors pass, and so do defects of ours (AssertionError, NameError raised in this package)."""
        try:
            yield
        except (frame.Failed, frame.Unsupported, frame.Memory, frame.Unavailable):
            raise
        except Exception as e:  # whatever a library raises
            if is_ours(e):
                raise
            self._judge(e, refusal)

    def _judge(self, e, refusal):
        if self.is_broken():
            end(EXIT_STICKY, f"gpu: {words_of(e)}; this process can use its GPU no more")
        if isinstance(e, MemoryError) or isinstance(e, self.torch.OutOfMemoryError):
            raise (frame.Memory if refusal is frame.Unsupported else refusal)(words_of(e)) from e
        raise refusal(words_of(e)) from e

    def is_broken(self):
        """A broken context answers every later call with an error. One error may be what a library left behind for the
        next who asks; then the second call is answered."""
        return self.is_cuda and not self._answers() and not self._answers()

    def _answers(self):
        try:
            self.torch.cuda.synchronize(self.where)
            self.torch.zeros(1, device=self.where).item()
        except self.torch.OutOfMemoryError:
            return True
        except RuntimeError:
            return False
        return True


def is_ours(e):
    """A defect of ours, not a library's own way to say that it cannot."""
    if not isinstance(e, (AssertionError, NameError)):
        return False
    at = e.__traceback__
    while at.tb_next:
        at = at.tb_next
    return PACKAGE in pathlib.Path(at.tb_frame.f_code.co_filename).parents


def _uuid(told):
    text = str(getattr(told, "uuid", ""))
    return text if not text or text.startswith(("GPU-", "MIG-")) else f"{'MIG' if ' MIG ' in told.name else 'GPU'}-{text}"


def _driver():
    """As client/facts_cuda.c reads it: the kernel's part says it; else NVML; else unknown."""
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version"):
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            found = re.search(r"(?:^|\s)(\d+(?:\.\d+)+)(?=\s|$)", file.readline())
            if found:
                return found.group(1)
    with contextlib.suppress(Exception):  # no NVML, or one that refuses
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            told = nvml.nvmlSystemGetDriverVersion()
        finally:
            nvml.nvmlShutdown()
        return told.decode() if isinstance(told, bytes) else told
    return ""


def find(kind="cuda"):
    """The device. Raises frame.Unavailable, naming what is missing."""
    try:
        torch = importlib.import_module("torch")
    except Exception as e:  # whatever its import meets
        raise frame.Unavailable(f"PyTorch cannot be imported: {words_of(e)}") from e
    if kind == "cpu":
        return Device(torch, torch.device("cpu"))
    try:
        if not torch.cuda.is_available():
            raise frame.Unavailable("PyTorch sees no NVIDIA GPU (CUDA_VISIBLE_DEVICES is "
                                    f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set') or 'empty'})")
        torch.cuda.set_device(0)
        return Device(torch, torch.device("cuda", 0))
    except RuntimeError as e:
        raise frame.Unavailable(f"the GPU does not start: {words_of(e)}") from e
