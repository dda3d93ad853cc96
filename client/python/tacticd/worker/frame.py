# SPDX-License-Identifier: Apache-2.0
"""Everything a worker is besides its library, as daemon/workers/frame.c is for workers in C: reads the daemon's lines,
keeps the order of things (one problem open, candidates in range), and answers each request exactly once. A test holds
both against each other, byte by byte.

Blocking and single-threaded on purpose: a worker does one thing at a time, and its deadlines are the daemon's, which
can kill it. Whatever a library raises but the errors below ends the process; the daemon reads that as the fault of
the candidate in hand.
"""
import hashlib
import math
import os
import socket
import sys
import traceback
from typing import NamedTuple, Optional

from tacticd.worker import keys, lines
from tacticd.worker._lines import BOUNDS, FACTS

VERSION = 1  # of this protocol
FD = 3
MAX_CANDIDATES = 512
MAX_ORDER = 2 * MAX_CANDIDATES
SENTENCE_BYTES = 255  # for people
KERNEL_BYTES = 1023  # a kernel's name

OK = 0
USAGE = 64
UNAVAILABLE = 69
SOFTWARE = 70  # the library, or what runs it, raised what it should not
SYSTEM = 71
PROTOCOL = 76


class Unavailable(Exception):
    """hello: there is nothing that could be swept here."""


class Unsupported(Exception):
    """open: the library or this machine cannot do that problem."""


class Memory(Exception):
    """open: it needs more than the cap, or there is none left. MemoryError means the same."""


class Failed(Exception):
    """look, check, run: the library refused this candidate; others may run."""


class Hopeless(Failed):
    """The same, and it will again: it cannot here."""


class Candidate(NamedTuple):
    tactic: object  # any JSON
    name: str
    family: str
    workspace_bytes: int = 0
    kernel: Optional[str] = None  # its name, if it is known without a launch
    prewarm: Optional[dict] = None  # what must be loaded or compiled before first use, as docs/python.md has it


class Sample(NamedTuple):
    device_us: float
    host_us: float
    is_foreign: bool = False  # somebody else used the device meanwhile, or the host's delay is in device_us


class Look(NamedTuple):
    first_us: float  # untimed launch, with everything that happens only once
    timed: Sample  # cold
    kernel: Optional[str] = None


class Check(NamedTuple):
    ok: bool
    max_error: float  # may be infinite or NaN
    limit: float
    repeatable: bool
    reason: str = ""  # what is wrong, if it is not ok


class Problem:
    """What a family opens. All methods but close may raise Failed."""

    candidates = ()  # of Candidate, native first, at most MAX_CANDIDATES, no tactic twice
    method = ""  # id of its timing
    build_ms = None  # what compiling and loading a candidate may take
    flush_us = None  # what making the caches cold costs each launch
    watches = False  # whether it ends the process itself where a launch outlasts a look's limit_ms

    def look(self, i, limit_ms):
        """A Look: one untimed and one timed launch. Who keeps a device busy for longer than limit_ms hangs; 0:
        nobody does."""
        raise NotImplementedError

    def check(self, i):
        """A Check: two runs over poisoned outputs, judged."""
        raise NotImplementedError

    def run(self, i):
        """A Sample: one cold timed launch."""
        raise NotImplementedError

    # The same with nothing made cold, to compare methods; None: cold only.
    run_hot = None

    def clock_mhz(self):
        """The device's clock now; None: unknown."""
        return None

    def close(self):
        """Frees all of the problem's memory."""


class Backend(NamedTuple):
    """What a worker runs. A family is called as family(key, seed, memory_cap_bytes, next) and gives a Problem, or
    raises Unsupported or Memory, and then nothing is open; next is the key that may be opened after it, or None."""

    name: str  # a backend of ops.def
    program: str  # name and version of this worker
    facts: dict  # of this process, by name; what is unknown is left out
    families: dict  # by op


def plain(text, most=SENTENCE_BYTES):
    """A text for people, at most so many bytes, without control bytes."""
    text = text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
    return "".join("?" if c < " " or c == "\x7f" else c for c in text)


def complain(status, what, sentence):
    print(f"worker: {what}: {plain(str(sentence))}", file=sys.stderr, flush=True)
    return status


