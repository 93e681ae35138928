"""Ranking: cosine and BM25 joined by weight, units before what merely starts them. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from opdbus.index.catalogue import Thing

MODES: Final = ("hybrid", "vector", "lexical")
# What a full lexical match weighs beside a cosine: measured by benchmarks/quality.py.
LEXICAL_WEIGHT: Final = 0.5
# BM25 grows towards (k1 + 1) idf for each term; FTS5 fixes k1 at 1.2.
_BM25_CEILING: Final = 2.2

# What starts a service, and the words of a question that ask for it rather than for the service.
_STARTERS: Final = {
    ".timer": frozenset(
        "when often schedule schedules scheduled timer timers time date next every interval hourly"
        " daily nightly weekly monthly".split()
    ),
    ".socket": frozenset(
        "socket sockets port ports endpoint listen listens listening activation activated".split()
    ),
    ".path": frozenset("path paths watch watches watched".split()),
}
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Score:
    """How well one entry answers: `total` ranks, the parts explain; both parts end at 1."""

    total: float
    vector: float
    lexical: float


def ceiling(matches: Sequence[int], objects: int) -> float:
    """Give the BM25 score that no object can exceed, from how many objects match each term.

    A term that nothing matches counts most: an object that has only the other words of a
    question is a poor answer. Source of the formula: SQLite's FTS5 documentation.
    """
    idf = (math.log((objects - n + 0.5) / (n + 0.5)) for n in matches)
    return _BM25_CEILING * sum(max(weight, 1e-6) for weight in idf)


def rank(
    ids: Sequence[int],
    cosines: NDArray[np.float32] | None,
    lexical: Mapping[int, float],
    starters: Sequence[tuple[int, int]] = (),
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `ids` name the entries; `cosines` (entries,) are NaN where an entry has no vector, and None
    in lexical mode, where only matches are given; `lexical` holds shares of the BM25 ceiling by
    id; `starters` are (index of a unit, index of the service that it starts). Equal scores keep
    the order of the entries.
    """
    matched = np.array([lexical.get(entry, 0.0) for entry in ids], np.float32)
    vector = np.zeros(len(ids), np.float32) if cosines is None else np.nan_to_num(cosines)
    total = matched.copy() if cosines is None else vector + LEXICAL_WEIGHT * matched
    for starter, service in starters:
        total[service] = max(total[service], total[starter])
        total[starter] = np.nextafter(total[service], np.float32(-1))
    for index in np.argsort(-total, kind="stable"):
        if cosines is None and total[index] <= 0:
            return
        yield (
            int(index),
            Score(float(total[index]), float(vector[index]), float(matched[index])),
        )


def starters(question: str, things: Sequence[Thing]) -> list[tuple[int, int]]:
    """Pair timers, sockets and paths with their services: (starter, service), by index.

    A pair ranks as one, the service first, unless the question asks for the other:
    `cups.socket` says as much about printing as `cups.service`, but is not what is meant.
    """
    asked = set(_WORD.findall(question.lower()))
    waiting = {}
    for index, thing in enumerate(things):
        stem, dot, suffix = thing.name.rpartition(".")
        if dot + suffix in _STARTERS and asked.isdisjoint(_STARTERS[dot + suffix]):
            waiting[index] = stem
    if not waiting:
        return []
    places = {thing: index for index, thing in enumerate(things)}
    pairs = []
    for index, stem in waiting.items():
        for service in (f"{stem}.service", f"{stem}@.service"):
            place = places.get(things[index]._replace(name=service))
            if place is not None:
                pairs.append((index, place))
                break
    return pairs
