"""Which objects have each word, as numbers in arrays: what the database has at one moment.

A search by these scores all objects that have a word of a question, however many those are: the
database takes a thousand times as long for each of them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.index.database.store import Store

# Of BM25, as FTS5 has them.
_K1: Final = 1.2
_B: Final = 0.75
# Occurrences of words that are read at a time: some milliseconds' work.
_AT_A_TIME: Final = 1 << 16
# The fact by which the database keeps a mean length of objects, and the share by which today's may
# differ from it: scores change by less than a hundredth then.
MEAN_LENGTH: Final = "mean length of objects in words"
_NEAR: Final = 0.02


class Having(NamedTuple):
    """The places of entries that have a word, and what it adds to their scores, but for its idf."""

    places: NDArray[np.int32]
    impacts: NDArray[np.float16]


class Vocabulary:
    """The different words that there are, in order, in one text."""

    def __init__(self, words: bytes, starts: NDArray[np.uint32]) -> None:
        self.words = words
        # where each begins, and the last one ends
        self.starts = starts

    def __len__(self) -> int:
        """Count the words."""
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        """Return a word."""
        return self.words[self.starts[number] : self.starts[number + 1]]

    def begins(self, beginning: bytes) -> bool:
        """Return whether a word begins so, and goes on."""
        # no letter or digit is less than 0
        number = self._place(beginning + b"0")
        return number < len(self) and self[number].startswith(beginning)

    def find(self, word: bytes) -> int | None:
        """Return the number of a word; None if there is no such word."""
        number = self._place(word)
        return number if number < len(self) and self[number] == word else None

    def _place(self, word: bytes) -> int:
        return bisect_left(range(len(self)), word, key=self.__getitem__)


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The places of entries that have each word, and how much each has of it."""

    vocabulary: Vocabulary
    # where those of each word begin, and the end of all
    starts: NDArray[np.uint32]
    places: NDArray[np.int32]
    impacts: NDArray[np.float16]
    # the mean length of objects, in words, that impacts were computed with
    mean_length: float
    # places, and one for objects that have none
    size: int

    @classmethod
    def of(cls, about: Sequence[Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return those that gave this `about` and these arrays."""
        mean_length, size = about
        vocabulary = Vocabulary(arrays["stems"].tobytes(), arrays["ends"])
        starts, places, impacts = (arrays[name] for name in ("starts", "places", "impacts"))
        return cls(vocabulary, starts, places, impacts, mean_length, size)

    @property
    def about(self) -> tuple[float, int]:
        """What there is besides arrays."""
        return self.mean_length, self.size

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {
            "stems": np.frombuffer(self.vocabulary.words, np.uint8),
            "ends": self.vocabulary.starts,
            "starts": self.starts,
            "places": self.places,
            "impacts": self.impacts,
        }

    def find(self, word: bytes) -> Having:
        """Return what has a word."""
        number = self.vocabulary.find(word)
        at = slice(0, 0) if number is None else slice(*self.starts[number : number + 2])
        return Having(self.places[at], self.impacts[at])


def impacts(
    times: NDArray[np.float32], lengths: NDArray[np.float32], mean_length: float
) -> NDArray[np.float32]:
    """Return what words that entries have so many times add to their scores, but for the idf.

    `times` are weighted, `lengths` those of entries in words. Source of the formula: SQLite's FTS5
    documentation.
    """
    limits = _K1 * (1 - _B + _B * lengths / mean_length)
    return (times * (_K1 + 1) / (times + limits)).astype(np.float32)


def read(store: Store, ids: NDArray[np.int64]) -> Postings:
    """Read the words of all entries, whose `ids` (places,) these are; 0 is at a free place.

    Call in a snapshot. Takes seven seconds for a million objects, most of it without the GIL.
    """
    words = store.words
    stems, octets, having, counts = words.vocabulary()
    vocabulary, starts = Vocabulary(stems, sums(octets)), sums(having)
    places, times = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float16)
    lengths = np.zeros(len(ids) + 1, np.float32)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    for first, last in _parts(counts):
        store.require_running()
        said, end = words.occurrences(vocabulary[first], vocabulary[last - 1]), int(starts[first])
        for part, of_words in _pieces(said, counts[first:last]):
            found, often, own = once(part, of_words, words.weights)
            at = slice(end, end := end + len(found))
            times[at], places[at] = often, _places(found, ids, order)
            np.add.at(lengths, places[at], own)
    mean = mean_length(store)
    for start in range(0, len(places), _AT_A_TIME):
        at = slice(start, start + _AT_A_TIME)
        times[at] = impacts(times[at].astype(np.float32), lengths[places[at]], mean)
    return Postings(vocabulary, starts, places, times, mean, len(lengths))


def mean_length(store: Store) -> float:
    """Return the mean length of objects in words: the kept one, if today's is near it.

    So words that were read at different times have the same scores.
    """
    today, kept = store.words.mean_length(), float(store.fact(MEAN_LENGTH) or 0)
    return kept if abs(kept - today) <= _NEAR * today else today


def sums(lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return where each of parts begins that are one after the other, and where the last ends."""
    found = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(lengths, out=found[1:])
    return found


def _parts(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of words that are together said so many times, or of one word."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        said = ends[first] - counts[first]
        last = max(first + 1, int(np.searchsorted(ends, said + _AT_A_TIME, "right")))
        yield first, last
        first = last


def _pieces(
    said: NDArray[np.int64], counts: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield occurrences, and how many are of each word: those of one word in parts.

    Those in one object are not parted.
    """
    if len(counts) > 1:
        yield said, counts
        return
    start = 0
    while start < len(said):
        last = said[min(start + _AT_A_TIME, len(said)) - 1]
        end = int(np.searchsorted(said, ((last >> 2) + 1) << 2))
        yield said[start:end], np.array([end - start])
        start = end


def once(
    occurrences: NDArray[np.int64], counts: NDArray[np.int64], weights: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Return (id, times that it has the word, weighted, and not) of each word and object."""
    ids, columns = occurrences >> 2, occurrences & 3
    words = np.repeat(np.arange(len(counts)), counts)
    is_first = np.append(True, (ids[1:] != ids[:-1]) | (words[1:] != words[:-1]))
    starts = np.flatnonzero(is_first[: len(ids)])
    times = np.add.reduceat(np.array([*weights, 0], np.float32)[columns], starts)
    # more are exact no longer, and add hardly anything
    return ids[starts], np.minimum(times, 2048), np.diff(np.append(starts, len(ids)))


def _places(
    found: NDArray[np.int64], ids: NDArray[np.int64], order: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the places of ids: that after all others for those which have none."""
    at = np.searchsorted(ids, found, sorter=order)
    places = order[np.minimum(at, len(order) - 1)] if len(order) else at
    there = ids[places] == found if len(order) else np.zeros(len(found), np.bool_)
    return np.where(there, places, len(ids)).astype(np.int32)
