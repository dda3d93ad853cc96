# SPDX-License-Identifier: Apache-2.0
"""Client: a handle of libtactic, one for each thread that asks."""
import contextlib
import ctypes
import json
import logging
import os
import threading
import weakref

import tacticd._library as c
from tacticd.answers import Error, TacticError, Wanted, answer_of
from tacticd.table import Table

TIMEOUT_MS = 200  # deadline of a call, unless set
MAX_WANT_KEYS = 512  # of one message; more are sent in several
LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING}


def _callback(log):
    """The caller's function as C calls it. Whatever it raises stays here: C has no use for it."""
    if log is None:
        return c.LOG()

    def tell(_ctx, level, sentence):
        try:
            log(LEVELS.get(level, logging.INFO), c.text(sentence))
        except Exception:  # also what a half torn down interpreter raises
            pass

    return c.LOG(tell)


def _close(library, handle, callback):
    library.tactic_close(handle)
    del callback  # C could call it until now


def _unsigned(value):
    return max(0, min(int(value or 0), 0xFFFFFFFF))


def metadata_text(metadata):
    """FlashInfer's metadata, a dict or JSON text, for C. None stays None."""
    return c.raw(metadata if metadata is None or isinstance(metadata, str) else json.dumps(metadata), "metadata")


class Client:
    """Asks the daemon. Connects at the first call that needs it, and again after the daemon was restarted.

    socket      path of the daemon's socket; default: environment TACTICD_SOCKET, else /run/tacticd/lookup.sock
    as_         ask for this worker section's environment instead of this process's own
    job         name of the job whose ranks must agree, at most 128 bytes
    rank        this process's rank in the job
    timeout_ms  deadline of each call, milliseconds; 0 = 200
    confirmed   hits that were not swept and checked count as misses
    log         log(level, sentence), called inside calls, on the calling thread, with a level of logging
    state_dir, site_dir, packaged_dir, keys_dir   where fallback_load and recipes are read; default: the installation's
    learned_first                       of fallback_load: the daemon runs with authority = learned

    Threads: one client per thread. A call that finds the client in use by another raises TacticError(IN_USE)
    at once. After fork a child may go on with it: it opens a connection of its own.
    Raises TacticError: NO_LIBRARY, ARGUMENT, PATH, MEMORY or SYSTEM here; each method says the others.
    """

    def __init__(self, socket=None, as_=None, job=None, rank=None, timeout_ms=TIMEOUT_MS, confirmed=False, log=None, *,
                 state_dir=None, site_dir=None, packaged_dir=None, keys_dir=None, learned_first=False):
        library = c.library()
        callback = _callback(log)
        options = c.Options(size=ctypes.sizeof(c.Options), socket=c.raw(socket, "socket"), job=c.raw(job, "job"),
                            timeout_ms=_unsigned(timeout_ms), log=callback, state_dir=c.raw(state_dir, "state_dir"),
                            site_dir=c.raw(site_dir, "site_dir"), packaged_dir=c.raw(packaged_dir, "packaged_dir"),
                            keys_dir=c.raw(keys_dir, "keys_dir"), rank=_unsigned(rank or 0),
                            flags=(c.CONFIRMED if confirmed else 0) | (c.LEARNED_FIRST if learned_first else 0))
        setattr(options, "as", c.raw(as_, "as_"))
        handle = ctypes.c_void_p()
        code = library.tactic_open(ctypes.byref(options), ctypes.byref(handle))
        if code:
            raise TacticError(code, c.text(library.tactic_strerror(code)))
        self.rank = rank
        self._library = library
        self._handle = handle
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close, library, handle, callback)
        self._finalizer.atexit = False  # the end of the process closes it as well

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Answers and tables stay valid. Waits for a call of another thread to end. Twice is fine."""
        with self._own_lock():
            self._finalizer()
            self._handle = None

    # --- calling ---

    def _own_lock(self):
        # In a child, whoever held the lock stayed behind in the parent.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
        return self._lock

    @contextlib.contextmanager
    def _held(self):
        """The handle, for one call. Nobody waits for another thread's."""
        lock = self._own_lock()
        if not lock.acquire(blocking=False):
            raise TacticError(Error.IN_USE, "another thread is using the client")
        try:
            if self._handle is None:
                raise TacticError(Error.ARGUMENT, "the client is closed")
            yield
        finally:
            lock.release()

    def _call(self, name, *arguments, otherwise=None):
        """Calls a function that returns an error, with the handle put first; raises what it returns, with
        `otherwise()` as the answers that came all the same."""
        with self._held():
            code = getattr(self._library, name)(self._handle, *arguments)
            sentence = c.text(self._library.tactic_last_error(self._handle)) if code else None
        if code:
            raise TacticError(code, sentence or c.text(self._library.tactic_strerror(code)),
                              otherwise() if otherwise else ())

    def timeout(self, timeout_ms):
        """Deadline of the calls that follow, milliseconds; 0 = 200."""
        with self._held():
            self._library.tactic_timeout(self._handle, _unsigned(timeout_ms))

    # --- environment: what an answer must have been measured with ---

    def fingerprint_detect(self):
        """Finds the facts that this process can tell now: CPU, the loaded oneDNN, its ISA level and threads."""
        self._call("tactic_fingerprint_detect")

    def fingerprint_set(self, fact, value):
        """States a fact over what was found; None takes the statement back, "" states that it is unknown.
        Raises ARGUMENT for a fact that does not exist, and for a value that is too long."""
        self._call("tactic_fingerprint_set", c.raw(fact, "fact"), c.raw(value, "value"))

    def fingerprint_get(self, fact):
        """The value in force, "" if unknown, None if there is no such fact."""
        with self._held():
            return c.text(self._library.tactic_fingerprint_get(self._handle, c.raw(fact, "fact")))

    def fingerprint_flashinfer(self, metadata):
        """States the facts that the metadata of a FlashInfer cache says: a dict as _collect_metadata returns
        it, or JSON text. What it does not know is not stated."""
        self._call("tactic_fingerprint_flashinfer", metadata_text(metadata))

    # --- asking ---

    def lookup(self, key):
        """The answer for one problem, op,dim=value,...: an Answer of any kind.
        Raises ABSENT, DENIED, TIMEOUT, LOST, PROTOCOL, REFUSED, IN_USE, MEMORY or SYSTEM."""
        return self.lookup_many([key])[0]

    def lookup_many(self, keys):
        """Answers for at most 65536 problems, in their order, under one deadline. Raises as lookup does; the
        error's `answers` are those that came."""
        keys = [c.raw(key, "key") for key in keys]
        asked = (ctypes.c_char_p * len(keys))(*keys)
        told = (ctypes.POINTER(c.Answer) * len(keys))()

        def came():
            return [answer_of(pointer) if pointer else None for pointer in told]

        self._call("tactic_lookup_many", asked, len(keys), told, otherwise=came)
        return came()

    def table(self, recipe, layout=None, wait_ms=0):
        """All answers of a recipe for a layout (None = its first) as a Table. The daemon may hold it back for
        `wait_ms` until all problems are answered; the deadline is that much later.
        Raises as lookup does, and NOT_FOUND, DIGEST or TABLE."""
        out = ctypes.c_void_p()
        self._call("tactic_table", c.raw(recipe, "recipe"), c.raw(layout, "layout"), _unsigned(wait_ms),
                   ctypes.byref(out))
        return Table(self._library, out)

    def want(self, recipe=None, layout=None, keys=None):
        """Has the daemon sweep what it does not know of a recipe, or of some problems; returns as soon as they
        are queued, what became of them as Wanted. More than 512 problems take several messages, each with a
        deadline of its own. Raises as lookup does, and NOT_FOUND."""
        keys = [c.raw(key, "key") for key in keys or ()]
        total = [0, 0, 0, 0]
        for at in range(0, max(len(keys), 1), MAX_WANT_KEYS):
            some = keys[at:at + MAX_WANT_KEYS]
            told = c.Wanted()
            self._call("tactic_want", c.raw(recipe, "recipe"), c.raw(layout, "layout"),
                       (ctypes.c_char_p * len(some))(*some), len(some), ctypes.byref(told))
            total = [t + getattr(told, name) for t, name in zip(total, Wanted._fields)]
        return Wanted(*total)

    def fallback_load(self):
        """Reads the tables on disk, so that lookups are answered from them while the daemon is away. Blocks on
        the disk without a deadline."""
        self._call("tactic_fallback_load")

    # --- recipes of this machine ---

    def recipe_problems(self, recipe, layout=None):
        """Keys of a layout's problems (None = the first), every bucket of the ladder one, from this machine's
        folders of recipes; the daemon may know others. Raises NOT_FOUND or REFUSED."""
        out = ctypes.c_void_p()
        self._call("tactic_recipe_problems", c.raw(recipe, "recipe"), c.raw(layout, "layout"), ctypes.byref(out))
        return c.text(c.take(out)).splitlines()

    def flashinfer_problem(self, file_key, recipe=None, layout=None):
        """The problem that a key of FlashInfer's cache stands for. What the key leaves out comes from a layout
        of a recipe. Raises NOT_FOUND if no op stands for the operation or there is no such recipe or layout,
        REFUSED if the key is none or the layout has no such problem."""
        out = ctypes.create_string_buffer(c.KEY_BYTES)
        self._call("tactic_flashinfer_problem", c.raw(recipe, "recipe"), c.raw(layout, "layout"),
                   c.raw(file_key, "file_key"), out, len(out))
        return c.text(out.value)
