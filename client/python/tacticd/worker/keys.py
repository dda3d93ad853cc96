# SPDX-License-Identifier: Apache-2.0
"""The canonical text of a problem: op,dim=value,... with every dimension of the op, as proto/key.c reads it. The ops
stand in _lines.py, which is made from the daemon's own lists."""
from tacticd.worker._lines import BOUNDS, OPS

SIZE_DIGITS = 13  # of the greatest value of a dimension


class BadKey(ValueError):
    """A text that names no problem; `field` says where, or is empty."""

    def __init__(self, field, sentence):
        super().__init__(f"{field}: {sentence}" if field else sentence)


class Key:
    """A problem: its op, and by name its dimensions, words as str and sizes as int; of a blank key the tokens are
    None. str() is the canonical text."""

    def __init__(self, op, dims):
        self.op, self.dims = op, dims

    def __getitem__(self, dim):
        return self.dims[dim]

    def __eq__(self, other):
        return isinstance(other, Key) and (self.op, self.dims) == (other.op, other.dims)

    def __hash__(self):
        return hash(str(self))

    def __str__(self):
        return ",".join([self.op, *(f"{name}={'*' if self.dims[name] is None else self.dims[name]}"
                                    for name, _, _ in OPS[self.op][0])])

    @property
    def backend(self):
        return self.dims["backend"]

    @property
    def tokens(self):
        """The value of the ladder's dimension; None if the key is blank."""
        return self.dims[next(name for name, kind, _ in OPS[self.op][0] if kind == "tokens")]


def _size(name, text, least):
    if not 0 < len(text) <= SIZE_DIGITS or (len(text) > 1 and text[0] == "0"):
        raise BadKey(name, "must be a decimal number without leading zeros, at most 2^40")
    if not all(c in "0123456789" for c in text):
        raise BadKey(name, "must be a decimal number")
    if not least <= int(text) <= BOUNDS["dimension"]:
        raise BadKey(name, f"must be from {least} to 2^40")
    return int(text)


def _value(name, kind, rule, text):
    if kind == "tokens" and text == "*":
        return None
    if kind != "word":
        return _size(name, text, rule)
    if text not in rule.split(" "):
        raise BadKey(name, f"must be one of: {rule}; not '{text[:40]}'")
    return text


def parse(text):
    """The problem of a text, its dimensions in any order. Raises BadKey."""
    if not text:
        raise BadKey("", "the key is empty")
    if len(text.encode("utf-8", "replace")) > BOUNDS["key_bytes"]:
        raise BadKey("", f"the key is longer than {BOUNDS['key_bytes']} bytes")
    op, _, rest = text.partition(",")
    if op not in OPS:
        raise BadKey("op", f"'{op[:40]}' is not an op")
    dims, backends = OPS[op]
    known = {name: (kind, rule) for name, kind, rule in dims}
    out = {}
    while rest:
        part, comma, rest = rest.partition(",")
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            raise BadKey(op, f"has no dimension '{part[:40]}'")
        if name in out:
            raise BadKey(name, "stands twice")
        out[name] = _value(name, *known[name], value)
        if comma and not rest:
            raise BadKey(op, "ends with a comma")
    for name in known:
        if name not in out:
            raise BadKey(name, "is missing")
    if out["backend"] not in backends:
        raise BadKey("backend", "is not declared for this op")
    return Key(op, {name: out[name] for name in known})
