#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every call that the worker makes into FlashInfer (client/python/tacticd/worker/calls.py) against the sources of the
real packages: 0.6.16, and the newest release that the package index has. Sources are read, not imported, so neither a
GPU nor PyTorch is needed. Then each signature is changed, a parameter renamed and one more demanded, and the check must
notice. And no call may pass the table by.

usage: signatures.py --build DIR [--wheels DIR]    wheels are kept in DIR/flashinfer/wheels (112 MiB, once)
Exit status: 0 all as the table says, 1 not, 77 the packages cannot be had.
"""
import argparse
import ast
import copy
import pathlib
import re
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = ROOT / "client/python/tacticd/worker"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "client/python"))

from tacticd.worker import calls  # noqa: E402

OLDEST = "0.6.16"
SKIPPED = 77
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MOST_IMPORTS = 8  # that a name is followed through


class Wrong(Exception):
    """A call that this release does not take as the table has it."""


class Package:
    """The sources in a wheel."""

    def __init__(self, wheel):
        self.zip, self.trees = zipfile.ZipFile(wheel), {}
        self.names = set(self.zip.namelist())
        self.version = re.match(r"flashinfer_python-([^-]+)-", pathlib.Path(wheel).name).group(1)

    def file_of(self, module):
        """(path, whether it is a package), or None"""
        path = "/".join(module)
        for name, is_package in ((f"{path}.py", False), (f"{path}/__init__.py", True)):
            if name in self.names:
                return name, is_package
        return None

    def tree(self, module):
        name, _ = self.file_of(module)
        if name not in self.trees:
            self.trees[name] = ast.parse(self.zip.read(name), name)
        return self.trees[name]

    def find(self, path, hops=0):
        """(definition, whether it stands in a class) of a dotted path. Raises Wrong."""
        parts = tuple(path.split("."))
        if hops > MOST_IMPORTS:
            raise Wrong(f"{path}: imported round and round")
        module = next((parts[:n] for n in range(len(parts) - 1, 0, -1) if self.file_of(parts[:n])), None)
        if module is None:
            raise Wrong(f"{path}: there is no such module")
        node, is_in_class = self.tree(module), False
        for i, name in enumerate(parts[len(module):], len(module)):
            is_in_class = isinstance(node, ast.ClassDef)
            found = bound(node, name)
            if isinstance(found, (ast.ImportFrom, ast.Name)):
                return self.find(".".join([self.elsewhere(module, found, name), *parts[i + 1:]]), hops + 1)
            if found is None:
                raise Wrong(f"{path}: there is no {name}")
            node = found
        if isinstance(node, ast.ClassDef):
            return self.find(f"{path}.__init__", hops + 1)
        return node, is_in_class

    def elsewhere(self, module, found, name):
        """The dotted path behind an import, or behind another name."""
        if isinstance(found, ast.Name):
            return ".".join([*module, found.id])
        real = next(a.name for a in found.names if (a.asname or a.name) == name)
        base = [] if not found.level else list(module if self.file_of(module)[1] else module[:-1])
        base = base[:len(base) - (found.level - 1)] if found.level else base
        return ".".join([*base, *([found.module] if found.module else []), real])


def statements(body):
    """Those of a body, and of what decides about them."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from statements(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def bound(node, name):
    """What that name stands for in a module, class or function: a definition, an import, another name, or None. The
    last one counts."""
    found = None
    for inner in statements(node.body):
        if isinstance(inner, DEFINITIONS) and inner.name == name:
            found = inner
        elif isinstance(inner, ast.ImportFrom) and any((a.asname or a.name) == name for a in inner.names):
            found = inner
        elif isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Name) and \
                any(isinstance(t, ast.Name) and t.id == name for t in inner.targets):
            found = inner.value
    return found


