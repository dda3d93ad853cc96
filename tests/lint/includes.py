# SPDX-License-Identifier: Apache-2.0
"""Includes follow includes.table."""
import re
from fnmatch import fnmatchcase
from pathlib import Path

import tree

TABLE = Path(__file__).with_name("includes.table")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def fits(name, patterns):
    return any(fnmatchcase(name, p) for p in patterns)


class Table:
    def __init__(self, path):
        self.classes, self.rows, self.owners = {}, [], []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            word, _, rest = line.partition(" ")
            if not line.strip() or word == "#" or line.startswith("#"):
                continue
            left, colon, right = rest.partition("=" if word == "class" else ":")
            if not colon or word not in ("class", "file", "owner"):
                raise ValueError(f"{path.name}:{number}: neither class, file nor owner")
            if word == "class":
                self.classes.setdefault(left.strip(), []).extend(right.split())
            elif word == "file":
                self.rows.append((left.split(), self.expand(right.split())))
            else:
                self.owners.append((left.split(), right.split()))

    def expand(self, words):
        return [p for w in words for p in self.classes.get(w, [w])]

    def allowed(self, name):
        for patterns, allowed in self.rows:
            if fits(name, patterns):
                return allowed
        return None

    def owner(self, header):
        for headers, patterns in self.owners:
            if fits(header, headers):
                return patterns
        return None


def complaint(table, allowed, root, name, kind, header):
    """Why `name` may not include `header`, or None."""
    outside = kind == "<"
    owners = table.owner(header)
    if owners is not None and not fits(name, owners):
        return f"{header} belongs to {' '.join(owners)}"
    if outside and owners is not None:
        return None
    if outside:
        known = table.classes["c"] + table.classes["posix"]
        if not fits(header, known):
            return f"<{header}> has neither a class nor an owner"
    elif not (root / header).is_file():
        return f'"{header}" is no path from the top of the tree'
    return None if fits(header, allowed) else f"{header} is not for this file"


def check(root):
    table, found = Table(TABLE), []
    for name in tree.c_files(root, (".c", ".h", ".def")):
        allowed = table.allowed(name)
        if allowed is None:
            found.append(f"{name}:1: no row of {TABLE.name} fits this file")
            continue
        for number, line in enumerate(tree.text(root, name).splitlines(), 1):
            include = INCLUDE.match(line)
            if include:
                why = complaint(table, allowed, Path(root), name, *include.groups())
                if why:
                    found.append(f"{name}:{number}: {why}")
    return found


def planted(root):
    tree.plant(root, "proto/key.h", "#pragma once\n")
    tree.plant(root, "daemon/store.h", '#pragma once\n#include "proto/key.h"\n')
    tree.plant(root, "daemon/store.c", '#include "store.h"\n#include <time.h>\n#include <uv.h>\n')
    tree.plant(root, "proto/key.c",
        '#include "daemon/store.h"\n#include <stdio.h>\n# include <openssl/md5.h>\n')
    tree.plant(root, "daemon/workers/gpu_in.h", "#pragma once\n#include <cuda.h>\n")
    tree.plant(root, "daemon/workers/gpu_time.c", '#include "daemon/workers/gpu_in.h"\n')
    tree.plant(root, "daemon/workers/cudnn.c", '#include <stdio.h>\n#include "daemon/workers/gpu_in.h"\n')
    tree.plant(root, "elsewhere/x.c", "#include <stdio.h>\n")
    return [
        "daemon/store.c:1: ", "daemon/store.c:2: ", "daemon/store.c:3: ", "daemon/workers/cudnn.c:2: ",
        "elsewhere/x.c:1: ",
        "proto/key.c:1: ", "proto/key.c:3: ",
    ]
