#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The doors: one daemon behind them, whoever knocks; garbage costs its sender only; and life under a service manager,
from the first word to the last.

usage: doors.py --build DIR [TEST...]
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import time

from harness import Daemon, Skip, expect, key, run, slack
from wire import COMMAND, LONG, MESSAGES, MORE, Client, Closed, Manager, Probe, Wire, frame, message

CLEAR = ("times=100,80,120,101,150,95", "jitter=0.002")
FACTS = {"device": "cpu:fake", "isa": "avx2", "threads": "2", "onednn": "2.6.3"}
RULE = {"id": "", "op": "matmul", "backend": "onednn", "tactic": {"id": 77}, "reason": "a test"}
TICK_S = 5  # without a service manager that wants it more often
QUICK_S = 0.5
LAG_US = 20000
SWITCHES_A_TICK = 3  # the loop: timer and pool's result; the pool: one
RESIDENT_KB = 20 << 10


def tacticd(d, *args, config=None, **more):
    return subprocess.run([str(d.build / "daemon/tacticd"), *(("--config", str(config)) if config else ()), *args],
                          capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False, **more)


def knows_one(d):
    d.wait_ready()
    d.lookup(key(64))
    return d.wait_answer(key(64))


def memory(pid, what):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what + ":"))


@contextlib.contextmanager
def quick(build):
    """A daemon that ticks each QUICK_S."""
    manager = Manager(f"/tmp/manager-{os.getpid()}")
    d = Daemon(build).fake(*CLEAR)
    d.env = manager.environment(watchdog_us=int(2e6 * QUICK_S))
    try:
        with d:
            yield d
    finally:
        manager.close()
        os.unlink(manager.path)


def another_state(d):
    """The configuration of one at the same place, with a state of its own."""
    path = d.dir / "another.conf"
    path.write_text((d.dir / "tacticd.conf").read_text().replace(f"{d.dir}/state", f"{d.dir}/state2"))
    return path


# --- one daemon ---

def test_a_second_daemon_is_sent_away(build):
    with Daemon(build).fake(*CLEAR) as d:
        answer = knows_one(d)
        done = tacticd(d, config=d.dir / "tacticd.conf")
        expect(done.returncode == 3, "not the status for it", done.returncode, done.stderr)
        expect(f"pid {d.process.pid}" in done.stderr and str(d.dir / "run/lookup.sock") in done.stderr,
               "it does not name the owner and the socket", done.stderr)
        # Another place for the sockets, but the same state: as bad.
        other = d.dir / "other.conf"
        other.write_text((d.dir / "tacticd.conf").read_text().replace(f"{d.dir}/run", f"{d.dir}/run2"))
        done = tacticd(d, config=other)
        expect(done.returncode == 3 and f"pid {d.process.pid}" in done.stderr and "state" in done.stderr, "odd", done)
        expect(d.lookup(key(64)) == answer and d.counter("sweeps_started") == 1, "the first one suffers")
        d.lookup(key(16))
        d.wait_answer(key(16))
    done = tacticd(d, "--version")
    expect(done.returncode == 0 and done.stdout.startswith("tacticd "), "odd", done)


def test_a_removed_socket_is_bound_again(build):
    with quick(build) as d:
        answer = knows_one(d)
        lookup, control = d.dir / "run/lookup.sock", d.dir / "run/control/sock"
        client = Client(lookup).hello()

        def comes_back(how):
            begun = time.monotonic()
            d.wait_for(lambda: d.tunectl("status", "--timeout", "1")[0] == 0 and d.tunectl("reload", "--timeout", "1")[0] == 0,
                       10, f"the doors after {how}")
            expect(time.monotonic() - begun < QUICK_S + 1.5 * slack(build), f"{how}: it took {time.monotonic() - begun:.1f} s")
            expect(d.lookup(key(64)) == answer, "another answer", d.lookup(key(64)))
            # Who was connected before does not notice.
            expect(client.lookup(key(64)) == answer, f"who was connected suffers: {how}")
            expect((control.parent.stat().st_mode & 0o777, lookup.stat().st_mode & 0o777) == (0o750, 0o666),
                   f"other permissions after {how}", oct(control.parent.stat().st_mode), oct(lookup.stat().st_mode))
        lookup.unlink()
        control.unlink()
        comes_back("both were removed")
        lookup.unlink()
        lookup.write_text("in the way")
        comes_back("a file took its place")
        expect(d.log().count("binding again") == 2, "not said once for each", d.log().count("binding again"))
        shutil.rmtree(d.dir / "run")
        comes_back("the directory was removed")
        done = tacticd(d, config=another_state(d))
        expect(done.returncode == 3 and f"pid {d.process.pid}" in done.stderr, "the lock went with its file", done)


