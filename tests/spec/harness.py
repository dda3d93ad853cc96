# SPDX-License-Identifier: Apache-2.0
"""A private daemon for tests: its own directories, its own sockets, workers of the test's choice.

The tests talk to it as people and servers do: through tunectl, with --json, and through its exit codes;
wire.py speaks to the sockets where a process for each question would be too slow or too polite.
Nothing here sleeps to wait for something: it asks, or watches, until a deadline.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

DIMS = "a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1"
MARK = "TACTICD_TEST_DIR"  # in the environment of a daemon and of all that comes of it
SKIPPED = 77  # exit status: nothing failed, but something could not be tested here
PATIENCE_S = 15  # for an answer, in place of the 5 s of tunectl


def key(m, n=64, k=64, backend="onednn"):
    """Canonical text of a matmul problem."""
    return f"matmul,backend={backend},{DIMS},m={m},n={n},k={k},epilogue=none,scale=none,workspace_bytes=0"


class Failure(AssertionError):
    pass


class Skip(Exception):
    """This machine cannot show it; the words say what is missing."""


def slack(build):
    """How much longer things may take: sanitizers are slow."""
    binary = (pathlib.Path(build) / "daemon/tacticd").read_bytes()
    return 8 if b"__asan_init" in binary or b"__tsan_init" in binary else 1


def processes_of(directory):
    """{pid: command line} of the daemon of a directory and of all that came of it. Zombies are none."""
    mark = f"{MARK}={directory}".encode()
    found = {}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and mark in (pathlib.Path("/proc") / entry / "environ").read_bytes().split(b"\0"):
                line = (pathlib.Path("/proc") / entry / "cmdline").read_bytes()
                if line:
                    found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            pass  # it ended meanwhile
    return found


class Daemon:
    """One daemon in a directory that is removed at the end; restart() keeps the directory."""

    def __init__(self, build, workers=None, sweep=None, options=None, packaged=None, limits=None):
        self.build = pathlib.Path(build).resolve()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="tacticd-", dir="/tmp"))
        self.workers = workers if workers is not None else {}
        self.sweep = {"when": "always", **(sweep or {})}
        self.options = options or {}
        self.limits = limits or {}
        self.env = {}  # of the daemon, over ours
        self.popen = {}  # how to start it: preexec_fn and the like
        self.process = None
        self.starts = 0
        for name in ("run", "state", "site", "packaged"):
            (self.dir / name).mkdir()
        if packaged:
            shutil.copytree(packaged, self.dir / "packaged", dirs_exist_ok=True)
        self.write_config()

    # --- life ---

    def write_config(self):
        lines = ["[daemon]"]
        daemon = {"runtime_dir": self.dir / "run", "state_dir": self.dir / "state", "site_dir": self.dir / "site",
                  "packaged_dir": self.dir / "packaged", "keys_dir": self.dir / "keys", "control_group": "root",
                  **self.options}
        lines += [f"{k} = {v}" for k, v in daemon.items()]
        lines += ["", "[sweep]"] + [f"{k} = {v}" for k, v in self.sweep.items()]
        lines += ["", "[limits]"] + [f"{k} = {v}" for k, v in self.limits.items()] if self.limits else []
        for name, worker in self.workers.items():
            lines += ["", f"[worker {name}]"] + [f"{k} = {v}" for k, v in worker.items()]
        (self.dir / "tacticd.conf").write_text("\n".join(lines) + "\n")

    @property
    def log_path(self):
        return self.dir / "daemon.log"

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def command(self):
        return [str(self.build / "daemon/tacticd"), "--config", str(self.dir / "tacticd.conf")]

    def start(self, wait=True):
        self.starts += 1
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, MARK: str(self.dir), **self.env}, **self.popen)
        if wait:
            self.wait_for(lambda: self.tunectl("status")[0] == 0, 20, "the daemon to answer")
        return self

    def stop(self, timeout=20):
        """Asks it to end; returns its exit status."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout) if self.process else 0

    def restart(self, **changes):
        """Stops it and starts it again, perhaps with another configuration."""
        status = self.stop()
        expect(status == 0, f"the daemon ended with {status}", self.log()[-2000:])
        for name, value in changes.items():
            setattr(self, name, value)
        self.write_config()
        return self.start()

    def children(self):
        """What came of the daemon and lives."""
        return {pid: line for pid, line in processes_of(self.dir).items()
                if not self.process or pid != self.process.pid}

    def expect_alone(self, seconds=5):
        """Fails unless all that came of the daemon ends."""
        end = time.monotonic() + seconds
        while self.children():
            expect(time.monotonic() < end, "processes outlive their daemon", *self.children().items())
            time.sleep(0.02)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(20)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.kill()
            self.cleanup()
            raise

    def __exit__(self, kind, value, trace):
        try:
            status = self.stop()
            if kind is None and status != 0:
                raise Failure(f"the daemon ended with {status}:\n{self.log()[-3000:]}")
            if kind is None:
                self.expect_alone()
        finally:
            self.kill()
            if kind is not None and kind is not Skip:
                sys.stderr.write(f"--- log of {self.dir}\n{self.log()[-6000:]}\n---\n")
            self.cleanup()

    def cleanup(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    # --- asking ---

    def environment(self):
        return {**os.environ, "TACTICD_SOCKET": str(self.dir / "run/lookup.sock"),
                "TACTICD_CONTROL": str(self.dir / "run/control/sock")}

    def tunectl(self, *args, timeout=30):
        """Runs tunectl --json; returns (exit code, first line of its output parsed or None, stderr)."""
        # A machine of others may stand still for seconds; that is not what these tests look for. doors.py is.
        patience = [] if "--timeout" in args else ["--timeout", str(PATIENCE_S)]
        begun = time.monotonic()
        done = subprocess.run([str(self.build / "client/tunectl"), *args, *patience, "--json"], capture_output=True,
                              text=True, env=self.environment(), timeout=timeout, stdin=subprocess.DEVNULL, check=False)
        if "--wait" not in args and time.monotonic() - begun > 2:
            print(f"slow: tunectl {args[0]} took {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
        try:
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            body = lines[0] if lines else None
        except json.JSONDecodeError as e:
            raise Failure(f"tunectl {args}: not JSON ({e}): {done.stdout[:500]}") from e
        return done.returncode, body, done.stderr

    def lookup(self, problem, section="cpu"):
        return self.tunectl("lookup", problem, "--as", section)[1]

    def status(self):
        code, body, err = self.tunectl("status", "--counters")
        if body is None:
            raise Failure(f"no status: tunectl ended with {code}: {err.strip()}\n{self.log()[-3000:]}")
        return body

    def counter(self, name):
        return next(c["value"] for c in self.status()["counters"] if c["name"] == name)

    def wait_for(self, condition, seconds, what):
        """Asks again and again; returns the first true answer."""
        end = time.monotonic() + seconds
        while True:
            if self.process and self.process.poll() is not None:
                raise Failure(f"the daemon ended with {self.process.returncode} while waiting for {what}:\n"
                              f"{self.log()[-3000:]}")
            answer = condition()
            if answer:
                return answer
            if time.monotonic() > end:
                raise Failure(f"waited {seconds} s for {what}\n{self.log()[-3000:]}")
            time.sleep(0.02)

    def wait_ready(self, section="cpu", seconds=20):
        """Until the worker section has said hello."""
        return self.wait_for(lambda: any(w["section"] == section and w["state"] != "probing"
                                         for w in self.status()["workers"]), seconds, f"worker {section}")

    def wait_answer(self, problem, section="cpu", seconds=60):
        """Until a lookup is answered with a hit or default."""
        def asked():
            answer = self.lookup(problem, section)
            return answer if answer and answer.get("kind") in ("hit", "default") else None
        return self.wait_for(asked, seconds, f"an answer for {problem}")

    def wait_ended(self, problem, seconds=60):
        """Until a sweep of the problem is over, whatever came of it; returns how, in words."""
        def ended():
            told = self.tunectl("explain", problem, "--as", "cpu")[1]
            rows = self.status()["sweeps"]
            busy = any(row["key"] == problem and row["phase"] != "queued" for row in rows)
            return told["history"] if told and "history" in told and not busy else None
        return self.wait_for(ended, seconds, f"the end of the sweep of {problem}")

    def journals(self):
        """{sweep id: its lines, decoded}; a torn last line is left out."""
        found = {}
        for path in sorted((self.dir / "state/journal").glob("*.jsonl")):
            lines = path.read_bytes().split(b"\n")[:-1]
            found[path.stem] = [json.loads(line) for line in lines]
        return found

    def fake_command(self, *scenario):
        """The scripted worker's command line; words that a configuration cannot hold go to a file."""
        if any(c in word for word in scenario for c in " \"'#;") or sum(map(len, scenario)) > 100:
            path = self.dir / f"scenario-{len(list(self.dir.glob('scenario-*')))}"
            path.write_text("".join(word + "\n" for word in scenario))
            scenario = [f"@{path}"]
        return " ".join([str(self.build / "tests/fake_worker"), *scenario])

    def fake(self, *scenario, section="cpu", **options):
        """Adds a worker section that runs the scripted worker."""
        command = self.fake_command(*scenario)
        self.workers[section] = {"command": command, "backend": "onednn", "device": "cpu", **options}
        self.write_config()
        return self


def expect(condition, message, *facts):
    if not condition:
        raise Failure(message + "".join(f"\n  {f}" for f in facts))


def arguments(parser=None):
    parser = parser or argparse.ArgumentParser(description="spec tests over a real daemon")
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--long", action="store_true", help="run the long tests instead")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="only these; default all")
    return parser.parse_args()


def run(tests, long=(), args=None):
    """Runs the test functions named on the command line (all by default): spec.py --build DIR [--long] [NAME...]."""
    args = args or arguments()
    known = {test.__name__: test for test in (*tests, *long)}
    unknown = [name for name in args.tests if name not in known]
    if unknown:
        sys.exit(f"no such test: {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in args.tests] or (long if args.long else tests)
    failed = skipped = 0
    for test in chosen:
        begun = time.monotonic()
        try:
            test(args.build)
        except Skip as e:
            skipped += 1
            print(f"skipped {test.__name__}: {e}", flush=True)
        except (Failure, subprocess.TimeoutExpired) as e:
            failed += 1
            print(f"not ok {test.__name__}: {e}", flush=True)
        except Exception:  # a test that breaks has failed
            failed += 1
            print(f"not ok {test.__name__}: {traceback.format_exc()}", flush=True)
        else:
            print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
    sys.exit(1 if failed else SKIPPED if skipped else 0)
