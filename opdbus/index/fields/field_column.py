"""Column of one field of all objects, and evaluation of conditions on it with array operations."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import append_rows
from opdbus.index.fields.value_array import BOOLEAN, NUMBER, TEXT, ValueArray, decode, encode
from opdbus.state.conditions import BOOLEANS, IS, ORDERS, Condition, mean_one, number
from opdbus.state.object import Json

# From here on, float64 cannot represent every integer.
_LARGE: Final = float(1 << 53)
# Up to this many codes are compared one by one, which is then faster than a table look-up.
_FEW: Final = 8
# Maximal number of distinct values that are dictionary-encoded; further values are stored per row.
_KNOWN: Final = 2048
# First bytes of numbers and white space in UTF-8, also in other scripts.
_BEFORE_NUMBERS: Final = frozenset((*b"+-0123456789 ", *range(32), *range(128, 256)))


class Ramp:
    """Append-only ascending row numbers; an initial run 0, 1, 2, ... takes no memory."""

    def __init__(self) -> None:
        self._plain = 0
        self._rest = np.empty(0, np.int32)
        self._end = 0

    def add(self, numbers: Sequence[int]) -> None:
        """Append numbers, none below the last one."""
        rest = np.asarray(numbers, np.int32)
        if not self._end:
            is_plain = rest == np.arange(self._plain, self._plain + len(rest))
            plain = len(rest) if is_plain.all() else int(np.argmin(is_plain))
            self._plain += plain
            rest = rest[plain:]
        self._rest = append_rows(self._rest, self._end, rest)
        self._end += len(rest)

    def count(self, most: int) -> int:
        """Return how many numbers are less than `most`."""
        return min(self._plain, most) + int(np.searchsorted(self._rest[: self._end], most))

    def mark(self, found: NDArray[np.bool_], is_marked: NDArray[np.bool_]) -> None:
        """Set `found` (rows,) at the first numbers for which `is_marked` is set."""
        plain = min(self._plain, len(found))
        found[:plain] |= is_marked[:plain]
        rest = is_marked[plain:]
        found[self._rest[: len(rest)][rest]] = True


class FieldColumn:
    """Column of the values of one field; a row may have several.

    One thread appends; others may read meanwhile.
    """

    def __init__(self) -> None:
        self._rows = Ramp()
        self._values = ValueArray()
        # codes (numbers in `_values`) of the first values, while there are at most _KNOWN distinct
        # ones; later values are stored one by one in `_values`, from number `_base` on
        self._codes = np.empty(0, np.uint16)
        self._coded = 0
        self._base = 0
        self._known: dict[bytes, int] | None = {}
        # numbers of the values that compare as numbers, and these as float64
        self._numeric = np.empty(0, np.int32)
        self._floats = np.empty(0, np.float64)
        self._numeric_end = 0
        # indexes in `_floats` of values from _LARGE on, which are compared exactly
        self._inexact: list[int] = []

    def add(self, rows: Sequence[int], values: Sequence[bytes]) -> None:
        """Append encoded values with their rows, which must ascend."""
        new, count = values, len(self._values)
        if self._known is not None:
            new = [value for value in dict.fromkeys(values) if value not in self._known]
            if len(self._known) + len(new) > _KNOWN:
                new, self._base, self._known = values, count, None
            else:
                self._known.update(zip(new, range(count, count + len(new)), strict=True))
        self._note_numbers(new, count)
        self._values.add(new)
        if self._known is not None:
            self._code([self._known[value] for value in values])
        # last, since readers see only the values of current rows
        self._rows.add(rows)

    def _code(self, numbers: Sequence[int]) -> None:
        self._codes = append_rows(self._codes, self._coded, numbers)
        self._coded += len(numbers)

    def _note_numbers(self, values: Sequence[bytes], first: int) -> None:
        floats = [(at, _float(value)) for at, value in enumerate(values, first)]
        found = {at: value for at, value in floats if value is not None}
        self._numeric = append_rows(self._numeric, self._numeric_end, [*found])
        self._floats = append_rows(self._floats, self._numeric_end, [*found.values()])
        self._inexact += [
            at for at, value in enumerate(found.values(), self._numeric_end) if abs(value) >= _LARGE
        ]
        self._numeric_end += len(found)

    def mark_all(self, found: NDArray[np.bool_]) -> None:
        """Set `found` (rows,) for the rows that have the field."""
        self._rows.mark(found, np.ones(self._rows.count(len(found)), np.bool_))

    def mark(self, found: NDArray[np.bool_], condition: Condition) -> None:
        """Set `found` (rows,) for the rows with a value that meets a condition.

        For `!=`, set the rows with an equal value, which the caller excludes.
        """
        count = self._rows.count(len(found))
        numbers = _TESTS.get(condition.operator, FieldColumn._ordered)(self, condition)
        coded = min(self._coded, count)
        is_met = _are_one(self._codes[:coded], numbers[numbers < _KNOWN])
        if coded < count:
            is_met = np.append(is_met, np.zeros(count - coded, np.bool_))
            others = numbers - self._base
            # values added concurrently belong to later rows
            is_met[coded:][others[(others >= 0) & (others < count - coded)]] = True
        self._rows.mark(found, is_met)

    def _equal(self, condition: Condition) -> NDArray[np.intp]:
        if condition.is_span:
            equal = Condition(condition.field, "=", condition.value)
            each = (equal.is_met_by([self._values.take(at)]) for at in range(len(self._values)))
            return np.flatnonzero(np.fromiter(each, np.bool_))
        text, limit = condition.value, number(condition.value)
        meant = BOOLEANS.get(text)
        same = [word for word, each in BOOLEANS.items() if each is meant] or [text]
        wanted = [encode(word) for word in same]
        if meant is not None:
            wanted.append(encode(meant))
        if not text:
            wanted.append(encode(None))
        found = [self._numbers_of(value) for value in wanted]
        if limit is not None:
            same_number = Condition(condition.field, "=", text)
            numeric = self._compared(same_number, np.equal, float(limit))
            is_number = self._values.has_mark(numeric, NUMBER)
            found.append(numeric[is_number])
            texts = numeric[~is_number]
            # two texts with a decimal point are equal only as texts, since 1.10 may be a version
            if "." in text:
                is_one = (mean_one(str(self._values.take(int(at))).lower(), text) for at in texts)
                texts = texts[np.fromiter(is_one, np.bool_, len(texts))]
            found.append(texts)
        return np.concatenate(found)

    def _numbers_of(self, value: bytes) -> NDArray[np.intp]:
        """Return the numbers of an encoded value, none if it does not occur."""
        known = self._known
        if known is None:
            return self._values.equal(value)
        return np.array([known[value]] if value in known else [], np.intp)

    def _part(self, condition: Condition) -> NDArray[np.intp]:
        return self._values.having(encode(condition.value)[1:])

    def _is(self, condition: Condition) -> NDArray[np.intp]:
        part = self._part(condition).tolist()
        several = [at for at in part if " " in str(self._values.take(at))]
        return np.concatenate([self._equal(condition), np.array(several, np.intp)])

    def _ordered(self, condition: Condition) -> NDArray[np.intp]:
        limit = number(condition.value)
        order = ORDERS[condition.operator]
        return self._compared(condition, order, float(limit or 0))

    def _compared(
        self, condition: Condition, order: Callable[[Any, Any], Any], limit: float
    ) -> NDArray[np.intp]:
        """Return the numbers of the numeric values that compare so with `limit`.

        Values from _LARGE on are compared one by one, without float64.
        """
        end = self._numeric_end
        numeric, floats = self._numeric[:end], self._floats[:end]
        is_met = order(floats, limit)
        for at in filter(end.__gt__, self._inexact.copy()):
            is_met[at] = condition.is_met_by([self._values.take(int(numeric[at]))])
        found: NDArray[np.intp] = numeric[is_met].astype(np.intp)
        return found


def _are_one(codes: NDArray[np.uint16], numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return a mask of the codes that are among `numbers`."""
    if len(numbers) > _FEW:
        is_one = np.zeros(_KNOWN, np.bool_)
        is_one[numbers] = True
        return is_one[codes]
    equal = (codes == each for each in numbers.astype(np.uint16))
    return reduce(or_, equal) if len(numbers) else np.zeros(len(codes), np.bool_)


def _float(value: bytes) -> float | None:
    """Return the number as which an encoded value compares, None if it compares as text."""
    mark = value[:1]
    if mark == BOOLEAN or len(value) == 1 or (mark == TEXT and value[1] not in _BEFORE_NUMBERS):
        return None
    found: Json = decode(value)
    if mark == TEXT:
        found = number(found)
    try:
        return None if found is None else float(found)
    except OverflowError:
        return float("inf") if found > 0 else float("-inf")


_TESTS: Final[Mapping[str, Callable[[FieldColumn, Condition], NDArray[np.intp]]]] = {
    "=": FieldColumn._equal,
    "!=": FieldColumn._equal,
    "~": FieldColumn._part,
    IS: FieldColumn._is,
}
