#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers that the daemon does not start: a launcher comes to its socket, as from an engine's image, and holds the worker
there. The image is played by a process group of ours; its engine by a process that echoes.

usage: attach.py --build DIR [TEST...]
"""
import contextlib
import json
import os
import pathlib
import pwd
import signal
import socket
import stat
import subprocess
import sys
import time

import gpus
from faults import journal, raced_in
from harness import Daemon, Skip, expect, key, run, slack

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FAKE = ROOT / "tests/fake/fake_worker.py"
CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")  # 1 wins, 5 is second
PROBLEM = key(64)
PYTHON = {**os.environ, "PYTHONPATH": str(ROOT / "client/python"), "PYTHONDONTWRITEBYTECODE": "1"}


def parents():
    """{pid: parent} of all processes."""
    found = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if entry.isdigit():
                text = (pathlib.Path("/proc") / entry / "stat").read_text()
                found[int(entry)] = int(text.rpartition(")")[2].split()[1])
    return found


def lives(pid):
    """An ended process that nobody waits for has no command line any more."""
    with contextlib.suppress(OSError):
        return bool(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


def python_of(user):
    """An interpreter that this user can run, with this tree; raises Skip."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([python, str(FAKE), "facts=none"], user=user, group="nogroup", extra_groups=[], env=PYTHON, cwd="/", check=False,
                              capture_output=True).returncode == 64:
                return python
    raise Skip(f"user {user} cannot read this tree, or has no Python")


class Image:
    """A launcher with its worker, and what it prints."""

    def __init__(self, d, *scenario, section="fi", wait=20, user=None):
        self.d = d
        self.log_path = d.dir / f"launcher-{time.monotonic_ns()}"
        words = d.dir / f"words-{time.monotonic_ns()}"
        words.write_text("".join(f"{word}\n" for word in (*CLEAR, *scenario)))
        words.chmod(0o644)
        python = python_of(user) if user else sys.executable
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [python, "-m", "tacticd.worker", "--attach", str(d.dir / "run/worker"), "--section", section,
                 "--wait", str(wait), "--", python, str(FAKE), f"@{words}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=PYTHON,
                cwd="/", start_new_session=True, **({"user": user, "group": "nogroup", "extra_groups": []} if user else {}))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def worker(self):
        """Its pid, None if there is none."""
        return next((pid for pid, parent in parents().items() if parent == self.process.pid), None)

    def wait_worker(self, seconds=10):
        return self.d.wait_for(self.worker, seconds, "an attached worker's process")

    def kill_all(self):
        """As a container's end does: launcher and worker at once."""
        worker = self.worker()
        os.kill(self.process.pid, signal.SIGKILL)
        if worker:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self.process.wait(10)

    def ended(self, seconds=10):
        return self.process.wait(seconds * slack(self.d.build))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            sys.stderr.write(f"--- launcher\n{self.log()}\n---\n")
        if self.process.poll() is None:
            self.process.terminate()
            status = self.process.wait(10)
            expect(kind is not None or status == 0, f"a launcher ended with {status}", self.log())


@contextlib.contextmanager
def daemon(build, options=None, **section):
    d = Daemon(build, sweep={"look_deadline_min": "1s"},
               options={"worker_group": "root", **(options or {})},
               workers={"fi": {"attach": "yes", "backend": "onednn", "device": "cpu", **section}})
    with d:
        yield d


