# SPDX-License-Identifier: Apache-2.0
"""The wheel and the Debian package: built without a network, whole, and of the project's version."""
import ast
import importlib.util
import operator
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import common

import tacticd.flashinfer

HERE = common.ROOT / "client/python"
MODULES = sorted(str(p.relative_to(HERE / "tacticd")) for p in (HERE / "tacticd").rglob("*.py"))
SHOW = "import tacticd, tacticd.flashinfer; c = tacticd.Client(); c.close(); print(tacticd.__version__, tacticd.__file__)"


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def builder():
    """A Python that has what makes wheels; None if there is none."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", "import setuptools, pip, wheel"], capture_output=True,
                                                     check=False).returncode == 0:
            return python
    return None


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assertWorks(self, place, python=sys.executable):
        """What was unpacked there can be imported, and speaks to libtactic."""
        self.assertEqual(sorted(str(p.relative_to(place / "tacticd")) for p in (place / "tacticd").rglob("*.py")), MODULES)
        env = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        told = run(python, "-c", SHOW, cwd=self.folder, env=env)
        self.assertEqual(told.split(), [common.VERSION, str(place / "tacticd/__init__.py")])
        run(python, "-c", "import tacticd.worker.__main__", cwd=self.folder, env=env)

    def test_version(self):
        self.assertEqual(tacticd.__version__, common.VERSION)

    def test_meson_installs_all(self):
        installed = (HERE / "meson.build").read_text()
        self.assertEqual([m for m in MODULES if f"'tacticd/{m}'" not in installed], [])

    def test_wheel(self):
        python = builder()
        if not python:
            self.skipTest("no Python here has pip, setuptools and wheel (Debian: python3-pip python3-setuptools python3-wheel)")
        source = self.folder / "source"  # setuptools builds beside the sources
        shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("__pycache__"))
        env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        run(python, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w",
            str(self.folder / "out"), str(source), env=env)
        (wheel,) = (self.folder / "out").iterdir()
        self.assertEqual(wheel.name, f"tacticd-{common.VERSION}-py3-none-any.whl")
        run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target",
            str(self.folder / "site"), str(wheel), env=env)
        self.assertWorks(self.folder / "site")

    def test_deb(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("dpkg-deb is not installed")
        env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        package = run(str(HERE / "deb"), str(self.folder / "out"), env=env).strip()
        self.assertEqual(os.path.basename(package), f"python3-tacticd_{common.VERSION}_all.deb")
        self.assertIn("python3", run("dpkg-deb", "-f", package, "Depends"))
        listed = run("dpkg-deb", "-c", package)
        self.assertEqual({tuple(line.split()[:2]) for line in listed.splitlines()},
                         {("drwxr-xr-x", "root/root"), ("-rw-r--r--", "root/root")})
        run("dpkg-deb", "-x", package, str(self.folder / "root"))
        self.assertWorks(self.folder / "root/usr/lib/python3/dist-packages")
        again = run(str(HERE / "deb"), str(self.folder / "again"), env=env).strip()
        self.assertEqual(pathlib.Path(again).read_bytes(), pathlib.Path(package).read_bytes())

    def test_of_python_3_9(self):
        """No newer syntax: an older interpreter's grammar reads it."""
        for name in MODULES:
            ast.parse((HERE / "tacticd" / name).read_text(), name, feature_version=(3, 9))

    def test_examples_of_the_manual(self):
        """They are Python, and what they name of this package exists."""
        blocks = re.findall(r"^```python\n(.*?)^```", (common.ROOT / "docs/python.md").read_text(), re.M | re.S)
        self.assertEqual(len(blocks), 6)
        for block in blocks:
            for node in ast.walk(ast.parse(block)):
                name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
                if name.startswith("tacticd."):
                    operator.attrgetter(name.split(".", 1)[1])(tacticd)

    @unittest.skipIf(sys.version_info < (3, 10), "this Python does not list its own modules")
    def test_standard_library_only(self):
        for name in MODULES:
            for node in ast.walk(ast.parse((HERE / "tacticd" / name).read_text())):
                roots = ([a.name for a in node.names] if isinstance(node, ast.Import) else
                         [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
                for root in {r.split(".")[0] for r in roots} - {"tacticd", "flashinfer"}:
                    self.assertIn(root, sys.stdlib_module_names, name)
                    self.assertIsNotNone(importlib.util.find_spec(root))
