# SPDX-License-Identifier: Apache-2.0
"""The example server and ./demo do what they show, and get over everything that may go wrong around them."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from harness import Daemon, Failure, expect, key, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = ("--steps", "2")
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


def cpu(build):
    """A daemon with the real worker."""
    worker = {"command": pathlib.Path(build).resolve() / "daemon/workers/tactic-onednn", "backend": "onednn",
              "device": "cpu"}
    return Daemon(build, workers={"cpu": worker}, packaged=ROOT / "tables", sweep={"when": "never"})


def server_command(build, *args):
    return [str(pathlib.Path(build).resolve() / "client/examples/matmul_server"), *args]


def serve(build, *args, socket):
    done = subprocess.run(server_command(build, "--socket", str(socket), *args), capture_output=True, text=True,
                          timeout=120, stdin=subprocess.DEVNULL, check=False)
    expect(done.returncode == 0, "the server ends with 0", done.returncode, done.stdout, done.stderr)
    return done.stdout


def served(text):
    """The report's table: [(matmul, tokens, tactic)]."""
    rows = re.findall(r"^(\S+) +(\d+|-) +.*\]  (.+)$", text.split("\nPROBLEM")[1], re.M)
    expect(rows, "the report has a table", text)
    return rows


def test_server_without_daemon(build):
    text = serve(build, *QUICK, socket="/nonexistent/lookup.sock")
    expect("no answers: " in text, "it says that nobody answers", text)
    expect(all(tactic == "default: no answer" for _, _, tactic in served(text)), "it runs on defaults", text)
    expect("differ by at most 0\n" in text, "both ways are the same", text)


def test_server_uses_answers(build):
    """A pinned tactic is used where it was asked for, and the result stays the same."""
    with cpu(build) as d:
        d.wait_ready()
        for m in BUCKETS:
            code, _, err = d.tunectl("pin", key(m, 1152, 896), '{"impl":"gemm:jit","threads":1}', "--as", "cpu")
            expect(code == 0, "the pin is accepted", err)
        text = serve(build, "--steps", "4", socket=d.dir / "run/lookup.sock")
    rows = [r for r in served(text) if r[0] == "attention.qkv"]
    expect(rows and all(tactic == "gemm:jit, 1 thread" for _, _, tactic in rows), "the pins are used", text)
    expect(all(int(tokens) in BUCKETS for _, tokens, _ in rows), "at their buckets", text)
    difference = float(re.search(r"differ by at most (\S+)", text).group(1))
    expect(0 < difference < 1e-3, "another order of additions, the same result", text)


def test_server_falls_back(build):
    """Tactics that this library or this process cannot run are given up, and it says so."""
    bad = {1: '{"impl":"no:such","threads":1}', 4: '{"impl":"gemm:jit","threads":4096}', 16: '{"algorithm":7}'}
    with cpu(build) as d:
        d.wait_ready()
        for m, tactic in bad.items():
            code, _, err = d.tunectl("pin", key(m, 896, 896), tactic, "--as", "cpu")
            expect(code == 0, "the pin is accepted", err)
        text = serve(build, "--steps", "12", socket=d.dir / "run/lookup.sock")
    rows = [(tokens, tactic) for name, tokens, tactic in served(text) if name == "attention.out" and tokens != "-"]
    expect(rows and all(tactic == "default: fell back" for _, tactic in rows), "it fell back", text)
    for tactic in bad.values():
        expect(f"fallback  attention.out: the daemon says {tactic}" in text, "it says what it cannot do", tactic, text)