def test_a_place_that_another_took_is_not_taken_back(build):
    with quick(build) as d:
        knows_one(d)
        shutil.rmtree(d.dir / "run")
        (d.dir / "run").mkdir()
        command = [str(d.build / "daemon/tacticd"), "--config", str(another_state(d))]
        with open(d.dir / "second.log", "ab") as log:
            second = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TACTICD_TEST_DIR": "second"})
        try:
            d.wait_for(lambda: d.tunectl("status", "--timeout", "1")[0] == 0, 10, "the second daemon")
            d.wait_for(lambda: f"pid {second.pid}" in d.log(), 10, "the first to say who has its place")
            expect(d.status()["pid"] == second.pid, "the first took the second's socket away", d.status()["pid"])
        finally:
            second.terminate()
            second.wait(20)
        d.wait_for(lambda: d.tunectl("status", "--timeout", "1")[0] == 0, 10, "the first to come back")
        expect(d.status()["pid"] == d.process.pid, "not the first", d.status()["pid"])


def test_stopping_removes_its_sockets_and_nobody_elses(build):
    with quick(build) as d:
        knows_one(d)
        sockets = [d.dir / "run/lookup.sock", d.dir / "run/control/sock"]
        expect(d.stop() == 0 and not any(path.exists() for path in sockets), "left behind", *sockets)
        d.start()
        shutil.rmtree(d.dir / "run")
        (d.dir / "run").mkdir()
        command = [str(d.build / "daemon/tacticd"), "--config", str(another_state(d))]
        with open(d.dir / "second.log", "ab") as log:
            second = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TACTICD_TEST_DIR": "second"})
        try:
            d.wait_for(lambda: d.tunectl("status", "--timeout", "1")[0] == 0, 10, "the second daemon")
            files = [path.stat().st_ino for path in sockets]
            expect(d.stop() == 0, "not ended as asked", d.process.returncode)
            expect([path.stat().st_ino for path in sockets] == files, "the first removed the second's sockets", *sockets)
            expect(d.status()["pid"] == second.pid, "the second cannot be reached")
        finally:
            second.terminate()
            second.wait(20)


# --- who may do what ---

def test_the_lookup_door_changes_nothing(build):
    with Daemon(build).fake(*CLEAR) as d:
        answer = knows_one(d)
        wrong = {**d.environment(), "TACTICD_CONTROL": str(d.dir / "run/lookup.sock")}
        for command in (("reload",), ("deny", key(64), '{"id":1}', "--reason", "x"), ("pin", key(64), '{"id":2}', "--as", "cpu"),
                        ("unpin", key(64)), ("allow", "0" * 16), ("sweep", key(64), "--as", "cpu", "--force")):
            done = subprocess.run([str(d.build / "client/tunectl"), *command], env=wrong, capture_output=True, text=True,
                                  timeout=20, check=False)
            expect(done.returncode == 4 and "control socket" in done.stderr, f"{command[0]} was let in", done)
        with Client(d.dir / "run/lookup.sock").hello() as client:
            for name in ("sweep", "pin", "unpin", "deny", "allow", "reload"):
                reply = client.ask(name, {})
                expect(reply.status == "WRONG_DOOR", f"{name} was let in", reply)
        expect(d.lookup(key(64)) == answer and d.status()["denied"] == 0, "something changed")
        expect(d.counter("replies_WRONG_DOOR") == 12, "not counted", d.counter("replies_WRONG_DOOR"))


