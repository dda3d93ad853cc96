# SPDX-License-Identifier: Apache-2.0
"""What Python believes of tactic.h, put to the compiler; and of the exported functions, put to the map."""
import ctypes
import re
import subprocess
import tempfile
import unittest

import common

import tacticd
from tacticd import _library

# Exported and not used here, and what is used in their place.
UNUSED = {"tactic_lookup": "tactic_lookup_many", "tactic_table_find": "tactic_problem_at", "tactic_lease": None}


class Abi(unittest.TestCase):
    def assertions(self):
        for name, record in _library.RECORDS.items():
            yield f"sizeof(struct {name}) == {ctypes.sizeof(record)}"
            for field, _ in record._fields_:
                at = getattr(record, field)
                yield f"offsetof(struct {name}, {field}) == {at.offset}"
                yield f"sizeof(((struct {name} *)0)->{field}) == {at.size}"
        for error in tacticd.Error:
            if error.value > 0:
                yield f"TACTIC_E_{error.name} == {error.value}"
        for kind in tacticd.Kind:
            yield f"TACTIC_{kind.name} == {kind.value}"
        yield f"TACTIC_API == {_library.API}"
        yield f"TACTIC_TIMEOUT_MS == {tacticd.TIMEOUT_MS}"
        yield f"TACTIC_SENTENCE_BYTES == {_library.SENTENCE_BYTES}"
        yield f"TACTIC_CONFIRMED == {_library.CONFIRMED} && TACTIC_LEARNED_FIRST == {_library.LEARNED_FIRST}"

    def compile(self, assertions):
        with tempfile.TemporaryDirectory() as folder:
            source = folder + "/abi.c"
            with open(source, "w", encoding="utf-8") as file:
                file.write('#include "client/tactic.h"\n')
                file.writelines(f'_Static_assert({a}, "{a}");\n' for a in assertions)
            return subprocess.run([*common.CC.split(), "-std=c11", f"-I{common.ROOT}", "-fsyntax-only", source],
                                  capture_output=True, text=True, check=False)

    def test_records_and_numbers(self):
        done = self.compile(self.assertions())
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_wrong_number_is_noticed(self):
        done = self.compile([*self.assertions(), "TACTIC_HIT == 7"])
        self.assertIn("TACTIC_HIT == 7", done.stderr)

    def test_no_error_is_missing(self):
        header = (common.ROOT / "client/tactic.h").read_text()
        names = set(re.findall(r"^    TACTIC_E_(\w+)", header, re.M))
        self.assertEqual(names, {e.name for e in tacticd.Error if e.value > 0})
        known = {f for r in _library.RECORDS.values() for f, _ in r._fields_}
        for record in _library.RECORDS:
            body = re.search(rf"^struct {record} \{{\n(.*?)^\}};", header, re.M | re.S).group(1)
            body = re.sub(r"//.*", "", body).replace("(*log)(void *ctx, enum tactic_log_level level, const char *sentence)", "log")
            for names in re.findall(r"[^;]+;", body):
                for name in re.findall(r"(\w+)\s*[,;]", names):
                    self.assertIn(name, known, record)

    def test_every_exported_function_is_used_or_named(self):
        exported = set(re.findall(r"^    (tactic_\w+);", (common.ROOT / "client/tactic.map").read_text(), re.M))
        self.assertEqual(set(_library.FUNCTIONS) | set(UNUSED), exported)
        self.assertFalse(set(_library.FUNCTIONS) & set(UNUSED))
