#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the packaged tables of an H200 say into README.md, between its two markers.

usage: report.py [--check] [--root DIR]        --check: changes nothing; exit status 1 if README.md says something else

Times are those of the tables' entries. Beside them stands the floor: the least time that the card's memory (weights of
the experts that are met, rows, results) or its arithmetic allows. Both figures were measured on an H200 (tables/README.md
says how), not read off a data sheet, so a kernel may come a little below them.
"""
import argparse
import difflib
import functools
import json
import pathlib
import statistics
import sys

DEVICE = "NVIDIA H200"
BYTES_PER_S = 4.3e12  # a copy on the card, bytes read and written
FLOP_PER_S = {"bf16": 790e12}  # a bf16 product of 8192 x 8192 x 8192, random data
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "e4m3": 1, "f32": 4}
SKEW = 0.35  # an expert's popularity is its rank to the power of minus this: ROUTING_SKEW of daemon/workers/routing.h
BEGIN, END = "<!-- tables begin: tables/report.py writes what stands here -->", "<!-- tables end -->"


def dims(key):
    """(op, its dimensions): numbers where they are numbers."""
    op, *pairs = key.split(",")
    return op, {name: int(value) if value.isdigit() else value for name, value in (pair.split("=") for pair in pairs)}


def rows_of(d):
    """Rows of a mixture's problem that meet this device's experts."""
    return max(1, d["tokens"] * d["top_k"] * d["local_experts"] // d["experts"])


@functools.lru_cache(maxsize=None)
def chances(experts, top_k):
    """How likely a token goes to each expert: they add up to top_k, for it goes to so many different ones."""
    popularity = [(rank + 1) ** -SKEW for rank in range(experts)]
    total = sum(popularity)
    low, high = 1.0, 1e6
    for _ in range(100):
        draws = (low + high) / 2
        chosen = [1 - (1 - p / total) ** draws for p in popularity]
        low, high = (draws, high) if sum(chosen) < top_k else (low, draws)
    return chosen


def experts_met(d):
    """Expected number of this device's experts with at least one row, under the routing that the workers draw."""
    each = chances(d["experts"], d["top_k"])
    return max(1.0, d["local_experts"] / d["experts"] * sum(1 - (1 - chance) ** d["tokens"] for chance in each))


def floor(key):
    """(least microseconds, "memory" or "compute"); None where the arithmetic's speed was not measured."""
    op, d = dims(key)
    n, k, a, b, out = d["n"], d["k"], *(ELEMENT_BYTES[d[name]] for name in ("a", "b", "out"))
    if op == "moe_grouped_matmul":
        rows, weights = rows_of(d), experts_met(d) * n * k
    else:
        rows, weights = d["m"] * d["batch"], d["batch"] * n * k
    memory = (weights * b + rows * (k * a + n * out)) / BYTES_PER_S
    if d["a"] not in FLOP_PER_S:
        return None
    compute = 2 * rows * n * k / FLOP_PER_S[d["a"]]
    return max(memory, compute) * 1e6, "memory" if memory > compute else "compute"


def tables(root):
    """All tables of the device, as (header, entries)."""
    found = []
    for path in sorted((root / "tables").glob("*/*.json")):
        if path.parent.name == "recipes":
            continue
        table = json.loads(path.read_text())
        if table.get("header", {}).get("fingerprint", {}).get("device") == DEVICE:
            found.append((table["header"], table["entries"]))
    return found


def by_problem(root, header, entries):
    """{the recipe's name of a problem: its entries by tokens}; those that the recipe does not name are left out."""
    path = root / "tables/recipes" / f"{header['model']}.json"
    if not path.is_file():
        return {}
    names = {}
    for layout in json.loads(path.read_text())["layouts"]:
        if layout["layout"] == header.get("layout"):
            for problem in layout["problems"]:
                names[problem["key"]] = problem["name"]
    found = {}
    for entry in entries:
        op, d = dims(entry["key"])
        dim = "tokens" if op == "moe_grouped_matmul" else "m"
        blank = ",".join([op, *(f"{name}={'*' if name == dim else value}" for name, value in d.items())])
        if blank in names:
            found.setdefault(names[blank], {})[d[dim]] = entry
    return {name: dict(sorted(rows.items())) for name, rows in found.items()}


