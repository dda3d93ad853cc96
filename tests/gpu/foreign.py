#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Somebody else on the card: multiplies matrices of small whole numbers, whose products are exact, and compares each
with the first, until it is told to end (SIGTERM). Says what it did; exit status 1 if a product differed.

usage: foreign.py [--cpu]       --cpu: without PyTorch, for machines without a card
"""
import signal
import sys
import time

SIDE = 2048


def on_card():
    import torch

    torch.manual_seed(7)
    a, b = (torch.randint(-4, 5, (SIDE, SIDE), device="cuda").to(torch.bfloat16) for _ in "ab")
    first = a.float() @ b.float()

    def product():
        return torch.equal((a.float() @ b.float()), first) and bool(torch.isfinite(first).all())

    return product


def on_cpu():
    rows = [[(i * 7 + j * 3) % 9 - 4 for j in range(24)] for i in range(24)]

    def multiply():
        return [[sum(x * y for x, y in zip(row, column)) for column in zip(*rows)] for row in rows]

    first = multiply()
    return lambda: multiply() == first


def main():
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    product = on_cpu() if "--cpu" in sys.argv[1:] else on_card()
    print("begun", flush=True)
    count = wrong = 0
    longest = 0.0
    while not ended:
        before = time.monotonic()
        wrong += not product()
        count += 1
        longest = max(longest, time.monotonic() - before)
    print(f"{count} products, {wrong} wrong, the slowest in {longest * 1e3:.0f} ms")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
