# SPDX-License-Identifier: Apache-2.0
"""A worker's launcher in an engine's image, as tactic-launch is one below the daemon: comes to the daemon's socket,
starts the worker when it is told to, and tells how it ended. Linux and the standard library alone; nothing of the
engine is imported here, so that no library's fault can reach it, and each worker finds its packages anew.

The worker talks to the daemon on descriptors that the daemon sends. One of them is there to be closed: then the kernel
kills the worker and all of its group (F_SETSIG), whatever state this process is in; and when this process ends, the
kernel kills the worker too (PR_SET_PDEATHSIG).
"""
import argparse
import array
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import time

from tacticd.worker import lines

PROTOCOL = 1
LINE_BYTES = 64 * 1024  # of what the daemon may say at once
DESCRIPTORS = 3  # socket, output, life
ANSWER_S = 10  # from the first line to attached
GRACE_S = 0.2  # a signal from outside may be meant for both: who lives on tells of it after this
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0  # between tries, each twice the one before
OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}

OK = 0
USAGE = 64
UNAVAILABLE = 69  # no daemon within --wait
SYSTEM = 71
TAKEN = 75  # another one has it, or the daemon had no time, within --wait
PROTOCOL_ERROR = 76
NOT_ALLOWED = 77
CONFIG = 78
STATUS_OF = {"section": CONFIG, "user": NOT_ALLOWED, "namespace": NOT_ALLOWED, "taken": TAKEN, "busy": TAKEN,
             "ending": TAKEN}  # of the reasons of `unattached`; others mean that it was not understood
STARTED_NOT = 125  # exit status of a worker that could not be started, and ...
EXECUTED_NOT = 127  # ... of one that is no program, as tactic-launch has them

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)  # before any fork


def say(words):
    print(f"attach: {words}", file=sys.stderr, flush=True)


class Away(Exception):
    """The daemon is, or will not have us: exit status, words, and whether to come again."""

    def __init__(self, status, words, passes=True):
        super().__init__(words)
        self.status, self.passes = status, passes


class Stopped(Exception):
    """Somebody asked this process to end."""


# --- the worker's start, in its own process ---


def become(command, descriptors, visible, parent):
    """Replaces this process, which was just forked."""
    try:
        os.setpgid(0, 0)
        if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != parent:
            os._exit(STARTED_NOT)  # it ended before the kernel knew
        sock, output, life = descriptors
        # Closing the other end of `life` is SIGKILL for the group.
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([life], [], [], 0)[0]:
            os._exit(STARTED_NOT)  # it was closed before
        null = os.open(os.devnull, os.O_RDONLY)
        for at, wanted in enumerate((null, output, output, sock)):
            os.dup2(wanted, at)  # descriptors of ours are greater: 0 to 3 are taken in main
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        os.execvp(command[0], command)
    except OSError as e:
        os.write(2, f"attach: {command[0]} cannot be executed: {e.strerror}\n".encode())
        os._exit(EXECUTED_NOT)
    except BaseException as e:
        os.write(2, f"attach: the worker cannot be started: {e}\n".encode())
    os._exit(STARTED_NOT)


