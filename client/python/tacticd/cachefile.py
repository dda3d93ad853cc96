# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's v1 cache file, as save_configs and load_configs of 0.6.16 and 0.7.x treat one: which environments it
holds for, what of a file that is there stays, and how it is written. No FlashInfer is needed."""
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import stat
import tempfile

from tacticd.agree import Refusal

MAX_FILE_BYTES = 64 << 20  # of a file of the caller that is read
# Members of a cache file that are no entries start with an underscore.
METADATA, RECORDS, GENERATION = "_metadata", "_records", "_generation"
INDETERMINATE = (None, "unknown", "None")  # values by which a writer says that it could not tell


def differing(saved, current):
    """Fields in which a file's metadata keeps FlashInfer of the environment `current` from taking it, as
    (those with definite values, those that the writer could not tell), each {field: (saved, current)}."""
    saved = saved if isinstance(saved, dict) else {}
    hard, soft = {}, {}
    for field, here in current.items():
        there = saved.get(field)
        if there != here and there != "*":
            (soft if there in INDETERMINATE else hard)[field] = (there, here)
    return hard, soft


def words(fields):
    return ", ".join(f"{field} is {there} there, {here} here" for field, (there, here) in sorted(fields.items()))


def entries(text):
    return {key: value for key, value in json.loads(text).items() if not key.startswith("_")}


def parsed(path):
    """A file that is there as JSON, None if it is none of a dict. Raises OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            held = json.load(file)
    except (ValueError, RecursionError):
        return None
    return held if isinstance(held, dict) else None


def read_file(path):
    """A cache file that is there, parsed; None if there is none or an empty one. Raises Refusal."""
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        raise Refusal(f"{path} is no file")
    if facts.st_size > MAX_FILE_BYTES:
        raise Refusal(f"{path} is longer than {MAX_FILE_BYTES >> 20} MiB")
    if facts.st_size == 0:
        return None
    held = parsed(path)
    if held is None:
        raise Refusal(f"{path} is no cache file of FlashInfer; remove it, or say overwrite=True")
    return held


def held_keys(path, found):
    """Keys of the entries that FlashInfer would take of a cache file that is there, none where there is none.
    Raises Refusal."""
    held = read_file(path) or {}
    if METADATA in held and differing(held[METADATA], found) != ({}, {}):
        return []
    return [key for key in held if not key.startswith("_")]


def remove(path, keys):
    """Takes entries out of a cache file."""
    held = read_file(path) or {}
    keys = set(keys)
    write(path, dumped({key: value for key, value in held.items() if key not in keys}))


def store_entries(root, found):
    """{key: path of its file} of the v2 stores below `root` that hold for the environment `found`. What is no
    entry is left out: FlashInfer does not read it either."""
    files = {}
    for manifest in pathlib.Path(root).glob("v2/*/manifest.json"):
        fields = parsed(manifest)
        if not fields or differing(fields, found)[0]:
            continue
        for path in manifest.parent.glob("entries/*.json"):
            entry = parsed(path)
            if entry and isinstance(entry.get("key"), str):
                files[entry["key"]] = path
    return files


def merged(path, text, found):
    """What to write: the table's file, and those of the caller's entries that FlashInfer itself would keep."""
    held = read_file(path)
    if held is None:
        return text
    hard, soft = differing(held[METADATA], found) if METADATA in held else ({}, {})
    if hard:
        raise Refusal(f"{path} is of another environment ({words(hard)}) and stays; use another path, remove it, "
                      f"or say overwrite=True")
    ours = json.loads(text)
    if soft or held.keys() <= ours.keys() - {RECORDS}:
        return text
    return joined(held, ours)


def joined(held, ours):
    """Both files' members; the table's own come first where both have one."""
    out = {**held, **ours}
    if RECORDS in held or RECORDS in ours:
        out[RECORDS] = {**(held.get(RECORDS) or {}), **(ours.get(RECORDS) or {})}
    return dumped(out)


def dumped(members):
    """A file's members as FlashInfer orders and counts them."""
    out = {name: members[name] for name in (METADATA, RECORDS) if name in members}
    out.update((key, members[key]) for key in sorted(members) if not key.startswith("_"))
    if GENERATION in members:
        compact = json.dumps(out, sort_keys=True, separators=(",", ":"))
        out[GENERATION] = hashlib.sha256(compact.encode()).hexdigest()
    return json.dumps(out, indent=2).encode()


def write(path, text):
    """At any instant the old or the new file stands there."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    number, temporary = tempfile.mkstemp(dir=folder, prefix=".tacticd-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
