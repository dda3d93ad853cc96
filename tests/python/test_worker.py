# SPDX-License-Identifier: Apache-2.0
"""The frame of a worker in Python against that of the workers in C: the same lines go to both, and what comes back
must be the same bytes, the same exit status and, where people read it, the same sentence."""
import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import unittest

import common

from tacticd.worker import _lines, facts, frame, keys, lines

PYTHON = [sys.executable, str(common.ROOT / "tests/fake/fake_worker.py")]
PATIENCE_S = 60
DIMS = "a=f32,b=f32,out=f32,acc=f32,layout=tn,batch=1"


def problem(m="4", backend="onednn", dims=DIMS):
    return f"matmul,backend={backend},{dims},m={m},n=8,k=8,epilogue=none,scale=none,workspace_bytes=0"


def opening(text=None, **more):
    return {"say": "open", "problem": problem() if text is None else text, "seed": 1, "memory_cap_bytes": 4096, **more}


def raw(*requests):
    """Requests as the daemon writes them; bytes go as they are."""
    return b"".join(r if isinstance(r, bytes) else json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in requests)


def at_three(sock):
    """How to start a process that has that socket where workers have it. Whatever is there now is not Popen's own."""
    return {"preexec_fn": lambda: os.dup2(sock.fileno(), frame.FD), "pass_fds": [frame.FD], "stdin": subprocess.DEVNULL}


class Peer:
    """A worker, and this test as its daemon."""

    def __init__(self, command):
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(PATIENCE_S)
        with theirs:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                            **at_three(theirs))

    def talk(self, *requests):
        """Sends them all, closes this end, and returns (lines, exit status, stderr)."""
        heard = b""
        try:
            self.sock.sendall(raw(*requests))
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has ended over an earlier one
        try:
            while more := self.sock.recv(65536):
                heard += more
        except ConnectionResetError:
            pass  # it ended with ours unread
        self.sock.close()
        _, told = self.process.communicate(timeout=PATIENCE_S)
        return heard.decode().splitlines(), self.process.returncode, told


def python(*requests, words=()):
    return Peer([*PYTHON, *words]).talk(*requests)


def both(requests, words=()):
    """What each says, without the process ids."""
    said = [Peer([*command, *words]).talk(*requests) for command in ([str(common.BUILD / "tests/fake_worker")], PYTHON)]
    return [([re.sub(r'"pid":\d+', '"pid":0', line) for line in heard], status, told) for heard, status, told in said]


