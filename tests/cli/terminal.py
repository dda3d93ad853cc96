#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tunectl at a terminal: interrupts, the progress bar, colours, and outputs that cannot be written.

usage: terminal.py --build DIR [TEST...]
"""
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "spec"))
from harness import Daemon, expect, key, run  # noqa: E402

SLOW = ("times=100,80,120", "jitter=0.01", "flush_ms=10")  # a sweep of about a second


def tunectl(daemon, *args):
    return [str(daemon.build / "client/tunectl"), *args]


def at_terminal(daemon, *args, **environment):
    """Runs tunectl with all three ends on a terminal; returns (exit code, what it showed)."""
    ours, theirs = pty.openpty()
    env = {**daemon.environment(), "TERM": "xterm", **environment}
    process = subprocess.Popen(tunectl(daemon, *args), env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not select.select([ours], [], [], 0.1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    return process.wait(10), shown.decode()


def test_interrupt_leaves_the_sweep(build):
    with Daemon(build).fake(*SLOW) as daemon:
        daemon.wait_ready()
        process = subprocess.Popen(tunectl(daemon, "sweep", key(4), "--wait"), env=daemon.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        daemon.wait_for(lambda: daemon.status()["sweeps"], 20, "the sweep to begin")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        expect(process.returncode == 130, "exit code", process.returncode)
        expect("the sweep goes on" in said, "it must say so", said)
        daemon.wait_answer(key(4))


def test_progress_bar(build):
    with Daemon(build).fake(*SLOW) as daemon:
        daemon.wait_ready()
        code, shown = at_terminal(daemon, "sweep", key(4), key(8), "--wait")
        expect(code == 0, "exit code", code, shown)
        expect("[........................] 0/2" in shown, "the bar at its begin", shown)
        expect("\r\033[K" in shown, "it is drawn over itself", shown)
        expect("hit" in shown.rsplit("\033[K", 1)[1], "the outcome stands below it", shown)


def test_colours(build):
    with Daemon(build) as daemon:
        expect("\033[" in at_terminal(daemon, "status")[1], "colours at a terminal")
        expect("\033[" not in at_terminal(daemon, "status", NO_COLOR="1")[1], "NO_COLOR is respected")
        expect("\033[" not in at_terminal(daemon, "status", TERM="dumb")[1], "dumb terminals get none")
        piped = subprocess.run(tunectl(daemon, "status"), env=daemon.environment(), capture_output=True, text=True,
                               check=True)
        expect("\033[" not in piped.stdout, "no colours in a pipe", piped.stdout)


def test_text_cannot_move_the_cursor(build):
    with Daemon(build) as daemon:
        (daemon.dir / "site/bad\033[2Jname.json").write_text("x")
        daemon.tunectl("reload")
        _, shown = at_terminal(daemon, "status", NO_COLOR="1")
        expect("bad?[2Jname.json" in shown, "control bytes are made harmless", repr(shown))


def test_output_cannot_be_written(build):
    with Daemon(build) as daemon:
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run(tunectl(daemon, "status"), env=daemon.environment(), stdout=full, check=False)
        expect(done.returncode == 5, "a full disk is no success", done.returncode)


if __name__ == "__main__":
    run([test_interrupt_leaves_the_sweep, test_progress_bar, test_colours, test_text_cannot_move_the_cursor,
         test_output_cannot_be_written])
