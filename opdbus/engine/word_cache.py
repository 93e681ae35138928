"""Words of plain texts to their summed vectors, by hashes, many texts at a time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from opdbus.models.static_table import StaticTable

# Words that are kept; a kibibyte each, at 256 dimensions.
MOST_WORDS: Final = 1 << 15
_SLOTS_LOG2: Final = 17
_SHIFT: Final = np.uint64(64 - _SLOTS_LOG2)
# Characters looked at together: so few that their words always fit, and arrays stay in the cache.
AT_ONCE: Final = 1 << 15

# What a byte is: nothing or a space, part of a word, a word by itself, or not plain.
_WORD: Final = 1
_MARK: Final = 2
_OTHER: Final = 3


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, _OTHER, np.uint8)
    kinds[33:127] = _MARK
    for byte in b"abcdefghijklmnopqrstuvwxyz0123456789":
        kinds[byte] = _WORD
    kinds[list(b" \t\n\r")] = 0
    return kinds


_KINDS: Final = _kinds()


@dataclass(frozen=True, slots=True)
class Words:
    """The words of several texts, one after the other, as places in `vectors`.

    Text `t` has the words from `first[t]` on, before `first[t + 1]`. `tokens` counts the pieces of
    each text. Place 0 is no word.
    """

    places: NDArray[np.intp]
    first: NDArray[np.intp]
    tokens: NDArray[np.intp]
    plain: NDArray[np.bool_]
    vectors: NDArray[np.float32]


class WordCache:
    """The vectors of the words that were seen; safe to use from any thread.

    Words are told apart by a hash of 64 bits that is another one in each process, so that nobody
    can make two words of one hash.
    """

    def __init__(self, table: StaticTable, most: int = MOST_WORDS) -> None:
        self._table = table
        self._most = most
        self._lock = threading.Lock()
        self._slots = _Slots(most, table.dimension)
        random = np.frombuffer(secrets.token_bytes(8 * 257), "<u8")
        self._of_byte = random[:256]
        base = np.full(AT_ONCE + table.longest_word + 2, random[256] | np.uint64(1))
        self._powers = np.multiply.accumulate(base)
        inverse = np.full(len(base), pow(int(base[0]), -1, 1 << 64), np.uint64)
        self._inverses = np.multiply.accumulate(inverse)

    def look_up(self, texts: Sequence[str]) -> Words:
        """Return the words of texts of ASCII characters, together at most AT_ONCE of them."""
        # a space between the texts, and behind the last
        joined = np.frombuffer(" ".join([*texts, ""]).lower().encode(), np.uint8)
        kinds = _KINDS.take(joined)
        starts, ends = _bounds(kinds)
        lengths = np.fromiter(map(len, texts), np.intp, len(texts)) + 1
        bounds = np.concatenate(([0], lengths.cumsum()))
        first = starts.searchsorted(bounds)
        is_plain = np.ones(len(texts), np.bool_)
        longest = starts + self._table.longest_word
        strange = np.concatenate((np.flatnonzero(kinds == _OTHER), starts[ends > longest]))
        is_plain[bounds.searchsorted(strange, "right") - 1] = False
        # what is longer is no word, and costs nothing
        ends = np.minimum(ends, longest)
        slots, places = self._places(joined, starts, ends)
        counted = np.concatenate(([0], slots.sizes.take(places).cumsum()))
        return Words(places, first, np.diff(counted.take(first)), is_plain, slots.vectors)

    def _places(
        self, joined: NDArray[np.uint8], starts: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> tuple[_Slots, NDArray[np.intp]]:
        hashes = self._hashes(joined, starts, ends)
        slots = self._slots
        while True:
            places = slots.find(hashes)
            missing = np.flatnonzero(places < 0)
            if not len(missing):
                return slots, places
            new, at = np.unique(hashes[missing], return_index=True)
            words = [joined[starts[n] : ends[n]].tobytes().decode() for n in missing[at]]
            slots = self._learn(slots, new, words)

    def _hashes(
        self, joined: NDArray[np.uint8], starts: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> NDArray[np.uint64]:
        """Return a polynomial's value for each word, wherever it begins; never 0."""
        sums = np.zeros(len(joined) + 1, np.uint64)
        values = self._of_byte.take(joined)
        values *= self._powers[: len(joined)]
        values.cumsum(out=sums[1:])
        hashes = sums.take(ends)
        hashes -= sums.take(starts)
        hashes *= self._inverses.take(starts)
        hashes |= np.uint64(1)
        return hashes

    def _learn(self, slots: _Slots, hashes: NDArray[np.uint64], words: Sequence[str]) -> _Slots:
        """Add words that `slots` lack, and return those or, where they are full, new ones."""
        split = [self._table.split(word) for word in words]
        sizes = np.array([len(ids) for ids in split])
        ids = np.array([number for ids in split for number in ids])
        first = sizes.cumsum() - sizes
        vectors = np.empty((len(words), self._table.dimension))
        for size in np.unique(sizes):
            of_size = sizes == size
            vectors[of_size] = self._table.sums(ids[first[of_size, None] + np.arange(size)])
        with self._lock:
            if slots.count + len(words) > self._most:
                # others may still read the old ones
                slots = self._slots = _Slots(self._most, self._table.dimension)
            slots.add(hashes, vectors, sizes)
        return slots


class _Slots:
    """Hashes with open addressing; what was added is never changed or moved."""

    def __init__(self, most: int, dimension: int) -> None:
        self.count = 0
        self.vectors = np.zeros((most + 1, dimension), np.float32)
        self.sizes = np.zeros(most + 1, np.intp)
        self._keys = np.zeros(1 << _SLOTS_LOG2, np.uint64)
        self._places = np.zeros(1 << _SLOTS_LOG2, np.intp)

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the place of each hash, -1 where it is not known."""
        at = (hashes >> _SHIFT).astype(np.intp)
        keys = self._keys.take(at)
        places = self._places.take(at)
        rest = np.flatnonzero(keys != hashes)
        while len(rest):
            places[rest[keys[rest] == 0]] = -1
            rest = rest[keys[rest] != 0]
            at[rest] = (at[rest] + 1) % len(self._keys)
            keys[rest] = self._keys.take(at[rest])
            places[rest] = self._places.take(at[rest])
            rest = rest[keys[rest] != hashes[rest]]
        return places

    def add(
        self, hashes: NDArray[np.uint64], vectors: NDArray[np.float64], sizes: NDArray[np.intp]
    ) -> None:
        """Add words; another thread that reads meanwhile finds each of them whole or not at all."""
        first = self.count + 1
        self.vectors[first : first + len(hashes)] = vectors
        self.sizes[first : first + len(hashes)] = sizes
        places = np.arange(first, first + len(hashes))
        at = (hashes >> _SHIFT).astype(np.intp)
        while len(at):
            free = np.flatnonzero(self._keys[at] == 0)
            free = free[np.unique(at[free], return_index=True)[1]]
            # the key last: it makes the place known
            self._places[at[free]] = places[free]
            self._keys[at[free]] = hashes[free]
            rest = self._keys[at] != hashes
            hashes, places, at = hashes[rest], places[rest], (at[rest] + 1) % len(self._keys)
        self.count += len(vectors)


def _bounds(kinds: NDArray[np.uint8]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where each word begins and ends."""
    is_word = kinds == _WORD
    starts, ends = is_word.copy(), is_word.copy()
    starts[1:] &= ~is_word[:-1]
    ends[:-1] &= ~is_word[1:]
    is_mark = kinds == _MARK
    starts |= is_mark
    ends |= is_mark
    return np.flatnonzero(starts), np.flatnonzero(ends) + 1
