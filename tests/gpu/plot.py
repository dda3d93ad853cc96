#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what the accuracy harness found: the regret of each policy's sweeps, and the GPU time they took.

usage: plot.py DIR [OUT.svg]      reads DIR/summary.json; OUT is DIR/accuracy.svg unless given
"""
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WORDS = {"ours": "ours", "ours-again": "ours, swept again", "hot": "hot, 3 + 10", "sequential-10": "cold, in turn, 10",
         "interleaved-10": "interleaved 10", "interleaved-30": "interleaved 30"}
OURS, OTHERS, INK, FAINT, WARN = "#0072b2", "#888888", "#222222", "#dddddd", "#d55e00"
LEFT, STRIP, GAP, BARS, ROW, HEAD = 150, 520, 70, 220, 34, 46
LEAST, TICKS = 0.02, [0, 0.1, 0.3, 1, 3, 10, 30, 100]


def place(regret, most):
    """0 to 1 on a scale that is linear up to LEAST percent and logarithmic beyond."""
    def squeeze(x):
        return math.asinh(x / LEAST)
    return squeeze(max(0.0, min(regret, most))) / squeeze(most)


def quantile(values, q):
    at = q * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


class Drawing:
    def __init__(self):
        self.parts = []

    def line(self, x1, y1, x2, y2, color=INK, width=1.0, dash=""):
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
                          f'stroke-width="{width}"{more}/>')

    def rect(self, x, y, w, h, color, opacity=1.0):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{h:.1f}" fill="{color}" '
                          f'fill-opacity="{opacity}"/>')

    def dot(self, x, y, color):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="{color}" fill-opacity="0.35"/>')

    def text(self, x, y, words, size=12, anchor="start", color=INK, weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
                          f'font-weight="{weight}">{escape(words)}</text>')

    def svg(self, width, height):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">\n'
                f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def strip(d, y, row, most):
    """One policy's sweeps: dots, the middle half as a box, the median, the 95th percentile."""
    color = OURS if row["policy"].startswith("ours") else OTHERS
    values = row["regret"]
    d.text(LEFT - 8, y + 4, WORDS.get(row["policy"], row["policy"]), anchor="end",
           weight="bold" if row["policy"] == "ours" else "normal")
    for i, value in enumerate(values):
        # Low-discrepancy jitter, so that equal regrets do not hide each other.
        d.dot(LEFT + STRIP * place(value, most), y - 9 + 18 * ((i * 0.61803398875) % 1), color)
    if not values:
        return
    q25, q50, q75, q95 = (LEFT + STRIP * place(quantile(values, q), most) for q in (0.25, 0.5, 0.75, 0.95))
    d.rect(q25, y - 6, q75 - q25, 12, color, 0.35)
    d.line(q50, y - 9, q50, y + 9, color, 2.5)
    d.line(q95, y - 9, q95, y + 9, WARN, 2)
    d.text(LEFT + STRIP + 6, y + 4, f"{row['p95']:.2f}%", size=11, color=WARN)


def bar(d, y, row, most):
    color = OURS if row["policy"].startswith("ours") else OTHERS
    x = LEFT + STRIP + GAP
    length = (BARS - 50) * row["gpu_time"] / most
    d.rect(x, y - 8, length, 16, color, 0.8)
    d.text(x + length + 5, y + 4, f"{row['gpu_time']:.2f}", size=11)


def axes(d, top, bottom, most, ticks):
    for tick in ticks:
        x = LEFT + STRIP * place(tick, most)
        d.line(x, top, x, bottom, FAINT)
        d.text(x, bottom + 14, f"{tick:g}", size=11, anchor="middle")
    for limit in (0.3, 1):
        if limit <= most:
            d.line(LEFT + STRIP * place(limit, most), top, LEFT + STRIP * place(limit, most), bottom, INK, 1, "4 3")
    d.text(LEFT + STRIP / 2, bottom + 30, "regret of a sweep, % slower than the best (orange: 95th percentile; "
           "dashed: 0.3 and 1)", size=11, anchor="middle")
    d.text(LEFT + STRIP + GAP, bottom + 30, "GPU time, 30 interleaved rounds = 1", size=11)


def group(d, y, name, rows):
    """Draws a group of shapes from y on; returns where the next may begin."""
    worst = max([r["max"] for r in rows] + [1.0])
    most = next((t for t in TICKS if t >= worst), worst)
    ticks = [t for t in TICKS if t <= most]
    d.text(LEFT, y + 16, f"{name}: {max(r['sweeps'] for r in rows)} sweeps a policy", size=13, weight="bold")
    top, bottom = y + HEAD - 18, y + HEAD + ROW * len(rows) - 10
    axes(d, top, bottom, most, ticks)
    longest = max([r["gpu_time"] for r in rows] + [1.0])
    for i, row in enumerate(rows):
        at = y + HEAD + ROW * i + 4
        strip(d, at, row, most)
        bar(d, at, row, longest)
    d.line(LEFT, top, LEFT, bottom)
    d.line(LEFT + STRIP + GAP, top, LEFT + STRIP + GAP, bottom)
    return bottom + 52


def draw(summary):
    d = Drawing()
    facts = summary.get("fingerprint", {})
    versions = ", ".join(f"{k} {facts[k]}" for k in ("driver", "cuda", "cublaslt", "cudnn", "onednn") if facts.get(k))
    d.text(20, 28, f"{summary.get('device', 'no device')}: which policy picks the fastest tactic?", size=17, weight="bold")
    d.text(20, 47, f"{versions}; {summary['date']}; {100 * summary['complete']:.0f}% of {len(summary['shapes'])} shapes "
           "measured; judged by interleaved cold rounds of all candidates", size=11)
    y, order, groups = 66, list(WORDS), {}
    for row in summary["policies"]:
        groups.setdefault(row["group"], []).append(row)
    for name, rows in groups.items():
        rows.sort(key=lambda r: order.index(r["policy"]) if r["policy"] in order else 99)
        y = group(d, y, name, rows)
    for target in summary["targets"]:
        d.text(20, y, f"{'met' if target['met'] else 'MISSED'}: {target['what']}: {target['is']:.3g}, "
               f"at most {target['most']:.3g}", size=11, color=INK if target["met"] else WARN)
        y += 16
    return d.svg(LEFT + STRIP + GAP + BARS + 10, int(y + 10))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else folder / "accuracy.svg"
    out.write_text(draw(json.loads((folder / "summary.json").read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