def known_facts(facts):
    """Those that the daemon takes. One that is too long to be kept whole is unknown: cut, it could be another's."""
    def is_known(value):
        return value not in (None, "", "unknown", "None") and plain(value, BOUNDS["fact_bytes"]) == value
    return {name: facts[name] for name in FACTS if is_known(facts.get(name))}


def space_digest(tactics):
    """Of their sorted texts: equal spaces have equal digests, in whatever order they were found."""
    text = b"".join(sorted(t.encode() + b"\n" for t in tactics))
    return hashlib.blake2b(text, digest_size=32).hexdigest()


class Gone(Exception):
    """The daemon is: the end, not an error."""


class Broken(Exception):
    """The socket is, which is none of the library's doing: its own OSErrors are not taken for this."""


class Frame:
    """One backend on one socket."""

    def __init__(self, backend, sock):
        self.backend, self.sock = backend, sock
        self.problem = None

    # --- answers ---

    def say(self, line, **values):
        data = lines.encode(line, **values)
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Gone from e
        except OSError as e:
            raise Broken(e) from e

    def failed(self, candidate, sentence):
        self.say("failed", candidate=candidate, detail=plain(str(sentence)),
                 hopeless=isinstance(sentence, Hopeless) or None)

    def problem_of(self, i):
        """The open problem. Raises Failed unless that candidate of it can be asked for."""
        if self.problem is None:
            raise Failed("no problem is open")
        if i >= len(self.problem.candidates):
            raise Failed("there is no such candidate")
        return self.problem

    # --- requests ---

    def parse(self, text):
        """The key of a problem that this backend may be asked for. Raises BadKey."""
        key = keys.parse(text)
        if key.tokens is None:
            raise keys.BadKey("", "the problem has no number of tokens")
        if key.backend != self.backend.name:
            raise keys.BadKey("backend", f"this worker runs {self.backend.name}")
        return key

    def next_key(self, text):
        """A bad one is no error: nothing depends on it."""
        try:
            return None if text is None else self.parse(text)
        except keys.BadKey:
            return None

    def make(self, request):
        """Opens the problem; returns why not, or None."""
        try:
            if self.problem is not None:
                raise keys.BadKey("", "another problem is open")
            key = self.parse(request["problem"])
            family = self.backend.families.get(key.op)
            if family is None:
                raise Unsupported(f"this worker does not run {key.op}")
            self.problem = family(key, request["seed"], request["memory_cap_bytes"], self.next_key(request.get("next")))
        except keys.BadKey as e:
            return "bad_problem", e
        except Unsupported as e:
            return "unsupported", e
        except (Memory, MemoryError) as e:
            return "memory", str(e) or "there is no memory left"
        return None

    def on_open(self, request):
        refused = self.make(request)
        if refused:
            self.say("refused", reason=refused[0], detail=plain(str(refused[1])))
            return
        problem = self.problem
        tactics = [lines.canonical(c.tactic) for c in problem.candidates]
        if not 0 < len(tactics) <= MAX_CANDIDATES or len(set(tactics)) < len(tactics):
            raise AssertionError(f"{len(tactics)} candidates, {len(set(tactics))} of them different")
        self.say("opened", candidates=[c._asdict() for c in problem.candidates], space_digest=space_digest(tactics),
                 method=problem.method, build_ms=problem.build_ms or None,
                 flush_us=None if problem.flush_us is None else int(problem.flush_us), watches=problem.watches or None)

    def on_look(self, request):
        i = request["candidate"]
        try:
            seen = self.problem_of(i).look(i, request.get("limit_ms", 0))
        except Failed as e:
            self.failed(i, e)
            return
        self.say("looked", candidate=i, first_us=seen.first_us, device_us=seen.timed.device_us,
                 host_us=seen.timed.host_us, kernel=None if seen.kernel is None else plain(seen.kernel, KERNEL_BYTES),
                 foreign=seen.timed.is_foreign or None)

    def on_check(self, request):
        i = request["candidate"]
        try:
            seen = self.problem_of(i).check(i)
        except Failed as e:
            self.failed(i, e)
            return
        max_error = seen.max_error if math.isfinite(seen.max_error) else None
        self.say("checked", candidate=i, ok=seen.ok, max_error=max_error, limit=seen.limit, repeatable=seen.repeatable,
                 reason=None if seen.ok else plain(seen.reason))

    def launcher(self, flush):
        """Which of a problem's methods launches in this round: its name."""
        if flush is None or flush == "cold":
            return "run"
        if flush != "hot":
            raise Failed(f"'{flush[:20]}' is neither cold nor hot")
        if self.problem is not None and self.problem.run_hot is None:
            raise Failed("this worker launches cold only")
        return "run_hot"

    def on_run(self, request):
        order, i, seen = request["order"], 0, []
        try:
            i = order[0] if order else 0
            launcher = self.launcher(request.get("flush"))
            if len(order) > MAX_ORDER:
                i = 0
                raise Failed(f"a round is at most {MAX_ORDER} launches")
            for i in order:
                seen.append(getattr(self.problem_of(i), launcher)(i))
        except Failed as e:
            self.failed(i, e)
            return
        self.say("samples", round=request["round"], order=order, device_us=[s.device_us for s in seen],
                 host_us=[s.host_us for s in seen], clock_mhz=(self.problem and self.problem.clock_mhz()) or None,
                 foreign=any(s.is_foreign for s in seen) or None)

    def on_close(self, _request):
        self.close()
        self.say("closed")

    def close(self):
        problem, self.problem = self.problem, None
        if problem is not None:
            problem.close()

    HANDLERS = {"open": on_open, "look": on_look, "check": on_check, "run": on_run, "close": on_close}

    # --- the loop ---

    def handle(self, data):
        name, request = lines.decode(data)
        if name not in self.HANDLERS:
            raise lines.Malformed("say", f"'{name}' is not for a worker")
        self.HANDLERS[name](self, request)

    def requests(self):
        """The daemon's lines, until it closes its end."""
        rest = bytearray()
        while True:
            try:
                more = self.sock.recv(BOUNDS["line_bytes"] - len(rest))
            except ConnectionResetError:
                return
            except OSError as e:
                raise Broken(e) from e
            if not more:
                return
            *whole, rest = (rest + more).split(b"\n")
            yield from whole
            if len(rest) == BOUNDS["line_bytes"]:
                raise lines.Malformed("", "longer than 1 MiB")

    def serve(self, hello):
        """Until the daemon closes its end. Returns the exit status."""
        try:
            self.say("hello", **hello)
            for data in self.requests():
                self.handle(data)
        except Gone:
            return OK
        except lines.Malformed as e:
            return complain(PROTOCOL, "the daemon's line", e)
        except lines.Unsayable as e:
            return complain(SYSTEM, "cannot answer", e)
        except Broken as e:
            return complain(SYSTEM, "the daemon's socket", e)
        return OK


