"""Words that ask for the most or the least of a field, such as `largest package`.

`largest packages` asks for several, in order.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import UnionType
from typing import Any, Final, NamedTuple

import numpy as np

from opdbus import everyday, kinds
from opdbus.index import matching
from opdbus.index.catalogue import thing_of
from opdbus.index.lexical import STOP_WORDS
from opdbus.index.memory import Memory
from opdbus.index.second_stage import Found
from opdbus.index.view import Found as Met
from opdbus.state.object import Json, Thing

_SIZES: Final = ("size_gb", "installed_size_mb", "size", "memory_gb")
_USED: Final = ("used_percent",)
_MEMBERS: Final = ("member_count",)
_CHANGED: Final = ("modified_at",)

# What each asks for: of which fields, the first that things have, and whether the most of it.
_ASKED: Final[Mapping[str, tuple[Sequence[str], bool]]] = {
    **dict.fromkeys("largest|biggest|most space".split("|"), (_SIZES, True)),
    **dict.fromkeys("smallest|least space".split("|"), (_SIZES, False)),
    **dict.fromkeys("fullest|most used|least free space".split("|"), (_USED, True)),
    **dict.fromkeys("emptiest|least used|most free space".split("|"), (_USED, False)),
    "most members": (_MEMBERS, True),
    **dict.fromkeys(
        "newest|latest|last changed|last modified|most recently changed".split("|"),
        (_CHANGED, True),
    ),
    "oldest": (_CHANGED, False),
}
_WORDS: Final = re.compile(
    rf"\b(?:{'|'.join(sorted(_ASKED, key=len, reverse=True))})\b", re.IGNORECASE
)
# Of more things the values would take too long to read.
_MOST: Final = 5000
# So many are given where several are asked for.
_SEVERAL: Final = 10


class Superlative(NamedTuple):
    """A superlative as it stands in a question, and what has the most or the least, in order.

    What is only declared comes `below` what is observed.
    """

    words: str
    things: Sequence[Thing]
    below: Sequence[Thing]


async def find(memory: Memory, question: str, within: Met | None) -> Superlative | None:
    """Return the first superlative in a question, if what it asks for has one of its fields.

    Only what is `within` some entries is compared.
    """
    match = _WORDS.search(question)
    if match is None:
        return None
    view, rest = memory.catalogue.view, question[: match.start()] + question[match.end() :]
    sorts = kinds.asked(rest, STOP_WORDS)
    some = np.arange(len(view.entries)) if within is None else view.there(within)
    places = some[view.kinds[some] & (sorts.subject or sorts.named) != 0]
    if not 0 < len(places) <= _MOST:
        return None
    names, is_greatest = _ASKED[match[0].lower()]
    things = sorted({*view.things(places)} - memory.declarations.renamed())
    rows = dict(zip(things, await matching.values(memory, things, names), strict=True))
    observed = [one for one in things if memory.catalogue.is_observed(one)]
    # the most that is declared is the most only where nothing is observed
    for compared, name in product((observed, things), names):
        given = {thing: rows[thing].get(name, ()) for thing in compared}
        if found := _of(given, int | float) or _of(given, str):
            best = sorted(found, key=found.__getitem__, reverse=is_greatest)
            several = best[: _SEVERAL if _is_plural(rest) else 1]
            last = found[several[-1]]
            equal = (thing for thing in best[len(several) :] if found[thing] == last)
            below = [*{*things}.difference(compared)]
            return Superlative(match[0], [*several, *equal], below)
    return None


def _is_plural(question: str) -> bool:
    words = (word for word in everyday.WORD.findall(question.lower()) if word.endswith("s"))
    return any(not word.endswith("ss") and kinds.asked(word, STOP_WORDS).named for word in words)


def order(most: Sequence[Thing], below: Sequence[Thing], found: Found) -> Found:
    """Put what was found of these things in their order, each with the total of its new place."""
    ranks = dict.fromkeys(below, len(most)) | {thing: rank for rank, thing in enumerate(most)}
    places = [place for place, row in enumerate(found) if thing_of(row[0]) in ranks]
    rows = sorted((found[place] for place in places), key=lambda row: ranks[thing_of(row[0])])
    ordered = [*found]
    for place, (entry, score) in zip(places, rows, strict=True):
        ordered[place] = entry, replace(score, total=found[place][1].total)
    return ordered


def _of(given: Mapping[Thing, Sequence[Json]], kind: type | UnionType) -> dict[Thing, Any]:
    """Return the first value of a kind that each thing has."""
    first: dict[Thing, Any] = {}
    for thing, values in given.items():
        for value in values:
            if isinstance(value, kind) and not isinstance(value, bool):
                first.setdefault(thing, value)
    return first
