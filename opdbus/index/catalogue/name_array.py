"""Names of entries by place, concatenated as UTF-8 in one array."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import with_room
from opdbus.index.catalogue.value_array import positions
from opdbus.platform.lean_imports import distinct

# Bytes of removed names, besides half of all bytes, that are kept before compaction.
_LEFT: Final = 1 << 16
# The bit by which an ASCII lower-case letter differs from its capital.
_SMALL: Final = np.uint8(0x20)


class NameArray:
    """Names by place.

    One thread writes. Others may read meanwhile the names of places that it does not change.
    """

    def __init__(self) -> None:
        # bytes of all names, and starts by place; one tuple, so that readers get a matching pair
        self._held = np.empty(0, np.uint8), np.empty(0, np.uint32)
        self._end = 0
        # bytes of removed names before `_end`
        self._gone = 0
        self._sizes = np.empty(0, np.uint32)

    def add(
        self,
        data: bytearray,
        sizes: NDArray[np.uint32],
        at: NDArray[np.intp],
        places: NDArray[np.intp],
    ) -> None:
        """Set the names of `places` to the names `at` of `data`, which concatenates all `sizes`."""
        if not len(places):
            return
        self._free_room(places)
        starts, new = np.cumsum(sizes, dtype=np.int64) - sizes, np.frombuffer(data, np.uint8)
        # at startup, use `data` without copying it
        held, begins = self._held
        held = with_room(held, self._end, len(new)) if self._end else new
        end = self._end + len(new)
        held[self._end : end] = new
        self._held = held, begins
        begins[places], self._sizes[places] = self._end + starts[at], sizes[at]
        self._gone += len(new) - int(sizes[at].sum())
        self._end = end

    def put(self, place: int, name: str) -> None:
        """Set the name of a place."""
        encoded = name.encode()
        self._free_room(np.array([place], np.intp))
        end = self._end + len(encoded)
        held, begins = self._held
        held = with_room(held, self._end, len(encoded))
        held[self._end : end] = np.frombuffer(encoded, np.uint8)
        self._held = held, begins
        begins[place], self._sizes[place] = self._end, len(encoded)
        self._end = end

    def _free_room(self, places: NDArray[np.intp]) -> None:
        """Drop the names of places, and extend the arrays to new places."""
        known, last = len(self._sizes), int(places.max())
        if last >= known:
            more = max(last + 1, known + known // 4) - known
            held, begins = self._held
            self._held = held, np.append(begins, np.zeros(more, np.uint32))
            self._sizes = np.append(self._sizes, np.zeros(more, np.uint32))
        self._gone += int(self._sizes[places].sum())
        self._sizes[places] = 0
        if self._gone > _LEFT + self._end // 2:
            self._close_up()

    def _close_up(self) -> None:
        """Compact the bytes, without removed names."""
        sizes = self._sizes.astype(np.intp)
        starts = np.cumsum(sizes) - sizes
        at = np.arange(int(sizes.sum())) - np.repeat(starts - self._held[1], sizes)
        self._held = self._held[0][at], starts.astype(np.uint32)
        self._end, self._gone = len(at), 0

    def holding(self, part: bytes) -> NDArray[np.intp]:
        """Return the places whose names contain lower-case `part`, ignoring the case of ASCII."""
        # read the sizes first: each of them then has a start
        sizes, end = self._sizes, self._end
        held, begins = self._held
        data, starts = held[:end], begins[: len(sizes)].astype(np.intp)
        # leave out empty names, which may start where another name does
        there = np.flatnonzero(sizes)
        if not len(there):
            return there
        is_capital = (data >= ord("A")) & (data <= ord("Z"))
        found = positions(np.where(is_capital, data | _SMALL, data), part)
        order = there[np.argsort(starts[there], kind="stable")]
        at = order[np.searchsorted(starts[order], found, "right") - 1]
        is_held = (starts[at] <= found) & (found + len(part) <= starts[at] + sizes[at])
        return distinct(at[is_held])

    def __getitem__(self, place: int) -> str:
        """Return a name; a name that is being replaced may be read as any text."""
        held, begins = self._held
        start = begins.item(place)
        return str(held.data[start : start + self._sizes.item(place)], "utf-8", "replace")

    def of(self, places: Iterable[int]) -> list[str]:
        """Return the names of places."""
        (held, begins), lengths = self._held, self._sizes
        data, starts, sizes = held.data, begins.data, lengths.data
        return [
            str(data[(start := starts[place]) : start + sizes[place]], "utf-8", "replace")
            for place in places
        ]
