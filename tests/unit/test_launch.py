#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tactic-launch: a worker ends with its daemon, with all that came of it, and its end is reported as it was.

usage: test_launch.py --build DIR [TEST...]
"""
import os
import pathlib
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

GONE_S = 1.0  # the promise
PYTHON = sys.executable

# A worker with three descendants: one deaf to signals, one that left the session, and a child of that one.
FAMILY = """
import os, signal, sys, time
def tell():
    os.write(1, b"%d\\n" % os.getpid())
def child(work):
    if os.fork() == 0:
        for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(s, signal.SIG_IGN)
        work()
        tell()
        time.sleep(60)
        os._exit(0)
child(lambda: None)
child(lambda: (os.setsid(), child(lambda: None)))
tell()
"""
FAMILY_PIDS = 4

DAEMON = """
import os, subprocess, sys
read, write = os.pipe()
def wire():
    os.dup2(read, 10); os.dup2(10, 4); os.dup2(os.open("/dev/null", os.O_RDONLY), 3)
p = subprocess.Popen(sys.argv[1:], preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL)
print("launcher", p.pid, flush=True)
p.wait()
"""


class Failure(AssertionError):
    pass


def expect(condition, message):
    if not condition:
        raise Failure(message)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids, what):
    end = time.monotonic() + GONE_S
    while any(alive(p) for p in pids):
        if time.monotonic() > end:
            left = [p for p in pids if alive(p)]
            for p in left:
                os.kill(p, signal.SIGKILL)
            raise Failure(f"{what}: {len(left)} of {len(pids)} still alive after {GONE_S} s")
        time.sleep(0.005)


class Launched:
    """A launcher started as the daemon starts it: fd 3 a socket, fd 4 the liveness pipe."""

    def __init__(self, launch, worker, *options, fds=(3, 4)):
        self.sock, theirs = socket.socketpair()
        read, self.live = os.pipe()
        os.set_inheritable(self.live, False)
        self.errors = tempfile.TemporaryFile()

        def wire():
            # Out of the way first: the numbers may be taken.
            os.dup2(theirs.fileno(), 40)
            os.dup2(read, 41)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 42)
            os.closerange(3, 40)
            if 3 in fds:
                os.dup2(40, 3)
            if 4 in fds:
                os.dup2(41, 4)
            os.close(40)
            os.close(41)

        self.process = subprocess.Popen([launch, *options, "--", *worker], preexec_fn=wire, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                                        bufsize=0)  # what a buffer holds, select does not see
        theirs.close()
        os.close(read)
        self.out = self.process.stdout

    def pids(self, n):
        found = []
        while len(found) < n:
            ready, _, _ = select.select([self.out], [], [], 10)
            expect(ready, f"the worker told {len(found)} of {n} pids")
            line = self.out.readline()
            expect(line, f"the worker ended after {len(found)} of {n} pids: {self.stderr()}")
            found.append(int(line))
        return found

    def end(self, timeout=10):
        return self.process.wait(timeout)

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def close_live(self):
        os.close(self.live)
        self.live = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.live >= 0:
            os.close(self.live)
        self.process.wait(10)
        self.sock.close()
        self.out.close()
        self.errors.close()


def python(text):
    return [PYTHON, "-c", text]


def forwards_exit_statuses(launch):
    for status in (0, 1, 7, 200):
        with Launched(launch, python(f"import sys; sys.exit({status})")) as l:
            expect(l.end() == status, f"exit {status} came back as {l.process.returncode}")
            expect(l.stderr() == "", f"words without need: {l.stderr()}")


def forwards_signals_and_names_them(launch):
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGBUS):
        with Launched(launch, python(f"import os; os.kill(os.getpid(), {int(number)})")) as l:
            expect(l.end() == -number, f"{number.name} came back as {l.process.returncode}")
            expect(f"signal {int(number)} (" in l.stderr(), f"{number.name} is not named: {l.stderr()!r}")


def leaves_nobody_when_the_daemon_is_killed(launch):
    for nap in (0, 0.02):
        daemon = subprocess.Popen([PYTHON, "-c", DAEMON, launch, "--", *python(FAMILY + "time.sleep(60)")],
                                  stdout=subprocess.PIPE)
        pids = [int(daemon.stdout.readline().split()[1])]
        while len(pids) < 1 + FAMILY_PIDS:
            pids.append(int(daemon.stdout.readline()))
        time.sleep(nap)
        daemon.kill()
        daemon.wait()
        wait_gone(pids, "SIGKILL of the daemon")
        daemon.stdout.close()


def leaves_nobody_when_the_daemon_dies_first(launch):
    # The daemon is gone before the launcher can ask to be told of it.
    for _ in range(20):
        daemon = subprocess.Popen([PYTHON, "-c", DAEMON, launch, "--", *python("import time; time.sleep(60)")],
                                  stdout=subprocess.PIPE)
        launcher = int(daemon.stdout.readline().split()[1])
        daemon.kill()
        daemon.wait()
        wait_gone([launcher], "a daemon killed at once")
        daemon.stdout.close()


def leaves_nobody_when_the_pipe_closes(launch):
    with Launched(launch, python(FAMILY + "time.sleep(60)")) as l:
        pids = l.pids(FAMILY_PIDS)
        l.close_live()
        wait_gone(pids + [l.process.pid], "end of the liveness pipe")
        expect(l.end() == -signal.SIGKILL, f"ended with {l.process.returncode}")


def leaves_nobody_on_sigterm(launch):
    with Launched(launch, python(FAMILY + "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")) as l:
        pids = l.pids(FAMILY_PIDS)
        l.process.terminate()
        wait_gone(pids + [l.process.pid], "SIGTERM")


def leaves_nobody_when_the_worker_is_stopped(launch):
    with Launched(launch, python(FAMILY + "os.kill(os.getpid(), signal.SIGSTOP)")) as l:
        pids = l.pids(FAMILY_PIDS)
        l.close_live()
        wait_gone(pids, "a stopped worker")


def group_kill_takes_the_group(launch):
    with Launched(launch, python("import os,time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)")) as l:
        pids = l.pids(2)
        expect(os.getpgid(pids[0]) == l.process.pid, "the worker is not in the launcher's group")
        expect(os.getsid(pids[0]) == l.process.pid, "the worker is not in a session of its own")
        os.killpg(l.process.pid, signal.SIGKILL)
        wait_gone(pids + [l.process.pid], "SIGKILL of the group")


def the_worker_follows_its_launcher(launch):
    with Launched(launch, python("import os,time; print(os.getpid(), flush=True); time.sleep(60)")) as l:
        pids = l.pids(1)
        l.process.kill()
        wait_gone(pids, "SIGKILL of the launcher alone")


def orphans_die_with_a_worker_that_ends_well(launch):
    with Launched(launch, python(FAMILY + "time.sleep(0.2); sys.exit(5)")) as l:
        pids = l.pids(FAMILY_PIDS)
        expect(l.end() == 5, f"ended with {l.process.returncode}")
        expect(not any(alive(p) for p in pids), "the launcher ended before the worker's orphans")


def nobody_else_holds_the_socket(launch):
    with Launched(launch, python("import os,time; os.write(3, b'hi'); os.close(3); time.sleep(60)")) as l:
        l.sock.settimeout(5)
        expect(l.sock.recv(10) == b"hi", "the worker's word did not arrive")
        expect(l.sock.recv(10) == b"", "the socket stays open after the worker closed it")
        l.close_live()


def the_worker_inherits_four_descriptors(launch):
    with Launched(launch, python("import os; print(*sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1], flush=True)")) as l:
        line = l.out.readline().split()
        expect([int(f) for f in line] == [0, 1, 2, 3], f"descriptors {line}")


LIMITS = """
import os, resource
status = dict(l.split(':', 1) for l in open('/proc/self/status') if ':' in l)
print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_AS),
    resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), sorted(os.sched_getaffinity(0)),
    status['NoNewPrivs'].strip(), open('/proc/self/oom_score_adj').read().strip(), sep='|', flush=True)
