# SPDX-License-Identifier: Apache-2.0
"""The lines between daemon and worker: one JSON object each, whose first field "say" names its record. Nothing else
of the worker spells JSON. Records and bounds stand in _lines.py, which is made from the daemon's own lists; what is
refused, and in which words, is as proto/record.c has it."""
import json
import math

from tacticd.worker._lines import BOUNDS, LINES, RECORDS

NUMBER_MAX_BYTES = 63  # of one number's text
BEHIND = {"integers": "integer", "numbers": "number", "strings": "string"}  # what such a list holds


class Malformed(ValueError):
    """A line that cannot be read; `field` may be empty."""

    def __init__(self, field, sentence):
        super().__init__(f"{field}: {sentence}" if field else sentence)
        self.field, self.sentence = field, sentence


class Unsayable(ValueError):
    """A value of our own that a line cannot hold."""


# --- reading ---


def _number(text):
    if len(text) > NUMBER_MAX_BYTES:
        raise Malformed("", "a number longer than 63 characters")
    return float(text)


def _constant(text):
    raise Malformed("", f"not JSON: {text}")


class _Object(list):
    """The fields of an object as they stood there: a name may stand twice."""


def _measure(tree):
    """Refuses what is nested too deep, or too much, or holds text that is none."""
    todo, values = [(tree, 1)], 0
    while todo:
        value, depth = todo.pop()
        values += 1
        if values > BOUNDS["values"]:
            raise Malformed("", f"more than {BOUNDS['values']} values")
        if isinstance(value, str):
            _text(value)
        if not isinstance(value, list):
            continue
        if depth > BOUNDS["depth"]:
            raise Malformed("", f"nested deeper than {BOUNDS['depth']}")
        if isinstance(value, _Object):
            for name, _ in value:
                _text(name)
        todo += [(v[1] if isinstance(value, _Object) else v, depth + 1) for v in value]


def _text(text):
    if "\0" in text:
        raise Malformed("", "\\u0000 inside a string")
    if any("\ud800" <= c < "\ue000" for c in text):
        raise Malformed("", "half of a surrogate pair")


def _parse(data):
    try:
        tree = json.loads(data.decode("utf-8"), parse_int=_number, parse_float=_number, parse_constant=_constant,
                          object_pairs_hook=_Object)
    except Malformed:
        raise
    except UnicodeDecodeError as e:
        raise Malformed("", f"column {e.start + 1}: not UTF-8") from e
    except json.JSONDecodeError as e:
        raise Malformed("", f"column {e.colno}: {e.msg}") from e
    except RecursionError as e:
        raise Malformed("", f"nested deeper than {BOUNDS['depth']}") from e
    _measure(tree)
    return tree


def _scalar(kind, value, path):
    if kind == "string":
        if not isinstance(value, str):
            raise Malformed(path, "must be a string")
        return value
    if kind == "boolean":
        if not isinstance(value, bool):
            raise Malformed(path, "must be true or false")
        return value
    if kind == "integer":
        if not isinstance(value, float):
            raise Malformed(path, "must be a number")
        if not 0 <= value <= BOUNDS["integer"] or value != int(value):
            raise Malformed(path, "must be a whole number from 0 to 2^53 - 1")
        return int(value)
    if not isinstance(value, float) or not math.isfinite(value):
        raise Malformed(path, "must be a finite number")
    return value


def _plain(value):
    """Any JSON value as Python has it."""
    if isinstance(value, _Object):
        return {name: _plain(v) for name, v in value}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field(kind, item, value, path):
    if kind == "any":
        return _plain(value)
    if kind == "object":
        return _record(item, value, path)
    if kind != "list" and kind not in BEHIND:
        return _scalar(kind, value, path)
    if not isinstance(value, list) or isinstance(value, _Object):
        raise Malformed(path, "must be a list")
    if kind == "list":
        return [_record(item, v, f"{path}.[{i}]") for i, v in enumerate(value)]
    # null stands for "not measured".
    return [math.nan if v is None and kind == "numbers" else _scalar(BEHIND[kind], v, f"{path}.[{i}]")
            for i, v in enumerate(value)]


