"""The names of entries by place, one after the other in one array."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.rows import with_room

# Bytes of names that are gone, which are left where there are few names.
_LEFT: Final = 1 << 16


class Names:
    """Names by place; one thread puts them, and others read those of places that stay."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._end = 0
        # how many of these are of names that are gone
        self._gone = 0
        self._starts = np.empty(0, np.uint32)
        self._sizes = np.empty(0, np.uint32)

    def load(self, data: bytearray, sizes: NDArray[np.uint32], at: NDArray[np.intp]) -> None:
        """Take some of the names that are one after the other, as those of the first places."""
        starts = np.cumsum(sizes, dtype=np.int64) - sizes
        self._starts, self._sizes = starts[at].astype(np.uint32), sizes[at]
        self._bytes = np.frombuffer(data, np.uint8)
        self._end = len(self._bytes)
        self._gone = self._end - int(self._sizes.sum())

    def put(self, place: int, name: str) -> None:
        """Put a name in place of another one, or of none."""
        known, encoded = len(self._sizes), name.encode()
        if place >= known:
            more = max(place + 1, known + known // 4) - known
            self._starts = np.append(self._starts, np.zeros(more, np.uint32))
            self._sizes = np.append(self._sizes, np.zeros(more, np.uint32))
        self._gone += int(self._sizes[place])
        self._sizes[place] = 0
        if self._gone > _LEFT + self._end // 2:
            self._close_up()
        end = self._end + len(encoded)
        self._bytes = with_room(self._bytes, self._end, len(encoded))
        self._bytes[self._end : end] = np.frombuffer(encoded, np.uint8)
        self._starts[place], self._sizes[place] = self._end, len(encoded)
        self._end = end

    def _close_up(self) -> None:
        """Leave out what is gone."""
        sizes = self._sizes.astype(np.intp)
        starts = np.cumsum(sizes) - sizes
        at = np.arange(int(sizes.sum())) - np.repeat(starts - self._starts, sizes)
        self._bytes = self._bytes[at]
        self._starts = starts.astype(np.uint32)
        self._end, self._gone = len(at), 0

    def __getitem__(self, place: int) -> str:
        """Return a name; one that is being replaced may be anything."""
        start = self._starts.item(place)
        return str(self._bytes.data[start : start + self._sizes.item(place)], "utf-8", "replace")

    def of(self, places: Iterable[int]) -> list[str]:
        """Return some names."""
        data, starts, sizes = self._bytes.data, self._starts.data, self._sizes.data
        return [
            str(data[(start := starts[place]) : start + sizes[place]], "utf-8", "replace")
            for place in places
        ]
