# SPDX-License-Identifier: Apache-2.0
"""The room of the Python worker's families, as far as it needs neither PyTorch nor FlashInfer: its limits against the C
workers', token counts against the daemon's ladder, kernel names, the table of calls, and who hears a library that runs
something else. The rest is in tests/flashinfer."""
import importlib.util
import itertools
import math
import random
import subprocess
import types
import unittest
import unittest.mock
import warnings

import common

from tacticd.worker import calls, device, frame, inputs, judge, ladder, launches, names, tuner

TYPES = ("f32", "f16", "bf16", "e4m3")


def worst(error, where):
    made = judge.Worst()
    made.error, made.where = error, where
    return made


class Limits(unittest.TestCase):
    """verify_limit.c on the same numbers: floors, yardsticks, verdicts."""

    def scenarios(self):
        draw = random.Random(7)
        for taken, out, acc in itertools.product(TYPES, TYPES, ("f32", "f16")):
            for k in (1, 7, 8, 127, 128, 129, 1024, 7168, 163840):
                floor = judge.Limits(taken, out, acc, k).floor
                checks = []
                for is_native in (0, 1, 0, 0, 1, 0):
                    first, again = (draw.choice([0.0, 0.3, 0.9, 1.0, 1.1, 1.9, 2.1, 3.9, 4.1, math.nan, math.inf]) * floor
                                    for _ in range(2))
                    checks.append((first, draw.choice([None, again]), is_native))
                yield taken, out, acc, k, checks

    def test_as_in_c(self):
        scenarios = list(self.scenarios())
        text = "".join(
            " ".join([taken, out, acc, str(k), *(f"{f:.17g} {'-' if a is None else format(a, '.17g')} {n}" for f, a, n in checks)])
            + "\n" for taken, out, acc, k, checks in scenarios)
        told = subprocess.run([common.BUILD / "tests/limits"], input=text, capture_output=True, text=True, check=True)
        said = [line.split(" ") for line in told.stdout.splitlines()]
        self.assertEqual(len(said), len(scenarios))
        for (taken, out, acc, k, checks), words in zip(scenarios, said):
            limits = judge.Limits(taken, out, acc, k)
            have = [limits.floor, limits.most]
            for first, again, is_native in checks:
                seen = limits.judge(worst(first, "first"), None if again is None else worst(again, "again"), bool(is_native))
                have += [int(seen.ok), seen.max_error, seen.limit, int(seen.repeatable), seen.reason or "-"]
            self.assertEqual([w if isinstance(w, str) else f"{w:.17g}" for w in have], words, (taken, out, acc, k))

    def test_narrow_types(self):
        self.assertGreater(judge.Limits("e5m2", "bf16", "f32", 1024).floor, judge.Limits("bf16", "bf16", "f32", 1024).floor)


class TokenCounts(unittest.TestCase):
    def test_the_ladder_is_flashinfer_s(self):
        # lookalike.py's is held against the real package by the suite flashinfer.
        spec = importlib.util.spec_from_file_location("lookalike", common.ROOT / "tests/flashinfer/lookalike.py")
        lookalike = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(lookalike)
        for tune_max in (1, 3, 256, 300, 2048, 4096, 8192, 10000, 65536):
            self.assertEqual(ladder.hybrid(tune_max), lookalike.buckets(tune_max), tune_max)

    def test_bucket_neighbours_and_ends(self):
        self.assertEqual(ladder.asked_at(64), [64, 32, 128, 1, 8192])
        self.assertEqual(ladder.asked_at(1), [1, 2, 8192])
        self.assertEqual(ladder.asked_at(8192), [8192, 4096, 16384, 1])
        self.assertEqual(ladder.asked_at(300), [300, 256, 512, 1, 8192])
        self.assertEqual(ladder.asked_at(20000), [20000, 16384, 32768, 1, 8192])


class KernelNames(unittest.TestCase):
    CUTLASS = ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::"
               "gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<5, cute::tuple<cute::C<2>, "
               "cute::C<1>, cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedPingpong>, cute::tuple<cute::C<64>, cute::"
               "C<128>, cute::C<64> > > > >(cutlass::Params)")

    def test_short_ones_are_whole(self):
        plain = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
        self.assertEqual(names.short(plain), plain)
        self.assertEqual(names.short("void spin_kernel(long)"), "spin_kernel")
        self.assertEqual(names.short("void f<(int)1, g(int)>(float (*)(int), int)"), "f<(int)1, g(int)>")

    def test_templates_keep_tiles_and_a_digest(self):
        text = names.short(self.CUTLASS)
        self.assertRegex(text, r"^cutlass::device_kernel 2x1x1 64x128x64 KernelTmaWarpSpecializedPingpong #[0-9a-f]{16}$")
        self.assertNotEqual(text, names.short(self.CUTLASS.replace("<5,", "<6,")))

    def test_joined(self):
        self.assertEqual(names.joined(["a", "b", "a"]), "a + b")
        self.assertIsNone(names.joined([]))
        kernels = [f"kernel_{i:0200}" for i in range(9)]
        many = names.joined(kernels)
        self.assertLessEqual(len(many), frame.KERNEL_BYTES)
        self.assertRegex(many, r"^(kernel_\d+ \+ ){4}#[0-9a-f]{16}$")
        self.assertNotEqual(many, names.joined([*kernels[:-1], "another"]))

    def test_memory_operations_are_no_kernels(self):
        def event(name, kind="DeviceType.CUDA"):
            return types.SimpleNamespace(name=name, device_type=kind)
        self.assertEqual([names._is_kernel(event(n)) for n in ("Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "gemm")],
                         [False, False, True])
        self.assertFalse(names._is_kernel(event("aten::mm", "DeviceType.CPU")))


class CallTable(unittest.TestCase):
    def test_rows_by_release(self):
        rows = [calls.Call("flashinfer.a", before="0.7"), calls.Call("flashinfer.b", since="0.7")]
        with unittest.mock.patch.dict(calls.CALLS, {"x": rows}):
            self.assertEqual([calls.row("x", v).path[-1] for v in ("0.6.16", "0.6.16.post4", "0.7.0", "0.7.4+cu130")],
                             ["a", "a", "b", "b"])
        with unittest.mock.patch.dict(calls.CALLS, {"x": rows[:1]}), self.assertRaises(KeyError):
            calls.row("x", "0.7.4")

    def test_a_call_is_as_the_table_says(self):
        made = calls._checked(calls.Call("flashinfer.f", ("a", "b"), ("c",)), lambda *args, **more: (args, more))
        self.assertEqual(made(1, 2, c=3), ((1, 2), {"c": 3}))
        for args, more in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"d": 1}), ((1,), {"b": 2})):
            with self.assertRaises(AssertionError):
                made(*args, **more)

    def test_methods_know_their_class(self):
        class AutoTuner:
            def choose_one(self, *args):
                return args
        with unittest.mock.patch.object(calls, "release", lambda: "0.7.4"):
            self.assertEqual(calls.on("choose_one", AutoTuner())(1, 2, 3, 4), (1, 2, 3, 4))
            with self.assertRaises(AssertionError):
                calls.on("choose_one", object())


