"""Superlatives in a question: `largest package` asks for one, `largest packages` for several."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import EntryRefs, EntryView
from opdbus.index.query import condition_matching
from opdbus.index.query.query_terms import BEGINNING, STOP_WORDS
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.second_stage import RankedHits
from opdbus.language import kinds, tables
from opdbus.platform.slices import each
from opdbus.state.fields import split
from opdbus.state.flatten import singular
from opdbus.state.object import Json, ObjectId

# Words of field names, superlatives for the greatest value, and those for the least. Words of the
# question itself also choose the field: `which interface has the biggest mtu`.
_ADJECTIVES: Final = (
    ("size memory space length", "largest|biggest|most space", "smallest|tiniest|least space"),
    ("used fill full", "fullest|most used|least free space|least room|least room left",
     "emptiest|least used|most free space|most room|most room left"),
    ("temperature degrees celsius c", "warmest|hottest", "coldest|coolest"),
    ("weight mass load", "heaviest", "lightest"),
    ("speed rate rpm", "fastest|quickest", "slowest"),
    ("expires expiry until end due", "lasts longest",
     "expires first|expires next|runs out first|runs out next|ends first|expire first|soonest"),
    ("", "highest|most|maximum|greatest|strongest|furthest|farthest",
     "lowest|least|fewest|minimum|weakest|nearest"),
)  # fmt: skip
# For these, a timestamp compares the other way round than a number: the oldest has the greatest
# age, but the earliest date.
_TIMES: Final = (
    ("length duration minutes seconds days hours since age uptime",
     "longest|longest ago|longest time", "shortest|shortest time"),
    ("modified age hours since changed created used", "oldest",
     "newest|latest|youngest|last changed|last modified|most recently changed|most recent"),
)  # fmt: skip


class _Wanted(NamedTuple):
    """The field words of a superlative, and its direction for numbers and for timestamps."""

    words: frozenset[str]
    is_greatest: bool
    is_latest: bool


def _begin(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word[:BEGINNING] for word in words)


_ASKED: Final[Mapping[str, _Wanted]] = {
    phrase: _Wanted(_begin(words.split()), is_most, is_most != (row in _TIMES))
    for row in (*_ADJECTIVES, *_TIMES)
    for words, *ways in [row]
    for is_most, phrases in zip((True, False), ways, strict=True)
    for phrase in phrases.split("|")
}
_WORDS: Final = re.compile(
    rf"(?<!\bat )\b(?:{'|'.join(sorted(_ASKED, key=len, reverse=True))})\b", re.IGNORECASE
)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d")
# Values of more objects take too long to read: those of 20,000 take a second, on a thread.
_MOST: Final = 100_000
# Weight of a question's word in a field's name; a word of the superlative's row weighs 1.
_NAMED: Final = 2
# Objects returned where the question is in the plural.
_SEVERAL: Final = 10


class Superlative(NamedTuple):
    """A superlative as written in a question, and the objects with the extreme values, in order.

    `below` holds declared objects, which rank after the observed `object_ids`.
    """

    words: str
    object_ids: Sequence[ObjectId]
    below: Sequence[ObjectId]


def has_superlative(question: str) -> bool:
    """Return whether a question has a word such as `largest`."""
    return _WORDS.search(question) is not None


async def find_extremes(
    memory: StateStore, question: str, within: EntryRefs | None
) -> Superlative | None:
    """Return the first superlative of a question, None if no candidate has a field for it.

    If `within` is given, only its entries are compared. Objects that tie with the last one are
    included.
    """
    match, view = _WORDS.search(question), memory.catalogue.view
    if match is None:
        return None
    rest = f"{question[: match.start()]} {question[match.end() :]}"
    wanted, ends = _ASKED[match[0].lower()], _SEVERAL if _is_plural(rest) else 1
    for places, least in _places(view, rest, view.existing(within) if within else None):
        named = await asyncio.to_thread(view.object_ids, places)
        object_ids = [*dict.fromkeys(named)]
        if renamed := memory.declarations.renamed():
            object_ids = [one for one in object_ids if one not in renamed]
        leaves = await condition_matching.leaves(memory, object_ids)
        rows = dict(zip(object_ids, leaves, strict=True))
        is_observed = await each(memory.catalogue.is_observed, object_ids)
        observed = [*compress(object_ids, is_observed)]
        # declared values count only where no object has an observed one
        for compared in (observed, object_ids):
            best = await asyncio.to_thread(_order_by_field, rows, compared, wanted, rest, least)
            if best:
                last = best[:ends][-1][1]
                several = [
                    one for at, (one, value) in enumerate(best) if at < ends or value == last
                ]
                return Superlative(match[0], several, [*{*object_ids}.difference(compared)])
    return None


def _places(
    view: EntryView, question: str, within: NDArray[np.intp] | None
) -> Iterator[tuple[NDArray[np.intp], int]]:
    """Yield candidate places, and the fit that a field must have for these candidates.

    First objects of the kinds in the question, then those whose kind, and those whose plugin, has a
    word of it, then all. Sets larger than `_MOST` are skipped.
    """
    asked = kinds.requested(question, STOP_WORDS)
    every = view.of_source_kinds(lambda _: True, within)
    words = {singular(word) for word in tables.words_of(question)}
    for places, least in (
        (every[view.kind_masks[every] & (asked.subject or asked.named) != 0], 1),
        (view.of_source_kinds(lambda one: not words.isdisjoint(split(one[2])), within), 1),
        (view.of_source_kinds(lambda one: not words.isdisjoint(split(one[1])), within), 1),
        (every, _NAMED),
    ):
        if 0 < len(places) <= _MOST:
            yield places, least


def _order_by_field(
    rows: Mapping[ObjectId, Mapping[str, Json]],
    object_ids: Sequence[ObjectId],
    wanted: _Wanted,
    question: str,
    least: int,
) -> list[tuple[ObjectId, Any]]:
    """Return the objects that have the best-fitting field, each with its value, best first.

    Empty if the fit is below `least`.
    """
    words = _begin({*tables.words_of(question)} - STOP_WORDS)
    fields = dict[tuple[str, bool], dict[ObjectId, Any]]()
    for object_id in sorted(object_ids):
        for key, value in rows[object_id].items():
            is_time = isinstance(value, str) and bool(_TIME.match(value))
            if is_time or (isinstance(value, int | float) and not isinstance(value, bool)):
                fields.setdefault((key, is_time), {})[object_id] = value

    def fit(field: tuple[str, bool]) -> tuple[int, int]:
        own = _begin(split(field[0]))
        return _NAMED * len(own & words) + len(own & wanted.words), len(fields[field])

    best = max(fields, key=fit, default=None)
    if best is None or fit(best)[0] < least:
        return []
    is_greatest = wanted.is_latest if best[1] else wanted.is_greatest
    return sorted(fields[best].items(), key=lambda one: one[1], reverse=is_greatest)


def _is_plural(question: str) -> bool:
    return any(
        word.endswith("s") and not word.endswith("ss") and kinds.requested(word, STOP_WORDS).named
        for word in tables.words_of(question)
    )


def order(most: Superlative, found: RankedHits) -> RankedHits:
    """Reorder the rows of these objects among themselves; each gets the total of its new rank."""
    ranks = dict.fromkeys(most.below, len(most.object_ids))
    ranks |= {object_id: rank for rank, object_id in enumerate(most.object_ids)}
    places = [place for place, row in enumerate(found) if row[0].identity.object_id in ranks]
    rows = sorted(
        (found[place] for place in places), key=lambda row: ranks[row[0].identity.object_id]
    )
    ordered = [*found]
    for place, (entry, score) in zip(places, rows, strict=True):
        ordered[place] = entry, score._replace(total=found[place][1].total)
    return ordered
