"""Values of fields before and after a change, as people read them. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.platform import name_lists

# What says of an object whether it is there, and of one that the file would have to declare.
PRESENCE: Final = "presence"
NOT_DECLARED: Final = "not declared"
MAX_FIELDS: Final = 3
# Lists of which others may be there besides: as in drift.table.
AT_LEAST: Final = frozenset({("mounts", "mount", "options")})
# What begins the name of a declared value, which is no value before or after.
DECLARED: Final = "declared."
# What begins a declared value of which others meet it, too, in rows of earlier versions.
_RANGES: Final = ("<", ">", "=", "!", "~")
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
    sides = {path: (old, new) for path, old, new in fields if path}
    values = Values((path, _value(*both)) for path, both in sides.items())
    for path, (_, new) in sides.items():
        # what was observed and what is declared are one pair, of which the difference is to be seen
        if (other := sides.get(own := f"{DECLARED}{path}", ("", ""))[1]) and new:
            after, declared = _beside(json.loads(new), json.loads(other))
            values[path] = values[path]._replace(after=after)
            values[own] = values[own]._replace(after=declared)
    return values


def in_words(values: Mapping[str, Value]) -> str:
    """Tell the first fields of a change; names alone where values are not kept."""
    rest = {path: value for path, value in values.items() if path not in _REPEATING} or values
    return name_lists.first([f"{path} {v.said}".strip() for path, v in rest.items()], MAX_FIELDS)


def compared(what: str, values: Mapping[str, Value], sort: tuple[str, str]) -> str:
    """Tell fields of an object of a sort that are other than declared, or are so no longer."""
    sides = _sides(values)
    told = [_compared(what, path, v, least_of(sort, path), declared) for path, v, declared in sides]
    return name_lists.first([text for text in told if text], MAX_FIELDS, "; ")


def _sides(values: Mapping[str, Value]) -> Iterator[tuple[str, Value, str]]:
    """Yield each field, what was observed of it, and what is declared of it.

    Rows of earlier versions have the declared value as the one before.
    """
    for path, value in values.items():
        own = path.removeprefix(DECLARED)
        if own == path:
            declared = values.get(f"{DECLARED}{path}")
            yield path, value, declared.after if declared else value.before
        elif own not in values:
            yield own, value, value.before


def _compared(what: str, path: str, value: Value, least: str, declared: str) -> str:
    """Tell a field; whether there is an object at all needs no name."""
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
    """Say that a field of a sort is declared in part, also in `properties`; empty if it is not."""
    return "at least " if (*sort, name.rpartition(".")[2]) in AT_LEAST else ""


def _answering(path: str, value: Value) -> Value:
    """Say yes for a value that only says its field again, such as that `masked` is masked."""
    before, after = ("yes" if side == path else side for side in value[:2])
    changed = (before, after) != value[:2]
    return Value(before, after, f"{before or 'none'} -> {after or 'none'}") if changed else value


def _value(old: str, new: str) -> Value:
    """Read a field's values, which are JSON; of lists is said what came and what left."""
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
    """Return the texts in a list, or in a text that is one with commas; None for anything else."""
    if isinstance(value, str) and "," in value and ", " not in value:
        return value.split(",")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _beside(before: object, after: object) -> tuple[str, str]:
    """Give two values in few characters, so that their difference is seen."""
    texts = _text(before), _text(after)
    if before != after and texts[0] == texts[1]:
        texts = json.dumps(before), json.dumps(after)
    first, second = name_lists.distinct(*texts, MAX_VALUE)
    return first or '""', second or '""'


def _said(value: object) -> str:
    """Give a value in few characters."""
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