"""


def limits_are_set(launch):
    cpu = max(os.sched_getaffinity(0))
    options = ["--as", str(8 << 30), "--nofile", "123", "--nice", "7", "--cpus", str(cpu)]
    with Launched(launch, python(LIMITS), *options) as l:
        core, space, files, nice, cpus, privileges, oom = l.out.readline().decode().strip().split("|")
        expect(core == "(0, 0)", f"core {core}")
        expect(space == f"({8 << 30}, {8 << 30})", f"address space {space}")
        expect(files == "(123, 123)", f"files {files}")
        expect(nice == str(os.nice(0) + 7) or nice == "7", f"nice {nice}")
        expect(cpus == f"[{cpu}]", f"cpus {cpus}")
        expect(privileges == "1", f"no_new_privs {privileges}")
        expect(oom == "800", f"oom score {oom}")
    with Launched(launch, python(LIMITS), "--as", "0") as l:
        space = l.out.readline().decode().split("|")[1]
        expect(space == str(resource.getrlimit(resource.RLIMIT_AS)), f"0 is no limit, not {space}")


def a_wrong_parent_is_refused(launch):
    with Launched(launch, python("print(1, flush=True)"), "--parent", "1") as l:
        expect(l.end() == 125 and l.out.read() == b"", f"ended with {l.process.returncode}")
        expect("daemon is gone" in l.stderr(), l.stderr())
    with Launched(launch, python("print(1, flush=True)"), "--parent", str(os.getpid())) as l:
        expect(l.end() == 0 and l.out.read() == b"1\n", f"ended with {l.process.returncode}: {l.stderr()}")


def a_missing_program_is_named(launch):
    with Launched(launch, ["/nonexistent/worker"]) as l:
        expect(l.end() == 127, f"ended with {l.process.returncode}")
        expect("/nonexistent/worker: No such file" in l.stderr(), l.stderr())


def bad_usage_is_refused(launch):
    for options in (["--as", "-1"], ["--nice", "20"], ["--cpus", "3-1"], ["--cpus", "x"], ["--nofile"], ["--frob", "1"],
                    ["--as", "1G"]):
        done = subprocess.run([launch, *options, "--", "true"], capture_output=True, check=False, timeout=10)
        expect(done.returncode == 125 and b"usage" in done.stderr, f"{options}: {done.returncode}")
    for argv in ([launch], [launch, "true"], [launch, "--"]):
        done = subprocess.run(argv, capture_output=True, check=False, timeout=10)
        expect(done.returncode == 125 and b"usage" in done.stderr, f"{argv}: {done.returncode}")
    for fds in ((3,), (4,), ()):
        with Launched(launch, ["true"], fds=fds) as l:
            expect(l.end() == 125, f"descriptors {fds}: {l.process.returncode}")


TESTS = [forwards_exit_statuses, forwards_signals_and_names_them, leaves_nobody_when_the_daemon_is_killed,
         leaves_nobody_when_the_daemon_dies_first, leaves_nobody_when_the_pipe_closes, leaves_nobody_on_sigterm,
         leaves_nobody_when_the_worker_is_stopped, group_kill_takes_the_group, the_worker_follows_its_launcher,
         orphans_die_with_a_worker_that_ends_well, nobody_else_holds_the_socket,
         the_worker_inherits_four_descriptors, limits_are_set, a_wrong_parent_is_refused, a_missing_program_is_named,
         bad_usage_is_refused]


def main():
    args = sys.argv[1:]
    if len(args) < 2 or args[0] != "--build":
        sys.exit(__doc__)
    launch = str((pathlib.Path(args[1]) / "daemon/workers/tactic-launch").resolve())
    failed = 0
    for test in TESTS:
        if args[2:] and test.__name__ not in args[2:]:
            continue
        begun = time.monotonic()
        try:
            test(launch)
            print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
        except (Failure, subprocess.TimeoutExpired, TimeoutError) as e:
            failed += 1
            print(f"not ok {test.__name__}: {e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
