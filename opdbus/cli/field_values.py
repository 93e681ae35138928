"""Values of fields before and after a change, as people read them. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

MAX_FIELDS: Final = 3
MAX_VALUE: Final = 40
# These say again what other fields say.
_REPEATING: Final = frozenset({"description", "package_summary"})


class Value(NamedTuple):
    """A field's value before and after, as people read it, empty where there was none; and both."""

    before: str
    after: str
    said: str


class Values(dict[str, Value]):
    """Values by the paths of their fields; a field that is not there has none."""

    def __missing__(self, path: str) -> Value:
        """Give no value."""
        return Value("", "", "")


def read(fields: Iterable[tuple[str, str, str]]) -> Values:
    """Read the fields of a change as History1 gives it."""
    return Values((path, _value(old, new)) for path, old, new in fields if path)


def in_words(values: Mapping[str, Value]) -> str:
    """Tell the first fields of a change; names alone where values are not kept."""
    rest = {path: value for path, value in values.items() if path not in _REPEATING} or values
    return _first([f"{path} {value.said}".strip() for path, value in rest.items()])


def compared(what: str, values: Mapping[str, Value]) -> str:
    """Tell fields of which the declared and the observed value are given."""
    if what == "healed":
        return ", ".join(values)
    told = [
        f"{path} is {observed or 'none'}, declared {declared or 'none'}"
        if declared or observed
        else path
        for path, (declared, observed, _) in values.items()
    ]
    return _first(told, "; ")


def _first(told: Sequence[str], between: str = ", ") -> str:
    more = len(told) - MAX_FIELDS
    return between.join(told[:MAX_FIELDS]) + (f" and {more} more" if more > 0 else "")


def _value(old: str, new: str) -> Value:
    """Read a field's values, which are JSON; of lists is said what came and what left."""
    before, after = (json.loads(text) if text else None for text in (old, new))
    sides = (_said(before) if old else "", _said(after) if new else "")
    told = f"{sides[0] or 'none'} -> {sides[1] or 'none'}" if old or new else ""
    had, has = _members(before), _members(after)
    if had is not None and has is not None and set(had) != set(has):
        left, came = ([v for v in a if v not in b] for a, b in ((had, has), (has, had)))
        told = " ".join([*(f"-{_short(v)}" for v in left), *(f"+{_short(v)}" for v in came)])
    return Value(*sides, told)


def _members(value: object) -> Sequence[str] | None:
    """Return the texts in a list, or in a text that is one with commas; None for anything else."""
    if isinstance(value, str) and "," in value and ", " not in value:
        return value.split(",")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _said(value: object) -> str:
    """Give a value in few characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "yes", False: "no"}[value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    said = " ".join(text.split()) or '""'
    return said if len(said) <= MAX_VALUE else f"{said[: MAX_VALUE - 3]}..."
