#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The real tables, where somebody has them: in, out, compared, and each layout its own tactics. Skipped elsewhere.

usage: real_tables.py --build DIR [TEST...]

TACTICD_FLASHINFER_TABLES names their folder; else ../shared/data/flashinfer-tables beside the sources is looked for.
"""
import json
import os
import pathlib

import lookalike as la
from exchange import ROOT, Node
from harness import Skip, expect, run


def tables():
    folder = pathlib.Path(os.environ.get("TACTICD_FLASHINFER_TABLES", ROOT.parent / "shared/data/flashinfer-tables"))
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not found:
        raise Skip(f"no real tables here ({folder.name}); set TACTICD_FLASHINFER_TABLES")
    return found


def test_real_tables_come_back(build):
    found = tables()
    with Node(build) as d:
        for path in found:
            before = d.learned()
            d.take("import", str(path))
            (made,) = set(d.learned()) - set(before)
            table = str(d.dir / "state/tables" / made)
            expect(d.take("export", table).encode() == path.read_bytes(), "other bytes", path.name)
            code, out, _ = d.say("diff", table, str(path))
            expect(code == 0 and ", 0 differences" in out, "a difference", path.name, out)
        for path in found:
            cache = json.loads(path.read_text())
            facts = la.facts_of(cache.pop("_metadata"))
            layout = ",".join(path.name.split(",")[1:3])
            with d.client(**facts) as c:
                for tokens in la.BUCKETS:
                    answer = c.lookup(la.problem(tokens, layout))
                    expect(answer["kind"] == "hit" and answer["tactic"] == cache[la.file_key(tokens)][1], path.name, answer)
        print(f"  {len(found)} files, {len(found) * len(la.BUCKETS)} lookups")


if __name__ == "__main__":
    run([test_real_tables_come_back])
