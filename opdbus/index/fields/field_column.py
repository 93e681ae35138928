"""One field of all objects: which rows have which values, and which of these meet a condition."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import extended
from opdbus.index.catalogue.value_array import BOOLEAN, NUMBER, TEXT, ValueArray, decoded, encoded
from opdbus.state.conditions import BOOLEANS, IS, ORDERS, Condition, mean_one, number
from opdbus.state.object import Json

# From here on float64 leaves out integers.
_LARGE: Final = float(1 << 53)
# To look for so few numbers one by one takes a tenth of the time.
_FEW: Final = 8
# Different values that are kept once; of a field with more, the others are kept as they come.
_KNOWN: Final = 2048
# What numbers begin with, or white space, also in other scripts.
_BEFORE_NUMBERS: Final = frozenset((*b"+-0123456789 ", *range(32), *range(128, 256)))


class Ramp:
    """Numbers that only grow, of which the first ones are often 0, 1, 2: these take no memory."""

    def __init__(self) -> None:
        self._plain = 0
        self._rest = np.empty(0, np.int32)
        self._end = 0

    @classmethod
    def of(cls, plain: int, rest: NDArray[np.int32]) -> Self:
        """Return so many plain numbers, and the rest after them."""
        found = cls()
        found._plain, found._rest, found._end = plain, rest, len(rest)
        return found

    @property
    def plain(self) -> int:
        """How many of the first numbers are 0, 1, 2."""
        return self._plain

    @property
    def rest(self) -> NDArray[np.int32]:
        """The numbers after these."""
        return self._rest[: self._end]

    def add(self, numbers: Sequence[int]) -> None:
        """Add numbers."""
        rest = np.asarray(numbers, np.int32)
        if not self._end:
            is_plain = rest == np.arange(self._plain, self._plain + len(rest))
            plain = len(rest) if is_plain.all() else int(np.argmin(is_plain))
            self._plain += plain
            rest = rest[plain:]
        self._rest = extended(self._rest, self._end, rest)
        self._end += len(rest)

    def count(self, most: int) -> int:
        """Count the numbers below one."""
        return min(self._plain, most) + int(np.searchsorted(self._rest[: self._end], most))

    def mark(self, found: NDArray[np.bool_], is_marked: NDArray[np.bool_]) -> None:
        """Set in `found` those of the first numbers that are marked."""
        plain = min(self._plain, len(found))
        found[:plain] |= is_marked[:plain]
        rest = is_marked[plain:]
        found[self._rest[: len(rest)][rest]] = True


class FieldColumn:
    """The values of one field by row, a row may have several; for one writer and many readers."""

    # of its arrays
    NAMES: Final = ("rows", "codes", "numeric", "floats", "bytes", "starts")

    def __init__(self) -> None:
        self._rows = Ramp()
        self._values = ValueArray()
        # the numbers of the first values, while there are few different ones; then each is kept by
        # itself, the next from number `_base` on
        self._codes = np.empty(0, np.uint16)
        self._coded = 0
        self._base = 0
        self._known: dict[bytes, int] | None = {}
        # the values that compare as numbers
        self._numeric = np.empty(0, np.int32)
        self._floats = np.empty(0, np.float64)
        self._numeric_end = 0
        # which of these are so large that float64 leaves out integers
        self._inexact: list[int] = []

    @classmethod
    def of(cls, about: Sequence[int], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the one that gave this `about` and these arrays, of which it changes none."""
        found = cls()
        plain, found._base, is_known, *inexact = about
        found._inexact = inexact
        found._rows = Ramp.of(plain, arrays["rows"])
        found._values = values = ValueArray.of(arrays)
        found._codes, found._coded = arrays["codes"], len(arrays["codes"])
        found._numeric, found._floats = arrays["numeric"], arrays["floats"]
        found._numeric_end = len(found._numeric)
        numbers = range(len(values))
        found._known = (
            dict(zip(map(values.encoded, numbers), numbers, strict=True)) if is_known else None
        )
        return found

    @property
    def about(self) -> list[int]:
        """What there is besides arrays."""
        return [self._rows.plain, self._base, self._known is not None, *self._inexact]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, while nothing is added."""
        return {
            "rows": self._rows.rest,
            "codes": self._codes[: self._coded],
            "numeric": self._numeric[: self._numeric_end],
            "floats": self._floats[: self._numeric_end],
            **self._values.arrays(),
        }

    def add(self, rows: Sequence[int], values: Sequence[bytes]) -> None:
        """Add values, as `encoded` writes them, each with its row; rows only grow."""
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
        # last: nobody sees the others before
        self._rows.add(rows)

    def _code(self, numbers: Sequence[int]) -> None:
        self._codes = extended(self._codes, self._coded, numbers)
        self._coded += len(numbers)

    def _note_numbers(self, values: Sequence[bytes], first: int) -> None:
        floats = [(at, _float(value)) for at, value in enumerate(values, first)]
        found = {at: value for at, value in floats if value is not None}
        self._numeric = extended(self._numeric, self._numeric_end, [*found])
        self._floats = extended(self._floats, self._numeric_end, [*found.values()])
        self._inexact += [
            at for at, value in enumerate(found.values(), self._numeric_end) if abs(value) >= _LARGE
        ]
        self._numeric_end += len(found)

    def mark_all(self, found: NDArray[np.bool_]) -> None:
        """Set in `found` (rows,) the rows that have the field."""
        self._rows.mark(found, np.ones(self._rows.count(len(found)), np.bool_))

    def mark(self, found: NDArray[np.bool_], condition: Condition) -> None:
        """Set in `found` the rows of which a value meets a condition; for `!=`, is equal."""
        count = self._rows.count(len(found))
        numbers = _TESTS.get(condition.operator, FieldColumn._ordered)(self, condition)
        coded = min(self._coded, count)
        is_met = _are_one(self._codes[:coded], numbers[numbers < _KNOWN])
        if coded < count:
            is_met = np.append(is_met, np.zeros(count - coded, np.bool_))
            others = numbers - self._base
            # what was added meanwhile is of later rows
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
        wanted = [encoded(word) for word in same]
        if meant is not None:
            wanted.append(encoded(meant))
        if not text:
            wanted.append(encoded(None))
        found = [self._numbers_of(value) for value in wanted]
        if limit is not None:
            same_number = Condition(condition.field, "=", text)
            numeric = self._compared(same_number, np.equal, float(limit))
            is_number = self._values.marked(numeric, NUMBER)
            found.append(numeric[is_number])
            texts = numeric[~is_number]
            # only of two numbers with a point each digit counts
            if "." in text:
                is_one = (mean_one(str(self._values.take(int(at))).lower(), text) for at in texts)
                texts = texts[np.fromiter(is_one, np.bool_, len(texts))]
            found.append(texts)
        return np.concatenate(found)

    def _numbers_of(self, value: bytes) -> NDArray[np.intp]:
        """Return the values that are just this one."""
        known = self._known
        if known is None:
            return self._values.equal(value)
        return np.array([known[value]] if value in known else [], np.intp)

    def _part(self, condition: Condition) -> NDArray[np.intp]:
        return self._values.having(encoded(condition.value)[1:])

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
        """Return the numeric values that compare so; very large ones are compared one by one."""
        end = self._numeric_end
        numeric, floats = self._numeric[:end], self._floats[:end]
        is_met = order(floats, limit)
        for at in filter(end.__gt__, self._inexact.copy()):
            is_met[at] = condition.is_met_by([self._values.take(int(numeric[at]))])
        found: NDArray[np.intp] = numeric[is_met].astype(np.intp)
        return found


def _are_one(codes: NDArray[np.uint16], numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which codes are one of some numbers."""
    if len(numbers) > _FEW:
        is_one = np.zeros(_KNOWN, np.bool_)
        is_one[numbers] = True
        return is_one[codes]
    equal = (codes == each for each in numbers.astype(np.uint16))
    return reduce(or_, equal) if len(numbers) else np.zeros(len(codes), np.bool_)


def _float(value: bytes) -> float | None:
    """Return the number that a value compares as, if it does."""
    mark = value[:1]
    if mark == BOOLEAN or len(value) == 1 or (mark == TEXT and value[1] not in _BEFORE_NUMBERS):
        return None
    found: Json = decoded(value)
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