class SameAsC(unittest.TestCase):
    def assertSame(self, *requests, words=(), sentences=True):
        c, ours = both(requests, words)
        self.assertEqual(c[:2], ours[:2])
        if sentences:
            self.assertEqual(c[2], ours[2])
        return ours

    def test_a_sweep(self):
        heard, status, _ = self.assertSame(
            opening(next=problem("8")), *({"say": "look", "candidate": i} for i in range(7)),
            *({"say": "check", "candidate": i} for i in range(6)),
            *({"say": "run", "round": r, "order": [0, 3, 1, 2, 0, 5, 4], "flush": "cold"} for r in range(3)),
            {"say": "close", "reason": "done"}, opening(problem("1024")), {"say": "look", "candidate": 2, "limit_ms": 9},
            words=["growth=0.5", "jit_us=1000"])
        self.assertEqual([json.loads(line)["say"] for line in heard],
                         ["hello", "opened"] + 6 * ["looked"] + ["failed"] + 6 * ["checked"] + 3 * ["samples"]
                         + ["closed", "opened", "looked"])
        self.assertEqual(status, 0)

    def test_out_of_order(self):
        heard, status, _ = self.assertSame(
            {"say": "close"}, {"say": "look", "candidate": 0}, {"say": "check", "candidate": 0},
            {"say": "run", "round": 1, "order": [0]}, {"say": "run", "round": 1, "order": []}, opening(), opening(),
            {"say": "check", "candidate": 6}, {"say": "run", "round": 2, "order": [1, 6, 0]},
            {"say": "run", "round": 3, "order": 1024 * [1]}, {"say": "run", "round": 4, "order": 1025 * [1]},
            {"say": "run", "round": 5, "order": [3, 1], "flush": "hot"},
            {"say": "run", "round": 6, "order": [3, 1], "flush": "lukewarm, if that may be"}, {"say": "close"},
            {"say": "close"})
        self.assertEqual((len(heard), status), (16, 0))

    def test_kernels_and_prewarm(self):
        heard, _, _ = self.assertSame(opening(), {"say": "look", "candidate": 1}, {"say": "look", "candidate": 3},
                                      words=["kernels=a,b,c", 'prewarm={"libraries":["x"],"modules":["m"],"plan":{"k":1}}'])
        listed = json.loads(heard[1])["candidates"]
        self.assertEqual([c.get("kernel") for c in listed], ["a", "b", "c", None, None, None])
        self.assertEqual(listed[5]["prewarm"], {"modules": ["m"], "plan": {"k": 1}, "libraries": ["x"]})
        self.assertEqual([json.loads(line)["kernel"] for line in heard[2:]], ["b", "fake tactic 3"])

    def test_hot(self):
        self.assertSame(opening(), {"say": "run", "round": 1, "order": [0, 1, 5], "flush": "hot"},
                        words=["hot=1,1.25,0.5"])

    def test_misbehaviour(self):
        requests = [opening(), *({"say": say, "candidate": i} for i in range(6) for say in ("look", "check")),
                    {"say": "run", "round": 1, "order": [0, 1]}, {"say": "run", "round": 2, "order": [0, 5, 1]}]
        words = ["look.1=fail:no \x01 plan\xe9", "look.2=disturbed:3", "look.3=slow:7@1", "check.0=lie", "check.1=nan",
                 "check.2=blind", "check.3=unsteady", "check.4=fail", "check.5=fail:" + 254 * "x", "run.1=foreign",
                 "run.5=fail"]
        self.assertSame(*requests, words=words)
        self.assertSame(*requests, words=["look.1=hopeless:not here", "check.2=hopeless", "check.0=lie:unsteady",
                                          "run.1=hopeless:nor here"])
        for end in ("exit:3", "crash:9"):
            _, status, _ = self.assertSame(*requests, words=[f"look.2={end}"])
            self.assertEqual(status, 3 if end == "exit:3" else -signal.SIGKILL)
        for what in ("memory", "unsupported"):
            self.assertSame(opening(), opening(problem("5")), words=[f"open=refuse:{what}@1"])

    def test_refused_problems(self):
        good = problem()
        texts = ["", "nonsense", "matmul", "matmul,", "matmul,backend", "matmul,backend=onednn", good + ",", good + ",m=4",
                 good + ",x=4", problem("*"), problem("0"), problem("04"), problem(""), problem("4x"), problem("-4"),
                 problem("\u0664"), problem("1099511627776"), problem("1099511627777"), problem("9" * 14),
                 problem(backend="cublaslt"), problem(backend="nobody"), problem(dims=DIMS.replace("f32", "f99")),
                 problem(dims=DIMS + "," + "y" * 60), problem(dims=DIMS + ",a=f32"), "x" * 60, "m" * 511, "m" * 512,
                 ",".join(["matmul", *reversed(good.split(",")[1:])]), good.replace("matmul", "cudnn_gemm")]
        requests = [r for text in texts for r in (opening(text), {"say": "close"})]
        heard, status, _ = self.assertSame(*requests)
        self.assertEqual((len(heard), status), (1 + len(requests), 0))

    def test_lines_that_are_none(self):
        for data in (b"{}", b"[]", b"7", b'{"say":7}', b'{"say":null}', b'{"say":"sing"}', b'{"say":"looked"}',
                     b'{"say":"hello"}', b'{"say":"gpu_ask"}', b'{"say":"open"}', b'{"say":"look"}',
                     b'{"say":"look","candidate":-1}', b'{"say":"look","candidate":1.5}',
                     b'{"say":"look","candidate":9007199254740992}', b'{"say":"look","candidate":1e999}',
                     b'{"say":"look","candidate":"1"}', b'{"say":"look","candidate":true}',
                     b'{"say":"look","candidate":1,"candidate":1}', b'{"say":"run","round":1,"order":1}',
                     b'{"say":"run","round":1,"order":[0,null]}', b'{"say":"run","round":1,"order":{}}',
                     b'{"say":"run","round":1,"order":[0],"flush":1}'):
            with self.subTest(data):
                _, status, told = self.assertSame(opening(), data + b"\n", {"say": "close"})
                self.assertEqual(status, 76)
                self.assertIn("worker: the daemon's line: ", told)

    def test_what_is_no_json(self):
        """The sentence is the reader's own; that it is refused is not."""
        deep = b'{"say":"close","x":' + 24 * b"[" + 24 * b"]" + b"}"
        for data in (b"", b"{", b"nonsense", b'{"say":"close"}}', b'{"say":"close",}', b'{"say":"close","x":NaN}',
                     b'{"say":"close","x":-Infinity}', b'{"say":"close","x":01}', b'{"say":"close","x":1.}',
                     b'{"say":"close","x":"\x01"}', b'{"say":"close","x":"\\u0000"}', b'{"say":"close","x":"\\ud800"}',
                     b'{"say":"close","x":"\xff"}', b'{"say":"close","\\ud800":1}', b'\xef\xbb\xbf{"say":"close"}',
                     b'{"say":"close","x":' + 64 * b"1" + b"}", deep, b'{"say":"close","x":' + 9999 * b"[", b"\0",
                     b'{"say":"close","x":[' + 262144 * b"0," + b"0]}", b"\xc2\xa0{}"):
            with self.subTest(data[:60]):
                _, status, told = self.assertSame(data + b"\n", sentences=False)
                self.assertEqual((status, told.count("\n")), (76, 1))

    def test_what_is_let_pass(self):
        for data in (b' {"say" : "close" , "new":{"say":[1,null,-0.5e-3]}}\t\r', b'{"x":"say","say":"close"}',
                     b'{"say":null,"say":"close","reason":null}', b'{"say":"look","candidate":10e-1}',
                     b'{"say":"close","x":"\\ud83d\\ude00\\u007f"}', b'{"say":"close","x":' + 23 * b"[" + 23 * b"]" + b"}",
                     b'{"say":"close","x":' + 63 * b"1" + b"}", b'{"say":"look","candidate":-0,"limit_ms":0.0}'):
            with self.subTest(data):
                heard, status, _ = self.assertSame(data + b"\n")
                self.assertEqual((len(heard), status), (2, 0))

    def test_long_lines(self):
        most = _lines.BOUNDS["line_bytes"]
        whole = b'{"say":"close","x":"%b"}\n'
        room = most - len(whole % b"")
        heard, status, _ = self.assertSame(whole % (room * b"x"), {"say": "close"})
        self.assertEqual((len(heard), status), (3, 0))
        _, status, told = self.assertSame(whole % ((room + 1) * b"x"), sentences=False)
        self.assertEqual(status, 76)
        self.assertIn("longer than 1 MiB", told)
        heard, status, _ = self.assertSame(raw({"say": "close"})[:-1])  # a line without its end is none
        self.assertEqual((len(heard), status), (1, 0))

    def test_broken_lines(self):
        """Bytes of good lines changed at random: both frames come to the same end."""
        dice = random.Random(7)
        good = [raw(r) for r in (opening(), {"say": "look", "candidate": 1}, {"say": "run", "round": 1, "order": [0, 1, 2]},
                                 {"say": "check", "candidate": 2}, {"say": "close", "reason": "d\u00f6ne"})]
        for _ in range(40):
            data = bytearray(b"".join(dice.choices(good, k=6)))
            for _ in range(dice.randint(1, 3)):
                data[dice.randrange(len(data))] = dice.choice(b'"{}[],:0159-.eE\\n \x00\xff=*')
            with self.subTest(bytes(data)):
                self.assertSame(bytes(data), sentences=False)