@contextlib.contextmanager
def engine():
    """A process of the same user that has nothing to do with any of it; it still answers at the end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def echoes():
            process.stdin.write("tokens\n")
            process.stdin.flush()
            return process.stdout.readline() == "tokens\n" and process.poll() is None
        yield echoes
        expect(echoes(), "the engine's process does not answer any more")
        process.stdin.close()


def row(d, section="fi"):
    return next(w for w in d.status()["workers"] if w["section"] == section)


def wait_state(d, state, seconds=15):
    return d.wait_for(lambda: (r := row(d)) if row(d)["state"] == state else None, seconds, f"state {state}")


def ask(d, problem=PROBLEM):
    return d.lookup(problem, "fi")


def wait_swept(d, problem=PROBLEM, seconds=60):
    return d.wait_answer(problem, "fi", seconds)


def test_attach_and_sweep(build):
    with daemon(build) as d:
        told = row(d)
        expect(told["state"] == "waiting" and "nobody" in told["detail"] and "pid" not in told, "not waiting", told)
        place = (d.dir / "run/worker").stat(), (d.dir / "run/worker/sock").stat()
        expect([stat.S_IMODE(s.st_mode) for s in place] == [0o750, 0o660], "modes", place)
        answer = ask(d)
        expect("kind" not in answer, "an answer of whom?", answer)
        expect(not d.children(), "something was started", d.children())
        with Image(d, "look.3=fail:no", "check.4=lie", "look.5=stdout:so it prints") as image:
            wait_state(d, "ready")
            ask(d)
            answer = wait_swept(d)
            expect(answer["kind"] == "hit" and answer["tactic"] == {"id": 1}, "not the right winner", answer)
            expect(raced_in(d) == {0, 1, 2, 5}, "others raced", raced_in(d))
            expect("so it prints" in (d.dir / "state/log/fi.log").read_text(), "its output is lost")
            expect(d.counter("worker_starts") == 1, "more workers than needed", d.counter("worker_starts"))
            expect(not d.children(), "the daemon has children", d.children())
            expect(row(d)["pid"] == image.worker(), "not the worker's pid", row(d), image.worker())
            # It is let go when there is nothing to do, the launcher stays.
            d.wait_for(lambda: image.worker() is None, 20, "an idle worker to be let go")
            expect(row(d)["state"] == "ready" and image.process.poll() is None, "not ready any more", row(d))
            d.lookup(key(64, 32), "fi")
            wait_swept(d, key(64, 32))
        wait_state(d, "waiting")


def test_crash_and_hang(build):
    with engine() as echoes, daemon(build) as d, \
            Image(d, "look.2=stdout:about to fall", "look.2=crash:11", "check.3=exit:3", "run.4=hang") as image:
        wait_state(d, "ready")
        ask(d)
        expect_winner_of(d, raced=4)
        deny = explain_deny(d, {2: ["signal 11", "about to fall"], 3: ["exited with status 3"], 4: ["hung"]})
        expect(echoes(), "the engine's process is gone", deny)
        expect(image.process.poll() is None and "attached" in image.log(), "not one attach for all", image.log())
        expect(image.log().count("this image holds") == 1, "it came more than once", image.log())
        expect(d.counter("worker_deaths_vanished") == 0 and d.counter("worker_deaths_deadline") >= 1, "counters",
               d.status()["counters"])


def expect_winner_of(d, raced):
    answer = wait_swept(d)
    expect(answer["kind"] == "hit" and answer["tactic"] == {"id": 1} and answer["candidates"] == raced, "winner", answer)


def explain_deny(d, rules):
    def told():
        e = d.tunectl("explain", PROBLEM, "--as", "fi")[1]
        return e["deny"] if e and len(e["deny"]) >= len(rules) else None
    deny = d.wait_for(told, 5, f"{len(rules)} rules")
    found = {rule["tactic"]["id"]: rule["reason"] for rule in deny}
    expect(found.keys() == rules.keys(), "not exactly the guilty are denied", deny)
    for candidate, words in rules.items():
        expect(all(word in found[candidate] for word in words), f"not the reason of {candidate}", found[candidate])
    return deny


def test_vanish(build):
    """Launcher and worker end together: nobody is to blame, and the next image's worker goes on from the journal."""
    with daemon(build) as d:
        with Image(d, "check.3=hang@1", "sleep=1") as image:
            wait_state(d, "ready")
            ask(d)
            d.wait_for(lambda: any(r["phase"] == "checking" and r["done"] >= 3 for r in d.status()["sweeps"]), 20,
                       "candidate 3 in hand")
            image.kill_all()
        told = wait_state(d, "waiting")
        expect("nobody is attached" in told["detail"], "not told", told)
        d.wait_for(lambda: "pid" not in row(d), 2, "its pid to be forgotten")
        d.wait_for(lambda: [r["phase"] for r in d.status()["sweeps"]] == ["queued"], 5, "the sweep to be in the queue")
        expect(d.log().count("vanished with its container, candidate 3 in hand (checking)") >= 1, "no obituary", d.log())
        expect(d.log().count('msg="a worker ended"') <= 1, "more than one obituary", d.log())
        expect(d.counter("worker_deaths_vanished") == 1, "counted wrongly", d.status()["counters"])
        expect(not d.tunectl("explain", PROBLEM, "--as", "fi")[1]["deny"], "somebody is denied")
        lines = journal(d)
        opened = [line["say"] for line in lines]
        expect(opened[-1] == "journal_loss" and lines[-1]["why"] == "stopped", "the journal ends otherwise", lines[-1])
        with Image(d):
            expect_winner_of(d, raced=6)
            expect(len(d.journals()) == 1, "it was begun anew", d.journals().keys())
            expect(not d.tunectl("explain", PROBLEM, "--as", "fi")[1]["deny"], "somebody is denied")


