#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A linear layer of a PyTorch server that asks tacticd which cuBLASLt algorithm to run.

usage: pytorch_linear.py [--rows 1,16,256,2048] [--features 4096] [--inputs 4096] [--as SECTION] [--rounds 30]

Needs an NVIDIA GPU, PyTorch built for it, and libtactic (TACTICD_LIBRARY names it where the system does not find it).
Without them it says what is missing and ends with 77. The daemon is found by TACTICD_SOCKET; without one, and for every
miss or default, the layer runs as PyTorch would run it.

For each number of rows it prints what the daemon answered, whether the result is as good as PyTorch's, and both times:
launches in random order, each on the next of several copies of the weights, so that no cache holds them, as in a model.

The room to copy from is Linear: everything it needs of cuBLASLt stands in Library and Algorithm. The answer holds for
the cuBLASLt that this process has loaded, so it is asked after PyTorch has multiplied once.
"""
import argparse
import ctypes
import json
import random
import statistics
import sys
import time
from ctypes import (POINTER, Structure, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32,
                    c_uint64, c_void_p)

SKIPPED = 77
WORKSPACE_BYTES = 32 << 20  # granted to cuBLASLt, and part of the question
RING_BYTES = 256 << 20  # of weight copies: several times any L2

# cublasLt.h, cublas_api.h, library_types.h
COMPUTE_32F, R_32F, R_16BF, OP_T = 68, 0, 14, 1
DESC_TRANSA = 3
# A tactic's names: the attribute of the algorithm, and the type of its value.
ALGORITHM = {"tile": (1, c_uint32), "splitk": (2, c_int32), "reduction": (3, c_uint32), "swizzle": (4, c_uint32),
             "custom": (5, c_uint32), "stages": (6, c_uint32), "inner": (7, c_uint16), "cluster": (8, c_uint16)}
MOST_ALGORITHM = 1 << 31


class Algo(Structure):
    """cublasLtMatmulAlgo_t"""

    _fields_ = [("data", c_uint64 * 8)]


class Heuristic(Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [("algo", Algo), ("workspace_bytes", c_size_t), ("status", c_int), ("waves", c_float),
                ("reserved", c_int * 4)]


class Refused(Exception):
    """cuBLASLt will not do that; the words say what."""


def loaded(name):
    """Path of a library that this process has loaded, None if it has not."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next((line.split()[-1] for line in maps if f"/{name}.so" in line), None)


class Library:
    """cuBLASLt as PyTorch has loaded it: another copy would be another version's answer."""

    FUNCTIONS = {
        "Create": [POINTER(c_void_p)],
        "MatmulDescCreate": [POINTER(c_void_p), c_int, c_int],
        "MatmulDescSetAttribute": [c_void_p, c_int, c_void_p, c_size_t],
        "MatmulDescDestroy": [c_void_p],
        "MatrixLayoutCreate": [POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64],
        "MatrixLayoutDestroy": [c_void_p],
        "MatmulAlgoInit": [c_void_p, c_int, c_int, c_int, c_int, c_int, c_int, c_int, POINTER(Algo)],
        "MatmulAlgoConfigGetAttribute": [POINTER(Algo), c_int, c_void_p, c_size_t, POINTER(c_size_t)],
        "MatmulAlgoConfigSetAttribute": [POINTER(Algo), c_int, c_void_p, c_size_t],
        "MatmulAlgoCheck": [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(Algo), POINTER(Heuristic)],
        "Matmul": [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
                   c_void_p, c_void_p, POINTER(Algo), c_void_p, c_size_t, c_void_p],
    }

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.cublasLtGetStatusString.restype = c_char_p
        self.handle = c_void_p()
        for name, types in self.FUNCTIONS.items():
            getattr(self.library, f"cublasLt{name}").argtypes = types
        self.call("Create", byref(self.handle))

    def call(self, name, *arguments):
        status = getattr(self.library, f"cublasLt{name}")(*arguments)
        if status:
            raise Refused(f"cublasLt{name}: {self.library.cublasLtGetStatusString(status).decode()}")


