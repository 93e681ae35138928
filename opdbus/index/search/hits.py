"""What a search is asked for, and what it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.query.query_parser import ComparedValue
from opdbus.index.query.spelling import Correction
from opdbus.index.ranking.boosts import BoostPlan
from opdbus.index.ranking.confidence import RatedHit
from opdbus.index.ranking.scores import Score, Similarity
from opdbus.index.search.lexical_matches import LexicalMatches
from opdbus.state.conditions import Condition
from opdbus.state.object import Json, ObjectId


class Field(NamedTuple):
    """A field, its value, and the words of the question that it has."""

    name: str
    value: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """Why a hit was found: `total` is what it was ranked by.

    `missing` are words of the question that it has not, `glosses` the meanings of its names that
    have some, `values` what of the question named a value that it has, `corrected` words as they
    were asked and as they were looked for.
    """

    total: float
    boost: float
    fields: tuple[Field, ...] = ()
    missing: tuple[str, ...] = ()
    glosses: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    corrected: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """A thing that was found, how well, how likely it is right, why, and its text's first line.

    `declared` has what the state file says and nobody observes, or what is observed otherwise, by
    fields with dots; `observed` has what is observed of these instead.
    """

    object_id: ObjectId
    source: str
    score: Score
    rating: RatedHit
    snippet: str
    # only where it was asked for
    why: Why | None = None
    declared: Mapping[str, Json] = field(default_factory=dict)
    observed: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """Which hits are wanted: those from `offset` on, at most `limit`, of things that match."""

    limit: int
    offset: int = 0
    wanted: Mapping[str, str] | None = None
    where: tuple[Condition, ...] = ()
    is_explained: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """All that decides an order: words, what has them, what they raise, and what is like them."""

    question: str = ""
    # None where words do not count
    matches: LexicalMatches | None = None
    boost_plan: BoostPlan | None = None
    # None where vectors do not
    similarity: Similarity | None = None
    without: ObjectId | None = None
    # what is asked for, in the order of places; None if that is all
    within: EntryRefs | None = None
    # the comparisons in the question
    compared: Sequence[ComparedValue] = ()
    # what has the most or the least that the question asks for, in order
    most: Sequence[ObjectId] = ()
    # what is only declared, which comes after these
    below: Sequence[ObjectId] = ()
    # what was looked for in place of words of it
    corrected: tuple[Correction, ...] = ()

    @property
    def places(self) -> NDArray[np.intp] | None:
        """The places of what is asked for, None if that is all."""
        return None if self.within is None else self.within.places

    @property
    def mode(self) -> str:
        """What was compared: one of search.MODES."""
        if self.similarity is None:
            return "lexical"
        return "vector" if self.matches is None else "hybrid"