def test_launcher_alone_dies(build):
    """Its worker goes with it, by the kernel's hand."""
    with daemon(build) as d, Image(d, "look.2=hang") as image:
        wait_state(d, "ready")
        ask(d)
        worker = image.wait_worker()
        os.kill(image.process.pid, signal.SIGKILL)
        image.process.wait(10)
        d.wait_for(lambda: parents().get(worker) != 1, 5, "the worker's end")
        wait_state(d, "waiting")


def test_worker_alone_is_killed(build):
    """By somebody outside: the launcher tells, and it is tried once more, as below the daemon itself."""
    with daemon(build) as d, Image(d, "look.2=hang@1") as image:
        wait_state(d, "ready")
        ask(d)
        d.wait_for(lambda: any(r["phase"] == "looking" and r["done"] == 2 for r in d.status()["sweeps"]), 10, "candidate 2")
        os.kill(image.wait_worker(), signal.SIGKILL)
        expect_winner_of(d, raced=5)  # 2 hangs at its next look, too, and is only slow then
        expect(not d.tunectl("explain", PROBLEM, "--as", "fi")[1]["deny"], "somebody is denied")
        expect(image.log().count("this image holds") == 1, "it came more than once", image.log())


def test_launcher_hangs(build):
    """The daemon's order to kill does not depend on it, and it is killed itself if it does not tell of the end."""
    with daemon(build) as d, Image(d, "check.3=hang") as image:
        wait_state(d, "ready")
        ask(d)
        worker = image.wait_worker()
        d.wait_for(lambda: any(r["phase"] == "checking" for r in d.status()["sweeps"]), 10, "a check")
        os.kill(image.process.pid, signal.SIGSTOP)
        d.wait_for(lambda: not lives(worker), 30, "the worker's end")
        expect(image.process.poll() is None, "the launcher ended first: what killed the worker?")
        expect(image.ended(30) == -signal.SIGKILL, "not killed")
        wait_state(d, "waiting")


def test_gives_back_at_once(build):
    """From the order to the worker's end: the kernel does it."""
    with daemon(build) as d, Image(d, "look.2=hang") as image:
        wait_state(d, "ready")
        ask(d)
        d.wait_for(lambda: any(r["phase"] == "looking" and r["done"] == 2 for r in d.status()["sweeps"]), 10, "candidate 2")
        worker = image.wait_worker()
        begun = time.monotonic()
        d.process.send_signal(signal.SIGKILL)
        while lives(worker):
            expect(time.monotonic() - begun < 5, "it outlives the daemon")
            time.sleep(0.002)
        took = time.monotonic() - begun
        expect(took < 0.25 * slack(build), f"{took:.3f} s")
        print(f"a worker was gone {1000 * took:.0f} ms after its daemon", flush=True)
        d.process.wait()
        d.start()
        wait_state(d, "ready", 20)  # the same launcher came again
        wait_swept(d)
        expect(image.log().count("this image holds") == 2, "not twice", image.log())


def test_restart(build):
    with daemon(build) as d, Image(d, "times=10000,8000,12000,10100,15000,9500", "sleep=1") as image:
        wait_state(d, "ready")
        ask(d)
        d.wait_for(lambda: any(r["phase"] == "racing" for r in d.status()["sweeps"]), 20, "a race")
        d.restart()
        expect("starts over" not in d.log() and image.process.poll() is None, "not resumed", d.log()[-2000:])
        expect_winner_of(d, raced=4)  # the others are half as slow again
        expect(len(d.journals()) == 1, "it was begun anew", d.journals().keys())
        expect(image.log().count("this image holds") == 2, "not twice", image.log())


