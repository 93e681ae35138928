"""A change in words, to be found by its meaning: what it is, what happened, and which fields."""

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
# Characters that are read for these; digits become fewer.
_MAX_READ: Final = 4096
_DIGITS = re.compile(r"\d+")
# Fields whose values say how a thing is; they come first.
_STATES: Final = frozenset("state active enabled status result load ensure".split())
# Fields that say no more than others: the description is that of the object, too.
_IDLE: Final = VOLATILE | {*DESCRIBING, "size", "type", "modified", "packagesummary"}


def of_change(change: Change, text: str) -> Change:
    """Return a change with its sentence; `text` is that of the object, "" if it must not be kept.

    The last part, after a semicolon, begins with what happened: see happening.of.
    """
    _, plugin, kind, name = change.identity
    # its second line is what the glossary says
    named = ", ".join(text.splitlines()) or " ".join([*split(plugin), *split(kind), name])
    # what is kept without values has no words that would tell them
    happened = event_words.of(change if text else change._replace(fields=[]))
    told = ", ".join(_told(change.fields)) if change.what == "changed" else ""
    happened += f": {told.replace('; ', ', ')}" if told else ""
    return change._replace(sentence=f"{named}; {happened}")


def _told(fields: Iterable[FieldChange]) -> Iterator[str]:
    telling = [field for field in fields if _IDLE.isdisjoint(split(field.path[-1]))]
    telling.sort(key=lambda field: _STATES.isdisjoint(split(".".join(field.path))))
    for path, before, after in telling[:MAX_FIELDS]:
        name = " ".join(split(path[-1]))
        old, new = _short(before or ()), _short(after or ())
        yield f"{name} changed" if old == new else f"{name} {old} to {new}"


def _short(values: Iterable[Json]) -> str:
    """Write a value in few words; numbers are all alike, so that sentences repeat."""
    text = ", ".join(map(_plain, values))
    if REDACTED in text:
        return REDACTED
    return _DIGITS.sub("0", text[:_MAX_READ])[:MAX_VALUE] or "nothing"


def _plain(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return "" if value is None or value == {} else str(value)