def check(call, function, is_in_class):
    """Raises Wrong unless the function takes that call."""
    args = function.args
    ordered = [a.arg for a in args.posonlyargs + args.args]
    required = ordered[:len(ordered) - len(args.defaults)]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if is_in_class and not static:
        ordered, required = ordered[1:], required[1:]
    only = [a.arg for a in args.kwonlyargs]
    required += [name for name, default in zip(only, args.kw_defaults) if default is None]
    given = list(call.positional)
    if ordered[:len(given)] != given:
        raise Wrong(f"{call.path}: positional {given}, but it has {ordered[:len(given) + 1]}")
    by_name = [name for name in ordered[len(given):] + only if name not in [a.arg for a in args.posonlyargs]]
    for name in call.keywords:
        if name not in by_name:
            raise Wrong(f"{call.path}: has no parameter {name}")
    for name in required:
        if name not in given and name not in call.keywords:
            raise Wrong(f"{call.path}: wants {name}, which is not given")


def rows_of(version):
    """{name: Call} of that release."""
    found = {}
    for name in calls.CALLS:
        try:
            found[name] = calls.row(name, version)
        except KeyError:
            continue
    return found


def notices(call, function, is_in_class):
    """What the check does not notice of changes to that signature."""
    def fails(change):
        changed = copy.deepcopy(function)
        change(changed.args)
        try:
            check(call, changed, is_in_class)
        except Wrong:
            return True
        return False

    def rename(name):
        def change(args):
            for a in args.posonlyargs + args.args + args.kwonlyargs:
                a.arg = "renamed" if a.arg == name else a.arg
        return change

    def demand(args):
        args.kwonlyargs.append(ast.arg(arg="one_more"))
        args.kw_defaults.append(None)

    missed = [f"{call.path}: {name} renamed" for name in (*call.positional, *call.keywords) if not fails(rename(name))]
    return missed if fails(demand) else [*missed, f"{call.path}: one more demanded"]


def check_package(package):
    """Lines of what is wrong."""
    wrong, n = [], 0
    for name, call in rows_of(package.version).items():
        try:
            function, is_in_class = package.find(call.path)
            check(call, function, is_in_class)
        except Wrong as e:
            wrong.append(f"FlashInfer {package.version}: {name}: {e}")
            continue
        wrong += [f"not noticed in {package.version}: {line}" for line in notices(call, function, is_in_class)]
        n += 1
    print(f"FlashInfer {package.version}: {n} calls are as the table says")
    return wrong


def passed_by():
    """Calls and imports that the table does not have, and rows that nobody uses."""
    wrong, said = [], set()
    for path in sorted(WORKER.rglob("*.py")):
        if path.name == "calls.py":
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(node.value)
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: imports {n} past calls.py" for n in names
                      if n.split(".")[0] == "flashinfer"]
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("calls.of", "calls.on") and \
                    isinstance(node.args[0], ast.Constant) and node.args[0].value not in calls.CALLS:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.args[0].value} is not in the table")
    return wrong + [f"calls.py: nobody makes the call {name}" for name in calls.CALLS if name not in said]


def wheel(folder, what):
    """The wheel of a requirement, or None where the index does not answer; kept for the next time."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
                           "--only-binary", ":all:", "-d", folder, what], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip()[-500:], file=sys.stderr)
        return None
    name = re.findall(r"(flashinfer_python-\S+?\.whl)", done.stdout)
    return folder / pathlib.Path(name[-1]).name


def main():
    parser = argparse.ArgumentParser(description="the worker's calls against FlashInfer's signatures")
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--wheels", type=pathlib.Path)
    args = parser.parse_args()
    folder = args.wheels or args.build / "flashinfer/wheels"
    wrong, skipped = passed_by(), False
    for what in (f"flashinfer-python=={OLDEST}", "flashinfer-python"):
        found = wheel(folder, what)
        if found is None:
            print(f"skipped: {what} cannot be had; its signatures were not looked at")
            skipped = True
            continue
        wrong += check_package(Package(found))
    print(*wrong, sep="\n")
    return 1 if wrong else SKIPPED if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