class Alone(unittest.TestCase):
    def test_a_library_that_raises_ends_it(self):
        heard, status, told = python(opening(), {"say": "look", "candidate": 0}, {"say": "look", "candidate": 1},
                                     words=["look.1=raise:sticky", "close=exit:9"])
        self.assertEqual((len(heard), status), (3, 70))
        self.assertEqual(told.splitlines()[-1], "ZeroDivisionError: sticky")
        _, status, _ = python(words=["hello=raise:early"])
        self.assertEqual(status, 70)
        _, status, told = python(opening(), {"say": "check", "candidate": 0}, words=["check=raise_os:disk"])
        self.assertEqual((status, told.splitlines()[-1]), (70, "OSError: disk"))  # not the daemon's socket

    def test_no_memory_is_a_refusal(self):
        heard, status, _ = python(opening(), opening(), words=["open=memory@1"])
        told = json.loads(heard[1])
        self.assertEqual((told["say"], told["reason"], told["detail"]), ("refused", "memory", "there is no memory left"))
        self.assertEqual((json.loads(heard[2])["say"], status), ("opened", 0))

    def test_an_op_of_nobody(self):
        heard, status, _ = python(opening(), words=["op=convolution"])
        self.assertEqual((json.loads(heard[1])["reason"], json.loads(heard[1])["detail"], status),
                         ("unsupported", "this worker does not run matmul", 0))

    def test_a_time_that_is_none_is_not_said(self):
        heard, status, told = python(opening(), {"say": "look", "candidate": 1}, words=["look.1=unsayable"])
        self.assertEqual((len(heard), status), (2, 71))
        self.assertIn("worker: cannot answer: nan", told)

    def test_a_space_of_nothing(self):
        _, status, told = python(opening(), words=["open=nothing"])
        self.assertEqual(status, 70)
        self.assertIn("0 candidates", told)

    def test_nothing_to_sweep(self):
        heard, status, told = python(words=["facts=none"])
        self.assertEqual((heard, status, told), ([], 69, "worker: cannot start: no fake library\n"))

    def test_the_daemon_goes_while_it_works(self):
        peer = Peer([*PYTHON, "sleep=1", "times=300000"])
        peer.sock.sendall(raw(opening(), {"say": "look", "candidate": 0}))
        while peer.sock.recv(65536).count(b'"opened"') == 0:
            pass
        peer.sock.close()
        self.assertEqual((peer.process.communicate(timeout=PATIENCE_S)[1], peer.process.returncode), ("", 0))

    def test_the_socket_is_not_inherited(self):
        """What a library starts and leaves behind does not look like a living worker."""
        theirs, ours = socket.socketpair()
        code = ("import subprocess, sys; from tacticd.worker import frame; frame.take_socket();"
                "sys.exit(subprocess.run(['sh', '-c', 'test -e /proc/self/fd/3']).returncode)")
        with theirs, ours:
            done = subprocess.run([sys.executable, "-c", code], check=False, env=self.environment(), **at_three(ours))
        self.assertEqual(done.returncode, 1)

    def environment(self):
        return {**os.environ, "PYTHONPATH": str(common.ROOT / "client/python"), "PYTHONDONTWRITEBYTECODE": "1"}

    def test_the_program(self):
        def start(*arguments):
            return subprocess.run([sys.executable, "-m", "tacticd.worker", *arguments], env=self.environment(), check=False,
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S)

        for arguments in (["--help"], ["--hello", "more"], []):
            done = start(*arguments)
            self.assertEqual((done.returncode, done.stdout), (64, ""), arguments)
        done = start("--hello")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (69, "", 1))
        self.assertRegex(done.stderr, "worker: cannot start: (PyTorch|FlashInfer|no family of FlashInfer's kernels)")

    def test_facts(self):
        known = facts.of_metadata({**common.ENVIRONMENT, "measure_x": "1", "cutlass_dsl_version": None})
        self.assertEqual(known, {"flashinfer": "0.6.16", "cuda": "13.0", "cublas": "13.1", "cudnn": "91900",
                                 "cudnn_frontend": "1.18", "device": "Look Alike 3000"})
        odd = {"cuda": "unknown", "cudnn": "None", "cublas": "", "driver": 128 * "x", "isa": "a\nb", "device": 127 * "x",
               "nobody": "x"}
        self.assertEqual(frame.known_facts(odd), {"device": 127 * "x"})

    def test_bounds_of_c(self):
        header = (common.ROOT / "daemon/workers/frame.h").read_text()
        for name, value in (("FRAME_VERSION", frame.VERSION), ("FRAME_FD", frame.FD),
                            ("FRAME_MAX_CANDIDATES", frame.MAX_CANDIDATES)):
            self.assertRegex(header, rf"#define {name} +{value}u?\n")


