"""A state object as text: the short line that is embedded, and the words for lexical search."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opdbus.state.drift import leaves
from opdbus.state.redact import REDACTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opdbus.state.object import Json, StateObject

# Part of every vector's key: raise it with any change to what `render` gives for any object.
VERSION: Final = 1

MAX_PAIRS: Final = 6
MAX_VALUE: Final = 60
MAX_HEAD: Final = 200
MAX_LIST: Final = 4

# Keys that say in words what a thing is, best first; the first one found ends the head line.
DESCRIBING: Final = (
    "description",
    "summary",
    "comment",
    "purpose",
    "title",
    "label",
    "role",
    "gecos",
)
# What kind of thing it is, and what it works on: these help a reader who has no description.
TELLING: Final = {
    name: rank
    for rank, name in enumerate(
        "type app image driver command execstart exec schedule oncalendar mode action device fstype"
        " source target mountpoint path url user users ports port listen server servers".split()
    )
}
# Values that change by themselves say nothing about what a thing is.
VOLATILE: Final = frozenset(
    "pid mainpid ppid inode timestamp uptime bytes packets counter counters usage current usec nsec"
    " monotonic nrestarts invocation handshake serial uuid guid mac machine checksum sha256 hash"
    " fingerprint generation epoch age since last".split()
)

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Rendering:
    """`text` is embedded, shown and searched; `words` is everything else that search may find."""

    text: str
    words: str


def render(item: StateObject) -> Rendering:
    """Render an object; the same object always gives the same text."""
    pairs = [(name, _short(value)) for name, value in leaves(item.properties)]
    description = _description(pairs)
    head = f"{_kind(item)} {item.name}"
    if description:
        head += f": {description}"
    lines = [_line(head)[:MAX_HEAD]]
    telling = list(_telling(pairs, description))
    if telling:
        lines.append(_line("; ".join(f"{key}: {value}" for key, value in telling)))
    return Rendering("\n".join(lines), _words(item, pairs))


def _kind(item: StateObject) -> str:
    return " ".join(dict.fromkeys([*split(item.plugin), *split(item.kind)]))


def split(name: str) -> list[str]:
    """Split an identifier into words: rx_bytes, rxBytes and rx-bytes are all `rx bytes`."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", name))]


def _short(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value[:MAX_LIST])
    return str(value)


def _description(pairs: list[tuple[str, str]]) -> str:
    found = {key.rpartition(".")[2].lower(): value for key, value in reversed(pairs)}
    return next((found[key] for key in DESCRIBING if found.get(key)), "")


def _telling(pairs: list[tuple[str, str]], description: str) -> Iterator[tuple[str, str]]:
    ranked = []
    for name, value in pairs:
        last = name.rpartition(".")[2]
        words = split(last)
        if not value or value == description or REDACTED in value or not VOLATILE.isdisjoint(words):
            continue
        rank = TELLING.get(last.lower(), len(TELLING))
        ranked.append((rank, name, " ".join(words), value[:MAX_VALUE]))
    for _, _, key, value in sorted(ranked)[:MAX_PAIRS]:
        yield key, value


def _words(item: StateObject, pairs: list[tuple[str, str]]) -> str:
    """Give the whole object for lexical search, identifiers also in their parts."""
    parts = [f"{item.plugin} {item.kind} {' '.join(split(item.name))}"]
    parts += [f"{' '.join(split(name))} {value}" for name, value in pairs if value != REDACTED]
    return _CONTROL.sub(" ", " ".join(parts))


def _line(text: str) -> str:
    return " ".join(_CONTROL.sub(" ", text).split())
