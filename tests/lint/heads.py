# SPDX-License-Identifier: Apache-2.0
"""Every file of code says its licence in the first line (the second, behind #!), and C files say which
room this is right below it."""
import re

import tree

LICENCE = re.compile(r"^(//|#|/\*|\.\\\"|--|<!--) SPDX-License-Identifier: Apache-2\.0")

# A comment, perhaps below an empty line of it.
ROOM = re.compile(r"(//\n)?// \w")


def check(root):
    found = []
    for name in tree.files(root):
        if name.startswith("tests/fixtures/"):
            continue
        if not name.endswith((".c", ".h", ".def", ".py", ".sh", ".in", ".build", ".table")):
            continue
        lines = tree.text(root, name).splitlines() + ["", "", ""]
        first = lines[1] if lines[0].startswith("#!") else lines[0]
        if not LICENCE.match(first):
            found.append(f"{name}:1: the first line is not the licence")
        elif name.endswith((".c", ".h", ".def")) and not ROOM.match("\n".join(lines[1:3])):
            found.append(f"{name}:2: no word about which room this is")
    return found


def planted(root):
    head = "// SPDX-License-Identifier: Apache-2.0\n"
    tree.plant(root, "good.c", head + "// good: a room.\nint x;\n")
    tree.plant(root, "bare.c", head + "int x;\n")
    tree.plant(root, "naked.py", "import os\n")
    return ["bare.c:2:", "naked.py:1:"]