def test_server_outlives_daemon(build):
    with cpu(build) as d:
        d.wait_ready()
        expect(d.tunectl("pin", key(1, 896, 896), '{"impl":"gemm:jit","threads":1}', "--as", "cpu")[0] == 0, "pinned")
        server = subprocess.Popen(server_command(build, "--socket", str(d.dir / "run/lookup.sock"), "--steps", "12"),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for line in server.stdout:
                if line.startswith("daemon "):
                    break
            d.kill()
            text = server.stdout.read()
            expect(server.wait(60) == 0, "the server goes on", text)
        finally:
            server.kill()
        expect("gemm:jit, 1 thread" in text, "with the answers it has", text)
        d.process = None


# --- ./demo ---

def demo(build, state, **kwargs):
    command = [str(ROOT / "demo"), "--quick", "--build", str(pathlib.Path(build).resolve()), "--state", str(state)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                            text=True, env={**os.environ, "TERM": "dumb"}, **kwargs)


def processes_of(state):
    """Command lines that name the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(state) in line:
            found.append(line)
    return found


def with_state(test):
    """Gives the test a folder that is removed."""
    def wrapped(build):
        state = pathlib.Path(tempfile.mkdtemp(prefix="tacticd-demo-", dir="/tmp"))
        try:
            test(build, state)
        finally:
            shutil.rmtree(state, ignore_errors=True)
    wrapped.__name__ = test.__name__
    return wrapped


def finish(process, seconds=180):
    """Its output; a demo that does not end is interrupted, so that its daemon ends with it."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        raise Failure(f"./demo did not end within {seconds} s:\n{process.communicate(timeout=30)[0]}") from None


def lookups(text):
    """How the lookups that ./demo shows were answered."""
    return re.findall(r"^\$ tunectl lookup .*\n(hit|default|miss) ", text, re.M)


@with_state
def test_demo_twice(build, state):
    """What the first run learned, the second knows. A busy machine may leave the first without a verdict."""
    texts = []
    for _ in range(2):
        process = demo(build, state)
        texts.append(finish(process))
        expect(process.returncode == 0, "it succeeds", texts[-1])
        expect("\nPROBLEM        TOKENS" in texts[-1] and "\n== how to go on" in texts[-1], "it comes to its end",
               texts[-1])
        expect(not processes_of(state), "nothing is left running", processes_of(state))
    first, second = map(lookups, texts)
    expect(first[0] == "miss" and "unseeded" in texts[0], "the first knows nothing", texts[0])
    expect(first[1] != "miss" or "contaminated" in texts[0], "it learns", texts[0])
    expect(second[0] == first[1], "the second knows what the first learned", *texts)
    if "hit" in second:
        expect("learned layer, " in texts[1] and ".json:" in texts[1], "explain names file and line", texts[1])


@with_state
def test_demo_interrupted(build, state):
    process = demo(build, state, start_new_session=True)
    for line in process.stdout:
        if line.startswith("$ tunectl sweep"):
            break
    time.sleep(0.3)  # anywhere in the sweep
    os.kill(process.pid, signal.SIGINT)
    process.stdout.read()
    expect(process.wait(30) == 130, "it says that it was interrupted", process.returncode)
    expect(not processes_of(state), "it takes its daemon with it", processes_of(state))


@with_state
def test_demo_names_what_failed(build, state):
    (state / "blocked").write_text("")
    process = demo(build, state / "blocked")
    text = finish(process)
    expect(process.returncode == 1 and "demo: cannot write" in text, "it names the step", text)
    process = demo(build, state / ("x" * 100))
    text = finish(process)
    expect(process.returncode == 1 and "too long for the sockets" in text, "it knows the bound of a path", text)
    process = subprocess.run([str(ROOT / "demo"), "--state"], capture_output=True, text=True, timeout=20, check=False)
    expect(process.returncode == 2 and "wants a folder" in process.stderr, "an option without its value", process)
    process = demo(state, state / "other")
    text = finish(process)
    expect(process.returncode == 1 and "is not there" in text, "it misses what was not built", text)


if __name__ == "__main__":
    run([test_server_without_daemon, test_server_uses_answers, test_server_falls_back, test_server_outlives_daemon,
         test_demo_twice, test_demo_interrupted, test_demo_names_what_failed])
