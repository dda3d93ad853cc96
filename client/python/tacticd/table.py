# SPDX-License-Identifier: Apache-2.0
"""Table: all answers of a recipe in the process. Immutable, from any thread, without the daemon."""
import ctypes
import json
import weakref
from typing import NamedTuple, Optional

import tacticd._library as c
from tacticd.answers import Kind, TacticError, answer_of


class Row(NamedTuple):
    """One problem at one bucket."""

    kind: Kind
    tactic: Optional[str]  # JSON; None unless a hit
    index: Optional[int]  # from 0, each row of the table another; None of a miss


NO_ROW = Row(Kind.MISS, None, None)


class Problem:
    """A problem of a table, all its buckets. Holds its table."""

    def __init__(self, table, pointer):
        self._table, self._pointer = table, pointer

    def at(self, tokens):
        """The row for a number of tokens; of kind MISS where they have no bucket. Never raises for an int."""
        if not 0 <= tokens < 2**64:
            return NO_ROW
        return self._table._row(self._table._library.tactic_problem_at(self._pointer, tokens))


class Table:
    """Made by Client.table, or by Table.read from another's text. Freed with the object.

    digest    BLAKE2b-256 of the text, 64 hex digits
    covered   problems answered
    total     problems of the recipe; equal to covered of a table that was only read
    warning   what is to be known of a table that is valid here: in what this rank's environment differs from
              that of the job's first, and that imported tables dispute answers; in words, "" if nothing
    """

    def __init__(self, library, pointer):
        self._library, self._pointer = library, pointer
        self._finalizer = weakref.finalize(self, library.tactic_table_free, pointer)
        self._finalizer.atexit = False
        self._rows = {}
        covered, total = ctypes.c_uint64(), ctypes.c_uint64()
        library.tactic_table_coverage(pointer, ctypes.byref(covered), ctypes.byref(total))
        self.covered, self.total = covered.value, total.value
        self.digest = c.text(library.tactic_table_digest(pointer))
        self.warning = c.text(library.tactic_table_warning(pointer))

    @classmethod
    def read(cls, text, digest=None):
        """The table of another's text (bytes). With `digest` its bytes are compared first.
        Raises DIGEST, TABLE, ARGUMENT or MEMORY."""
        library, out = c.library(), ctypes.c_void_p()
        code = library.tactic_table_read(text, len(text), c.raw(digest, "digest"), ctypes.byref(out))
        if code:
            raise TacticError(code, c.text(library.tactic_strerror(code)))
        return cls(library, out)

    def __len__(self):
        """How many rows there are."""
        return self._library.tactic_table_rows(self._pointer)

    @property
    def text(self):
        """The snapshot itself, a table file (tables/README.md); bytes, a copy."""
        length = ctypes.c_size_t()
        return ctypes.string_at(self._library.tactic_table_text(self._pointer, ctypes.byref(length)), length.value)

    @property
    def header(self):
        """The text's header: model, layout, fingerprint, ladder and method, as JSON has them."""
        return json.loads(self.text)["header"]

    def keys(self):
        """Keys of all rows, in the text's order."""
        return [entry["key"] for entry in json.loads(self.text)["entries"]]

    # --- rows ---

    def _row(self, pointer):
        row = pointer.contents
        if row.index == c.MISS_INDEX:
            return NO_ROW
        known = self._rows.get(row.index)
        if known is None:
            known = self._rows[row.index] = Row(Kind(row.kind), c.text(row.tactic), row.index)
        return known

    def problem(self, key):
        """Finds a problem once, by a key whose tokens may be any number or *. None if the table has none."""
        pointer = self._library.tactic_table_problem(self._pointer, c.raw(key, "key"))
        return Problem(self, pointer) if pointer else None

    def find(self, key, tokens):
        """The row for a key and a number of tokens, parsing the key each time."""
        problem = self.problem(key)
        return problem.at(tokens) if problem else NO_ROW

    def answer(self, row):
        """Everything that the table knows about a row, as an Answer. Raises NOT_FOUND for a miss."""
        out = ctypes.POINTER(c.Answer)()
        index = c.MISS_INDEX if row.index is None else row.index
        asked = c.Row(tactic=None, kind=int(row.kind), index=index)
        code = self._library.tactic_table_answer(self._pointer, ctypes.byref(asked), ctypes.byref(out))
        if code:
            raise TacticError(code, c.text(self._library.tactic_strerror(code)))
        return answer_of(out)

    # --- FlashInfer ---

    def _flashinfer(self, name, metadata, *rest):
        from tacticd.client import metadata_text  # it needs this module

        sentence = ctypes.create_string_buffer(c.SENTENCE_BYTES)
        code = getattr(self._library, name)(self._pointer, metadata_text(metadata), *rest, sentence)
        if code:
            words = c.text(sentence.value) or c.text(self._library.tactic_strerror(code))
            raise TacticError(code, words)

    def flashinfer(self, metadata=None):
        """Text (bytes) of the cache file that FlashInfer's load_configs takes in the environment of `metadata`,
        a dict as its _collect_metadata returns it; None = as the table was imported.
        Raises NOT_FOUND if the table answers no operation of FlashInfer; ARGUMENT, MEMORY."""
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        self._flashinfer("tactic_table_flashinfer", metadata, ctypes.byref(out), ctypes.byref(length))
        return c.take(out, length.value)

    def flashinfer_save(self, path, metadata=None):
        """Writes that file; at any instant the old or the new one stands there, whole. Raises also SYSTEM."""
        self._flashinfer("tactic_table_flashinfer_save", metadata, c.raw(path, "path"))

    def flashinfer_store(self, root, metadata=None):
        """Writes a v2 store below `root`, as autotune_v2(cache_root=root) reads it. Entries that are there are
        replaced one by one, others stay. Raises also SYSTEM."""
        self._flashinfer("tactic_table_flashinfer_store", metadata, c.raw(root, "root"))
