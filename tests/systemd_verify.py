#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files under systemd/, read by systemd's own tools.

Each check first proves that the tool notices a planted mistake: a check that cannot fail is none.
Exit status: 0 all passed, 1 something failed, 77 systemd's tools are not here.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "systemd"
# Words that meson.build replaces in tacticd.service.in.
VARIABLES = {"bindir"}


class Failed(Exception):
    pass


def run(*argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def unit_text(bindir):
    text = (FILES / "tacticd.service.in").read_text()
    unknown = set(re.findall(r"@(\w+)@", text)) - VARIABLES
    if unknown:
        raise Failed(f"tacticd.service.in uses {unknown}, which nothing replaces")
    return text.replace("@bindir@", str(bindir))


def complaints(text, tmp):
    """What systemd-analyze says about a unit of this text."""
    path = tmp / "tacticd.service"
    path.write_text(text)
    status, output = run("systemd-analyze", "verify", "--man=no", str(path))
    ours = [line for line in output.splitlines() if "tacticd" in line or str(tmp) in line]
    if status and not ours:
        raise Failed(f"systemd-analyze exits {status}: {output}")
    return ours


def check_unit(tmp):
    bindir = tmp / "bin"
    bindir.mkdir()
    program = bindir / "tacticd"
    shutil.copy("/bin/true", program)
    text = unit_text(bindir)
    for planted in (
        text.replace("Restart=on-failure", "Restrat=on-failure"),
        text.replace("WatchdogSec=30s", "WatchdogSec=soon"),
        text.replace(str(program), str(bindir / "absent")),
    ):
        if planted == text or not complaints(planted, tmp):
            raise Failed("systemd-analyze does not notice a planted mistake")
    found = complaints(text, tmp)
    if found:
        raise Failed("\n".join(found))


def value(text, name):
    found = re.findall(rf"^#?{name} ?= ?(.*)$", text, re.M)
    if len(found) != 1:
        raise Failed(f"{name} stands {len(found)} times")
    return found[0]


def check_agreement(_tmp):
    """The unit's directories and group are the options' defaults."""
    unit = unit_text("/usr/bin")
    options = (FILES / "tacticd.conf").read_text()
    for directory, prefix, option in (
        ("RuntimeDirectory", "/run/", "runtime_dir"),
        ("StateDirectory", "/var/lib/", "state_dir"),
        ("Group", "", "control_group"),
    ):
        if prefix + value(unit, directory) != value(options, option):
            raise Failed(f"{directory}= of the unit is not the default of {option}")


def check_user(tmp):
    for folder in ("etc", "run", "usr/lib"):
        (tmp / folder).mkdir(parents=True)
    status, output = run("systemd-sysusers", f"--root={tmp}", str(FILES / "tacticd.sysusers"))
    if status or "tacticd:" not in (tmp / "etc/passwd").read_text():
        raise Failed(f"systemd-sysusers exits {status}: {output}")
    uid = int(re.search(r"^tacticd:x:(\d+)", (tmp / "etc/passwd").read_text(), re.M).group(1))
    group = value((FILES / "tacticd.conf").read_text(), "worker_group")
    members = re.search(rf"^{group}:x:\d+:(.*)$", (tmp / "etc/group").read_text(), re.M)
    if not members or "tacticd" not in members.group(1).split(","):
        raise Failed(f"the daemon's user is not made a member of {group}, so it cannot give it a socket")
    rules = str(FILES / "tacticd.tmpfiles")
    status, output = run("systemd-tmpfiles", f"--root={tmp}", "--create", rules)
    made = (tmp / "run/tacticd").stat()
    if status or output or made.st_uid != uid or made.st_mode & 0o7777 != 0o755:
        raise Failed(f"systemd-tmpfiles exits {status}: {output} {made}")


def check_ageing(tmp):
    """Rules that age all of /run leave the socket alone; without ours they would not."""
    door = tmp / "run/tacticd/lookup.sock"
    ageing = tmp / "ageing.conf"
    ageing.write_text("d /run 0755 root root 1s\n")

    def survives(*rules):
        door.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(door))
        time.sleep(1.5)
        run("systemd-tmpfiles", f"--root={tmp}", "--clean", *map(str, rules))
        return door.exists()

    check_user(tmp)
    if survives(ageing):
        raise Failed("systemd-tmpfiles ages nothing here, so nothing is proved")
    (tmp / "run/tacticd").mkdir(exist_ok=True)
    if not survives(ageing, FILES / "tacticd.tmpfiles"):
        raise Failed("an ageing rule removed the socket")


def main():
    if not shutil.which("systemd-analyze"):
        print("SKIP: systemd-analyze is not installed; the unit was not read")
        return 77
    checks = [check_unit, check_agreement]
    if os.geteuid() == 0 and shutil.which("systemd-sysusers") and shutil.which("systemd-tmpfiles"):
        checks += [check_user, check_ageing]
    else:
        print("SKIP: user and tmpfiles need root and systemd's tools; they were not tried")
    failed = 0
    for check in checks:
        with tempfile.TemporaryDirectory(prefix="systemd_verify.") as folder:
            try:
                check(Path(folder))
                print(f"ok {check.__name__}")
            except Failed as fault:
                failed += 1
                print(f"FAIL {check.__name__}: {fault}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