def test_gpu(build):
    """It gets the GPU that its section means, is known there as ours, and gives it back to others; and nobody watches GPUs
    while nobody is attached."""
    d = Daemon(build, sweep={"when": "idle"}, options={"worker_group": "root"},
               workers={"fi": {"attach": "yes", "backend": "onednn", "device": "0"}})
    scene = gpus.Scene(d, build, gpus.PLAIN)
    try:
        with d, Image(d, "times=10000,8000,8200,8200,15000,9500", "jitter=0.05", "sleep=1") as image:
            wait_state(d, "ready")
            gpus.begin(d, "fi")
            told = d.wait_for(lambda: (r := gpus.row(d)).get("users") and r, 5, "its users")
            expect(told["state"] == "sweeping" and [(u["pid"], u["whose"]) for u in told["users"]] ==
                   [(image.worker(), "ours")], "it is not known", told, image.worker())
            expect(gpus.variable(image.worker(), "CUDA_VISIBLE_DEVICES") == gpus.ONE, "another GPU")
            begun = time.monotonic()
            scene.on(gpus.ONE, f"process {scene.stranger()} 1024")
            while image.worker():
                expect(time.monotonic() - begun < 5, "the worker is still there", d.log()[-2000:])
            print(f"a stranger is listed, the worker is gone: {1000 * (time.monotonic() - begun):.0f} ms", flush=True)
            expect(time.monotonic() - begun < 0.6 * slack(build), "too late")
            gpus.wait_state(d, "in use")
            expect(row(d)["state"] != "waiting" and image.process.poll() is None, "the launcher left", row(d))
            scene.show(gpus.PLAIN)
            gpus.begin(d, "fi")
            d.wait_for(image.worker, 20, "it to go on")
            expect(gpus.gpuwatch(d), "nobody watches")
            image.kill_all()
            wait_state(d, "waiting")
            d.wait_for(lambda: [r["phase"] for r in d.status()["sweeps"]] == ["queued"], 5, "the sweep to be in the queue")
            d.wait_for(lambda: not gpus.gpuwatch(d), 15, "gpuwatch to rest")
    finally:
        scene.end()


def talk(d, data, seconds=10):
    """What the socket answers to some bytes, until it closes."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(seconds)
        sock.connect(str(d.dir / "run/worker/sock"))
        if data:
            sock.sendall(data)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while more := sock.recv(4096):
                heard += more
        return heard


def test_refusals(build):
    with daemon(build) as d:
        d.fake(*CLEAR, section="own")
        d.restart()
        with Image(d) as first:
            wait_state(d, "ready")
            cases = (({"section": "none"}, 78, "there is no section [worker none]"),
                     ({"section": "own"}, 78, "does not say attach = yes"),
                     ({"wait": 0.4}, 75, f"is attached already, by pid {first.process.pid}"))
            for options, status, words in cases:
                with Image(d, **options) as image:
                    ended = image.ended()
                    expect(ended == status and words in image.log(), f"not {status}", ended, image.log())
                    expect(image.log().count("refuses") == 1, "said more than once", image.log())
            for data, words in ((b"GET / HTTP/1.1\r\n\r\n", "more before"), (b"\0\n", "NUL byte"), (b"x" * 600, "too long"),
                                (b"{}\n", "say: is missing"), (b'{"say":"hello"}\n', "is missing"),
                                (b'{"say":"close"}\n', "must be attach"), (b"[" * 400 + b"\n", "deep"),
                                (b'{"say":"attach","version":2,"section":"fi"}\n', "another version"),
                                (b'{"say":"attach","version":1,"section":"fi"}\n{', "more before")):
                told = json.loads(talk(d, data))
                expect(told["say"] == "unattached" and told["reason"] == "protocol" and words in told["detail"], words, told)
            begun = time.monotonic()
            told = json.loads(talk(d, b'{"say":'))
            expect(told["reason"] == "silence" and 4 < time.monotonic() - begun < 9, "silence", told)
            expect(talk_many(d) == {"busy"}, "not too many")
            expect(row(d)["state"] == "ready" and first.process.poll() is None, "the first one suffered", row(d))
            expect(d.counter("attaches_refused") >= 13, "not counted", d.counter("attaches_refused"))


def talk_many(d):
    """Reasons of those that find no slot, while as many as there are keep silent."""
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(d.dir / "run/worker/sock"))
        return {json.loads(talk(d, b""))["reason"] for _ in range(3)}


def test_users(build):
    if os.getuid() != 0:
        raise Skip("only root can come as another user")
    other = pwd.getpwnam("nobody")
    python_of("nobody")
    with daemon(build, user="root") as d:
        d.dir.chmod(0o755)
        with Image(d, user="nobody", wait=5) as image:  # the directory
            expect(image.ended() == 77 and "not in the socket's group" in image.log(), "let in", image.log())
        (d.dir / "run/worker").chmod(0o755)
        (d.dir / "run/worker/sock").chmod(0o666)
        with Image(d, user="nobody", wait=5) as image:
            expect(image.ended() == 77 and f"is for user root, and you are user {other.pw_uid}" in image.log(), "let in",
                   image.log())
        d.workers["fi"]["user"] = str(other.pw_uid)
        d.restart()
        (d.dir / "run/worker").chmod(0o755)
        (d.dir / "run/worker/sock").chmod(0o666)
        with Image(d, wait=0.5) as image:
            expect(image.ended() == 77, "root was let in", image.log())
        with Image(d, user="nobody"):
            wait_state(d, "ready")
            ask(d)
            wait_swept(d)


def test_namespace(build):
    """A daemon that cannot see the process refuses it: it could neither watch nor kill it."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        raise Skip("no pid namespace can be made here")

    class Inside(Daemon):
        def command(self):
            return ["unshare", "--pid", "--fork", "--kill-child", *super().command()]

    d = Inside(build, options={"worker_group": "root"},
               workers={"fi": {"attach": "yes", "backend": "onednn", "device": "cpu"}})
    try:
        d.start()
        with Image(d, wait=5) as image:
            expect(image.ended() == 77 and "cannot see your process" in image.log(), "let in", image.log())
    finally:
        d.kill()
        d.cleanup()


