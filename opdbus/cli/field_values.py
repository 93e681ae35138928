"""Values of fields before and after a change, formatted for people; pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.platform import name_lists

# Field for the existence of an object, and its value for an object that should be declared.
PRESENCE: Final = "presence"
NOT_DECLARED: Final = "not declared"
MAX_FIELDS: Final = 3
# Lists that may have further members, as in drift.table.
AT_LEAST: Final = frozenset({("mounts", "mount", "options")})
# Prefix of a declared value's field, which is not a value before or after.
DECLARED: Final = "declared."
# Prefixes of declared ranges, in rows of earlier versions.
_RANGES: Final = ("<", ">", "=", "!", "~")
MAX_VALUE: Final = 40
# Fields that repeat other fields.
_REPEATING: Final = frozenset({"description", "package_summary"})


class Value(NamedTuple):
    """A field's formatted values before and after, empty if missing, and both in one text."""

    before: str
    after: str
    said: str


class Values(dict[str, Value]):
    """Values by field path; a missing field has empty values."""

    def __missing__(self, path: str) -> Value:
        """Return empty values."""
        return Value("", "", "")


def read(fields: Iterable[tuple[str, str, str]]) -> Values:
    """Read the fields of a change as History1 returns them."""
    sides = {path: (old, new) for path, old, new in fields if path}
    values = Values((path, _value(*both)) for path, both in sides.items())
    for path, (_, new) in sides.items():
        # an observed value and its declared one are shown so that their difference is visible
        if (other := sides.get(own := f"{DECLARED}{path}", ("", ""))[1]) and new:
            after, declared = _beside(json.loads(new), json.loads(other))
            values[path] = values[path]._replace(after=after)
            values[own] = values[own]._replace(after=declared)
    return values


def in_words(values: Mapping[str, Value]) -> str:
    """Return the first fields of a change as text; names alone if values are not kept."""
    rest = {path: value for path, value in values.items() if path not in _REPEATING} or values
    return name_lists.first([f"{path} {v.said}".strip() for path, v in rest.items()], MAX_FIELDS)


def compared(what: str, values: Mapping[str, Value], sort: tuple[str, str]) -> str:
    """Return fields of an object that drift, or drift no longer, as text."""
    sides = _sides(values)
    told = [_compared(what, path, v, least_of(sort, path), declared) for path, v, declared in sides]
    return name_lists.first([text for text in told if text], MAX_FIELDS, "; ")


def _sides(values: Mapping[str, Value]) -> Iterator[tuple[str, Value, str]]:
    """Yield each field with its observed value and its declared value.

    Rows of earlier versions have the declared value as `before`.
    """
    for path, value in values.items():
        own = path.removeprefix(DECLARED)
        if own == path:
            declared = values.get(f"{DECLARED}{path}")
            yield path, value, declared.after if declared else value.before
        elif own not in values:
            yield own, value, value.before


def _compared(what: str, path: str, value: Value, least: str, declared: str) -> str:
    """Return a drifting field as text; the name of the presence field is omitted."""
    before, after, said = _answering(path, value)
    name = "" if path == PRESENCE else path
    if not said or what == "undeclared":
        return name
    if what == "healed" and after[:1] in _RANGES:
        return f"{name} was {before}, declared {after}"
    if what == "healed":
        return f"{name} {said if before != after else f'is {after}'}".strip()
    if not name:
        return "there, and not declared" if declared == NOT_DECLARED else after
    wanted = "yes" if declared == path else declared or "none"
    return f"{name} is {after or 'none'}, declared {least}{wanted}"


def least_of(sort: tuple[str, str], name: str) -> str:
    """Return "at least " for a partly declared field, also within `properties`, else ""."""
    return "at least " if (*sort, name.rpartition(".")[2]) in AT_LEAST else ""


def _answering(path: str, value: Value) -> Value:
    """Replace a value that repeats its field's name, such as masked=masked, by yes."""
    before, after = ("yes" if side == path else side for side in value[:2])
    changed = (before, after) != value[:2]
    return Value(before, after, f"{before or 'none'} -> {after or 'none'}") if changed else value


def _value(old: str, new: str) -> Value:
    """Format a field's JSON values; for lists, the added and removed members."""
    before, after = (json.loads(text) if text else None for text in (old, new))
    sides = (_said(before) if old else "", _said(after) if new else "")
    if old and new:
        sides = _beside(before, after)
    told = f"{sides[0] or 'none'} -> {sides[1] or 'none'}" if old or new else ""
    had, has = _members(before), _members(after)
    if had is not None and has is not None and set(had) != set(has):
        left, came = ([v for v in a if v not in b] for a, b in ((had, has), (has, had)))
        if len(left) == len(came) == 1:
            left, came = ([side] for side in name_lists.distinct(left[0], came[0], MAX_VALUE))
        told = " ".join([*(f"-{_short(v)}" for v in left), *(f"+{_short(v)}" for v in came)])
    return Value(*sides, told)


def _members(value: object) -> Sequence[str] | None:
    """Return the strings of a list or of a text with commas; None for any other value."""
    if isinstance(value, str) and "," in value and ", " not in value:
        return value.split(",")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _beside(before: object, after: object) -> tuple[str, str]:
    """Shorten two values so that their difference stays visible."""
    texts = _text(before), _text(after)
    if before != after and texts[0] == texts[1]:
        texts = json.dumps(before), json.dumps(after)
    first, second = name_lists.distinct(*texts, MAX_VALUE)
    return first or '""', second or '""'


def _said(value: object) -> str:
    """Return a value as short text."""
    return _short(_text(value))


def _text(value: object) -> str:
    if value in ([], {}):
        return "none"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "yes", False: "no"}[value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return name_lists.shortened(" ".join(text.split()) or '""', MAX_VALUE)