def _record(name, tree, path=""):
    fields = {field: (kind, needed, item) for field, kind, needed, item in RECORDS[name]}
    dot = path and path + "."
    out = {}
    if not isinstance(tree, _Object):
        raise Malformed(path, "must be an object")
    for field, value in tree:
        kind, _, item = fields.get(field, (None, None, None))
        # A field that is not known is a newer daemon's; null means absent, where it is not the value.
        if kind is None or (value is None and kind != "any"):
            continue
        if field in out:
            raise Malformed(dot + field, "stands twice")
        out[field] = _field(kind, item, value, dot + field)
    for field, (_, needed, _) in fields.items():
        if needed and field not in out:
            raise Malformed(dot + field, "is missing")
    return out


def decode(data):
    """The name and the fields of a line; absent ones are left out. Raises Malformed."""
    tree = _parse(data)
    if not isinstance(tree, _Object):
        raise Malformed("", "must be an object")
    said = [value for name, value in tree if name == "say" and value is not None]
    if not said:
        raise Malformed("say", "is missing")
    name = _scalar("string", said[0], "say")
    if len(said) > 1:
        raise Malformed("say", "stands twice")
    if name not in LINES:
        raise Malformed("say", f"'{name[:40]}' is not a line")
    return name, _record(name, tree)


# --- writing ---


def _quoted(text):
    # As everywhere in the daemon's files: what is no text becomes the mark for it. JSON's \u0000 is refused there.
    text = "".join("\ufffd" if c == "\0" or "\ud800" <= c < "\ue000" else c for c in text)
    return json.dumps(text, ensure_ascii=False)


def _shortest(value):
    if not math.isfinite(value):
        raise Unsayable(f"{value} is no number that JSON knows")
    return next(text for text in (f"{value:.{digits}g}" for digits in range(6, 18)) if float(text) == value)


def canonical(value):
    """Any JSON value as text, so that equal values are equal texts: fields sorted by name, shortest numbers."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (int, float)):
        if not abs(value) <= BOUNDS["integer"]:
            raise Unsayable(f"{value} is not below 2^53")
        return str(int(value)) if value == int(value) else _shortest(value)
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-8", "replace"))
        return "{" + ",".join(f"{_quoted(name)}:{canonical(value[name])}" for name in names) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical, value)) + "]"
    raise Unsayable(f"{type(value).__name__} is nothing that JSON knows")


def _say_scalar(kind, value):
    if kind == "string" and isinstance(value, str):
        return _quoted(value)
    if kind == "boolean" and isinstance(value, bool):
        return "true" if value else "false"
    if kind == "integer" and isinstance(value, int) and 0 <= value <= BOUNDS["integer"]:
        return str(value)
    if kind == "number" and isinstance(value, (int, float)):
        return _shortest(float(value))
    raise Unsayable(f"{value!r:.80} is no {kind}")


def _say_field(kind, item, value):
    if kind == "any":
        return canonical(value)
    if kind == "object":
        return _say_record(item, value)
    if kind == "list":
        return "[" + ",".join(_say_record(item, v) for v in value) + "]"
    if kind in BEHIND:
        return "[" + ",".join("null" if kind == "numbers" and v != v else _say_scalar(BEHIND[kind], v)
                              for v in value) + "]"
    return _say_scalar(kind, value)


def _is_said(kind, needed, value):
    """Fields that need not stand there do not if they are absent, or empty lists."""
    return needed or not (value is None or (not value and (kind == "list" or kind in BEHIND)))


def _say_record(name, values):
    unknown = values.keys() - {field for field, _, _, _ in RECORDS[name]}
    if unknown:
        raise Unsayable(f"{name} has no field {sorted(unknown)[0]}")
    return "{" + ",".join(f'"{field}":{_say_field(kind, item, values.get(field))}'
                          for field, kind, needed, item in RECORDS[name]
                          if _is_said(kind, needed, values.get(field))) + "}"


def encode(name, **values):
    """The line as bytes, with its newline; None is absent. Raises Unsayable."""
    body = _say_record(name, values)[1:]
    return f'{{"say":"{name}"{"," if body != "}" else ""}{body}\n'.encode()
