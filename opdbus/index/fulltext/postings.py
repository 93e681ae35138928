"""Inverted index of all objects in numpy arrays, read from FTS5 at one state of the database.

It scores every object with a word of the query, which FTS5 does a thousand times slower.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.database.store import Store

# Constants of BM25, as in FTS5.
_K1: Final = 1.2
_B: Final = 0.75
# Occurrences of words processed at a time: some milliseconds.
_AT_A_TIME: Final = 1 << 16


class Having(NamedTuple):
    """Postings of one word: places of entries, and its BM25 term scores without the idf."""

    places: NDArray[np.int32]
    impacts: NDArray[np.float16]


class Vocabulary:
    """Sorted stems of all words, concatenated as UTF-8."""

    def __init__(self, words: bytes, starts: NDArray[np.uint32]) -> None:
        self.words = words
        # starts of the stems, and the end of the last one
        self.starts = starts

    def __len__(self) -> int:
        """Return the number of stems."""
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        """Return a stem by number."""
        return self.words[self.starts[number] : self.starts[number + 1]]

    def begins(self, beginning: bytes) -> bool:
        """Return whether `beginning` is a proper prefix of a stem."""
        # "0" is the least letter or digit
        number = self._place(beginning + b"0")
        return number < len(self) and self[number].startswith(beginning)

    def find(self, word: bytes) -> int | None:
        """Return the number of a stem, None if there is no such stem."""
        number = self._place(word)
        return number if number < len(self) and self[number] == word else None

    def _place(self, word: bytes) -> int:
        return bisect_left(range(len(self)), word, key=self.__getitem__)


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """Inverted index: for each stem, the places of entries and the impacts there."""

    vocabulary: Vocabulary
    # starts of the postings by stem, and the end of the last ones
    starts: NDArray[np.uint32]
    places: NDArray[np.int32]
    impacts: NDArray[np.float16]
    # number of places, plus one for objects without a place
    size: int

    def find(self, word: bytes) -> Having:
        """Return the postings of a stem, empty if there is no such stem."""
        number = self.vocabulary.find(word)
        at = slice(0, 0) if number is None else slice(*self.starts[number : number + 2])
        return Having(self.places[at], self.impacts[at])


def impacts(
    times: NDArray[np.float32], lengths: NDArray[np.float32], mean_length: float
) -> NDArray[np.float32]:
    """Return the BM25 term scores of words in entries, without the idf.

    `times` are weighted term frequencies, `lengths` the lengths of the entries in words. Source of
    the formula: SQLite's FTS5 documentation, bm25().
    """
    limits = _K1 * (1 - _B + _B * lengths / mean_length)
    return (times * (_K1 + 1) / (times + limits)).astype(np.float32)


def read(store: Store, ids: NDArray[np.int64]) -> Postings:
    """Read the postings of all entries; `ids` (places,) are their ids, 0 at a free place.

    Call inside `store.snapshot()`, on a worker thread: takes 7 s for a million objects, mostly
    without the GIL. Raises StoreError if the daemon is stopping.
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
    mean = words.mean_length()
    for start in range(0, len(places), _AT_A_TIME):
        at = slice(start, start + _AT_A_TIME)
        times[at] = impacts(times[at].astype(np.float32), lengths[places[at]], mean)
    return Postings(vocabulary, starts, places, times, len(lengths))


def sums(lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the offsets of concatenated parts, and the end of the last, (parts + 1,)."""
    found = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(lengths, out=found[1:])
    return found


def _parts(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of stems with together at most _AT_A_TIME occurrences, or of one stem."""
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
    """Yield (occurrences, number of them by stem); split those of a single stem into parts.

    A part does not end within an object.
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
    """Return (ids, weighted frequencies, unweighted ones) for each pair of stem and object.

    `occurrences` are those of FulltextTable.occurrences, `counts` their number by stem.
    """
    ids, columns = occurrences >> 2, occurrences & 3
    words = np.repeat(np.arange(len(counts)), counts)
    is_first = np.append(True, (ids[1:] != ids[:-1]) | (words[1:] != words[:-1]))
    starts = np.flatnonzero(is_first[: len(ids)])
    times = np.add.reduceat(np.array([*weights, 0], np.float32)[columns], starts)
    # float16 is exact up to 2048, and higher frequencies hardly change the score
    return ids[starts], np.minimum(times, 2048), np.diff(np.append(starts, len(ids)))


def _places(
    found: NDArray[np.int64], ids: NDArray[np.int64], order: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the places of ids, len(ids) for an id without a place; `order` sorts `ids`."""
    at = np.searchsorted(ids, found, sorter=order)
    places = order[np.minimum(at, len(order) - 1)] if len(order) else at
    there = ids[places] == found if len(order) else np.zeros(len(found), np.bool_)
    return np.where(there, places, len(ids)).astype(np.int32)
