# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's tuner, as a worker stands in for it: the public function does all that it does in a server, its
requirements, its workspace, its runners, and asks AutoTuner.choose_one, which answers what the worker wants. So native
is what the public function runs, and a candidate costs the host what it costs there."""
import contextlib
import os

from tacticd.worker import calls, frame

NATIVE = -1
# What changes which tactics are listed or chosen: a worker takes none of it from its surroundings.
MEDDLERS = ("FLASHINFER_TACTICS_BLOCKLIST", "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE")


def alone():
    """Before FlashInfer is first asked: what a user's environment adds to its tuner is left out."""
    for name in MEDDLERS:
        os.environ.pop(name, None)


class Asked:
    """What one call of a public function asked its tuner: the operation, the runners, and their inputs."""

    def __init__(self, op, runners, inputs):
        self.op, self.runners, self.inputs = op, runners, inputs

    def runner(self, name):
        """The runner of that class. Raises frame.Unsupported if the call does not ask it."""
        for runner in self.runners:
            if type(runner).__name__ == name:
                return runner
        names = ", ".join(type(r).__name__ for r in self.runners)
        raise frame.Unsupported(f"FlashInfer asks {names or 'nobody'} here, not {name}")


class _Listed(Exception):
    """Ends a call that was only to be listened to."""


class Tuner:
    """The process's AutoTuner. `op` is the operation whose choices are answered; others are answered by the tuner."""

    def __init__(self, op, runner):
        self.op, self.runner = op, runner
        self.tuner = calls.of("tuner")()
        self.real = calls.on("choose_one", self.tuner).__wrapped__  # FlashInfer calls it, not a family
        self.answer = None  # a function of (runners, the tuner's own answer), or None: the tuner's

    def _choose(self, custom_op, runners, tuning_config, inputs, **more):
        own = self.real(custom_op, runners, tuning_config, inputs, **more)
        if custom_op != self.op or self.answer is None:
            return own
        return self.answer(custom_op, runners, inputs, own)

    @contextlib.contextmanager
    def _answering(self, answer):
        before, self.answer = self.tuner.__dict__.get("choose_one"), answer
        self.tuner.choose_one = self._choose
        try:
            yield
        finally:
            self.answer = None
            if before is None:
                del self.tuner.choose_one
            else:
                self.tuner.choose_one = before

    def listen(self, call):
        """An Asked: what call() asks the tuner. Nothing is launched."""
        heard = []

        def answer(custom_op, runners, inputs, _own):
            heard.append(Asked(custom_op, list(runners), list(inputs)))
            raise _Listed

        with self._answering(answer), contextlib.suppress(_Listed):
            call()
        if not heard:
            raise frame.Unsupported(f"FlashInfer does not ask its tuner for {self.op} here")
        return heard[0]

    def run(self, call, tactic):
        """call() with that tactic of our runner; NATIVE: with what the tuner, which knows nothing, says itself."""
        def answer(_op, runners, _inputs, own):
            if tactic == NATIVE:
                return own
            return next(r for r in runners if type(r).__name__ == self.runner), tactic

        with self._answering(answer):
            return call()
