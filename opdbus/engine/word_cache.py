"""Token ids of the words of plain texts, by numpy over the characters of many texts at a time.

Operations are on large arrays and release the GIL, so threads run in parallel.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from opdbus.models.static_table import WordPieces

# No word has this key.
_EMPTY: Final = np.uint64(0)
# Slots for each word: a low load factor keeps probe sequences short.
_SLOTS_PER_WORD: Final = 4


@dataclass(frozen=True, slots=True)
class Entries:
    """Words by their keys, each once, and the ids of each."""

    keys: NDArray[np.uint64]
    ids: Sequence[Sequence[int]]


class WordSlots:
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


# Number of cached words, some hundred bytes each, and of those that there is room for at first.
MOST_WORDS: Final = 1 << 16
_FIRST_WORDS: Final = 1 << 14
# Separator of joined texts, contained in none of them. Like a word it has ids: [SEP] and [CLS].
BETWEEN: Final = "\x01"

# A word of up to 8 characters is its own key. The key of a longer word is a hash with the highest
# bit set, which no ASCII character has. The two keys below belong to no word.
_LANE: Final = 8
_BETWEEN_KEY: Final = np.uint64(1)
_TOO_LONG_KEY: Final = np.uint64(2)
_IS_HASH: Final = np.uint64(1 << 63)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_LANE + 1)], np.uint64)
_IDS_PER_WORD: Final = 4


@dataclass(frozen=True, slots=True)
class Found:
    """Ids of texts, special ones included: `lengths[t]` ids from `first[t]` on.

    Disregard the ids of the texts whose indexes are in `odd`, which may contain an index twice.
    """

    ids: NDArray[np.int64]
    first: NDArray[np.intp]
    lengths: NDArray[np.intp]
    odd: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Words:
    """Words of joined texts: start, size, and true for a BETWEEN."""

    starts: NDArray[np.intp]
    sizes: NDArray[np.intp]
    is_between: NDArray[np.bool_]


class WordCache:
    """Cache of the ids of words seen; safe to use from any thread.

    A longer word is identified by a 63-bit hash with random factors in each process. For two words
    chosen without knowing the factors, the chance of a collision is 2**-63: multilinear hashing
    (Lemire and Kaser, 2014), twice.
    """

    def __init__(self, words: WordPieces, most: int = MOST_WORDS) -> None:
        self._words = words
        self._most = most
        self._room = min(most, _FIRST_WORDS) // 2
        self._lock = threading.Lock()
        lanes = -(-words.longest_word // _LANE)
        random = np.frombuffer(secrets.token_bytes(8 * (4 * lanes + 3)), "<u8")
        self._factors = random[3:].reshape(lanes, 4)
        self._added = random[1:3]
        self._spread = random[0] | np.uint64(1)
        self._openers = np.array(sorted({ord(text[0].lower()) for text in words.specials}))
        self._specials = tuple(text.lower() for text in words.specials)
        self._slots = self._begun(Entries(np.empty(0, np.uint64), []))

    def look_up(self, texts: Sequence[str]) -> Found:
        """Return the ids of texts; those in `odd` must be tokenized by the library."""
        joined, odd = _join_texts(texts)
        # padding for all lanes of a word that begins at the end
        lanes = len(joined) // _LANE + len(self._factors) + 1
        raw = np.frombuffer(joined.encode() + bytes(_LANE * (lanes + 1) - len(joined)), np.uint8)
        codes = raw | (((raw - np.uint8(65)) < 26).view(np.uint8) << np.uint8(5))
        words, strange = _find_words(codes[: len(joined)])
        keys = self._keys(_lanes(codes, lanes), words)
        slots, places = self._places(codes, words, keys)
        ids, first = slots.ids(places)
        between = words.is_between.nonzero()[0]
        bounds = words.starts.take(between)
        strange = np.concatenate((strange, self._special(joined, codes[: len(joined)], bounds)))
        odd = [*odd, *(bounds.searchsorted(strange, "right") - 1).tolist()]
        # behind [SEP] of the text before
        offsets = first.take(between) + 1
        return Found(ids, offsets[:-1], offsets[1:] - offsets[:-1], odd)

    def _special(
        self, joined: str, codes: NDArray[np.uint8], bounds: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Return the start of each text that may contain a special token."""
        found = [(codes == opener).nonzero()[0] for opener in self._openers]
        if not any(map(len, found)):
            return np.empty(0, np.intp)
        numbers = np.unique(bounds.searchsorted(np.concatenate(found)) - 1)
        spans = [(int(bounds[number]), int(bounds[number + 1])) for number in numbers]
        texts = [joined[start:end].lower() for start, end in spans]
        is_special = [any(special in text for special in self._specials) for text in texts]
        return bounds.take(numbers.compress(is_special))

    def _keys(self, lanes: NDArray[np.uint64], words: _Words) -> NDArray[np.uint64]:
        width = lanes.shape[1]
        at = (words.starts & (_LANE - 1)) * width + (words.starts >> 3)
        flat = lanes.ravel()
        keys: NDArray[np.uint64] = flat.take(at)
        keys &= _MASKS.take(words.sizes, mode="clip")
        rest = (words.sizes > _LANE).nonzero()[0]
        if len(rest):
            keys[rest] = self._hashes(flat, at.take(rest), words.sizes.take(rest))
        return keys

    def _hashes(
        self, flat: NDArray[np.uint64], at: NDArray[np.intp], sizes: NDArray[np.intp]
    ) -> NDArray[np.uint64]:
        """Return the keys of words longer than 8 characters."""
        most = min(int(sizes.max()), self._words.longest_word)
        number = np.arange(-(-most // _LANE))
        lanes = flat.take(at[:, None] + number)
        lanes &= _MASKS.take(sizes[:, None] - number * _LANE, mode="clip")
        factors = self._factors[: len(number)]
        low, high = lanes & _LOW, lanes >> _HALF
        first = (low * factors[:, 0] + high * factors[:, 1]).sum(axis=1) + self._added[0]
        second = (low * factors[:, 2] + high * factors[:, 3]).sum(axis=1) + self._added[1]
        keys: NDArray[np.uint64] = (first & ~_LOW) | (second >> _HALF) | _IS_HASH
        keys[sizes > self._words.longest_word] = _TOO_LONG_KEY
        return keys

    def _places(
        self, codes: NDArray[np.uint8], words: _Words, keys: NDArray[np.uint64]
    ) -> tuple[WordSlots, NDArray[np.int32]]:
        slots = self._slots
        places = slots.find(keys)
        missing = (places < 0).nonzero()[0]
        if not len(missing):
            return slots, places
        new = self._split(codes, words, keys, missing)
        with self._lock:
            is_known = slots.add(new)
        if not is_known:
            # The slots are full; other threads may still read them, so they are replaced by larger
            # ones, up to the most, which begin with the words of these texts.
            every = (keys > _TOO_LONG_KEY).nonzero()[0]
            slots = self._slots = self._begun(self._split(codes, words, keys, every))
        return slots, slots.find(keys)

    def _split(
        self,
        codes: NDArray[np.uint8],
        words: _Words,
        keys: NDArray[np.uint64],
        wanted: NDArray[np.intp],
    ) -> Entries:
        """Split the selected words, each once, into their pieces."""
        keys, at = np.unique(keys.take(wanted), return_index=True)
        at = wanted.take(at)
        first, sizes = words.starts.take(at), words.sizes.take(at)
        text = codes.tobytes().decode()
        spans = zip(first.tolist(), (first + sizes).tolist(), strict=True)
        return Entries(keys, [self._words.split(text[start:end]) for start, end in spans])

    def _begun(self, entries: Entries) -> WordSlots:
        """Return new slots with these words and twice the room of the last, up to `most` words."""
        self._room = min(self._most, self._room * 2)
        before, behind = self._words.special_ids
        none = Entries(
            np.array([_BETWEEN_KEY, _TOO_LONG_KEY]), [[behind, before], [self._words.unknown]]
        )
        ids = max(self._room * _IDS_PER_WORD, sum(map(len, entries.ids)))
        slots = WordSlots(max(self._room, len(entries.keys)) + 2, ids + 3, self._spread)
        slots.add(none)
        slots.add(entries)
        return slots


def _join_texts(texts: Sequence[str]) -> tuple[str, list[int]]:
    """Join texts with BETWEEN around each, texts that are not plain as ""; return their indexes."""
    joined = BETWEEN.join(["", *texts, ""])
    if joined.isascii() and joined.count(BETWEEN) == len(texts) + 1:
        return joined, []
    odd = [n for n, text in enumerate(texts) if not text.isascii() or BETWEEN in text]
    kept = list(texts)
    for number in odd:
        kept[number] = ""
    return BETWEEN.join(["", *kept, ""]), odd


def _find_words(codes: NDArray[np.uint8]) -> tuple[_Words, NDArray[np.intp]]:
    """Return the words of joined texts, and the positions of control characters."""
    is_word = (codes - np.uint8(97)) < 26
    is_word |= (codes - np.uint8(48)) < 10
    is_between = codes == ord(BETWEEN)
    is_mark = (codes - np.uint8(33)) < 94
    is_mark ^= is_word
    is_mark |= is_between
    is_control = codes < 32
    is_control &= ((codes - np.uint8(9)) >= 2) & (codes != 13)
    is_control ^= is_between
    is_control |= codes == 127
    # edges: a character where a word or mark begins or a word ends; the first is a BETWEEN
    is_edge = is_mark.copy()
    is_edge[1:] |= is_word[1:] ^ is_word[:-1]
    edges = is_edge.nonzero()[0]
    sizes = np.empty_like(edges)
    sizes[:-1] = edges[1:] - edges[:-1]
    # the last is a BETWEEN
    sizes[-1] = 1
    marks = is_mark.take(edges)
    sizes[marks] = 1
    begins = is_word.take(edges)
    begins |= marks
    starts = edges.compress(begins)
    words = _Words(starts, sizes.compress(begins), is_between.take(starts))
    return words, is_control.nonzero()[0]


def _lanes(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint64]:
    """Return 8 characters as one number, for every position: [start % 8, start // 8]."""
    lanes = np.empty((_LANE, width), "<u8")
    for shift, lane in enumerate(lanes):
        lane.view(np.uint8)[:] = codes[shift : shift + _LANE * width]
    return lanes
