"""Hash table from 64-bit word keys to token ids, in numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# No word has this key.
_EMPTY: Final = np.uint64(0)
# Slots for each word: a low load factor keeps probe sequences short.
_SLOTS_PER_WORD: Final = 4


@dataclass(frozen=True, slots=True)
class Entries:
    """Words by their keys, each once, and the ids of each."""

    keys: NDArray[np.uint64]
    ids: Sequence[Sequence[int]]


class Slots:
    """Open-addressing hash table; entries are never changed or moved."""

    def __init__(self, words: int, ids: int, spread: np.uint64) -> None:
        size_log2 = (words * _SLOTS_PER_WORD).bit_length()
        self._spread = spread
        self._shift = np.uint64(64 - size_log2)
        self._keys = np.zeros(1 << size_log2, np.uint64)
        self._places = np.zeros(1 << size_log2, np.int32)
        self._first = np.zeros(words, np.int32)
        self._sizes = np.zeros(words, np.int32)
        self._ids = np.zeros(ids, np.int64)
        self._count = self._count_ids = 0

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the place of each key, -1 if it is missing."""
        at = self._home(keys)
        there = self._keys.take(at)
        places = self._places.take(at)
        rest = (there != keys).nonzero()[0]
        while len(rest):
            is_end = there.take(rest) == _EMPTY
            places[rest[is_end]] = -1
            rest = rest[~is_end]
            at[rest] = (at[rest] + 1) % len(self._keys)
            there[rest] = self._keys.take(at[rest])
            places[rest] = self._places.take(at[rest])
            rest = rest[there[rest] != keys[rest]]
        return places

    def ids(self, places: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Return the concatenated ids of words, and the start of each word's ids."""
        sizes, first = self._sizes.take(places), self._first.take(places)
        ends: NDArray[np.intp] = sizes.cumsum(dtype=np.intp)
        begins = np.subtract(ends, sizes, dtype=np.intp)
        # Steps between ids: 1 inside a word; at a word's start, the distance to its first id.
        steps = np.ones(ends[-1], np.int32)
        steps[begins[1:]] = first[1:] - first[:-1] - sizes[:-1] + 1
        steps[0] = first[0]
        return self._ids.take(steps.cumsum(dtype=np.intp)), begins

    def add(self, entries: Entries) -> bool:
        """Add words, false if there is no room; readers find each word whole or not at all."""
        sizes = np.array([len(each) for each in entries.ids], np.int32)
        count, count_ids = self._count + len(sizes), self._count_ids + int(sizes.sum())
        if count > len(self._sizes) or count_ids > len(self._ids):
            return False
        self._ids[self._count_ids : count_ids] = [n for each in entries.ids for n in each]
        self._sizes[self._count : count] = sizes
        self._first[self._count : count] = self._count_ids + sizes.cumsum() - sizes
        places = np.arange(self._count, count, dtype=np.int32)
        self._count, self._count_ids = count, count_ids
        self._put(entries.keys, places)
        return True

    def _put(self, keys: NDArray[np.uint64], places: NDArray[np.int32]) -> None:
        at = self._home(keys)
        while len(at):
            free = (self._keys[at] == _EMPTY).nonzero()[0]
            free = free[np.unique(at[free], return_index=True)[1]]
            # the key is written last, which publishes the place
            self._places[at[free]] = places[free]
            self._keys[at[free]] = keys[free]
            rest = self._keys[at] != keys
            keys, places, at = keys[rest], places[rest], (at[rest] + 1) % len(self._keys)

    def _home(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        found: NDArray[np.intp] = ((keys * self._spread) >> self._shift).astype(np.intp)
        return found