def test_the_control_door_is_for_its_group(build):
    if os.getuid() != 0:
        raise Skip("only root can ask as another user")
    with Daemon(build).fake(*CLEAR) as d:
        os.chmod(d.dir, 0o755)
        answer = knows_one(d)

        def as_nobody(*args):
            # The program may lie where nobody may go: it is opened here.
            binary = os.open(d.build / "client/tunectl", os.O_RDONLY)
            try:
                return subprocess.run([f"/proc/self/fd/{binary}", *args, "--json"], env=d.environment(), user=65534, group=65534,
                                      extra_groups=[], pass_fds=[binary], capture_output=True, text=True, timeout=20, check=False)
            finally:
                os.close(binary)
        done = as_nobody("lookup", key(64), "--as", "cpu")
        expect(done.returncode == 0 and json.loads(done.stdout) == answer, "anybody may look up", done)
        done = as_nobody("reload")
        expect(done.returncode == 4 and "group" in done.stderr, "anybody may change answers", done)


# --- life ---

def test_stopping_takes_all_along(build):
    for number in (signal.SIGTERM, signal.SIGINT):
        with Daemon(build).fake(*CLEAR, "flush_ms=5") as d:
            d.wait_ready()
            d.lookup(key(64))
            d.wait_for(lambda: any(r["phase"] == "racing" for r in d.status()["sweeps"]), 10, "the race")
            watchers = [Client(d.dir / "run/lookup.sock") for _ in range(20)]
            for watcher in watchers:
                watcher.put("watch", {"since": 10**6, "wait_ms": 60000})
            begun = time.monotonic()
            d.process.send_signal(number)
            expect(d.process.wait(20) == 0, "not ended as asked", d.process.returncode)
            took = time.monotonic() - begun
            expect(took < 3 * slack(build), f"it took {took:.1f} s")
            d.expect_alone(1)
            d.start()  # the sweep goes on where it was
            d.wait_ready()
            d.lookup(key(64))
            d.wait_answer(key(64))
            expect(len(d.journals()) == 1, "begun again", d.journals().keys())
    # Also before it is ready, and with a worker that does not listen.
    with Daemon(build).fake(*CLEAR, "hello=ignore") as d:
        for delay in (0, 0.005, 0.02, 0.3):
            d.stop()
            d.start(wait=False)
            time.sleep(delay)
            # Before main has set its handlers a signal ends any program.
            status = d.stop()
            expect(status == 0 or (status == -signal.SIGTERM and delay < 0.02 * slack(build)),
                   f"ended with {status} after {delay} s")
            d.expect_alone(2)


def test_stopping_ends_what_is_under_way(build):
    """What was asked before is saved, though nobody hears of it any more; so is a rule that a sweep just found."""
    for pins, sweeps, delay in ((60, False, 0), (60, False, 0.01), (300, True, 0), (300, True, 0.01)):
        # The sweep finds a rule and gets no further: there is no entry that its device would wait for.
        d = Daemon(build).fake(*CLEAR, "check.4=lie", "run=hang")
        d.env = {"MALLOC_PERTURB_": "165"}  # who uses what was given back is caught without a sanitizer, too
        with d:
            d.wait_ready()
            client = Client(d.dir / "run/control/sock").hello(**FACTS)
            for i in range(pins):
                client.put("pin", {"key": key(1, 100 + i), "tactic": {"id": 5}})
            client.put("unpin", {"key": key(1, 100)})
            client.put("deny", {"rule": RULE})
            client.put("allow", {"id": "0" * 16})
            client.put("reload", {})
            if sweeps:
                client.put("sweep", {"keys": [key(64)]})

            def is_queued():
                counters = {c["name"]: c["value"] for c in client.ask("status", {"counters": True}).body["counters"]}
                return counters["candidates_rejected"] > 0 or not sweeps
            d.wait_for(is_queued, 10, "the rule of a sweep")
            time.sleep(delay)
            expect(d.stop(30 * slack(build)) == 0, "not ended as asked", d.process.returncode)
            expect("Sanitizer" not in d.log() and "runtime error" not in d.log(), "misbehaves at its end")
            tables = [json.loads(path.read_text()) for path in (d.dir / "state/pinned").glob("*.json")]
            rules = json.loads((d.dir / "state/deny/node.json").read_text())["rules"]
            expect([len(t["entries"]) for t in tables] == [pins - 1], "pins were lost", [len(t["entries"]) for t in tables])
            expect(RULE["tactic"] in [r["tactic"] for r in rules], "the admin's rule was lost", rules)
            expect(not sweeps or {"id": 4} in [r["tactic"] for r in rules], "the sweep's rule was lost", rules)


