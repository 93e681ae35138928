"""Words that ask for the most or the least of a field, such as `largest package`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from opdbus import kinds
from opdbus.index import matching
from opdbus.index.lexical import STOP_WORDS
from opdbus.index.memory import Memory
from opdbus.state.object import Json, Thing

_SIZES: Final = ("size_gb", "installed_size_mb", "size", "memory_gb")
_USED: Final = ("used_percent",)
_MEMBERS: Final = ("member_count",)
_CHANGED: Final = ("modified_at",)

_Best = Callable[[Sequence[float | str]], float | str]
# What each asks for: of which fields, the first that things have, and which of their values.
_ASKED: Final[Mapping[str, tuple[Sequence[str], _Best]]] = {
    **dict.fromkeys("largest|biggest|most space".split("|"), (_SIZES, max)),
    **dict.fromkeys("smallest|least space".split("|"), (_SIZES, min)),
    **dict.fromkeys("fullest|most used|least free space".split("|"), (_USED, max)),
    **dict.fromkeys("emptiest|least used|most free space".split("|"), (_USED, min)),
    "most members": (_MEMBERS, max),
    **dict.fromkeys(
        "newest|latest|last changed|last modified|most recently changed".split("|"), (_CHANGED, max)
    ),
    "oldest": (_CHANGED, min),
}
_WORDS: Final = re.compile(
    rf"\b(?:{'|'.join(sorted(_ASKED, key=len, reverse=True))})\b", re.IGNORECASE
)
# Of more things the values would take too long to read.
_MOST: Final = 5000


class Superlative(NamedTuple):
    """A superlative as it stands in a question, and what has the most or the least."""

    words: str
    things: Sequence[Thing]


async def find(memory: Memory, question: str) -> Superlative | None:
    """Return the first superlative in a question, if what it asks for has one of its fields."""
    match = _WORDS.search(question)
    if match is None:
        return None
    view, rest = memory.catalogue.view, question[: match.start()] + question[match.end() :]
    sorts = kinds.asked(rest, STOP_WORDS)
    places = np.flatnonzero(view.kinds[: len(view.entries)] & (sorts.subject or sorts.named))
    if not 0 < len(places) <= _MOST:
        return None
    names, best = _ASKED[match[0].lower()]
    things = sorted({*view.things(places)})
    rows = await matching.values(memory, things, names)
    for name in names:
        found = {t: v for t, row in zip(things, rows, strict=True) for v in _plain(row.get(name))}
        if found:
            most = best([*found.values()])
            return Superlative(match[0], [t for t, value in found.items() if value == most])
    return None


def _plain(values: Sequence[Json] | None) -> list[float | str]:
    """Return the first number or text, which numbers stand before."""
    for kind in (int | float, str):
        for value in values or ():
            if isinstance(value, kind) and not isinstance(value, bool):
                return [value]
    return []
