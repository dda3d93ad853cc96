# SPDX-License-Identifier: Apache-2.0
"""libtactic as ctypes sees it: tactic.h's records and functions, and where the library is. A test compares
the records with the header."""
import ctypes
import ctypes.util
import os
import threading
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int, c_size_t, c_uint, c_uint32, c_uint64,
                    c_void_p)

API = 1  # TACTIC_API
SONAME = "libtactic.so.1"
SENTENCE_BYTES = 256  # TACTIC_SENTENCE_BYTES
KEY_BYTES = 1024  # more than any canonical key has

CONFIRMED, LEARNED_FIRST = 1, 2  # flags of the options
MISS_INDEX = 0xFFFFFFFF  # index of a row that is a miss

LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class Options(Structure):
    """struct tactic_options"""

    _fields_ = [("size", c_size_t), ("socket", c_char_p), ("as", c_char_p), ("job", c_char_p), ("timeout_ms", c_uint),
                ("flags", c_uint), ("log", LOG), ("log_ctx", c_void_p), ("state_dir", c_char_p), ("site_dir", c_char_p),
                ("packaged_dir", c_char_p), ("keys_dir", c_char_p), ("rank", c_uint)]


class Evidence(Structure):
    """struct tactic_evidence"""

    _fields_ = [("device_us", c_double), ("host_us", c_double), ("native_device_us", c_double),
                ("native_host_us", c_double), ("gain", c_double), ("gain_se", c_double), ("spread", c_double),
                ("aa_gap", c_double), ("max_error", c_double), ("error_limit", c_double), ("rounds", c_uint64),
                ("candidates", c_uint64), ("workspace_bytes", c_uint64), ("repeatable", c_int), ("kernel", c_char_p),
                ("prewarm", c_char_p), ("space_digest", c_char_p), ("sweep", c_char_p), ("date", c_char_p),
                ("note", c_char_p), ("ties", POINTER(c_char_p)), ("n_ties", c_size_t)]


class Answer(Structure):
    """struct tactic_answer"""

    _fields_ = [("kind", c_int), ("from_daemon", c_int), ("generation", c_uint64), ("key", c_char_p),
                ("tactic", c_char_p), ("name", c_char_p), ("family", c_char_p), ("state", c_char_p),
                ("sentence", c_char_p), ("layer", c_char_p), ("file", c_char_p), ("line", c_uint64),
                ("reason", c_char_p), ("next", c_char_p), ("command", c_char_p), ("eta_s", c_uint64),
                ("evidence", Evidence)]


class Row(Structure):
    """struct tactic_row"""

    _fields_ = [("tactic", c_char_p), ("kind", c_uint32), ("index", c_uint32)]


class Wanted(Structure):
    """struct tactic_wanted"""

    _fields_ = [("total", c_uint64), ("known", c_uint64), ("queued", c_uint64), ("refused", c_uint64)]


RECORDS = {"tactic_options": Options, "tactic_evidence": Evidence, "tactic_answer": Answer, "tactic_row": Row,
           "tactic_wanted": Wanted}

_answers = POINTER(POINTER(Answer))
_keys = POINTER(c_char_p)
_handles = POINTER(c_void_p)  # where a handle or a table is put
FUNCTIONS = {
    "tactic_open": (c_int, [POINTER(Options), _handles]),
    "tactic_close": (None, [c_void_p]),
    "tactic_timeout": (None, [c_void_p, c_uint]),
    "tactic_last_error": (c_char_p, [c_void_p]),
    "tactic_strerror": (c_char_p, [c_int]),
    "tactic_fingerprint_detect": (c_int, [c_void_p]),
    "tactic_fingerprint_set": (c_int, [c_void_p, c_char_p, c_char_p]),
    "tactic_fingerprint_get": (c_char_p, [c_void_p, c_char_p]),
    "tactic_fingerprint_flashinfer": (c_int, [c_void_p, c_char_p]),
    "tactic_lookup_many": (c_int, [c_void_p, _keys, c_size_t, _answers]),
    "tactic_answer_free": (None, [POINTER(Answer)]),
    "tactic_table": (c_int, [c_void_p, c_char_p, c_char_p, c_uint, _handles]),
    "tactic_table_read": (c_int, [c_char_p, c_size_t, c_char_p, _handles]),
    "tactic_table_free": (None, [c_void_p]),
    "tactic_table_digest": (c_char_p, [c_void_p]),
    "tactic_table_text": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "tactic_table_warning": (c_char_p, [c_void_p]),
    "tactic_table_coverage": (None, [c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
    "tactic_table_rows": (c_uint32, [c_void_p]),
    "tactic_table_problem": (c_void_p, [c_void_p, c_char_p]),
    "tactic_problem_at": (POINTER(Row), [c_void_p, c_uint64]),
    "tactic_table_answer": (c_int, [c_void_p, POINTER(Row), _answers]),
    "tactic_table_flashinfer": (c_int, [c_void_p, c_char_p, _handles, POINTER(c_size_t), POINTER(c_char)]),
    "tactic_table_flashinfer_save": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_char)]),
    "tactic_table_flashinfer_store": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_char)]),
    "tactic_flashinfer_problem": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, POINTER(c_char), c_size_t]),
    "tactic_recipe_problems": (c_int, [c_void_p, c_char_p, c_char_p, _handles]),
    "tactic_want": (c_int, [c_void_p, c_char_p, c_char_p, _keys, c_size_t, POINTER(Wanted)]),
    "tactic_fallback_load": (c_int, [c_void_p]),
}

_lock = threading.Lock()
_loaded = None


def _load():
    """The library with all functions declared. Raises OSError or AttributeError."""
    path = os.environ.get("TACTICD_LIBRARY")
    if path:
        lib = ctypes.CDLL(path)
    else:
        try:
            lib = ctypes.CDLL(SONAME)  # no child process, as find_library would start
        except OSError:
            found = ctypes.util.find_library("tactic")
            if not found:
                raise
            lib = ctypes.CDLL(found)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def library():
    """libtactic. Raises TacticError(NO_LIBRARY), also if it is older than this package."""
    global _loaded
    if _loaded is None:
        from tacticd.answers import Error, TacticError  # they need this module

        with _lock:
            try:
                _loaded = _loaded or _load()
            except (OSError, AttributeError) as e:
                raise TacticError(Error.NO_LIBRARY, f"libtactic cannot be loaded: {e}; install it, or name its "
                                                    f"file in TACTICD_LIBRARY") from e
    return _loaded


def text(raw):
    """A C string in Python; NULL is None."""
    return None if raw is None else raw.decode("utf-8", "replace")


def raw(value, name="argument"):
    """A Python string or path for C; None is NULL. Raises TacticError(ARGUMENT) for a NUL in it."""
    if value is None:
        return None
    out = os.fsencode(value)
    if b"\0" in out:
        from tacticd.answers import Error, TacticError

        raise TacticError(Error.ARGUMENT, f"{name}: a NUL in the text")
    return out


def take(pointer, length=None):
    """Copies a text that C allocated, and frees it. `pointer` is a c_void_p."""
    try:
        return ctypes.string_at(pointer.value) if length is None else ctypes.string_at(pointer.value, length)
    finally:
        _libc_free(pointer)


_libc_free = ctypes.CDLL(None).free
_libc_free.restype, _libc_free.argtypes = None, [c_void_p]
