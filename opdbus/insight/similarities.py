"""Similarities of two objects: common words and fields, and differing fields."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opdbus.index.catalogue.catalogue import representative
from opdbus.insight.gathering import kind_of
from opdbus.insight.naming import words
from opdbus.insight.survey import states

if TYPE_CHECKING:
    from opdbus.index.database.store import Store
    from opdbus.index.state_store.state_store import StateStore
    from opdbus.insight.gathering import Kind
    from opdbus.state.object import ObjectId

# The fields of an object, with values as JSON.
States: TypeAlias = Mapping[str, str]

# The number of objects from which frequencies are estimated.
_SAMPLE: Final = 300
_WORDS: Final = 4
_FIELDS: Final = 3
# The largest share of all objects that have a word or value worth a mention, and the largest share
# of a kind that has such a word.
_MOST_SHARE: Final = 0.25
_MOST_OF_KIND: Final = 0.5
# The least number of objects for a statement about a kind or field.
_LEAST: Final = 5
# The least probability that two objects agree on a field; below it, a difference means nothing.
_LEAST_AGREEMENT: Final = 0.3


class Described(NamedTuple):
    """The compared parts of an object: its kind, the words of its text, and its fields."""

    kind: Kind | None
    words: Mapping[str, str]
    states: States


@dataclass(frozen=True, slots=True)
class Alike:
    """Common words and fields of two objects, the rarest first, and the main differences.

    Values are JSON, empty if there is no such field; `differs` has (field, own, other).
    """

    words: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    differs: tuple[tuple[str, str, str], ...]


class Usual:
    """Frequencies of words and values on this host, from a sample of its objects.

    `shares` has the share of all objects that have a word.
    """

    def __init__(self, sample: Sequence[Described], shares: Mapping[str, float]) -> None:
        self._objects = len(sample)
        self._shares = shares
        self._kinds = Counter(one.kind for one in sample)
        self._words = Counter((one.kind, word) for one in sample for word in one.words)
        self._having = Counter(pair for one in sample for pair in one.states.items())
        self._agreement = _agreement(self._having)

    def compare(self, own: Described, other: Described) -> Alike:
        """Return the similarities of two objects; differences only if they are of one kind."""
        is_one_kind = own.kind == other.kind
        return Alike(
            tuple(self._common_words(own, other)),
            tuple(self._common_fields(own.states, other.states)),
            tuple(self._differing(own.states, other.states)) if is_one_kind else (),
        )

    def _common_words(self, own: Described, other: Described) -> Iterable[str]:
        rare = [word for word in own.words.keys() & other.words.keys() if self._tells(own, word)]
        rare.sort(key=lambda word: (self._shares.get(word, 0.0), word))
        return (own.words[word] for word in rare[:_WORDS])

    def _tells(self, own: Described, word: str) -> bool:
        """Return whether a word is rare on this host, and not typical of the kind."""
        is_of_kind = self._words[own.kind, word] > _MOST_OF_KIND * self._kinds[own.kind]
        is_known = self._kinds[own.kind] >= _LEAST
        return self._shares.get(word, 0.0) <= _MOST_SHARE and not (is_known and is_of_kind)

    def _common_fields(self, own: States, other: States) -> Iterable[tuple[str, str]]:
        both = [pair for pair in own.items() if other.get(pair[0]) == pair[1]]
        rare = [pair for pair in both if self._having[pair] <= _MOST_SHARE * self._objects]
        rare.sort(key=lambda pair: (self._having[pair], pair))
        return rare[:_FIELDS]

    def _differing(self, own: States, other: States) -> Iterable[tuple[str, str, str]]:
        agreement = self._agreement
        unlike = [
            field
            for field in own.keys() & other.keys()
            if own[field] != other[field] and agreement.get(field, 0) >= _LEAST_AGREEMENT
        ]
        unlike.sort(key=lambda field: (-agreement[field], field))
        return ((field, own[field], other[field]) for field in unlike[:_FIELDS])


def _agreement(having: Counter[tuple[str, str]]) -> Mapping[str, float]:
    """Return the probability that two objects that have a field agree on it."""
    counts, squares = Counter[str](), Counter[str]()
    for (field, _), count in having.items():
        counts[field] += count
        squares[field] += count * count
    return {f: squares[f] / count**2 for f, count in counts.items() if count >= _LEAST}


async def explain(
    memory: StateStore, object_id: ObjectId, others: Sequence[ObjectId]
) -> Sequence[Alike]:
    """Return the similarities of an object with each of others.

    They are empty for an object that was removed meanwhile.
    """
    known = memory.catalogue.known()
    chosen = random.Random(0).sample(known, min(_SAMPLE, len(known)))  # noqa: S311 -- no secret
    described = await _describe(memory, [object_id, *others, *chosen])
    nothing = Described(None, {}, {})
    own = described.get(object_id, nothing)
    shares = await memory.archive.read(lambda store: _shares(store, own.words, len(known)))

    def work() -> Sequence[Alike]:
        usual = Usual([described[t] for t in chosen if t in described], shares)
        return [usual.compare(own, described.get(other, nothing)) for other in others]

    return await asyncio.to_thread(work)


async def _describe(
    memory: StateStore, object_ids: Sequence[ObjectId]
) -> Mapping[ObjectId, Described]:
    catalogue = memory.catalogue
    about = {
        object_id: catalogue.about(object_id)
        for object_id in object_ids
        if catalogue.has(object_id)
    }
    contents = await memory.content([entry for entries in about.values() for entry in entries])

    def work() -> Mapping[ObjectId, Described]:
        return {
            object_id: Described(
                kind_of(object_id),
                words(contents[representative(entries).id].text),
                states(memory.merge_properties(entries, contents, only_stored=True)),
            )
            for object_id, entries in about.items()
            if representative(entries).id in contents
        }

    return await asyncio.to_thread(work)


def _shares(store: Store, words: Mapping[str, str], objects: int) -> Mapping[str, float]:
    """Return the share of all objects that have each word, in any form."""
    return {stem: store.words.count_matches(word) / objects for stem, word in words.items()}
