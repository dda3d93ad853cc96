#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what cublasLt.h calls its tiles, stages and cluster shapes, as the tables of cublaslt_names.h.

usage: cublaslt_names.py cublasLt.h
"""
import re
import sys

TABLES = (("cublaslt_names_tiles", r"CUBLASLT_MATMUL_TILE_((\d+)x(\d+)) = (\d+),"),
          ("cublaslt_names_clusters", r"CUBLASLT_CLUSTER_SHAPE_((\d+)x(\d+))x1 = (\d+),"),
          ("cublaslt_names_stages", r"CUBLASLT_MATMUL_STAGES_((\d+)x(\d+|AUTO)) = (\d+),"))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        header = f.read()
    print('#include "daemon/workers/cublaslt_names.h"')
    for table, pattern in TABLES:
        found = re.findall(pattern, header)
        if not found:
            sys.exit(f"{sys.argv[1]} has nothing for {table}: not the cublasLt.h this was written for")
        print(f"\nconst struct cublaslt_named {table}[] = {{")
        for name, first, second, number in found:
            print(f'    {{ {number}, {{ {first}, {0 if second == "AUTO" else second} }}, "{name}" }},')
        print(f"    {{ 0, {{ 0, 0 }}, NULL }},\n}};")


if __name__ == "__main__":
    main()
