# SPDX-License-Identifier: Apache-2.0
"""What comes back: answers with their evidence, and the one exception. Plain values: they belong to nobody,
outlive the client they came from, and may be read from any thread."""
import enum
import math
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Tuple

import tacticd._library as c


class Error(enum.IntEnum):
    """Codes of a TacticError: enum tactic_error of tactic.h, and NO_LIBRARY."""

    NO_LIBRARY = -1  # libtactic cannot be loaded
    ABSENT = 1  # no daemon: no socket, or nobody listens on it
    DENIED = 2  # this user may not use the socket
    TIMEOUT = 3  # the daemon did not answer within the deadline
    LOST = 4  # the daemon hung up before it answered
    PROTOCOL = 5  # whoever listens there does not speak as the daemon does
    UNSUPPORTED = 6  # the daemon does not do that
    NOT_FOUND = 7  # no such recipe, layout or worker section
    REFUSED = 8  # the daemon refuses; the sentence has its words
    ARGUMENT = 9  # an argument is None, empty, too long or unknown
    PATH = 10  # the socket's path is too long
    DIGEST = 11  # a table's bytes are not those its digest names
    TABLE = 12  # a table's text cannot be read
    IN_USE = 13  # another thread is using the client
    MEMORY = 14  # memory ran out
    SYSTEM = 15  # the system refuses: descriptors, most likely


class TacticError(Exception):
    """Whatever failed. `code` is an Error (a plain int if a newer libtactic has one that is not known here),
    `sentence` says it in words, `answers` are those of a lookup_many that came all the same, None for the
    others."""

    def __init__(self, code, sentence, answers=()):
        super().__init__(sentence)
        try:
            self.code = Error(code)
        except ValueError:
            self.code = int(code)
        self.sentence = sentence
        self.answers = list(answers)

    def __reduce__(self):  # between processes too
        return type(self), (int(self.code), self.sentence, self.answers)


class Kind(enum.IntEnum):
    """Of an answer."""

    HIT = 1  # run this tactic
    DEFAULT = 2  # measured: nothing beats the library's own pick beyond noise
    MISS = 3  # not known here


class Wanted(NamedTuple):
    """What became of a wish, in problems."""

    total: int  # meant
    known: int  # answered already
    queued: int  # waiting for a sweep now, or being swept
    refused: int  # not sweepable here


@dataclass(frozen=True)
class Evidence:
    """What an answer rests on. None = not measured or not known. Times in microseconds."""

    device_us: Optional[float]  # 25th percentiles of the tactic
    host_us: Optional[float]
    native_device_us: Optional[float]  # of the library's own pick, in the same rounds
    native_host_us: Optional[float]
    gain: Optional[float]  # native's time over the tactic's, minus 1
    gain_se: Optional[float]  # in log time, as are the next two
    spread: Optional[float]
    aa_gap: Optional[float]
    max_error: Optional[float]  # against a float64 reference
    error_limit: Optional[float]
    rounds: Optional[int]
    candidates: Optional[int]
    workspace_bytes: int  # scratch memory the tactic needs
    repeatable: Optional[bool]  # two runs gave equal bytes
    kernel: Optional[str]  # as the library reports it
    prewarm: Optional[str]  # JSON: what to load or compile before first use
    space_digest: Optional[str]  # of the candidates that were raced
    sweep: Optional[str]
    date: Optional[str]
    note: Optional[str]
    ties: Tuple[str, ...]  # names within noise of the tactic


@dataclass(frozen=True)
class Answer:
    """One problem's answer."""

    kind: Kind
    from_daemon: bool  # False: from the tables on disk, or from a table
    generation: int  # of the daemon's store when it answered
    key: Optional[str]  # the problem at its bucket, canonical; as asked if it was not understood
    tactic: Optional[str]  # JSON; None unless a hit
    name: Optional[str]  # in words
    family: Optional[str]  # tile or engine that it shares with others
    state: Optional[str]  # confirmed, noisy or imported; None of a miss
    sentence: str  # the answer in words
    layer: Optional[str]  # where it stands: pinned, site, learned or packaged
    file: Optional[str]
    line: int
    reason: Optional[str]  # of a miss: a word of libtactic(3)
    next: Optional[str]  # of a miss: what happens now
    command: Optional[str]  # of a miss: the command that cures it
    eta_s: Optional[int]  # of a miss: seconds until it is swept
    evidence: Evidence = field(repr=False)


# --- out of C ---


def _of(record, names):
    """Members of a C record as Python has them: text, and None for what was not measured."""
    out = {}
    for name in names:
        value = getattr(record, name)
        if isinstance(value, bytes):
            value = c.text(value)
        elif isinstance(value, float) and math.isnan(value):
            value = None
        out[name] = value
    return out


def _evidence(e):
    plain = _of(e, [name for name, _ in e._fields_ if name not in ("ties", "n_ties", "repeatable")])
    plain["rounds"] = plain["rounds"] or None
    plain["candidates"] = plain["candidates"] or None
    return Evidence(repeatable=None if e.repeatable < 0 else bool(e.repeatable),
                    ties=tuple(c.text(e.ties[i]) for i in range(e.n_ties)), **plain)


def answer_of(pointer):
    """Copies a struct tactic_answer, and frees it."""
    try:
        a = pointer.contents
        plain = _of(a, [name for name, _ in a._fields_ if name not in ("kind", "from_daemon", "evidence", "eta_s")])
        return Answer(kind=Kind(a.kind), from_daemon=bool(a.from_daemon), eta_s=a.eta_s or None,
                      evidence=_evidence(a.evidence), **plain)
    finally:
        c.library().tactic_answer_free(pointer)
