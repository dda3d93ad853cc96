# SPDX-License-Identifier: Apache-2.0
"""client/tactic.h and client/tactic.map name the same functions: what is declared is exported."""
import re

import tree

HEADER, MAP = "client/tactic.h", "client/tactic.map"
DECLARED = re.compile(r"^[a-z][\w \*]*?\b(tactic_\w+)\(", re.M)
EXPORTED = re.compile(r"^\s+(tactic_\w+);", re.M)


def check(root):
    names = tree.files(root)
    if HEADER not in names or MAP not in names:
        raise tree.Skip(f"{HEADER} and {MAP} are not both here")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", tree.text(root, HEADER), flags=re.S)
    # A function pointer's typedef or a macro is not a function of ours.
    declared = set(DECLARED.findall(re.sub(r"^\s*(#|typedef)[^\n]*", "", text, flags=re.M)))
    exported = EXPORTED.findall(tree.text(root, MAP))
    found = [f"{MAP}:1: {n} is declared and not exported" for n in sorted(declared - set(exported))]
    found += [f"{HEADER}:1: {n} is exported and not declared" for n in sorted(set(exported) - declared)]
    found += [f"{MAP}:1: {n} stands twice" for n in sorted(set(exported)) if exported.count(n) > 1]
    return found


def planted(root):
    tree.plant(root, HEADER,
        "// tactic_old(x)\nint tactic_open(void);\nconst char *tactic_name(int n,\n    int m);\n"
        "typedef void tactic_log(int x);\n")
    tree.plant(root, MAP,
        "T {\nglobal:\n    tactic_open;\n    tactic_gone;\n    tactic_open;\nlocal:\n    *;\n};\n")
    return [
        "client/tactic.h:1: tactic_gone", "client/tactic.map:1: tactic_name",
        "client/tactic.map:1: tactic_open stands twice",
    ]
