#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the options that a tacticd prints in place of the line @OPTIONS@ of a manual page.

usage: options.py TACTICD PAGE
"""
import subprocess
import sys

options = subprocess.run([sys.argv[1], "--config-man"], check=True, capture_output=True, text=True).stdout
with open(sys.argv[2], encoding="utf-8") as page:
    for line in page:
        print(options if line.strip() == "@OPTIONS@" else line, end="")