class Algorithm:
    """The algorithm that a tactic names, for one product out[m,n] = x[m,k] x weights[n,k]^T in bf16."""

    def __init__(self, lt, tactic, m, n, k):
        self.lt, self.desc, self.layouts, self.algo, self.found = lt, c_void_p(), [], Algo(), Heuristic()
        try:
            self.describe(m, n, k)
            self.take(json.loads(tactic))
            a, b, d = self.layouts
            lt.call("MatmulAlgoCheck", lt.handle, self.desc, a, b, d, d, byref(self.algo), byref(self.found))
            if self.found.workspace_bytes > WORKSPACE_BYTES:
                raise Refused(f"it needs {self.found.workspace_bytes} bytes of scratch memory")
        except BaseException:
            self.close()
            raise

    def describe(self, m, n, k):
        # cuBLASLt counts by columns: rows of ours are columns of its, and the weights come first.
        self.lt.call("MatmulDescCreate", byref(self.desc), COMPUTE_32F, R_32F)
        transposed = c_int(OP_T)
        self.lt.call("MatmulDescSetAttribute", self.desc, DESC_TRANSA, byref(transposed), ctypes.sizeof(transposed))
        for rows, columns in ((k, n), (k, m), (n, m)):
            layout = c_void_p()
            self.lt.call("MatrixLayoutCreate", byref(layout), R_16BF, rows, columns, rows)
            self.layouts.append(layout)

    def take(self, tactic):
        if not isinstance(tactic, dict) or tactic.keys() != {"algo", *ALGORITHM}:
            raise Refused(f"this program does not understand {tactic}")
        if any(type(value) is not int or not 0 <= value < MOST_ALGORITHM for value in tactic.values()):
            raise Refused(f"these are no numbers of an algorithm: {tactic}")
        self.lt.call("MatmulAlgoInit", self.lt.handle, COMPUTE_32F, R_32F, R_16BF, R_16BF, R_16BF, R_16BF, tactic["algo"],
                     byref(self.algo))
        for name, (attribute, kind) in ALGORITHM.items():
            # Some algorithms refuse to be told what they are already.
            if self.attribute(attribute, kind) != tactic[name]:
                value = kind(tactic[name])
                self.lt.call("MatmulAlgoConfigSetAttribute", byref(self.algo), attribute, byref(value), ctypes.sizeof(value))
            if self.attribute(attribute, kind) != tactic[name]:
                raise Refused(f"it takes {name} {tactic[name]} for another")

    def attribute(self, attribute, kind):
        value, written = kind(), c_size_t()
        self.lt.call("MatmulAlgoConfigGetAttribute", byref(self.algo), attribute, byref(value), ctypes.sizeof(value),
                     byref(written))
        return value.value

    def run(self, x, weights, out, workspace, stream):
        one, zero = c_float(1), c_float(0)
        a, b, d = self.layouts
        self.lt.call("Matmul", self.lt.handle, self.desc, byref(one), weights.data_ptr(), a, x.data_ptr(), b, byref(zero),
                     out.data_ptr(), d, out.data_ptr(), d, byref(self.algo), workspace.data_ptr(), WORKSPACE_BYTES, stream)

    def close(self):
        for layout in self.layouts:
            self.lt.library.cublasLtMatrixLayoutDestroy(layout)
        if self.desc:
            self.lt.library.cublasLtMatmulDescDestroy(self.desc)
        self.layouts, self.desc = [], c_void_p()


def key(m, n, k):
    return (f"matmul,backend=cublaslt,a=bf16,b=bf16,out=bf16,acc=f32,layout=tn,batch=1,m={m},n={n},k={k},epilogue=none,"
            f"scale=none,workspace_bytes={WORKSPACE_BYTES}")


class Linear:
    """x -> x times the weights, transposed. Asks once for each number of rows, and says what it was told."""

    def __init__(self, torch, client, lt, n, k):
        self.torch, self.client, self.lt, self.n, self.k = torch, client, lt, n, k
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.algorithms = {}

    def prepare(self, rows):
        """The algorithm for so many rows, None = PyTorch's own way; and why."""
        import tacticd

        if rows in self.algorithms:
            return self.algorithms[rows]
        algorithm, why = None, "no daemon"
        if self.client:
            try:
                answer = self.client.lookup(key(rows, self.n, self.k))
                why = answer.name or answer.reason or answer.kind.name.lower()
                if answer.kind is tacticd.Kind.HIT:
                    algorithm = Algorithm(self.lt, answer.tactic, rows, self.n, self.k)
            except (tacticd.TacticError, Refused, ValueError) as e:
                why = f"not used: {e}"
        self.algorithms[rows] = algorithm, why
        return algorithm, why

    def __call__(self, x, weights, out):
        algorithm, _ = self.prepare(x.shape[0])
        if algorithm is None:
            return self.torch.matmul(x, weights.t(), out=out)
        # PyTorch's memory and PyTorch's stream: what came before is done, what comes after waits.
        algorithm.run(x, weights, out, self.workspace, self.torch.cuda.current_stream().cuda_stream)
        return out