class Lines(unittest.TestCase):
    def test_fresh(self):
        """_lines.py is what write_lines.py makes of the daemon's lists now."""
        spec = importlib.util.spec_from_file_location("write_lines", common.ROOT / "client/python/write_lines.py")
        writer = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(writer)
        kept = (common.ROOT / "client/python/tacticd/worker/_lines.py").read_text()
        self.assertEqual(kept, writer.made(common.BUILD / "proto/dump"), "stale; write it again: ninja docs")

    def test_there_and_back(self):
        candidates = [{"tactic": [5, [["K", 1], [2, None]]], "name": "n\u00e9\"\\\n", "family": "f", "workspace_bytes": 0}]
        line = lines.encode("opened", candidates=candidates, space_digest="d", method="m", build_ms=7)
        self.assertEqual(lines.decode(line)[0], "opened")
        self.assertEqual(lines.decode(line)[1], {"candidates": candidates, "space_digest": "d", "method": "m", "build_ms": 7})
        told = lines.decode(lines.encode("samples", round=1, order=[0], device_us=[float("nan")], host_us=[0.1]))[1]
        self.assertEqual((str(told["device_us"]), told["host_us"]), ("[nan]", [0.1]))

    def test_what_no_line_can_hold(self):
        for line, values in (("looked", {}), ("closed", {"who": 1}), ("failed", {"candidate": -1, "detail": "x"}),
                             ("failed", {"candidate": 1 << 53, "detail": "x"}), ("failed", {"candidate": 0, "detail": b"x"}),
                             ("failed", {"candidate": 0, "detail": None})):
            with self.subTest(line), self.assertRaises(lines.Unsayable):
                lines.encode(line, **values)
        for value in (1 << 53, float("nan"), {1, 2}, object()):
            with self.subTest(value), self.assertRaises(lines.Unsayable):
                lines.canonical(value)
        self.assertEqual(lines.encode("closed", detail="\0\ud800"), '{"say":"closed","detail":"\ufffd\ufffd"}\n'.encode())

    def test_canonical(self):
        self.assertEqual(lines.canonical({"b": [1.0, -0.0, 0.1, True, None], "a": (1 / 3, "\u00e9")}),
                         '{"a":[0.3333333333333333,"\u00e9"],"b":[1,0,0.1,true,null]}')

    def test_keys(self):
        key = keys.parse(",".join(["matmul", *reversed(problem("64").split(",")[1:])]))
        self.assertEqual((str(key), key.op, key["n"], key["layout"], key.tokens, key.backend),
                         (problem("64"), "matmul", 8, "tn", 64, "onednn"))
        self.assertEqual(str(keys.parse(problem("*"))), problem("*"))
        self.assertEqual({key, keys.parse(problem("64"))}, {key})