def microseconds(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def native_us(entry):
    return entry.get("native_device_us", entry.get("device_us"))


def cells(entry):
    """native, tuned, gain, floor of one problem at one bucket"""
    if entry is None or native_us(entry) is None:
        return ["-"] * 4
    low = floor(entry["key"])
    floor_cell = f"{microseconds(low[0])} {low[1]}" if low else "-"
    if entry.get("state") == "noisy" or "tactic" not in entry:
        return [microseconds(native_us(entry)), entry["state"] if entry.get("state") == "noisy" else "default", "-", floor_cell]
    return [microseconds(native_us(entry)), microseconds(entry["device_us"]), f"{entry['gain'] * 100:.1f} %", floor_cell]


def versions(header):
    fingerprint = header["fingerprint"]
    return ", ".join(f"{fact} {fingerprint[fact]}" for fact in ("cublaslt", "cudnn", "driver") if fact in fingerprint)


def moe_tables(found):
    """A table a layout: the mixture's problems side by side, a bucket a line."""
    for header, problems in found:
        moe = {name: rows for name, rows in problems.items() if name.startswith("moe.")}
        if not moe:
            continue
        names = sorted(moe, key=lambda name: name != "moe.gate_up")  # as they run
        yield ""
        yield f"**{header['model']}, {header['layout']}** ({versions(header)}), microseconds:"
        yield ""
        heads = [f"{name[4:]} {what}" for name in names for what in ("native", "tuned", "gain", "floor")]
        yield "| tokens | " + " | ".join(heads) + " |"
        yield "|" + "---:|" * (1 + len(heads))
        for bucket in sorted({bucket for rows in moe.values() for bucket in rows}):
            row = [cell for name in names for cell in cells(moe[name].get(bucket))]
            yield f"| {bucket:,} | " + " | ".join(row) + " |"


def summary(rows):
    """answered, faster, and the gains of those, of one problem's buckets"""
    hits = {bucket: e for bucket, e in rows.items() if "tactic" in e and e.get("state") != "noisy" and "gain" in e}
    noisy = sum(e.get("state") == "noisy" for e in rows.values())
    if not hits:
        return [f"{len(rows)}", "0", "-", "-", f"{noisy}"]
    best = max(hits, key=lambda bucket: hits[bucket]["gain"])
    middle = statistics.median(e["gain"] for e in hits.values())
    return [f"{len(rows)}", f"{len(hits)}", f"{middle * 100:.1f} %", f"{hits[best]['gain'] * 100:.1f} % at {best:,}", f"{noisy}"]


def dense_tables(found):
    """One table: a line for each linear layer."""
    lines = []
    for header, problems in found:
        for name, rows in problems.items():
            if not name.startswith("moe."):
                _, d = dims(next(iter(rows.values()))["key"])
                lines.append([f"{header['model']}, {header['layout']}", name, f"{d['n']:,} x {d['k']:,}", *summary(rows)])
    if lines:
        yield ""
        yield "Linear layers: buckets answered, those where a tactic beats the library's own pick, and by how much:"
        yield ""
        yield "| model, layout | layer | n x k | buckets | faster | gain, median | greatest | noisy |"
        yield "|---|---|---|---:|---:|---:|---:|---:|"
        yield from ("| " + " | ".join(line) + " |" for line in lines)


def report(root):
    """What is to stand between the markers; "" if there is no table of the device."""
    found = [(header, by_problem(root, header, entries)) for header, entries in tables(root)]
    found.sort(key=lambda one: (one[0]["model"], one[0].get("layout", "")))
    lines = [*moe_tables(found), *dense_tables(found)]
    if not lines:
        return ""
    head = (f"Packaged tables of an {DEVICE}, swept and checked there. `default`: nothing beats the library's own pick. Floor: the "
            f"weights met, rows and results at {BYTES_PER_S / 1e12:.1f} TB/s, or the arithmetic at "
            f"{FLOP_PER_S['bf16'] / 1e12:.0f} TFLOP/s, both as measured on an H200. "
            "The weights met are those of the experts that routing hits on average; with few tokens one draw hits more or "
            "fewer, and a time may lie below its floor. A missing figure was not swept.")
    return "\n".join([head, *lines]) + "\n"


def renewed(text, made):
    """README's text with what was made between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError("README.md must hold both markers once, in their order")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{made}{END}{after}"


def main():
    parser = argparse.ArgumentParser(description="writes the tables of README.md")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if README.md says something else")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    args = parser.parse_args()
    path = args.root / "README.md"
    text, made = path.read_text(), report(args.root)
    new = renewed(text, made)
    if not made:
        print(f"no packaged table of an {DEVICE}" + ("" if new == text else ", but README.md shows one"))
    if new == text:
        return 0
    if args.check:
        sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), new.splitlines(True), "README.md", "as it should be"))
        print("README.md is stale: run tables/report.py")
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
