# SPDX-License-Identifier: Apache-2.0
"""What a machine with a GPU has: card, driver, libraries. Knows nothing of tacticd.

Libraries are those that PyTorch has loaded, by the paths that this process of it shows, and the system's by the
loader's cache: two cuDNNs on one machine are the usual case.
"""
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

# Said by a process of its own: PyTorch's memory on the card must not stay.
LOADED = """
import json, torch
torch.zeros(8, 8, device="cuda", dtype=torch.bfloat16) @ torch.zeros(8, 8, device="cuda", dtype=torch.bfloat16)
torch.nn.functional.conv2d(torch.zeros(1, 8, 8, 8, device="cuda"), torch.zeros(8, 8, 3, 3, device="cuda"))
torch.cuda.synchronize()
paths = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                  "paths": sorted(paths)}))
"""


class Lacking(Exception):
    """The machine has not got it; the words say what."""


def said(*command, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Lacking(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def card():
    """The first card: its name, UUID, driver, memory in MiB and power limit in W."""
    fields = ("name", "uuid", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
    try:
        row = said("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits").splitlines()[0]
    except (OSError, IndexError) as e:
        raise Lacking(f"no NVIDIA GPU: {e}") from e
    return dict(zip(fields, (value.strip() for value in row.split(","))))


def memory_mib(uuid):
    """What is taken of the card's memory, and the processes on it."""
    used = said("nvidia-smi", "-i", uuid, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    pids = said("nvidia-smi", "-i", uuid, "--query-compute-apps=pid", "--format=csv,noheader")
    return int(used), sorted(int(pid) for pid in re.findall(r"\d+", pids))


def torch_libraries():
    """{"torch", "cuda", "cudnn": versions; "libcudnn", "libcublasLt": paths; "folders": where they are}"""
    try:
        told = json.loads(said(sys.executable, "-c", LOADED, timeout=300).splitlines()[-1])
    except (Lacking, IndexError, ValueError) as e:
        raise Lacking(f"no PyTorch that can use the card: {e}") from e
    paths = told.pop("paths")
    for name in ("libcudnn", "libcublasLt"):
        found = [path for path in paths if re.search(rf"/{name}\.so", path)]
        if not found:
            raise Lacking(f"PyTorch has not loaded {name}")
        told[name] = found[0]
    wanted = ("libcudnn", "libcublasLt", "libcublas", "libcudart", "libnvrtc")
    told["folders"] = sorted({os.path.dirname(path) for path in paths if os.path.basename(path).startswith(wanted)})
    return told


def system_library(name):
    """Path of a library in the loader's cache, or None."""
    try:
        lines = said("ldconfig", "-p").splitlines()
    except (Lacking, OSError):
        return None
    found = [line.split("=>")[1].strip() for line in lines if re.match(rf"\s*{re.escape(name)}\.\d+ ", line)]
    return os.path.realpath(found[0]) if found else None


def facts(is_dry, bundle):
    """What stands in each result."""
    known = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
             "machine": f"{os.cpu_count()} CPUs, {platform.system()} {platform.release()}, {platform.libc_ver()[1]}",
             "python": platform.python_version(), "commit": (pathlib.Path(bundle) / "commit").read_text().split("\n")[0]
             if (pathlib.Path(bundle) / "commit").is_file() else "a build folder"}
    return {**known, "card": {"name": "none: a dry run"}} if is_dry else {**known, "card": card()}
