#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/examples: is each what it says it is? Names in the files refer to something, the unit is read by systemd, and
the commands are ones that this build's tunectl and worker take.

Exit status 77: PyYAML or systemd is not here.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import SKIPPED, Skip, expect, run

DEBIAN = "/usr/bin/python3"  # has PyYAML by Debian's package
ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs/examples"
RECIPES = ROOT / "tables/recipes"
BACKENDS = {"gpu0-cublaslt": "cublaslt", "fi0": "flashinfer"}  # of the sections that the examples name
NO_DAEMON, UNAVAILABLE = 3, 69

try:
    import yaml
except ImportError:
    if Path(DEBIAN).exists() and Path(sys.executable).resolve() != Path(DEBIAN).resolve():
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    print("SKIP: PyYAML (python3-yaml) is not here; the examples were not read")
    sys.exit(SKIPPED)


class Commands:
    """The examples' commands, where no daemon is."""

    def __init__(self, build, tmp):
        self.tunectl = Path(build).resolve() / "client/tunectl"
        self.env = {**os.environ, "TACTICD_SOCKET": str(tmp / "nobody"), "PYTHONPATH": str(ROOT / "client/python")}
        self.tmp = tmp

    def status(self, *argv):
        return subprocess.run(argv, capture_output=True, env=self.env, timeout=60, check=False)

    def prepare(self, text):
        """The words of a tunectl in a text: asked where no daemon is, for what is not understood is told before."""
        words = re.search(r"tunectl ([^|\n\"]*)", text).group(1).split()
        # A section's environment answers for one backend: is the recipe for it?
        section, recipe = words[words.index("--as") + 1], json.loads((RECIPES / f"{words[1]}.json").read_text())
        layout = words[words.index("--layout") + 1]
        chosen = [row for row in recipe["layouts"] if row["layout"] == layout]
        expect(chosen, f"{words[1]} has no layout {layout}")
        backends = {re.search("backend=([a-z]+)", problem["key"]).group(1) for problem in chosen[0]["problems"]}
        expect(backends == {BACKENDS[section]}, f"{section} is asked to sweep {backends}")
        done = self.status(str(self.tunectl), *words[:-1], "0", "--timeout", "0.2")
        expect(words[-2] == "--wait" and done.returncode == NO_DAEMON, f"tunectl {words}: {done}")

    def attach(self, argv):
        argv = [str(word) for word in argv]
        expect(argv[:3] == ["python3", "-m", "tacticd.worker"], f"not a worker: {argv}")
        argv[argv.index("--attach") + 1] = str(self.tmp)
        argv[argv.index("--wait") + 1] = "0"
        done = self.status(sys.executable, *argv[1:])
        expect(done.returncode == UNAVAILABLE, f"{argv}: {done}")


def test_unit(build):
    with tempfile.TemporaryDirectory(prefix="examples.") as folder:
        commands = Commands(build, Path(folder))
        text = (FILES / "llm-server.service").read_text()
        commands.prepare(text)
        if not shutil.which("systemd-analyze"):
            raise Skip("systemd-analyze is not installed; the unit was not read")
        text = re.sub(r"(Exec\w+=-?)/\S+", r"\1/bin/true", text)

        def complaints(of):
            path = commands.tmp / "llm-server.service"
            path.write_text(of)
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True,
                                  check=False)
            return [line for line in (done.stdout + done.stderr).splitlines() if str(path) in line]

        planted = text.replace("TimeoutStartSec=15min", "TimeoutStartSec=late")
        expect(complaints(planted), "a planted mistake is not noticed")
        expect(not complaints(text), f"{complaints(text)}")


def test_compose(build):
    with tempfile.TemporaryDirectory(prefix="examples.") as folder:
        commands = Commands(build, Path(folder))
        services = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
        for name, service in services.items():
            for needed in service.get("depends_on", []):
                expect(needed in services, f"{name} depends on {needed}, which is no service")
            for mount in service.get("volumes", []):
                expect(mount.split(":")[0].startswith("/run/tacticd"), f"{name}: {mount}")
        commands.attach(services["worker"]["command"])
        commands.prepare(services["prepare"]["command"][-1])


def test_kubernetes(build):
    with tempfile.TemporaryDirectory(prefix="examples.") as folder:
        commands = Commands(build, Path(folder))
        pod = yaml.safe_load((FILES / "kubernetes.yaml").read_text())
        expect((pod["apiVersion"], pod["kind"]) == ("v1", "Pod"), "not a pod")
        spec = pod["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["initContainers"] + spec["containers"]:
            expect(container["image"] and {m["name"] for m in container["volumeMounts"]} <= volumes, f"{container}")
        first, second = spec["initContainers"]
        expect(first["restartPolicy"] == "Always", "init containers wait for one another: the worker must be a sidecar")
        commands.attach(first["command"])
        commands.prepare(second["command"][-1])


if __name__ == "__main__":
    run([test_unit, test_compose, test_kubernetes])
