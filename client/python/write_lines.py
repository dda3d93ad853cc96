#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tacticd/worker/_lines.py: the part of the daemon's lists that a worker in Python needs.

usage: write_lines.py DUMP [FILE]
DUMP is the program that proto/dump.c builds. Without FILE the module goes to stdout. A test proves it fresh.
"""
import json
import pathlib
import subprocess
import sys

HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Made from proto/*.def by client/python/write_lines.py; a test proves it fresh. Change the lists, then: ninja docs
"""Records and bounds of the lines between daemon and worker, ops and facts, as the daemon has them."""
'''
BOUNDS = ("key_bytes", "dimension", "integer", "depth", "values", "fact_bytes", "line_bytes")


def reached(records, names):
    """The records of those names, and what is inside them."""
    todo, found = list(names), {}
    while todo:
        record = records[todo.pop(0)]
        found[record["name"]] = record
        todo += [f["item"] for f in record["fields"] if "item" in f and f["item"] not in found]
    return found.values()


def rows(title, doc, lines):
    return f"\n# {doc}\n{title} = {{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"


def field(f):
    return f'        ("{f["name"]}", "{f["type"]}", {f["required"]}, {json.dumps(f["item"]) if "item" in f else None}),'


def op(o):
    dims = [f'        ("{d["name"]}", "{d["kind"]}", {json.dumps(d["words"]) if "words" in d else d["min"]}),'
            for d in o["dims"]]
    backends = ", ".join(f'"{b["name"]}"' for b in o["backends"])
    return "\n    ".join([f'"{o["name"]}": ((', *(d[4:] for d in dims), f"), ({backends},)),"])


def module(told):
    records = {r["name"]: r for r in told["records"]}
    return "".join([
        HEAD,
        "\n# Whoever says them.\nLINES = (\n",
        *(f'    "{name}",\n' for name in told["lines"]),
        ")\n",
        rows("RECORDS", "Of those lines, and what is inside them: fields as (name, type, required, item).",
             ["\n    ".join([f'"{r["name"]}": (', *(field(f)[4:] for f in r["fields"]), "),"])
              for r in reached(records, told["lines"])]),
        rows("OPS", "Dimensions in canonical order as (name, kind, words or least value); backends.",
             map(op, told["ops"])),
        rows("BOUNDS", "Of texts and numbers.", [f'"{name}": {told["bounds"][name]},' for name in BOUNDS]),
        "\n# Of a fingerprint.\nFACTS = (\n",
        *(f'    "{f["name"]}",\n' for f in told["facts"]),
        ")\n",
        rows("FLASHINFER", "What FlashInfer calls them.",
             [f'"{name}": "{fact}",' for name, fact in told["flashinfer_metadata"].items()]),
    ])


def made(dump):
    """The module's text by the program `dump`."""
    return module(json.loads(subprocess.run([str(dump), "json"], capture_output=True, text=True, check=True).stdout))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    text = made(sys.argv[1])
    if len(sys.argv) == 3:
        pathlib.Path(sys.argv[2]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