def test_groups(build):
    """Without the group the socket is root's and the daemon's; without an attached section there is none."""
    with daemon(build, options={"worker_group": "no-such-group"}) as d:
        expect("no such group" in d.log() and (d.dir / "run/worker/sock").exists(), "not said", d.log())
        # It is not looked up again on the loop, when the socket comes back.
        (d.dir / "run/worker/sock").unlink()
        d.wait_for((d.dir / "run/worker/sock").exists, 20, "the socket")
        expect(d.log().count("group=no-such-group") == 1, "looked up again", d.log())
        d.workers.clear()
        d.fake(*CLEAR)
        (d.dir / "run/worker/sock").unlink()
        (d.dir / "run/worker").rmdir()
        d.restart()
        d.wait_ready()
        expect(not (d.dir / "run/worker").exists(), "a door for nobody")


def test_socket_comes_back(build):
    with daemon(build) as d:
        (d.dir / "run/worker/sock").unlink()
        with Image(d):
            wait_state(d, "ready", 20)


def test_a_flood_of_words(build):
    """A launcher that says more than there is to say is let go, and holds up nobody."""
    with daemon(build) as d, socket.socket(socket.AF_UNIX) as flood:
        flood.connect(str(d.dir / "run/worker/sock"))
        flood.sendall(b'{"say":"attach","version":1,"section":"fi"}\n')
        fds = []
        while not fds:  # they come with the second line, which may come with the first
            text, fds, _, _ = socket.recv_fds(flood, 2000, 10)
            expect(text, "refused", d.log())
        for fd in fds:
            os.close(fd)
        flood.settimeout(5 * slack(build))
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begun < 5 * slack(build):
                flood.sendall(b'{"say":"started","pid":4}\n' * 4000)
        expect(time.monotonic() - begun < 3 * slack(build), "it was listened to for seconds", time.monotonic() - begun)
        begun = time.monotonic()
        expect("twice that the worker has started" in d.log(), "not said", d.log())
        d.status()
        expect(time.monotonic() - begun < slack(build), "the loop is held up", time.monotonic() - begun)