class FakeTuner:
    """An AutoTuner that knows nothing."""

    def choose_one(self, custom_op, runners, tuning_config, inputs, **kwargs):
        return runners[0], -1


FakeTuner.__name__ = "AutoTuner"


class StandingIn(unittest.TestCase):
    def setUp(self):
        self.auto = FakeTuner()
        for patch in (unittest.mock.patch.object(calls, "release", lambda: "0.6.16"),
                      unittest.mock.patch.object(calls, "of", lambda name: {"tuner": lambda: self.auto}[name])):
            patch.start()
            self.addCleanup(patch.stop)
        class Mine:
            """A runner."""
        self.mine, self.other = Mine(), object()
        self.tuner = tuner.Tuner("op", "Mine")

    def call(self, op="op"):
        return self.auto.choose_one(op, [self.other, self.mine], None, ["a", "b"])

    def test_native_is_what_the_call_runs(self):
        self.assertEqual(self.tuner.run(self.call, tuner.NATIVE), (self.other, -1))

    def test_a_tactic_is_our_runner_s(self):
        self.assertEqual(self.tuner.run(self.call, (7, ())), (self.mine, (7, ())))
        self.assertEqual(self.tuner.run(lambda: self.call("another"), (7, ())), (self.other, -1))
        self.assertEqual(self.call(), (self.other, -1))  # nothing stays behind

    def test_listening(self):
        asked = self.tuner.listen(self.call)
        self.assertEqual((asked.op, asked.inputs, asked.runner("Mine")), ("op", ["a", "b"], self.mine))
        with self.assertRaises(frame.Unsupported):
            asked.runner("Nobody")
        with self.assertRaises(frame.Unsupported):
            self.tuner.listen(lambda: self.call("another"))
        self.assertNotIn("choose_one", vars(self.auto))

    def test_what_a_call_raises_leaves_nothing_behind(self):
        with self.assertRaises(ZeroDivisionError):
            self.tuner.run(lambda: 1 // 0, (7, ()))
        self.assertEqual(self.call(), (self.other, -1))


class Hearing(unittest.TestCase):
    """Who runs native's kernels and warns did not run its own."""

    def problem(self, kernel, words):
        class Problem(launches.Launches):
            def __init__(self):
                self.native_kernel = "native"
        seen = Problem()
        with seen._hearing() as heard:
            if words:
                warnings.warn(words, stacklevel=1)
        return lambda: seen._compare(1, kernel, heard)

    def test_a_fallback_is_raised(self):
        for words in ("tactic failed; falling back to default tactic=-1. (no plan)", "Fell through.\nIt falls back to native"):
            with self.assertRaises(UserWarning):
                self.problem("x", words)()

    def test_another_warning_is_weighed(self):
        with self.assertRaisesRegex(frame.Failed, "native's kernels and warned: out of order"):
            self.problem("native", "out of\norder")()
        self.problem("its own", "out of order")()
        self.problem("native", None)()  # the heuristics' first plan is in the list, too
        self.problem(None, "out of order")()  # no names, no proof


class Small(unittest.TestCase):
    def test_seeds_are_bench_random_s(self):
        seeds = inputs.Seeds(0)
        self.assertEqual([seeds.next(), seeds.next()], [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4])

    def test_words_of_an_error(self):
        self.assertEqual(device.words_of(ValueError("no")), "ValueError: no")
        self.assertEqual(device.words_of(RuntimeError("\n  " + 50 * "x" + "\nmore")), 50 * "x")
        self.assertEqual(device.words_of(KeyError()), "KeyError: ")
        self.assertLessEqual(len(device.words_of(RuntimeError(999 * "y"))), device.SENTENCE_BYTES)

    def test_exit_statuses_are_those_of_c(self):
        text = (common.ROOT / "daemon/workers/gpu.h").read_text()
        for name, value in (("GPU_EXIT_STICKY", device.EXIT_STICKY), ("GPU_EXIT_HUNG", device.EXIT_HUNG)):
            self.assertRegex(text, rf"#define {name}\s+{value}\n")

    def test_types_have_mantissas(self):
        text = (common.ROOT / "daemon/workers/dtype.def").read_text()
        for word, bits in judge.MANTISSA_BITS.items():
            if word != "e5m2":
                self.assertRegex(text, rf"FLOAT\({word}, \d, \d, {bits}\)")