# --- a server's own business, and how this one judges itself ---

def timed(torch, layer, x, ring, out, rounds):
    """Median microseconds on the device of PyTorch's way and of the layer's; and on the host."""
    ways = {"torch": lambda w: torch.matmul(x, w.t(), out=out), "layer": lambda w: layer(x, w, out)}
    events, host_us, at = {name: [] for name in ways}, {name: [] for name in ways}, 0
    for turn in range(rounds + 2):
        order = list(ways)
        random.shuffle(order)
        for name in order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)  # keeps the stream busy until all is enqueued
            begin.record()
            before = time.perf_counter()
            ways[name](ring[at % len(ring)])
            took = time.perf_counter() - before
            end.record()
            at += 1
            if turn >= 2:  # kernels are loaded when they run first
                events[name].append((begin, end))
                host_us[name].append(took * 1e6)
    torch.cuda.synchronize()
    device_us = {name: statistics.median(b.elapsed_time(e) * 1e3 for b, e in pairs) for name, pairs in events.items()}
    return device_us, {name: statistics.median(times) for name, times in host_us.items()}


def is_as_good(torch, layer, x, weights, out):
    """True if the layer's result is as near to the exact product as PyTorch's; and both distances."""
    exact = x.double() @ weights.double().t()
    theirs = float((torch.matmul(x, weights.t()).double() - exact).abs().max())
    out.fill_(float("nan"))
    ours = float((layer(x, weights, out).double() - exact).abs().max())
    rounding = float(exact.abs().max()) * 2**-8  # of one result to bf16
    return ours <= max(2 * theirs, rounding), ours, theirs


def serve(torch, client, lt, options):
    torch.manual_seed(1)
    n, k = options.features, options.inputs
    copies = max(2, min(64, RING_BYTES // (n * k * 2) + 1))
    ring = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / k**0.5 for _ in range(copies)]
    layer, bad = Linear(torch, client, lt, n, k), 0
    print(f"{'rows':>6} {'PyTorch':>10} {'layer':>10} {'gain':>7}  {'host':>13}  answer")
    for rows in options.rows:
        x, out = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16), torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
        algorithm, why = layer.prepare(rows)
        good, ours, theirs = is_as_good(torch, layer, x, ring[0], out)
        device_us, host_us = timed(torch, layer, x, ring, out, options.rounds)
        gain = device_us["torch"] / device_us["layer"] - 1
        bad += not good
        print(f"{rows:>6} {device_us['torch']:>7.1f} us {device_us['layer']:>7.1f} us "
              f"{gain * 100:>5.1f} %  {host_us['torch']:>4.0f}, {host_us['layer']:>4.0f} us  {why if algorithm else 'PyTorch: ' + why}"
              f"{'' if good else f'  WRONG: off by {ours:.3g}, PyTorch by {theirs:.3g}'}", flush=True)
    return 1 if bad else 0


def numbers(text):
    found = [int(word) for word in text.split(",")]
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError("numbers from 1, with commas")
    return found


def main():
    parser = argparse.ArgumentParser(description="a linear layer that asks tacticd")
    parser.add_argument("--rows", type=numbers, default=[1, 16, 256, 2048], metavar="M,...", help="batch sizes, in rows")
    parser.add_argument("--features", type=int, default=4096, metavar="N", help="columns of the result")
    parser.add_argument("--inputs", type=int, default=4096, metavar="K", help="inner dimension")
    parser.add_argument("--as", dest="section", metavar="SECTION", help="ask for a worker section's environment")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="launches timed")
    options = parser.parse_args()
    try:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch finds no NVIDIA GPU")
    except ImportError as e:
        print(f"pytorch_linear: needs PyTorch and an NVIDIA GPU: {e}")
        return SKIPPED
    import tacticd

    first = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    first @ first  # now all of CUDA's libraries are loaded
    torch.cuda.synchronize()
    path = loaded("libcublasLt")
    if not path:
        print("pytorch_linear: this PyTorch multiplies without a libcublasLt of its own: nothing to ask for")
        return SKIPPED
    client = None
    try:
        client = tacticd.Client(as_=options.section)
        client.fingerprint_detect()
        facts = {fact: client.fingerprint_get(fact) for fact in ("device", "driver", "cublaslt")}
        print("environment " + " ".join(f"{fact}={value or 'unknown'}" for fact, value in facts.items()))
    except tacticd.TacticError as e:
        print(f"daemon      not asked: {e.sentence}")
    return serve(torch, client, Library(path), options)


if __name__ == "__main__":
    sys.exit(main())
