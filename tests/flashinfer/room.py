#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worker's room with PyTorch on a CPU: what its judge finds and does not mind, its inputs, its clock, its faults.
Runs inside an environment with PyTorch (venv.sh).

usage: room.py
"""
import math
import pathlib
import subprocess
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "client/python"))

import torch  # noqa: E402

from tacticd.worker import device, frame, inputs, judge, launches, timing  # noqa: E402

CPU = device.find("cpu")
CPU.l2_bytes = 1 << 16


class Case:
    """out = scale x a . b^T + bias, and its judge."""

    def __init__(self, m=37, n=600, k=96, batch=2, taken="bf16", out="bf16", b_is_nk=True, bias=False, scale=1.0, seed=3):
        seeds, kind = inputs.Seeds(seed), inputs.dtype_of(torch, taken)
        self.a = inputs.bell(CPU, (batch, m, k), kind, 1.0, seeds)
        stored = inputs.bell(CPU, (batch, n, k) if b_is_nk else (batch, k, n), kind, k ** -0.5, seeds)
        self.b = stored if b_is_nk else stored.transpose(1, 2)
        self.bias = inputs.bell(CPU, (n,), torch.bfloat16, 0.5, seeds) if bias else None
        self.values = scale * (self.a.double() @ self.b.double().transpose(1, 2)) + (0 if self.bias is None else self.bias.double())
        self.right = self.values.to(inputs.dtype_of(torch, out))
        self.product = judge.Product(self.a, self.b, 5, scale, self.bias)
        self.limits = judge.Limits(taken, out, "f32", k)

    def worst(self, output, reference=None):
        return (reference or self.product).measure(output)

    def check(self, outputs, is_native=False):
        """One that writes those, one after another."""
        told, output = iter(outputs), torch.empty_like(self.right)
        return judge.Judge(self.product, self.limits).check(lambda: output.copy_(next(told)), output, is_native)


class Judging(unittest.TestCase):
    def test_right_outputs_of_every_kind(self):
        for kind in ({}, {"m": 1, "n": 1, "batch": 1}, {"n": 256}, {"n": 257, "b_is_nk": False}, {"taken": "f16", "out": "f32"},
                     {"bias": True}, {"taken": "e4m3", "scale": 0.37}, {"taken": "e5m2", "out": "f16"}, {"out": "f16", "k": 1}):
            case = Case(**kind)
            self.assertTrue(case.check(2 * [case.right]).ok, kind)
            exact = judge.Exact(case.values.view(-1, case.values.shape[2]))
            self.assertLess(case.worst(case.right, exact).error, case.limits.floor, kind)
            self.assertAlmostEqual(exact.rms / case.product.rms, 1.0, delta=0.3 if case.values.numel() > 1 else 0.0)

    def test_chunks_do_not_matter(self):
        case, whole = Case(n=1500, bias=True), judge.CHUNK_BYTES
        judge.CHUNK_BYTES = 8 * 256 * 96
        try:
            other = judge.Product(case.a, case.b, 5, 1.0, case.bias)
            self.assertTrue(torch.allclose(other.sums, case.product.sums, rtol=0, atol=1e-10))
            wrong = case.right.clone()
            wrong[1, 30, 1400] += 9
            self.assertEqual(vars(other.measure(wrong)), vars(case.worst(wrong)))
            exact = judge.Exact(case.values.view(-1, 1500))
            self.assertIn("element [67,1400] is", case.worst(wrong, exact).where)
        finally:
            judge.CHUNK_BYTES = whole

    def assertFound(self, case, wrong, where):
        seen = case.check(2 * [wrong])
        self.assertFalse(seen.ok)
        self.assertIn(where, seen.reason)

    def test_what_is_wrong_is_found(self):
        case = Case()
        corner = case.right.clone()
        corner[0, 36, 599] += 1
        corner[1, 36, 599] += 1
        self.assertFound(case, corner, "element [36,599] is")
        anywhere = case.right.clone()
        anywhere[1, 17, 300] += 3
        self.assertFound(case, anywhere, "row 17, columns 256 to 511: their weighted sum is off by")
        swapped = case.right.clone()
        swapped[:, :, [10, 11]] = swapped[:, :, [11, 10]]
        self.assertFound(case, swapped, "columns 0 to 255")
        self.assertFound(case, case.right.roll(1, 1), "should be")
        self.assertFound(case, (case.right.float() * 1.05).bfloat16(), "")
        hole = case.right.clone()
        hole[1, 5, 7] = math.inf
        self.assertFound(case, hole, "element [5,7] is not finite")

    def test_unwritten_rows_and_unsteady_ones(self):
        case, output = Case(), None
        output = torch.empty_like(case.right)
        seen = judge.Judge(case.product, case.limits).check(lambda: output[:, :-1].copy_(case.right[:, :-1]), output, False)
        self.assertEqual((seen.ok, seen.repeatable, math.isnan(seen.max_error)), (False, False, True))
        other = case.right.clone()
        other[0, 3, 3] += 0.01 * other[0, 3, 3].abs()
        seen = case.check([case.right, other])
        self.assertEqual((seen.ok, seen.repeatable), (True, False))
        other[0, 3, 3] += 5
        self.assertFalse(case.check([case.right, other]).ok)

    def test_native_sets_the_yardstick(self):
        case = Case(out="f16")
        noise = torch.randn(case.right.shape, generator=torch.Generator().manual_seed(1)) * 1.2 * case.limits.floor / 5
        rough = (case.values + noise.double()).half()
        error = case.worst(rough, judge.Exact(case.values.view(-1, 600))).error
        self.assertGreater(error, 0.5 * case.limits.floor)
        self.assertTrue(case.check(2 * [rough], is_native=True).ok)
        self.assertGreaterEqual(case.limits.limit(False), case.limits.floor)
        self.assertFalse(case.check(2 * [(case.values + 40 * noise).half()], is_native=True).ok)


class Inputs(unittest.TestCase):
    def test_seeds(self):
        one, same, other = (inputs.bell(CPU, (100, 50), torch.bfloat16, 2.0, inputs.Seeds(s)) for s in (1, 1, 2))
        self.assertTrue(inputs.same_bytes(one, same))
        self.assertFalse(inputs.same_bytes(one, other))
        self.assertAlmostEqual(float(one.float().std()), 2.0, delta=0.1)

    def test_poison(self):
        for word in ("f32", "f16", "bf16", "e4m3", "e5m2"):
            one, other = (torch.zeros(9, dtype=inputs.dtype_of(torch, word)) for _ in range(2))
            inputs.poison(one, 0)
            inputs.poison(other, 1)
            self.assertTrue(bool(one.float().isnan().all() and other.float().isnan().all()), word)
            self.assertFalse(inputs.same_bytes(one, other))


class Timing(unittest.TestCase):
    def test_launches(self):
        timer, done = timing.timer_of(CPU), []
        self.assertIs(timer, timing.timer_of(CPU))
        warm = (torch.zeros(3, 5, dtype=torch.bfloat16), torch.zeros(7, dtype=torch.uint8), torch.zeros(()), torch.zeros(0),
                torch.zeros(9, dtype=torch.uint8)[1:4])
        sample = timer.cold(lambda: done.append(1), warm, 1000)
        self.assertEqual((len(done), sample.is_foreign, sample.device_us == sample.host_us), (1, False, True))
        timer.hot(lambda: done.append(1))
        self.assertEqual(len(done), 3)
        self.assertGreater(timer.once(lambda: done.append(1)), 0.0)
        self.assertEqual((timer.method, timer.clock_mhz()), ("torch-wall-cold-1", None))
        self.assertGreater(timer.flush_us, 0.0)


class SpunEvent:
    def __init__(self, clock, **_):
        self.clock, self.at = clock, None

    def record(self):
        self.at = self.clock.stream = max(self.clock.stream, self.clock.now)

    def query(self):
        return self.clock.now >= self.at

    def synchronize(self):
        self.clock.now = max(self.clock.now, self.at)

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e-3


class Gate(unittest.TestCase):
    """The method of a GPU on a clock that only work moves: host and stream in microseconds."""

    def setUp(self):
        clock = self.clock = types.SimpleNamespace(now=0.0, stream=0.0)

        self.late_us = [1000.0]  # of the host in each spin: the first loads the kernel

        def sleep(cycles):
            clock.now += self.late_us.pop(0) if self.late_us else 0.0
            clock.stream = max(clock.stream, clock.now) + cycles / 1000.0

        class Where:
            type = "cuda"

        self.gpu = types.SimpleNamespace(
            is_cuda=True, l2_bytes=1 << 10, where="cpu", max_clock_mhz=0, wait=lambda limit_ms=0, event=None: event and event.synchronize(),
            torch=types.SimpleNamespace(
                zeros=torch.zeros, arange=torch.arange, amax=torch.amax, int32=torch.int32, uint8=torch.uint8,
                cuda=types.SimpleNamespace(Event=lambda **more: SpunEvent(clock, **more), _sleep=sleep)))
        self.real, timing.now_us = timing.now_us, lambda: clock.now
        self.addCleanup(lambda: setattr(timing, "now_us", self.real))

    def launch(self, host_us, device_us):
        def call():
            self.clock.now += host_us / 2
            self.clock.stream = max(self.clock.stream, self.clock.now) + device_us / 2
            self.clock.now += host_us / 2  # a host that is late with the second half
            self.clock.stream = max(self.clock.stream, self.clock.now) + device_us / 2
        return call

    def waiting(self):
        self.launch(10.0, 20.0)()
        self.clock.now = max(self.clock.now, self.clock.stream) + 1.0

    def test_the_clock_is_known(self):
        timer = timing.Timer(self.gpu)
        self.assertAlmostEqual(timer.mhz, 1000.0)
        for late_us in ([300.0], [0.0, 300.0], [0.0, 0.0, 0.0, 150.0]):  # in a short spin, or a long one
            self.late_us = list(late_us)
            self.assertAlmostEqual(timer.clock_mhz(), 1000.0)
        self.late_us = 3 * [300.0, 0.0]  # each time: that is no clock, and nothing counts by it
        self.assertIsNone(timer.clock_mhz())
        self.assertAlmostEqual(timer.mhz, 1000.0)
        self.late_us = 3 * [0.0, 5000.0]  # 40 MHz
        self.assertIsNone(timer.clock_mhz())

    def test_no_clock_is_faster_than_the_device_can_be(self):
        for told, found, counted in ((0, 3000.0, 3000.0), (1000.0, None, 1000.0), (4e6, 3000.0, 3000.0)):
            self.gpu.max_clock_mhz = told
            timer = timing.Timer(self.gpu)
            self.late_us = 3 * [400.0 / 3, 0.0]
            seen = timer.clock_mhz()
            self.assertEqual(seen and round(seen), found and round(found))
            self.assertAlmostEqual(timer.mhz, counted)

    def test_the_gate_is_bounded_in_real_time(self):
        self.gpu.max_clock_mhz = 2000.0  # but it runs at half of that
        timer = timing.Timer(self.gpu)
        timer.gate_us = timing.GATE_MAX_US
        sample = timer.cold(self.waiting)
        self.assertTrue(timing.GATE_MAX_US < sample.host_us < 1.1 * timing.GATE_MAX_US, sample)

    def test_a_look_refuses_who_waits(self):
        gpu = self.gpu
        gpu.guard = device.Device.guard.__get__(gpu)
        gpu.names = types.SimpleNamespace(of=lambda launch: (launch(), None))
        problem = launches.Launches(gpu)
        for problem.launch, is_refused in ((lambda _: self.launch(10.0, 20.0)(), False), (lambda _: self.waiting(), True),
                                           (lambda _: self.launch(4e4, 20.0)(), True)):
            for i in (0, 1):
                if not is_refused:
                    self.assertFalse(problem.look(i, 0).timed.is_foreign)
                    continue
                with self.assertRaisesRegex(frame.Failed, "more than 20 ms: its own time cannot be told"):
                    problem.look(i, 0)

    def test_a_slow_host_is_not_in_the_device_s_time(self):
        timer = timing.Timer(self.gpu)
        for host_us in (10.0, 300.0, 3000.0, 50.0):
            sample = timer.cold(self.launch(host_us, 20.0))
            self.assertAlmostEqual(sample.device_us, 20.0, msg=host_us)
            self.assertAlmostEqual(sample.host_us, host_us)
            self.assertFalse(sample.is_foreign)

    def test_a_call_that_waits_ends(self):
        timer = timing.Timer(self.gpu)
        sample = timer.cold(self.waiting)
        self.assertGreater(sample.host_us, 20.0)
        self.assertTrue(sample.is_foreign)
        self.assertLessEqual(timer.gate_us, timing.GATE_MAX_US)


class Faults(unittest.TestCase):
    def test_what_a_library_raises(self):
        for error, refusal, seen in ((RuntimeError("no plan"), frame.Failed, frame.Failed),
                                     (UserWarning("falling back"), frame.Failed, frame.Failed),
                                     (torch.OutOfMemoryError("none"), frame.Failed, frame.Failed),
                                     (torch.OutOfMemoryError("none"), frame.Unsupported, frame.Memory),
                                     (frame.Memory("much"), frame.Unsupported, frame.Memory),
                                     (AssertionError("its own"), frame.Failed, frame.Failed),
                                     (NameError("its own"), frame.Failed, frame.Failed)):
            with self.assertRaises(seen), CPU.guard(refusal):
                raise error

    def test_a_librarys_assertion_is_its_refusal(self):
        # Installed, from its own checkout, and below a folder that is called as this package is.
        for file in ("/x/site-packages/flashinfer/gemm.py", "/src/flashinfer/gemm.py", "/src/tacticd/venv/site-packages/torch/nn.py"):
            compiled = compile("assert False, 'No suitable runners found'", file, "exec")
            with self.assertRaisesRegex(frame.Unsupported, "No suitable runners"), CPU.guard(frame.Unsupported):
                exec(compiled)
        for words, seen in (("assert False", AssertionError), ("nobody", NameError)):
            ours = compile(words, pathlib.Path(device.__file__).parent / "families/moe.py", "exec")
            with self.assertRaises(seen), CPU.guard(frame.Unsupported):
                exec(ours)

    def test_one_error_left_behind_is_no_broken_device(self):
        for errors, broken in ((0, False), (1, False), (2, True)):
            left = [RuntimeError("left behind")] * errors

            def zeros(*_, left=left, **__):
                if left:
                    raise left.pop()
                return torch.zeros(1)
            gpu = device.find("cpu")
            gpu.is_cuda = True
            gpu.torch = types.SimpleNamespace(zeros=zeros, OutOfMemoryError=torch.OutOfMemoryError,
                                              cuda=types.SimpleNamespace(synchronize=lambda _: None))
            self.assertEqual(gpu.is_broken(), broken, errors)

    def end(self, code):
        done = subprocess.run([sys.executable, "-c", "import types\nfrom tacticd.worker import device\n"
                               "d = device.find('cpu')\n" + code], capture_output=True, text=True, check=False,
                              env={"PYTHONPATH": str(ROOT / "client/python"), "PYTHONDONTWRITEBYTECODE": "1"})
        return done.returncode, done.stderr

    def test_a_broken_device_ends_the_process(self):
        status, said = self.end("d.is_broken = lambda: True\nwith d.guard():\n    raise RuntimeError('illegal address')")
        self.assertEqual((status, said), (device.EXIT_STICKY, "worker: gpu: RuntimeError: illegal address; this process can use "
                                          "its GPU no more\n"))

    def test_a_hang_ends_the_process(self):
        status, said = self.end("d.is_cuda = True\nd.wait(50, types.SimpleNamespace(query=lambda: False))")
        self.assertEqual((status, said.count("\n")), (device.EXIT_HUNG, 1))
        self.assertIn("for more than 50 ms: it hangs", said)


if __name__ == "__main__":
    unittest.main()