class Worker:
    """One process, from fork to wait. Takes the descriptors."""

    def __init__(self, command, descriptors, visible):
        parent = os.getpid()
        self.life = descriptors[2]
        self.pid = os.fork()
        if self.pid == 0:
            become(command, descriptors, visible, parent)
        for fd in descriptors[:2]:
            os.close(fd)

    def is_ordered_to_end(self):
        """The daemon closed its end: the kernel has killed the group, or is about to."""
        return bool(select.select([self.life], [], [], 0)[0])

    def kill(self):
        for kill in (os.killpg, os.kill):  # it may not lead its group yet
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)

    def reap(self):
        """Waits for it, and ends what is left of its group. Returns how it ended: below 0 = by that signal."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # while nobody else can have that number
        os.close(self.life)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


# --- signals to this process ---


class Signals:
    """Those that came, as something to wait for."""

    ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # to end

    def __init__(self):
        self.theirs, self.sock = socket.socketpair()
        for sock in (self.theirs, self.sock):
            sock.setblocking(False)
        signal.set_wakeup_fd(self.theirs.fileno(), warn_on_full_buffer=False)
        for number in (*self.ASKS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def fileno(self):
        return self.sock.fileno()

    def take(self, seconds=0):
        """Waits at most so long for one. Raises Stopped if this process is to end."""
        if select.select([self.sock], [], [], seconds)[0] and set(self.sock.recv(4096)) & set(self.ASKS):
            raise Stopped

    def sleep(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.take(left)


# --- one connection ---


class Connection:
    """Attached, until the daemon is gone."""

    def __init__(self, path, section, command, signals):
        self.command, self.signals = command, signals
        self.worker, self.rest, self.heard = None, b"", []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(ANSWER_S)
            self.sock.connect(path)
            self.tell("attach", version=PROTOCOL, section=section)
            self.take_answer()
        except BaseException as e:
            self.sock.close()
            if isinstance(e, PermissionError):
                raise Away(NOT_ALLOWED, f"{path}: {e.strerror}: this user is not in the socket's group", False) from e
            if isinstance(e, socket.timeout):
                raise Away(UNAVAILABLE, f"the daemon did not answer within {ANSWER_S} s") from e
            if isinstance(e, OSError):
                raise Away(UNAVAILABLE, f"{path}: {e.strerror or e}") from e
            raise

    def tell(self, line, **values):
        self.sock.sendall(lines.encode(line, **values))

    def hear(self):
        """What came: a list of (line, fields, descriptors). Raises Away at the end of the connection."""
        data, control, flags, _ = self.sock.recvmsg(LINE_BYTES - len(self.rest), socket.CMSG_SPACE(DESCRIPTORS * 4),
                                                    socket.MSG_CMSG_CLOEXEC)
        descriptors = array.array("i")
        for level, kind, cargo in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(cargo[:len(cargo) - len(cargo) % descriptors.itemsize])
        if not data:
            raise Away(UNAVAILABLE, "the daemon closed the connection")
        *whole, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) >= LINE_BYTES or flags & socket.MSG_CTRUNC:
            raise Away(PROTOCOL_ERROR, "what the daemon said cannot be read", False)
        try:
            heard = [lines.decode(line) for line in whole]
        except lines.Malformed as e:
            raise Away(PROTOCOL_ERROR, f"the daemon's line: {e}", False) from e
        return [(name, fields, list(descriptors) if name == "start" else []) for name, fields in heard]

    def take_answer(self):
        heard = []
        while not heard:
            heard = self.hear()
        name, fields, _ = heard[0]
        if name == "unattached":
            status = STATUS_OF.get(fields["reason"], PROTOCOL_ERROR)
            raise Away(status, f"the daemon refuses: {fields['detail']}", status == TAKEN)
        if name != "attached":
            raise Away(PROTOCOL_ERROR, f"the daemon answers with {name}", False)
        self.heard = heard[1:]

    # --- while it is attached ---

    def serve(self):
        """Starts workers as the daemon asks for them. Raises Away or Stopped; no worker of ours lives then."""
        self.sock.settimeout(None)
        try:
            self.start_all(self.heard)
            while True:
                life = [self.worker.life] if self.worker else []
                ready = select.select([self.sock, self.signals, *life], [], [])[0]
                if self.signals in ready:
                    self.signals.take()
                    self.reap_all()
                if self.worker and self.worker.life in ready:
                    self.worker.kill()  # as the kernel has
                    self.tell_end()
                if self.sock in ready:
                    self.start_all(self.hear())
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Away(UNAVAILABLE, "the daemon closed the connection") from e
        finally:
            self.sock.close()
            if self.worker:
                self.worker.kill()
                self.worker.reap()

    def start_all(self, heard):
        for name, fields, descriptors in heard:
            if name != "start" or self.worker or len(descriptors) != DESCRIPTORS:
                for fd in descriptors:
                    os.close(fd)
                raise Away(PROTOCOL_ERROR, f"the daemon said {name} out of its turn", False)
            self.worker = Worker(self.command, descriptors, fields.get("visible"))
            self.tell("started", pid=self.worker.pid)
            say(f"worker {self.worker.pid} started")

    def reap_all(self):
        """As the first process of a container we get everybody's orphans."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            if self.worker and seen.si_pid == self.worker.pid:
                self.tell_end()
            else:
                os.waitpid(seen.si_pid, 0)

    def tell_end(self):
        worker, self.worker = self.worker, None
        is_ordered = worker.is_ordered_to_end()
        code = worker.reap()
        how = f"died of signal {-code}" if code < 0 else f"exited with status {code}"
        say(f"worker {worker.pid} {'was ended by the daemon' if is_ordered else how}")
        if -code in OUTSIDE and not is_ordered:
            self.signals.sleep(GRACE_S)
        self.tell("ended", **({"signal": -code} if code < 0 else {"status": code}))


# --- the whole ---


def attach(path, section, command, wait_s, signals):
    """Comes to the daemon, again and again; returns the exit status."""
    pause_s, since, told = PAUSE_S, time.monotonic(), None
    while True:
        try:
            connection = Connection(path, section, command, signals)
            say(f"attached: this image holds worker '{section}'")
            pause_s = PAUSE_S
            try:
                connection.serve()
            finally:
                since = time.monotonic()
        except Stopped:
            return OK
        except Away as e:
            if str(e) != told:
                told = str(e)
                say(told)
            left = wait_s - (time.monotonic() - since)
            if not e.passes or left <= 0:
                return e.status
        try:
            signals.sleep(min(pause_s, left))
        except Stopped:
            return OK
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def main(argv):
    """python3 -m tacticd.worker --attach DIR --section NAME [--wait SECONDS] [-- COMMAND...]. Returns the exit status: 0
    asked to end, 64 usage, 69 no daemon within --wait, 71 system error, 75 another has the section's place within --wait,
    76 the daemon was not understood, 77 not allowed, 78 no such section."""
    parser = argparse.ArgumentParser(prog="python3 -m tacticd.worker", exit_on_error=False, description=__doc__.split(".")[0])
    parser.add_argument("--attach", metavar="DIR", required=True,
                        help="directory of the daemon's socket, e.g. /run/tacticd/worker")
    parser.add_argument("--section", metavar="NAME", required=True,
                        help="worker section of tacticd.conf that says attach = yes")
    parser.add_argument("--wait", metavar="SECONDS", type=float, default=60.0,
                        help="how long it may be without a daemon or the section's place; default 60; inf = for ever")
    parser.add_argument("command", nargs="*", metavar="COMMAND",
                        help="worker to start, behind --; default: this interpreter with -m tacticd.worker")
    try:
        asked = parser.parse_args(argv)
    except argparse.ArgumentError as e:
        say(e)
        return USAGE
    except SystemExit as e:  # it has said why, or printed its help
        return USAGE if e.code else OK
    try:
        while os.open(os.devnull, os.O_RDONLY) <= DESCRIPTORS:
            pass  # 0 to 3 are the worker's: what the daemon sends comes to lie above
        command = asked.command or [sys.executable, "-m", "tacticd.worker"]
        return attach(os.path.join(asked.attach, "sock"), asked.section, command, asked.wait, Signals())
    except OSError as e:
        say(f"system error: {e}")
        return SYSTEM
