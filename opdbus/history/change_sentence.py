"""The sentence of a change for search: its object, event and fields."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from opdbus.history import event_words
from opdbus.history.change import Change, FieldChange
from opdbus.language.object_text import DESCRIBING, VOLATILE
from opdbus.state.fields import split
from opdbus.state.object import Json
from opdbus.state.secret_text import REDACTED

MAX_FIELDS: Final = 4
MAX_VALUE: Final = 48
# Characters of a value that are read; runs of digits become shorter.
_MAX_READ: Final = 4096
_DIGITS = re.compile(r"\d+")
# State fields, which come first.
_STATES: Final = frozenset("state active enabled status result load ensure".split())
# Fields that add nothing: volatile ones, and those that repeat the object's text.
_IDLE: Final = VOLATILE | {*DESCRIBING, "size", "type", "modified", "packagesummary"}


def of_change(change: Change, text: str) -> Change:
    """Return a change with its sentence; `text` is the object's, "" if values are not kept.

    The last part, after a semicolon, begins with the event: see event_words.of.
    """
    _, plugin, kind, name = change.identity
    # the second line has the terms of the glossary
    named = ", ".join(text.splitlines()) or " ".join([*split(plugin), *split(kind), name])
    # without values, the sentence must not reveal them by the event
    happened = event_words.of(change if text else change._replace(fields=[]))
    details = ", ".join(_describe_fields(change.fields)) if change.what == "changed" else ""
    happened += f": {details.replace('; ', ', ')}" if details else ""
    return change._replace(sentence=f"{named}; {happened}")


def _describe_fields(fields: Iterable[FieldChange]) -> Iterator[str]:
    described = [field for field in fields if _IDLE.isdisjoint(split(field.path[-1]))]
    described.sort(key=lambda field: _STATES.isdisjoint(split(".".join(field.path))))
    for path, before, after in described[:MAX_FIELDS]:
        name = " ".join(split(path[-1]))
        old, new = _shorten(before or ()), _shorten(after or ())
        yield f"{name} changed" if old == new else f"{name} {old} to {new}"


def _shorten(values: Iterable[Json]) -> str:
    """Return values as short text; digits become 0, so that sentences repeat."""
    text = ", ".join(map(_as_words, values))
    if REDACTED in text:
        return REDACTED
    return _DIGITS.sub("0", text[:_MAX_READ])[:MAX_VALUE] or "nothing"


def _as_words(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(_as_words, value))
    return "" if value is None or value == {} else str(value)