def test_the_end_of_a_launcher_at_the_daemons_end(build):
    """One device still closes, the other has: its launcher may go now."""
    section = {"attach": "yes", "backend": "onednn"}
    d = Daemon(build, options={"worker_group": "root"},
               workers={name: {**section, "device": f"npu:{i}"} for i, name in enumerate("ab")})
    with d:
        with Image(d, section="a") as first, Image(d, section="b") as second:
            d.wait_for(lambda: all(w["state"] == "ready" for w in d.status()["workers"]), 20, "both workers")
            if first.worker():
                os.kill(first.worker(), signal.SIGKILL)
            d.wait_for(lambda: not first.worker(), 5, "the end of a worker")
            os.kill(second.process.pid, signal.SIGSTOP)  # its device waits for a word of it
            d.process.send_signal(signal.SIGTERM)
            time.sleep(0.35)
            first.process.kill()
            status = d.process.wait(30 * slack(build))
            os.kill(second.process.pid, signal.SIGCONT)
            first.process.wait(10)
        expect(status == 0 and "AddressSanitizer" not in d.log(), f"the daemon ended with {status}", d.log())


def test_a_launchers_other_child(build):
    """An entry point may have started the engine before it became the launcher: that is no worker of ours."""
    with daemon(build) as d:
        words = d.dir / "words"
        words.write_text("".join(f"{word}\n" for word in (*CLEAR, "hello=hang")))  # a worker that lives on
        script = f"sleep 60 & exec {sys.executable} -m tacticd.worker --attach {d.dir}/run/worker --section fi " \
                 f"-- {sys.executable} {FAKE} @{words}"
        with subprocess.Popen(["sh", "-c", script], env=PYTHON, cwd="/", start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
            try:
                told = d.wait_for(lambda: row(d).get("pid"), 10, "the worker's pid")
                # Nothing stands there between fork and exec.
                name = d.wait_for(lambda: pathlib.Path(f"/proc/{told}/cmdline").read_bytes(), 5, "its command line")
                expect(b"fake_worker" in name, "another child is taken for the worker", name)
            finally:
                os.killpg(launcher.pid, signal.SIGKILL)
                worker = row(d).get("pid")
                if worker:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)


def test_users_that_are_none(build):
    """Nobody is let in for a name that means nobody, and no number is taken for everybody."""
    with daemon(build, user="no-such-user") as d:
        expect("no such user" in d.log(), "not said", d.log())
        with Image(d, wait=0.5) as image:
            expect(image.ended() == 77, "let in", image.log())
    for number in ("4294967295", "4294967296", "18446744073709551616"):
        d = Daemon(build, options={"worker_group": "root"},
                   workers={"fi": {"attach": "yes", "backend": "onednn", "device": "cpu", "user": number}})
        try:
            d.write_config()
            done = subprocess.run([str(d.build / "daemon/tacticd"), "--check", "--config", str(d.dir / "tacticd.conf")],
                                  capture_output=True, text=True, check=False)
            expect(done.returncode == 2 and number in done.stderr, "taken", number, done)
        finally:
            d.cleanup()


def test_nothing_is_left(build):
    """Descriptors and memory of the daemon after many attaches, of workers and of those that are refused."""
    def has():
        pid = d.process.pid
        rss = next(int(line.split()[1]) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                   if line.startswith("VmRSS"))
        return len(os.listdir(f"/proc/{pid}/fd")), rss

    with daemon(build) as d:
        def once(i):
            with Image(d) as image:
                wait_state(d, "ready")
                if i % 2:
                    image.kill_all()
            wait_state(d, "waiting")

        for i in range(4):
            once(i)
        before = d.wait_for(has, 5, "descriptors")
        for i in range(50):
            once(i)
            talk(d, b"garbage\n")
        d.wait_for(lambda: has()[0] <= before[0], 5, f"descriptors to be closed: {before} before, {has()} now")
        after = has()
        expect(after[1] < before[1] + 2048 * slack(build), f"grown from {before} to {after}")
        print(f"descriptors and KiB before {before}, after 50 attaches {after}", flush=True)


if __name__ == "__main__":
    run((test_attach_and_sweep, test_crash_and_hang, test_vanish, test_launcher_alone_dies, test_worker_alone_is_killed,
         test_launcher_hangs, test_gives_back_at_once, test_restart, test_gpu, test_refusals, test_users, test_namespace, test_groups,
         test_socket_comes_back, test_a_flood_of_words, test_the_end_of_a_launcher_at_the_daemons_end, test_a_launchers_other_child,
         test_users_that_are_none, test_nothing_is_left))
