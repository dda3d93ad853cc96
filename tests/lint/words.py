# SPDX-License-Identifier: Apache-2.0
"""Words that may not be shipped: promises for later, and paths of the machine it was written on."""
import re

import tree

# Spelt in pieces, so that this file does not contain them itself.
WORDS = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"), "a promise for later"),
    (re.compile(r"(?<![\w.])/(wo" r"rk|ro" r"ot|ho" r"me/\w+)/"), "a path of one machine"),
]
# Recorded data is as it was recorded; licences are other people's words.
EXEMPT = re.compile(r"tests/fixtures/|LICENSE$|.*\.(bin|png|svg)$")


def check(root):
    found = []
    for name in tree.files(root):
        if EXEMPT.match(name):
            continue
        for number, line in enumerate(tree.text(root, name).splitlines(), 1):
            for pattern, why in WORDS:
                hit = pattern.search(line)
                if hit:
                    found.append(f"{name}:{number}: {hit.group(0)}: {why}")
    return found


def planted(root):
    tree.plant(root, "a.c", "// TO" "DO: later\nint hackney; // mktemp XXXXXX\n")
    tree.plant(root, "b.md", "see /wo" "rk/shared, not /usr/share/wo" "rk/x\n")
    return ["a.c:1: ", "b.md:1: "]
