# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python client share: a daemon with a table of FlashInfer's, the stand-in for FlashInfer,
and an ear for the logger."""
import contextlib
import json
import logging
import os
import pathlib
import subprocess
import time
import unittest

import flashinfer.autotuner.autotuner as stand_in
from harness import Daemon

import tacticd

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = CC = VERSION = None  # set by run.py
MODEL, EP, TP = "kimi-k3", 8, 1
LAYOUT = f"ep={EP},tp={TP}"
OPERATION = "flashinfer::trtllm_fp4_block_scale_moe"
BUCKETS = (1, 2, 4, 8)  # of the table; the recipe has more
TOTAL = 42  # problems of the recipe
ENVIRONMENT = {"flashinfer_version": "0.6.16", "cuda_version": "13.0", "cublas_version": "13.1",
               "cudnn_version": "91900", "cudnn_frontend_version": "1.18", "gpu": "Look Alike 3000"}


def shapes(tokens, width=3584):
    """Of the tensors that FlashInfer's mixture of experts is asked with; 3584: fused, 0: deferred."""
    return ((tokens, width), (0,), (tokens, 16), (tokens, 16), (tokens, 3584), (tokens, 112), (0,), (0,))


def file_key(tokens, operation=OPERATION):
    return str((operation, "MoERunner", shapes(tokens), ()))


def entries(buckets=BUCKETS):
    return {file_key(tokens): ["MoERunner", [32, tokens]] for tokens in buckets}


def cache_file(environment=None, more=None, buckets=BUCKETS):
    """A look-alike of FlashInfer's cache file."""
    return {"_metadata": environment or ENVIRONMENT, **entries(buckets), **(more or {})}


def daemon(**options):
    """A daemon, started, with the table above."""
    d = Daemon(BUILD, packaged=ROOT / "tables", **options).start()
    path = d.dir / "cache.json"
    path.write_text(json.dumps(cache_file(), indent=2))
    done = subprocess.run([str(BUILD / "client/tunectl"), "import", str(path), "--recipe", MODEL, "--layout", LAYOUT],
                          env={**d.environment(), "TACTICD_RECIPES": str(ROOT / "tables/recipes")}, check=False,
                          capture_output=True, text=True)
    if done.returncode:
        end(d)
        raise AssertionError(f"the table cannot be imported: {done.stdout}{done.stderr}")
    return d


def end(d):
    try:
        d.stop()
    finally:
        d.kill()
        d.cleanup()


def socket_of(d):
    return str(d.dir / "run/lookup.sock")


def client(d, **options):
    """In the environment of the table, unless told otherwise; with this tree's recipes."""
    environment = options.pop("environment", ENVIRONMENT)
    # A machine of others may stand still for seconds.
    made = tacticd.Client(**{"socket": socket_of(d), "timeout_ms": 15000, "packaged_dir": ROOT / "tables", **options})
    made.fingerprint_flashinfer(environment)
    return made


class Ear(logging.Handler):
    """Records of the logger from a level on."""

    def __init__(self, level):
        super().__init__(level)
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())


@contextlib.contextmanager
def listening(level=logging.WARNING):
    logger, ear = logging.getLogger("tacticd"), Ear(level)
    before = logger.level, logger.propagate
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(ear)
    try:
        yield ear.heard
    finally:
        logger.removeHandler(ear)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Case(unittest.TestCase):
    """Each test starts with the stand-in as new, and no daemon but the one it names."""

    def setUp(self):
        self.reset()
        self.addCleanup(self.reset)

    def reset(self):
        os.environ.pop("TACTICD_SOCKET", None)
        stand_in.ENVIRONMENT = dict(ENVIRONMENT)
        stand_in.LOADS, stand_in.NEWER = "as it is", False
        stand_in.AutoTuner._instance = None

    def tuner(self):
        return stand_in.AutoTuner.get()

    def assertRefuses(self, function, *words, seconds=20):
        """False, one warning with these words in it, no exception, in time."""
        begun = time.monotonic()
        with listening() as heard:
            self.assertIs(function(), False)
        self.assertLess(time.monotonic() - begun, seconds)
        self.assertEqual(len(heard), 1, heard)
        for word in words:
            self.assertIn(word, heard[0])
