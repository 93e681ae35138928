"""A change in words, to be found by its meaning."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from opdbus.history.change import Change, FieldChange
from opdbus.state.fields import split
from opdbus.state.object import Json
from opdbus.state.secret_text import REDACTED

MAX_FIELDS: Final = 4
MAX_VALUE: Final = 48
_DIGITS = re.compile(r"\d+")
# Fields whose values say how a thing is; they come first.
_STATES: Final = frozenset("state active enabled status result load ensure".split())


def of_change(change: Change, text: str) -> Change:
    """Return a change with its sentence; `text` is that of the object, "" if it must not be kept.

    A sentence about an object that came or left is the object's text itself, which has a vector.
    """
    _, plugin, kind, name = change.identity
    named = text or " ".join([*split(plugin), *split(kind), name])
    said = "; ".join(_told(change.fields)) if change.what == "changed" else ""
    return replace(change, sentence=f"{named.splitlines()[0]}; {said}" if said else named)


def _told(fields: Iterable[FieldChange]) -> Iterator[str]:
    ranked = sorted(fields, key=lambda field: _STATES.isdisjoint(split(".".join(field.path))))
    for path, before, after in ranked[:MAX_FIELDS]:
        name = " ".join(split(path[-1]))
        if before is None or after is None:
            yield f"{name} changed"
        else:
            yield f"{name} {_short(before)} to {_short(after)}"


def _short(values: Iterable[Json]) -> str:
    """Write a value in few words; numbers are all alike, so that sentences repeat."""
    text = ", ".join("" if isinstance(v, dict | list) and not v else str(v) for v in values)
    return REDACTED if REDACTED in text else _DIGITS.sub("0", text)[:MAX_VALUE] or "nothing"