def hello_of(backend):
    return {"version": VERSION, "worker": backend.program, "backend": backend.name, "pid": os.getpid(),
            "fingerprint": known_facts(backend.facts), "ops": list(backend.families)}


def take_socket():
    """The daemon's; None if file descriptor 3 is not one."""
    try:
        sock = socket.socket(fileno=FD)
    except OSError:
        return None
    sock.setblocking(True)
    # Compilers that a library starts must not hold it: the daemon reads its end as ours.
    sock.set_inheritable(False)
    return sock


def main(find, argv):
    """Serves the daemon on file descriptor 3; with --hello prints the first line. `find` gives the backend, or raises
    Unavailable. Returns the exit status: 0, 64 usage, 69 nothing to sweep here, 70 the library raised something odd,
    71 system error, 76 the daemon broke the protocol."""
    if argv not in ([], ["--hello"]):
        print("usage: python3 -m tacticd.worker [--hello]\n"
              f"Started by tacticd, which talks to it on file descriptor {FD}. In a container: --attach --help.", file=sys.stderr)
        return USAGE
    sock = None if argv else take_socket()
    if not argv and sock is None:
        return complain(USAGE, f"file descriptor {FD} must be tacticd's socket; try --hello", "it is none")
    frame = None
    try:
        backend = find()
        hello = hello_of(backend)
        if argv:
            sys.stdout.write(lines.encode("hello", **hello).decode())
            return OK
        frame = Frame(backend, sock)
        return frame.serve(hello)
    except Unavailable as e:
        return complain(UNAVAILABLE, "cannot start", e)
    except Exception:  # whatever a library raises: its last words are for the daemon's obituary
        traceback.print_exc()
        frame = None  # what raised cannot be trusted to close
        return SOFTWARE
    finally:
        if frame:
            frame.close()
