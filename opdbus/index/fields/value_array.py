"""Distinct values of a field, concatenated in one byte array and searched by array operations."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import append_rows
from opdbus.state.object import Json

# Type marks before each value: no bytes of UTF-8, so that no match spans two values.
TEXT, NUMBER, BOOLEAN, NOTHING = b"\xff", b"\xfe", b"\xfd", b"\xfc"
_LEAST_MARK: Final = NOTHING[0]
# Bytes of data sampled to find the rarest part of a search text.
_SAMPLED: Final = 1 << 14


class ValueArray:
    """Append-only values by number, in the form that `encode` returns.

    One thread appends; others may read meanwhile.
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        # start of each value, and of the next one
        self._starts = np.zeros(1, np.uint32)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    def add(self, values: Sequence[bytes]) -> None:
        """Append encoded values, which get the next numbers; all together may have 4 GiB."""
        count, end = self._count, int(self._starts[self._count])
        joined = np.frombuffer(b"".join(values), np.uint8)
        self._bytes = append_rows(self._bytes, end, joined)
        ends = end + np.cumsum([len(value) for value in values], dtype=np.int64)
        self._starts = append_rows(self._starts, count + 1, ends)
        self._count = count + len(values)

    def take(self, number: int) -> Json:
        """Return a value by number; a text is in lower case."""
        return decode(self.encoded(number))

    def encoded(self, number: int) -> bytes:
        """Return a value by number in encoded form."""
        return self._bytes[self._starts[number] : self._starts[number + 1]].tobytes()

    def has_mark(self, numbers: NDArray[np.intp], mark: bytes) -> NDArray[np.bool_]:
        """Return a mask of the values, given by number, that have a type mark."""
        is_marked: NDArray[np.bool_] = self._bytes[self._starts[numbers]] == mark[0]
        return is_marked

    def having(self, text: bytes) -> NDArray[np.intp]:
        """Return the numbers of the values that contain a text, ascending.

        Values added during the call are not searched.
        """
        count, starts = self._count, self._starts
        if not text:
            return np.arange(count)
        found = positions(self._bytes[: starts[count]], text)
        return _distinct(np.searchsorted(starts[: count + 1], found, "right") - 1)

    def equal(self, value: bytes) -> NDArray[np.intp]:
        """Return the numbers of the values that equal an encoded value."""
        count, starts = self._count, self._starts
        data = self._bytes[: starts[count]]
        found = positions(data, value)
        ends = found + len(value)
        is_whole = ends == len(data)
        is_whole[~is_whole] = data[ends[~is_whole]] >= _LEAST_MARK
        numbers: NDArray[np.intp] = np.searchsorted(starts[: count + 1], found[is_whole], "right")
        return numbers - 1


def encode(value: Json) -> bytes:
    """Encode a value for `ValueArray`: a type mark, and its text in lower case as UTF-8."""
    if isinstance(value, str):
        return TEXT + value.lower().encode("utf-8", "surrogatepass")
    if value is None:
        return NOTHING
    mark = BOOLEAN if isinstance(value, bool) else NUMBER
    return mark + str(value).lower().encode()


def decode(value: bytes) -> Json:
    """Decode a value from the form that `encode` returns."""
    mark, text = value[:1], value[1:].decode("utf-8", "surrogatepass")
    if mark == TEXT:
        return text
    if mark == NOTHING:
        return None
    if mark == BOOLEAN:
        return text == "true"
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def positions(data: NDArray[np.uint8], text: bytes) -> NDArray[np.intp]:
    """Return the offsets of a non-empty text in data, ascending.

    Its rarest 4 bytes (fewer in a short text) are searched first, and the rest compared there.
    """
    width = 4 if len(text) >= 4 else 2 if len(text) >= 2 else 1
    sample = data[:_SAMPLED].tobytes()
    shifts = range(len(text) - width + 1)
    at = min(shifts, key=lambda shift: sample.count(text[shift : shift + width]))
    part = np.frombuffer(text, f"<u{width}", 1, at)
    found = []
    for shift in range(min(width, len(data))):
        whole = (len(data) - shift) // width * width
        words = data[shift : shift + whole].view(f"<u{width}")
        found.append(np.flatnonzero(words == part) * width + (shift - at))
    places = np.sort(np.concatenate(found)) if found else np.empty(0, np.intp)
    places = places[(places >= 0) & (places + len(text) <= len(data))]
    for shift in (*range(at), *range(at + width, len(text))):
        places = places[data[places + shift] == text[shift]]
    return places


def _distinct(ordered: NDArray[np.intp]) -> NDArray[np.intp]:
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
