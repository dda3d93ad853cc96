# SPDX-License-Identifier: Apache-2.0
"""Nothing is listed for show: every option of config.def is read by the daemon, every counter of
stats.def is counted."""
import re

import tree

OPTION = re.compile(r"^(?:OPTION|NEEDED)\((\w+), (\w+), \w+, .*?", re.M)
UNIT = {"bytes": "_bytes", "ms": "_ms", "s": "_s", "none": "", "count": ""}
STAT = re.compile(r"^STAT\((\w+), ", re.M)
# Hits are found through their layer: stats_hits().
BY_LIST = re.compile(r"hits_")


def options(text):
    """(section, field) of each row; the unit is the last bare word before the sentences."""
    for row in re.split(r"^(?=OPTION\(|NEEDED\(|END\()", text, flags=re.M):
        head = OPTION.match(row)
        if head:
            unit = re.search(r",\s*(none|count|bytes|ms|s),\s*\"", row).group(1)
            yield head.group(1), head.group(2) + UNIT[unit]


def check(root):
    names = [n for n in tree.c_files(root, (".c",)) if n.startswith("daemon/")]
    code = "\n".join(
        tree.text(root, n) for n in names if not re.match(r"daemon/(config|stats)\w*\.c", n)
    )
    found = []
    for section, field in options(tree.text(root, "daemon/config.def")):
        if not re.search(rf"(?:->|\.){field}\b", code):
            found.append(f"daemon/config.def:1: nothing reads [{section}] {field}")
    for name in STAT.findall(tree.text(root, "daemon/stats.def")):
        if not BY_LIST.match(name) and not re.search(rf"(?:->|\.){name}\b", code):
            found.append(f"daemon/stats.def:1: nothing counts {name}")
    return found


def planted(root):
    tree.plant(root, "daemon/config.def",
        'OPTION(sweep, when, choice, "idle", 0, 0, none, "a", "b")\n'
        'OPTION(sweep, cap, size, "1", 0, 1, bytes,\n    "a, s, \\"b\\"", "c")\n'
        'NEEDED(worker, never, text, "x", 0, 0, none, "a", "b")\n')
    tree.plant(root, "daemon/stats.def", 'STAT(rounds, COUNT, "a")\nSTAT(rounds_lost, COUNT, "a")\n')
    tree.plant(root, "daemon/x.c", "int x(struct c *c)\n{\n    c->sweep.when = c->sweep.cap_bytes;\n"
        "    return c->stats.rounds++;\n}\n")
    return ["daemon/config.def:1: nothing reads [worker] never",
        "daemon/stats.def:1: nothing counts rounds_lost"]