def test_the_service_manager_is_told(build):
    d = Daemon(build).fake(*CLEAR)
    manager = Manager(f"/tmp/manager-{os.getpid()}")
    d.env = manager.environment(watchdog_us=400000)
    try:
        with d:
            knows_one(d)
            heard = manager.heard
            expect(heard[0][1].startswith("READY=1\nSTATUS="), "not ready first", heard)
            d.wait_for(lambda: sum(m == "WATCHDOG=1" for _, m in heard) >= 8, 20, "eight signs of life")
            ticks = [at for at, m in heard if m == "WATCHDOG=1"]
            longest = max(b - a for a, b in zip(ticks, ticks[1:]))
            expect(longest < 0.4, f"{longest:.2f} s between two signs of life, at most 0.4 are granted")
            expect(any(m.startswith("STATUS=1 entries") for _, m in heard), "no status", heard)
            told = len(heard)
            d.process.send_signal(signal.SIGHUP)
            d.wait_for(lambda: any(m.startswith("READY=1") for _, m in heard[told:]), 10, "the reload's end")
            words = [m.split("\n")[0].split("=")[0] for _, m in heard[told:] if not m.startswith(("STATUS", "WATCHDOG"))]
            expect(words == ["RELOADING", "READY"], "not reloading, then ready", words)
            now = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
            usec = int(next(m for _, m in heard[told:] if m.startswith("RELOADING")).split("MONOTONIC_USEC=")[1])
            expect(now - 30e6 < usec < now, "another clock", usec, now)
            for pid in d.children():
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                expect(b"NOTIFY_SOCKET" not in environ and b"WATCHDOG" not in environ, "a worker could speak for us", pid)
        last = [m for _, m in heard[told:]]
        at = next(i for i, m in enumerate(last) if m.startswith("STOPPING=1\nSTATUS="))
        expect(at == len(last) - 1, "it says more after its last word", last[at:])
        # A manager that went away is nobody's harm; nor is one whose words make no sense.
        manager.close()
        os.unlink(manager.path)
        d = Daemon(build).fake(*CLEAR)
        d.env = manager.environment(watchdog_us=400000)
        with d:
            knows_one(d)
        d = Daemon(build).fake(*CLEAR)
        d.env = {"NOTIFY_SOCKET": "nowhere", "WATCHDOG_USEC": "soon"}
        with d:
            knows_one(d)
            expect("the service manager cannot be told anything" in d.log(), "not said", d.log())
    finally:
        if os.path.exists(manager.path):
            os.unlink(manager.path)


def test_check_finds_faults_and_starts_nothing(build):
    d = Daemon(build).fake(*CLEAR)
    try:
        done = tacticd(d, "--check", config=d.dir / "tacticd.conf")
        expect(done.returncode == 0 and done.stderr == "", "a good configuration is refused", done)
        good = (d.dir / "tacticd.conf").read_text()
        for old, new, words in (("[sweep]", "[sweeep]", "sweep"), ("when = always", "when = sometimes", "when"),
                                ("runtime_dir = /", "runtime_dir = ", "runtime_dir"), ("when = always", "when always", "="),
                                ("backend = onednn", "backend = onemkl", "backend"), ("device = cpu", "devise = cpu", "devi")):
            bad = d.dir / "bad.conf"
            line = good[:good.index(old)].count("\n") + 1
            bad.write_text(good.replace(old, new))
            done = tacticd(d, "--check", config=bad)
            expect(done.returncode == 2 and f"{bad}:{line}:" in done.stderr and words in done.stderr,
                   f"{new}: not line {line}", done.returncode, done.stderr)
            done = tacticd(d, config=bad)
            expect(done.returncode == 2, f"{new}: started with it", done.returncode)
        expect(tacticd(d, "--check", config=d.dir / "none").returncode == 2, "a file that is not there")
        expect(not (d.dir / "run/lookup.sock").exists() and not list((d.dir / "state").iterdir()), "something was started")
        sample = d.dir / "sample.conf"
        sample.write_text(tacticd(d, "--sample-config").stdout)
        expect(tacticd(d, "--check", config=sample).returncode == 0, "the sample is no configuration")
    finally:
        d.cleanup()


