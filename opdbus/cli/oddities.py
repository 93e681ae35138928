"""Plain words for an outlier's unusual fields; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.bus import paths
from opdbus.cli import output
from opdbus.platform import name_lists

# Details of an outlier as State1.Outliers returns them.
Details: TypeAlias = Mapping[str, Any]
Json: TypeAlias = Any

# Number of fields in a sentence.
_MOST: Final = 3
# Number of usual values in a sentence, unless the first covers nearly all objects.
_USUAL: Final = 2
_NEARLY_ALL: Final = 0.8
_LONGEST: Final = 60
_NOTHING: Final = ""
# Strings that would read as no value.
_AMBIGUOUS: Final = frozenset(("no", "none", "yes"))
# Verbs for fields whose names have none: for an object with the value, and for others.
_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "user": ("runs as", "run as"),
    "group": ("has the group", "have"),
    "active_state": ("is", "are"),
    "sub_state": ("is", "are"),
    "load_state": ("is", "are"),
    "status": ("is", "are"),
    "mode": ("has the mode", "have"),
    "shell": ("has the shell", "have"),
    "exposed": ("is open to", "to"),
    "opened_by": ("was opened by", "by"),
    "rights": ("is a", "are"),
}
# First words of a field's name that turn a boolean into a verb.
_OWN_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "can": ("can", "cannot"),
    "has": ("has", "has no"),
    "need": ("needs", "needs no"),
    "needs": ("needs", "needs no"),
    "accept": ("accepts", "does not accept"),
}


class _Field(NamedTuple):
    """A field as State1.Outliers returns it."""

    name: str
    value: str
    having: int
    usual: Sequence[tuple[str, int]]


def sentence(details: Details) -> str:
    """Return the reasons why an object is an outlier, the worst first."""
    fields = [_Field(*row) for row in details["fields"]]
    parts = [_of_field(field, details["objects"] - 1) for field in fields[:_MOST]]
    if "nearest" in details:
        parts.append(_of_text(details))
    more = len(fields) - _MOST
    if more > 0:
        parts.append(f"and {more} more field{'s' if more > 1 else ''}")
    return "; ".join(parts)


def _of_text(details: Details) -> str:
    """Return the distance of an object's text from the nearest other."""
    name = paths.parse(details["nearest"])[2]
    far, usual = details["distance"], details["usual_distance"]
    return (
        f"its text is {far:.2f} from the nearest, {name}, where two are usually {usual:.2f} apart"
    )


def _of_field(field: _Field, others: int) -> str:
    value = json.loads(field.value) if field.value else None
    if value is None:
        words = words_of(field.name)
        return f"has no {words}, {others + 1 - field.having:,} of {others:,} others have"
    if isinstance(value, bool) and (said := _of_boolean(field, value=value, others=others)):
        return said
    has, have = _VERBS.get(field.name, (f"{words_of(field.name)} is", "have"))
    first, count = field.usual[0]
    shown = value_of(field.value)
    if not first:
        return f"has {words_of(field.name)} {shown}, {count:,} of {others:,} others have none"
    return f"{has} {shown}, {_others(field, have, others)}"


def _of_boolean(field: _Field, *, value: bool, others: int) -> str:
    """Return a boolean in words, "" if no other object has the opposite; a missing field is no."""
    opposite = {json.dumps(not value), _NOTHING}
    count = sum(count for usual, count in field.usual if usual in opposite)
    if not count:
        return ""
    verb, *words = words_of(field.name).split()
    if verb in _OWN_VERBS and words:
        text = f"{_OWN_VERBS[verb][not value]} {' '.join(words)}"
        return f"{text}, {count:,} of {others:,} others {'do not' if value else 'do'}"
    text = f"is {'' if value else 'not '}{words_of(field.name)}"
    return f"{text}, {count:,} of {others:,} others are{' not' if value else ''}"


def _others(field: _Field, have: str, others: int) -> str:
    """Return the others' most usual value, and the next if that one does not cover nearly all."""
    (first, count), *rest = field.usual
    text = f"{count:,} of {others:,} others {have} {_usual(first)}"
    if rest and count < _NEARLY_ALL * others:
        text += "".join(f", {n:,} {_usual(value)}" for value, n in rest[: _USUAL - 1])
    return text


def _usual(value: str) -> str:
    shown = value_of(value) if value else "none"
    return "their own name" if shown == "*" else shown


def value_of(text: str) -> str:
    """Format a JSON value for people."""
    value = json.loads(text)
    if isinstance(value, str) and value in _AMBIGUOUS:
        return text
    shown = ", ".join(map(output.said, value)) if isinstance(value, list) else output.said(value)
    return name_lists.shortened(shown, _LONGEST)


def words_of(name: str) -> str:
    """Return the last part of a field's name as words: on_hold becomes on hold."""
    return name.rpartition(".")[2].replace("_", " ")
