#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An installation has its parts, and one over it leaves the admin's configuration alone.

usage: install_verify.py --build DIR
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

PARTS = ("bin/tacticd", "bin/tunectl", "libexec/tacticd/tactic-launch", "include/tactic.h", "lib/systemd/system/tacticd.service",
         "lib/sysusers.d/tacticd.conf", "lib/tmpfiles.d/tacticd.conf", "share/tacticd/tables/recipes/qwen2.5-0.5b.json",
         "share/man/man1/tunectl.1", "share/man/man3/libtactic.3", "share/man/man5/tacticd.conf.5", "share/man/man8/tacticd.8",
         "tacticd/__init__.py", "tacticd/flashinfer.py")


def install(build, root):
    done = subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", str(root)], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        sys.exit(f"meson install ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    build = parser.parse_args().build
    with tempfile.TemporaryDirectory() as root:
        install(build, root)
        found = {str(path.relative_to(root)): path for path in pathlib.Path(root).rglob("*") if path.is_file()}
        missing = [part for part in PARTS if not any(name.endswith("/" + part) for name in found)]
        configs = [path for name, path in found.items() if name.endswith("etc/tacticd/tacticd.conf")]
        if missing or len(configs) != 1:
            sys.exit(f"missing: {missing}; configurations: {configs}; installed: {sorted(found)}")
        mine = configs[0].read_text() + "[worker mine]\n"
        configs[0].write_text(mine)
        install(build, root)
        if configs[0].read_text() != mine:
            sys.exit("an installation over another has taken the admin's configuration")
    print(f"{len(found)} files, the configuration stays")


if __name__ == "__main__":
    main()
