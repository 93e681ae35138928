"""Similarities of two objects: common words and fields, and differing fields."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opdbus.index.catalogue.catalogue import representative
from opdbus.insight.gathering import kind_of
from opdbus.insight.kind_survey import states
from opdbus.insight.naming import name_words

if TYPE_CHECKING:
    from opdbus.index.state_store.state_store import StateStore
    from opdbus.insight.gathering import Kind
    from opdbus.state.object import ObjectId

# The fields of an object, with values as JSON.
Fields: TypeAlias = Mapping[str, str]

# The number of objects from which frequencies are estimated.
_SAMPLE: Final = 300
_MOST_WORDS: Final = 4
_MOST_FIELDS: Final = 3
# The largest share of all objects with a word or value that is worth a mention.
_MOST_SHARE: Final = 0.25
# The largest share of the objects of a kind with such a word.
_MOST_OF_KIND: Final = 0.5
# The least number of objects for a statement about a kind or field.
_LEAST: Final = 5
# The least probability that two objects agree on a field; below it, a difference means nothing.
_LEAST_AGREEMENT: Final = 0.3


class Description(NamedTuple):
    """The compared parts of an object: its kind, the words of its text, and its fields."""

    kind: Kind | None
    words: Mapping[str, str]
    fields: Fields


@dataclass(frozen=True, slots=True)
class Comparison:
    """Common words and fields of two objects, the rarest first, and the main differences.

    Values are JSON, empty if there is no such field; `differs` has (field, own, other).
    """

    words: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    differs: tuple[tuple[str, str, str], ...]


class Frequencies:
    """Frequencies of words and values on this host, from a sample of its objects.

    `shares` has the share of all objects that have a word.
    """

    def __init__(self, sample: Sequence[Description], shares: Mapping[str, float]) -> None:
        self._objects = len(sample)
        self._shares = shares
        self._kinds = Counter(one.kind for one in sample)
        self._words = Counter((one.kind, word) for one in sample for word in one.words)
        self._having = Counter(pair for one in sample for pair in one.fields.items())
        # the probability that two objects that have a field agree on it
        counts, squares = Counter[str](), Counter[str]()
        for (field, _), count in self._having.items():
            counts[field] += count
            squares[field] += count * count
        self._agreement = {
            field: squares[field] / count**2 for field, count in counts.items() if count >= _LEAST
        }

    def compare(self, own: Description, other: Description) -> Comparison:
        """Return the similarities of two objects; differences only if they are of one kind."""
        both = own.words.keys() & other.words.keys()
        # rare on this host, and not typical of the kind
        is_known = self._kinds[own.kind] >= _LEAST
        typical = _MOST_OF_KIND * self._kinds[own.kind] if is_known else math.inf
        same_words = [
            word
            for word in both
            if self._shares.get(word, 0.0) <= _MOST_SHARE and self._words[own.kind, word] <= typical
        ]
        same_words.sort(key=lambda word: (self._shares.get(word, 0.0), word))
        most, theirs = _MOST_SHARE * self._objects, other.fields
        same_fields = [
            (field, value)
            for field, value in own.fields.items()
            if theirs.get(field) == value and self._having[field, value] <= most
        ]
        same_fields.sort(key=lambda pair: (self._having[pair], pair))
        differing = [
            field
            for field in own.fields.keys() & theirs.keys()
            if own.fields[field] != theirs[field]
            and self._agreement.get(field, 0) >= _LEAST_AGREEMENT
            and own.kind == other.kind
        ]
        differing.sort(key=lambda field: (-self._agreement[field], field))
        return Comparison(
            tuple(own.words[word] for word in same_words[:_MOST_WORDS]),
            tuple(same_fields[:_MOST_FIELDS]),
            tuple((field, own.fields[field], theirs[field]) for field in differing[:_MOST_FIELDS]),
        )


async def explain(
    store: StateStore, object_id: ObjectId, others: Sequence[ObjectId]
) -> Sequence[Comparison]:
    """Return the similarities of an object with each of others.

    They are empty for an object that was removed meanwhile.
    """
    known = store.catalogue.all_object_ids()
    chosen = random.Random(0).sample(known, min(_SAMPLE, len(known)))  # noqa: S311 -- no secret
    about, contents = await store.read_objects([object_id, *others, *chosen])
    described: dict[ObjectId, Description] = {}

    def describe() -> None:
        for one, entries in about.items():
            if content := contents.get(representative(entries).id):
                fields = states(store.merge_properties(entries, contents, only_stored=True))
                described[one] = Description(kind_of(one), name_words(content.text), fields)

    await asyncio.to_thread(describe)
    nothing = Description(None, {}, {})
    own = described.get(object_id, nothing)
    counts = await store.archive.read(
        lambda database: {
            stem: database.words.count_matches(word) for stem, word in own.words.items()
        }
    )
    shares = {stem: count / len(known) for stem, count in counts.items()}

    def compare() -> Sequence[Comparison]:
        frequencies = Frequencies([described[one] for one in chosen if one in described], shares)
        return [frequencies.compare(own, described.get(other, nothing)) for other in others]

    return await asyncio.to_thread(compare)
