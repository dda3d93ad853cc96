# SPDX-License-Identifier: Apache-2.0
"""A client for tests, in the standard library alone: the part of ZeroMQ's wire protocol that a DEALER needs, and
the frames of proto/wire.h on it. It can say what no polite client would. Beside it: a probe that measures what
others have to wait for, and a stand-in for the service manager.
"""
import json
import multiprocessing
import os
import pathlib
import random
import re
import socket
import struct
import threading
import time

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
MORE, LONG, COMMAND = 1, 2, 4
KINDS = {0: None, 1: "hit", 2: "default", 3: "miss"}


def numbers(file, row):
    """Names and numbers of a list in proto/."""
    return {name: int(number) for name, number in re.findall(rf"^{row}\((\w+), (\d+),", (PROTO / file).read_text(), re.M)}


MESSAGES = numbers("messages.def", "MESSAGE")
STATUSES = {number: name for name, number in numbers("status.def", "STATUS").items()}


class Closed(Exception):
    """The other end hung up."""


def frame(body, flags=0):
    if len(body) > 255:
        return struct.pack(">BQ", flags | LONG, len(body)) + body
    return bytes((flags, len(body))) + body


def message(*frames):
    return b"".join(frame(f, MORE) for f in frames[:-1]) + frame(frames[-1])


class Reply:
    def __init__(self, frames):
        (self.version, self.message, status, kind, self.id, self.generation) = struct.unpack("<BBBB4xQQ", frames[0])
        self.status = STATUSES.get(status, status)
        self.kind = KINDS.get(kind, kind)
        self.bytes = frames[1]
        self.attachment = frames[2] if len(frames) > 2 else None

    @property
    def body(self):
        return json.loads(self.bytes)

    def __repr__(self):
        return f"{self.status} {self.kind} {self.bytes[:300]!r}"


class Wire:
    """A connection. Nothing is said that the caller did not ask for; see Client for the polite one."""

    def __init__(self, path, timeout=10):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.buffer = b""

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def take(self, n):
        while len(self.buffer) < n:
            data = self.socket.recv(65536)
            if not data:
                raise Closed
            self.buffer += data
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def shake_hands(self, identity=b""):
        self.send(GREETING)
        self.take(64)
        self.send(frame(READY[:-4] + struct.pack(">I", len(identity)) + identity, COMMAND))
        while not self.read_frame()[0] & COMMAND:
            pass
        return self

    def read_frame(self):
        flags = self.take(1)[0]
        size = struct.unpack(">Q", self.take(8))[0] if flags & LONG else self.take(1)[0]
        return flags, self.take(size)

    def read(self):
        """The frames of the next message."""
        frames, flags = [], MORE
        while flags & MORE:
            flags, body = self.read_frame()
            if not flags & COMMAND:
                frames.append(body)
        return frames


class Client(Wire):
    """Asks as a server does: hello once, then questions with the environment's digest."""

    def __init__(self, path, timeout=10):
        super().__init__(path, timeout)
        self.shake_hands()
        self.digest = bytes(8)
        self.last_id = 0

    def put(self, name, body=b"", digest=None, job=b"", version=1):
        self.last_id += 1
        number = MESSAGES.get(name, name)
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        header = struct.pack("<BB6xQ", version, number, self.last_id)
        self.send(message(header, self.digest if digest is None else digest, job, body))
        return self.last_id

    def ask(self, name, body=b"", **more):
        wanted = self.put(name, body, **more)
        while True:
            reply = Reply(self.read())
            if reply.id == wanted:
                return reply

    def hello(self, section="cpu", **facts):
        """Speaks for a worker section's environment, or for one made of these facts."""
        ask = {"fingerprint": facts} if facts else {"as": section}
        reply = self.ask("hello", ask)
        if reply.status != "OK":
            raise AssertionError(f"hello: {reply}")
        self.digest = struct.pack("<Q", int(reply.body["digest"], 16))
        return self

    def lookup(self, key):
        """The answer with its kind, as tunectl --json shows it."""
        reply = self.ask("lookup", key.encode())
        return {**reply.body, "kind": reply.kind} if reply.status == "OK" else {"status": reply.status, **reply.body}


# --- what others have to wait for ---

def delay_ms(pid):
    """How long the threads of a process were ready to run and did not get a CPU."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[1])
        except (OSError, IndexError):
            pass
    return total / 1e6


def probe(path, pid, keys, section, every_s, pipe):
    client, worst, times, random_key = None, (0, 0, ""), [], random.Random(1)
    while not pipe.poll(every_s):
        try:
            key = random_key.choice(keys)
            before = delay_ms(pid) + delay_ms("self")
            begun = time.monotonic()
            if client is None:
                client = Client(path).hello(section)
            answer = client.lookup(key)
            took = (time.monotonic() - begun) * 1e3
            # On a busy machine we wait for a CPU, which says nothing about the daemon.
            waited = delay_ms(pid) + delay_ms("self") - before
            times.append(took - waited)
            worst = max(worst, (took - waited, took, f"{answer.get('kind')} {answer.get('reason', '')}"))
        except Exception as e:
            pipe.send((f"{type(e).__name__}: {e}", worst, sorted(times)))
            return
    pipe.send((None, worst, sorted(times)))


class Probe:
    """Looks problems up, again and again, from another process; says at the end how long the slowest took."""

    def __init__(self, daemon, *keys, section="cpu", every_s=0.004):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=probe, daemon=True, args=(
            daemon.dir / "run/lookup.sock", daemon.process.pid, keys, section, every_s, theirs))
        self.process.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.process.terminate()
        self.process.join(10)

    def end(self):
        """(worst in ms, with the time it waited for a CPU, what was answered), count, median in ms."""
        self.pipe.send("enough")
        error, worst, times = self.pipe.recv()
        if error:
            raise AssertionError(f"the probe's lookups failed: {error}")
        return worst, len(times), times[len(times) // 2] if times else 0


# --- the service manager's end ---

class Manager:
    """Receives what a daemon tells its service manager; hears it in the order it was said."""

    def __init__(self, path):
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = []  # (seconds, message)
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        while True:
            data = self.socket.recv(4096)
            if not data:  # closed
                return
            self.heard.append((time.monotonic(), data.decode()))

    def environment(self, watchdog_us=None):
        return {"NOTIFY_SOCKET": self.path, **({"WATCHDOG_USEC": str(watchdog_us)} if watchdog_us else {})}

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)
        self.socket.close()
