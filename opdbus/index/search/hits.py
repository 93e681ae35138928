"""Values of a search: request, query, hit and explanation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.query.extremes import Superlative
from opdbus.index.query.query_parser import ComparedValue
from opdbus.index.query.spelling import Correction
from opdbus.index.ranking.confidence import RatedHit
from opdbus.index.ranking.scores import Boosts, Score, Similarity
from opdbus.index.search.lexical_matches import LexicalMatches
from opdbus.state.conditions import Condition
from opdbus.state.object import Json, ObjectId


class Field(NamedTuple):
    """A field, its value, and the words of the question in it."""

    name: str
    value: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a hit; `total` is the score it was ranked by.

    `missing` are terms of the question that the object lacks, `glosses` the glossary's meanings
    that have some of them, `values` the words of the question that name a value of the object, and
    `corrected` the spelling corrections.
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
    """An object in a result, with its score, rating, first line of text, and explanation.

    `declared` has the declared fields, by dotted name, that are not observed or have another
    observed value; `observed` has the observed values of the latter.
    """

    object_id: ObjectId
    source: str
    score: Score
    rating: RatedHit
    snippet: str
    # None unless the request asks for explanations
    why: Explanation | None = None
    declared: Mapping[str, Json] = field(default_factory=dict)
    observed: Mapping[str, Json] = field(default_factory=dict)
    # of the first hit: the answer to a question of yes or no
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A request for `limit` hits from `offset`, of the objects that match `wanted` and `where`."""

    limit: int
    offset: int = 0
    wanted: Mapping[str, str] | None = None
    where: tuple[Condition, ...] = ()
    is_explained: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """Everything that decides the order of hits."""

    question: str = ""
    # None in vector search
    matches: LexicalMatches | None = None
    boosts: Boosts | None = None
    # None in lexical search, or without vectors
    similarity: Similarity | None = None
    without: ObjectId | None = None
    # the entries to search, in the order of places; None for all
    within: EntryRefs | None = None
    # times and the superlative in the question
    compared: Sequence[ComparedValue] = ()
    most: Superlative | None = None
    # spelling corrections
    corrected: tuple[Correction, ...] = ()

    @property
    def places(self) -> NDArray[np.intp] | None:
        """The places of the entries to search, None for all."""
        return None if self.within is None else self.within.places

    @property
    def mode(self) -> str:
        """The mode of the search: one of scores.MODES."""
        if self.similarity is None:
            return "lexical"
        return "vector" if self.matches is None else "hybrid"
