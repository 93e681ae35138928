"""Open-addressing hash multimap from uint64 keys to int32 values, in numpy arrays.

Values are numbers from 0, such as row indexes, and each has one key. The first value with a key is
in the slots; further values with that key are chained to it.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.platform.slices import slices

_EMPTY: Final = -1
_GONE: Final = -2
_ALL_BITS: Final = (1 << 64) - 1
# 2^64 divided by the golden ratio: multiplicative hashing (Knuth, section 6.4).
_SPREAD: Final = 0x9E3779B97F4A7C15
_FIRST_BITS: Final = 7
# Maximal number of used slots out of three.
_FULL: Final = 2
# Values inserted per array operation, which holds the GIL for less than a millisecond.
_TOGETHER: Final = 1 << 14


class _State(NamedTuple):
    """Buffers of the table: values by slot, shift from hash to slot, keys and links by value."""

    slots: memoryview
    shift: int
    keys: memoryview
    after: memoryview
    before: memoryview


class HashTable:
    """Multimap from 64-bit keys to distinct numbers from 0.

    One thread changes it. Others may read meanwhile, and may miss concurrent changes.
    """

    def __init__(self) -> None:
        self._slots = np.full(1 << _FIRST_BITS, _EMPTY, np.int32)
        self._keys = np.zeros(1 << _FIRST_BITS, np.uint64)
        # next and previous number in each chain; empty until two numbers share a key
        self._chains = np.empty((2, 0), np.int32)
        # slots that hold a number or _GONE
        self._used = 0
        self._count = 0
        self._renew()

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    def find(self, key: int) -> list[int]:
        """Return the numbers with a key; a negative key is taken modulo 2^64."""
        key &= _ALL_BITS
        slots, shift, keys, after, _ = self._state
        last = len(slots) - 1
        at = ((key * _SPREAD) & _ALL_BITS) >> shift
        found = []
        while (number := slots[at]) != _EMPTY:
            # a number added concurrently may lie beyond these buffers
            while 0 <= number < len(keys) and keys[number] == key:
                found.append(number)
                number = after[number] if number < len(after) else _EMPTY
            if found:
                break
            at = (at + 1) & last
        return found

    def keys(self, numbers: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return the keys of numbers that are in the table."""
        return self._keys[numbers]

    def find_each(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return one number with each key, -1 where there is none."""
        slots, known = self._slots, self._keys
        found = np.full(len(keys), _EMPTY, np.int32)
        left, at = np.arange(len(keys)), _first_slots(keys, len(slots))
        while len(left):
            numbers = slots[at]
            # _EMPTY and _GONE are negative, so as unsigned they exceed every number
            is_number = numbers.view(np.uint32) < len(known)
            is_found = is_number & (known.take(numbers, mode="clip") == keys[left])
            found[left[is_found]] = numbers[is_found]
            goes_on = ~is_found & (numbers != _EMPTY)
            left, at = left[goes_on], (at[goes_on] + 1) & (len(slots) - 1)
        return found

    def add(self, key: int, number: int) -> None:
        """Add a number that is not in the table."""
        key &= _ALL_BITS
        self.make_room(1, number)
        slots, shift, keys, *_ = self._state
        last = len(slots) - 1
        keys[number] = key
        at, free = ((key * _SPREAD) & _ALL_BITS) >> shift, -1
        while (other := slots[at]) != _EMPTY and (other < 0 or keys[other] != key):
            free = at if other == _GONE and free < 0 else free
            at = (at + 1) & last
        if other >= 0:
            self._widen()
            after, before = self._state[3:]
            after[number], before[number] = after[other], other
            if after[other] >= 0:
                before[after[other]] = number
            after[other] = number
        else:
            self._used += free < 0
            slots[at if free < 0 else free] = number
        self._count += 1

    def add_each(self, keys: NDArray[np.uint64], numbers: NDArray[np.intp]) -> None:
        """Add numbers that are not in the table."""
        if len(numbers):
            self.make_room(len(numbers), int(numbers.max()))
            self._keys[numbers] = keys
            first = self.find_each(keys) if self._count else np.full(len(keys), _EMPTY)
            new = numbers[first < 0]
            chained, to = _insert(self._slots, self._keys, new.astype(np.int32))
            self._used += len(new) - len(chained)
            self._chain(np.append(numbers[first >= 0], chained), np.append(first[first >= 0], to))
            self._count += len(numbers)

    def remove(self, number: int) -> None:
        """Remove a number that is in the table."""
        slots, shift, keys, *_ = self._state
        last = len(slots) - 1
        after, before = self._of_chain(number)
        if before < 0:
            at = ((keys[number] * _SPREAD) & _ALL_BITS) >> shift
            while slots[at] != number:
                at = (at + 1) & last
            slots[at] = after if after >= 0 else _GONE
        else:
            self._chains[0, before] = after
        if after >= 0:
            self._chains[1, after] = before
        self._count -= 1

    def _of_chain(self, number: int) -> tuple[int, int]:
        """Clear the links of a number, and return its (next, previous), -1 for none."""
        if number >= self._chains.shape[1]:
            return _EMPTY, _EMPTY
        after, before = self._chains[:, number].tolist()
        self._chains[:, number] = _EMPTY
        return after, before

    def _widen(self) -> None:
        """Extend the chain links to all numbers."""
        if more := len(self._keys) - self._chains.shape[1]:
            self._chains = np.pad(self._chains, ((0, 0), (0, more)), constant_values=_EMPTY)
            self._renew()

    def _chain(self, numbers: NDArray[np.intp], to: NDArray[np.intp]) -> None:
        """Chain `numbers` right after the numbers `to`, which are in slots with the same keys."""
        if not len(numbers):
            return
        self._widen()
        order = np.argsort(to, kind="stable")
        numbers, to = numbers[order], to[order]
        is_first = np.append(True, to[1:] != to[:-1])
        is_last = np.append(is_first[1:], True)
        after, before = self._chains
        next_ones = np.append(numbers[1:], _EMPTY)
        next_ones[is_last] = rest = after[to[is_last]]
        after[numbers] = next_ones
        before[numbers] = np.where(is_first, to, np.append(_EMPTY, numbers[:-1]))
        before[rest[rest >= 0]] = numbers[is_last][rest >= 0]
        after[to[is_first]] = numbers[is_first]

    def _is_full(self, more: int) -> bool:
        return 3 * (self._used + more) > _FULL * len(self._slots)

    def make_room(self, more: int, last: int) -> None:
        """Reserve room for `more` numbers up to `last`."""
        if last >= len(self._keys):
            size = max(last + 1, len(self._keys) + len(self._keys) // 4)
            self._keys = np.append(self._keys, np.zeros(size - len(self._keys), np.uint64))
            self._renew()
        if self._is_full(more):
            numbers = self._slots[self._slots >= 0]
            bits = _FIRST_BITS
            # at most half full, so that rehashing is rare
            while 4 * (len(numbers) + more) > _FULL << bits:
                bits += 1
            slots = np.full(1 << bits, _EMPTY, np.int32)
            _insert(slots, self._keys, numbers)
            self._slots, self._used = slots, len(numbers)
            self._renew()

    def _renew(self) -> None:
        shift = 65 - len(self._slots).bit_length()
        after, before = self._chains
        self._state = _State(self._slots.data, shift, self._keys.data, after.data, before.data)


def _first_slots(keys: NDArray[np.uint64], slots: int) -> NDArray[np.intp]:
    shift = np.uint64(65 - slots.bit_length())
    return ((keys * np.uint64(_SPREAD)) >> shift).astype(np.intp)


def _insert(
    slots: NDArray[np.int32], keys: NDArray[np.uint64], numbers: NDArray[np.int32]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Insert numbers into slots: at each step one number takes a free slot, the others probe on.

    Return the numbers that met another number with the same key, and the numbers that they met.
    Work in parts, so that other threads run between: each array operation holds the GIL.
    """
    chained, to = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for part in slices(numbers, _TOGETHER):
        left, at = part, _first_slots(keys[part], len(slots))
        while len(left):
            is_free = slots[at] < 0
            slots[at[is_free]] = left[is_free]
            there = slots[at]
            is_left = there != left
            is_same = is_left & (keys[there] == keys[left])
            chained.append(left[is_same].astype(np.intp))
            to.append(there[is_same].astype(np.intp))
            is_left &= ~is_same
            left, at = left[is_left], (at[is_left] + 1) & (len(slots) - 1)
    return np.concatenate(chained), np.concatenate(to)