# --- garbage ---

def spoil(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if data and rng.random() < 0.7:
            data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            data[rng.randint(0, len(data)):] = rng.randbytes(rng.randint(0, 12))
    return bytes(data)


def say_garbage(rng, door):
    """One message that no client would send. Returns what kind it was."""
    kind = rng.choice(["greeting", "frames", "header", "body", "body", "half", "large", "command", "deep"])
    wire = Wire(door, 5)
    if kind == "greeting":
        wire.send(rng.randbytes(rng.randint(0, 200)))
        return kind, wire
    wire.shake_hands()
    ask = {"key": key(64), "recipe": "x", "keys": [key(8)], "tactic": {"id": 1}, "rule": {"op": "matmul"}, "wait_ms": 0, "since": 3}
    header = struct.pack("<BB6xQ", 1, rng.choice(list(MESSAGES.values())), rng.getrandbits(64))
    body = json.dumps({k: v for k, v in ask.items() if rng.random() < 0.7}).encode()
    if kind == "frames":
        wire.send(message(*(rng.randbytes(rng.choice((0, 1, 8, 16, 300, 70000))) for _ in range(rng.randint(1, 9)))))
    elif kind == "header":
        wire.send(message(spoil(rng, header), rng.randbytes(8), b"", body))
    elif kind == "body":
        wire.send(message(header, bytes(8), b"", spoil(rng, body)))
    elif kind == "half":
        wire.send(message(header, bytes(8), b"", body)[:-rng.randint(1, 40)])
    elif kind == "large":
        wire.send(frame(header, MORE) + struct.pack(">BQ", LONG, rng.choice((2 << 20, 1 << 40, (1 << 63) - 1))) + bytes(1000))
    elif kind == "command":
        wire.send(frame(rng.randbytes(rng.randint(0, 60)), COMMAND))
    else:
        wire.send(message(header, bytes(8), b"", b'{"key":' * 50000))
    return kind, wire


def test_garbage_costs_its_sender_only(build):
    rng = random.Random(1)
    with Daemon(build).fake(*CLEAR) as d:
        answer = knows_one(d)
        doors = (d.dir / "run/lookup.sock", d.dir / "run/control/sock")
        files = len(os.listdir(f"/proc/{d.process.pid}/fd"))
        resident = memory(d.process.pid, "VmRSS")
        kinds, open_wires = {}, []
        with Probe(d, key(64)) as probe:
            for i in range(500):
                try:
                    kind, wire = say_garbage(rng, doors[i % 2])
                except (Closed, ConnectionError):
                    kind, wire = "hung up on", None
                kinds[kind] = kinds.get(kind, 0) + 1
                if wire and rng.random() < 0.2:
                    open_wires.append(wire)  # some stay and say no more
                elif wire:
                    wire.close()
            worst, count, median = probe.end()
        expect(worst[0] < 50 * slack(build) and count > 10, f"a lookup took {worst[0]:.1f} ms", worst, count, median)
        for wire in open_wires:
            wire.close()
        expect(len(kinds) >= 8, "not every kind was said", kinds)
        expect(d.counter("garbage") > 20, "no garbage was counted", d.counter("garbage"))
        expect(d.lookup(key(64)) == answer and d.status()["denied"] == 0, "answers changed")
        d.wait_for(lambda: len(os.listdir(f"/proc/{d.process.pid}/fd")) <= files + 4, 10, "descriptors to be given back")
        grown = memory(d.process.pid, "VmRSS") - resident
        expect(grown < 16384 * slack(build), f"{grown} KiB were kept", kinds)


def test_a_name_of_ones_own_choice_hurts_nobody(build):
    """A peer may name itself, in up to 255 bytes; what we could not answer by is not answered."""
    with Daemon(build).fake(*CLEAR) as d:
        d.wait_ready()
        for size in (1, 16, 17, 100, 255):
            with Wire(d.dir / "run/lookup.sock") as named:
                named.shake_hands(bytes(range(1, size + 1)))
                named.send(message(b"x" * 16, bytes(8), b"", b"{}"))
                named.send(message(b"short"))
                if size <= 16:
                    expect(named.read(), "no answer")
        expect(d.lookup(key(64))["kind"] == "miss", "the daemon is gone")


def test_who_does_not_listen_hurts_nobody(build):
    with Daemon(build).fake(*CLEAR) as d:
        answer = knows_one(d)
        deaf = [Client(d.dir / "run/lookup.sock").hello() for _ in range(4)]
        resident = memory(d.process.pid, "VmRSS")
        with Probe(d, key(64)) as probe:
            for client in deaf:
                client.socket.settimeout(0.5)
                try:
                    for _ in range(20000):
                        client.put("lookup", key(64).encode())
                except TimeoutError:
                    pass  # it is not read any more: its own fault
            worst, count, median = probe.end()
        expect(worst[0] < 50 * slack(build) and count > 10, f"a lookup took {worst[0]:.1f} ms", worst, count, median)
        grown = memory(d.process.pid, "VmRSS") - resident
        expect(grown < (64 << 10) * slack(build), f"{grown} KiB wait for who does not listen")
        for client in deaf:
            client.close()
        expect(d.lookup(key(64)) == answer, "another answer", d.lookup(key(64)))


def test_a_client_has_so_many_replies_waiting_and_no_more(build):
    window, queue = 128, 256  # of libtactic; of the daemon
    with Daemon(build).fake(*CLEAR) as d:
        answer = knows_one(d)
        told = {k: v for k, v in answer.items() if k != "kind"}
        with Client(d.dir / "run/lookup.sock").hello() as client:
            for i in range(512 + window):
                if i >= window:
                    expect(json.loads(client.read()[1]) == told, "another answer")
                if i < 512:
                    client.put("lookup", key(64).encode())
        expect(d.counter("replies_unroutable") == 0, "an answer was dropped")
        # Without reading: beyond the daemon's queue and what the kernel holds, answers are dropped.
        asked, before = 3000, d.counter("hits_learned")
        with Client(d.dir / "run/lookup.sock").hello() as deaf:
            for _ in range(asked):
                deaf.put("lookup", key(64).encode())
            d.wait_for(lambda: d.counter("hits_learned") >= before + asked, 20, "all to be taken")
            held = asked - d.counter("replies_unroutable")
            print(f"  {held} of {asked} replies wait for one client")
            expect(window <= held < 2 * queue + asked // 4, "not the daemon's queue and the kernel's", held)
        expect(d.lookup(key(64)) == answer, "another answer", d.lookup(key(64)))


def test_512_clients_at_once(build):
    with Daemon(build).fake(*CLEAR) as d:
        answer = knows_one(d)
        clients = [Client(d.dir / "run/lookup.sock", 20) for _ in range(512)]
        ids = [client.put("hello", {"as": "cpu"}) for client in clients]
        for client, wanted in zip(clients, ids):
            client.read()
        digest = clients[0].hello().digest
        for client in clients:
            client.digest = digest
            client.put("lookup", key(64).encode())
        for client in clients:
            expect(json.loads(client.read()[1]) == {k: v for k, v in answer.items() if k != "kind"}, "somebody was told else")
            client.close()


def delay_us(pid):
    """How long the loop's thread was ready to run and did not get a CPU."""
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) // 1000


def test_the_loop_is_never_busy_for_long(build):
    """What all this cost, in one daemon's life."""
    d = Daemon(build).fake(*CLEAR, "look.2=crash:11", "look.3=flood:20000", "check.4=lie")
    for n in range(200):
        text = '{"header":{"format":1,"method":"m","model":"m%d","fingerprint":{"device":"cpu:fake","isa":"avx2","threads":"2",' \
               '"onednn":"1.%d"},"ladder":{"kind":"pow2","max":64}},"entries":[\n' % (n, n)
        text += ",\n".join('{"key":"%s","tactic":{"id":1},"state":"imported"}' % key(2**m, 64 + n) for m in range(7)) + "\n]}\n"
        (d.dir / f"packaged/{n}.json").write_text(text)
    with d:
        d.wait_ready()
        seen = [("start", d.counter("loop_lag_us"), 0, delay_us(d.process.pid))]

        def note(what):
            # The longest turn so far, what of it is for sure not a wait for a CPU, and the wait until now.
            _, longest, busy, waited = seen[-1]
            lag, now = d.counter("loop_lag_us"), delay_us(d.process.pid)
            seen.append((what, lag, max(busy, lag - (now - waited)) if lag > longest else busy, now))
        d.lookup(key(64))
        d.wait_answer(key(64))
        note("a sweep with a crash and a flood")
        client = Client(d.dir / "run/lookup.sock").hello()
        for _ in range(4):
            client.ask("want", {"keys": [key(2**m, 1000 + n) for m in range(8) for n in range(64)]})
        note("wants of 512 problems")
        breath = [Client(d.dir / "run/lookup.sock").hello() for _ in range(10)]
        for _ in range(200):
            for one in breath:
                one.put("lookup", key(17, 70).encode())
        for one in breath:
            for _ in range(200):
                one.read()
            one.close()
        note("2000 lookups in one breath")
        for _ in range(5):
            d.tunectl("reload")
        note("reloads of 200 tables")
        for _ in range(10):
            d.tunectl("tables")
            d.tunectl("explain", key(64), "--as", "cpu")
        note("tables and explain")
        rng = random.Random(2)
        for _ in range(60):
            with contextlib.suppress(Closed, ConnectionError):
                say_garbage(rng, d.dir / "run/lookup.sock")[1].close()
        note("garbage")
        time.sleep(TICK_S + 0.5)
        note("a tick")
        print("  loop_lag_us: " + "; ".join(f"{what} {lag}" for what, lag, _, _ in seen))
        if slack(build) == 1:
            expect(seen[-1][2] <= LAG_US, f"the loop was busy for {seen[-1][2]} us", *seen)


def switches(pid):
    """Voluntary context switches of all its threads."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total


def test_an_idle_daemon_sleeps(build):
    with Daemon(build).fake(*CLEAR) as d:
        knows_one(d)
        d.wait_for(lambda: d.children() == {}, 20, "the worker to be let go")
        time.sleep(0.5)
        before = switches(d.process.pid)
        time.sleep(12)
        woke = switches(d.process.pid) - before
        ticks = 12 // TICK_S + 1
        expect(woke <= SWITCHES_A_TICK * ticks, f"{woke} wake-ups in 12 s, {ticks} ticks at most")
        resident = memory(d.process.pid, "VmRSS")
        print(f"  idle: {woke} wake-ups in 12 s, {resident} KiB resident")
        if slack(build) == 1:
            expect(resident <= RESIDENT_KB, f"{resident} KiB resident")


if __name__ == "__main__":
    run([test_a_second_daemon_is_sent_away, test_a_removed_socket_is_bound_again,
         test_a_place_that_another_took_is_not_taken_back, test_stopping_removes_its_sockets_and_nobody_elses,
         test_the_lookup_door_changes_nothing,
         test_the_control_door_is_for_its_group, test_stopping_takes_all_along,
         test_stopping_ends_what_is_under_way, test_the_service_manager_is_told,
         test_check_finds_faults_and_starts_nothing, test_garbage_costs_its_sender_only,
         test_a_name_of_ones_own_choice_hurts_nobody,
         test_who_does_not_listen_hurts_nobody,
         test_a_client_has_so_many_replies_waiting_and_no_more, test_512_clients_at_once,
         test_the_loop_is_never_busy_for_long,
         test_an_idle_daemon_sleeps])
