#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the transcripts of tunectl: command, expected text, exit code.

usage: run.py --build DIR [TRANSCRIPT...]

A transcript (*.cli) is read line by line:
  # text          a comment
  let NAME = TEXT $NAME stands for TEXT from here on
  file PATH       the lines after it, each behind "> ", are written to PATH
  sweep KEY=VALUE options of the next daemon's [sweep] section
  daemon [WORDS]  starts a private daemon whose worker section "cpu" runs the fake worker with WORDS; files
                  below packaged/ are its packaged tables
  stop            ends the daemon
  $ COMMAND       runs tunectl; words are split as a shell does
  | TEXT          a line it must print
  ! TEXT          a line it must say on standard error
  = CODE          its exit code; 0 where the line is missing
In expected lines <n> stands for digits, <x> for a number, <*> for any text, <=NAME> for a word that $NAME
stands for from here on, and a line "..." for any lines.
Runs of blanks count as two: columns are as wide as what stands in them.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "spec"))
import harness  # noqa: E402

TIMEOUT_S = 60


def pattern(expected):
    """A regular expression for one expected line."""
    text = re.escape(re.sub(r" {2,}", "  ", expected))
    for mark, regex in (("<n>", r"\d+"), ("<x>", r"-?[0-9.e+-]+|nan"), ("<*>", r".*")):
        text = text.replace(re.escape(mark), f"(?:{regex})")
    return re.compile(re.sub(r"<=([A-Z]+)>", r"(?P<\1>\\S+)", text) + r"\Z")


def differs(expected, actual, names):
    """None if the lines agree, else what is wrong. Words that were named are added to `names`."""
    actual = [re.sub(r" {2,}", "  ", line.rstrip()) for line in actual.splitlines()]
    at = 0
    skipping = False
    for line in expected:
        if line == "...":
            skipping = True
            continue
        wanted = pattern(line)
        while skipping and at < len(actual) and not wanted.match(actual[at]):
            at += 1
        if at >= len(actual):
            return f"missing: {line}"
        match = wanted.match(actual[at])
        if not match:
            return f"expected: {line}\n     got: {actual[at]}"
        names.update(match.groupdict())
        at += 1
        skipping = False
    if at < len(actual) and not skipping:
        return f"not expected: {actual[at]}"
    return None


class Transcript:
    def __init__(self, path, build):
        self.path, self.build = path, build
        self.names = {}
        self.daemon = None
        self.sweep = {}
        self.folder = tempfile.TemporaryDirectory(prefix="tunectl.")
        self.names["DIR"] = self.folder.name

    def expand(self, text):
        return re.sub(r"\$([A-Z][A-Z0-9_]*)", lambda m: self.names.get(m[1], m[0]), text)

    def environment(self):
        missing = {"TACTICD_SOCKET": f"{self.folder.name}/none", "TACTICD_CONTROL": f"{self.folder.name}/none"}
        env = self.daemon.environment() if self.daemon else {**os.environ, **missing}
        return {**env, "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "xterm"}

    def start(self, words):
        packaged = pathlib.Path(self.folder.name) / "packaged"
        self.daemon = harness.Daemon(self.build, sweep=self.sweep, packaged=packaged if packaged.exists() else None)
        if words:
            self.daemon.fake(*words)
        self.daemon.start()
        if words:
            self.daemon.wait_ready()
        self.names["ROOT"] = str(self.daemon.dir)

    def stop(self):
        if self.daemon:
            self.daemon.__exit__(None, None, None)
            self.daemon = None

    def run_command(self, step):
        words = shlex.split(self.expand(step["command"]))
        if words[0] != "tunectl":
            return f"'{words[0]}' is not tunectl"
        words[0] = str(pathlib.Path(self.build) / "client/tunectl")
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment(), cwd=self.folder.name,
                              timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
        wrong = differs([self.expand(x) for x in step["out"]], done.stdout, self.names)
        wrong = wrong or differs([self.expand(x) for x in step["err"]], done.stderr, self.names)
        if not wrong and done.returncode != step["code"]:
            wrong = f"exit code {done.returncode}, expected {step['code']}"
        if wrong:
            return f"{wrong}\n--- printed\n{done.stdout}--- said\n{done.stderr}---"
        return None

    def steps(self):
        """(line number, kind, value) of each thing to do."""
        step = None
        for number, line in enumerate(self.path.read_text().splitlines(), 1):
            head, _, rest = line.partition(" ")
            if head in ("|", "!", "=") and step and step[1] == "$":
                if head == "=":
                    step[2]["code"] = int(rest)
                else:
                    step[2]["out" if head == "|" else "err"].append(rest)
                continue
            if head == ">" and step and step[1] == "file":
                step[2][1].append(rest)
                continue
            if step:
                yield step
                step = None
            if head == "$":
                step = (number, "$", {"command": rest, "out": [], "err": [], "code": 0})
            elif head == "file":
                step = (number, "file", (rest, []))
            elif head in ("let", "sweep", "daemon", "stop"):
                step = (number, head, rest)
            elif head and not head.startswith("#"):
                raise SyntaxError(f"{self.path.name}:{number}: {line}")
        if step:
            yield step

    def perform(self, kind, value):
        if kind == "let":
            name, _, text = value.partition(" = ")
            self.names[name] = self.expand(text)
        elif kind == "file":
            path = pathlib.Path(self.folder.name) / value[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(x + "\n" for x in value[1]))
        elif kind == "sweep":
            self.sweep.update(word.split("=", 1) for word in value.split())
        elif kind == "daemon":
            self.start(value.split())
        elif kind == "stop":
            self.stop()
        else:
            return self.run_command(value)
        return None

    def run(self):
        """None, or what is wrong."""
        try:
            for number, kind, value in self.steps():
                wrong = self.perform(kind, value)
                if wrong:
                    shown = f"$ {value['command']}\n" if kind == "$" else ""
                    return f"{self.path.name}:{number}: {shown}{wrong}"
            self.stop()
        except (harness.Failure, subprocess.TimeoutExpired, OSError) as e:
            return f"{self.path.name}: {e}"
        finally:
            if self.daemon:
                self.daemon.kill()
            self.folder.cleanup()
        return None


def main():
    parser = argparse.ArgumentParser(description="runs the transcripts of tunectl")
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("transcripts", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    failed = 0
    for path in args.transcripts or sorted(HERE.glob("*.cli")):
        wrong = Transcript(path, args.build).run()
        failed += wrong is not None
        print(f"not ok {path.stem}: {wrong}" if wrong else f"ok {path.stem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
