"""Columnar index of the fields of all objects, by which conditions are evaluated for all rows.

A row holds an object as read at one time; an object that is read again gets a new row.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import append_rows
from opdbus.index.catalogue.entry_view import EntryRefs, EntryView
from opdbus.index.catalogue.text_table import NO_ROW
from opdbus.index.fields.field_column import FieldColumn
from opdbus.index.fields.value_array import encode
from opdbus.state import fields
from opdbus.state.conditions import Condition
from opdbus.state.object import Identity, Json

# (dotted path of a field, paths of the lists of objects that contain it).
Key: TypeAlias = tuple[str, tuple[str, ...]]
# (id, identity, properties) of an object.
Item: TypeAlias = tuple[int, Identity, Mapping[str, Json]]

# Limits of one object and of the columns; an object that exceeds one gets no row.
MAX_VALUES: Final = 256
_MAX_CHARACTERS: Final = 4096
_MAX_COLUMNS: Final = 2048
# Limit of values in all rows, at about 30 bytes each.
_MAX_ALL: Final = 1 << 24


class WrittenRows(NamedTuple):
    """Result of `write`: ids of the objects in the next rows, and of those that got no row."""

    ids: list[int]
    outside: list[int]


class Snapshot(NamedTuple):
    """Number of rows at one time, and a mask of those that held their object's current state."""

    end: int
    is_current: NDArray[np.bool_]


class FieldIndex:
    """Columnar index of objects by row.

    `write` may run on any thread, one call at a time; `publish` runs on the thread of the view.
    """

    def __init__(self, view: EntryView) -> None:
        self.end = 0
        # ids of objects that exceed a limit and have no row
        self.outside: set[int] = set()
        self._view = view
        self._columns: dict[Key, FieldColumn] = {}
        # the columns by the last word of each name that they match
        self._by_word: dict[str, dict[Key, FieldColumn]] = {}
        self._identity = {name: FieldColumn() for name in fields.IDENTITY}
        self._values = 0
        self._ids = np.empty(0, np.int64)
        self._places = np.empty(0, np.int32)
        self._is_current = np.empty(0, np.bool_)
        # rows by place, NO_ROW where there is none
        self._row_of = np.empty(0, np.int32)

    def write(self, items: Iterable[Item]) -> WrittenRows:
        """Append the values of objects, which readers see only after `publish`."""
        written, identities = WrittenRows([], []), list[Identity]()
        staged: dict[Key, tuple[list[int], list[bytes]]] = {}
        for number, identity, properties in items:
            leaves = [*islice(fields.leaves(properties), MAX_VALUES + 1)]
            if not self._takes(leaves, staged.keys()):
                written.outside.append(number)
                continue
            row = self.end + len(written.ids)
            written.ids.append(number)
            identities.append(identity)
            self._values += len(leaves)
            for path, lists, value in leaves:
                known = staged.get((path, lists)) or staged.setdefault((path, lists), ([], []))
                known[0].append(row)
                known[1].append(encode(value))
        every = range(self.end, self.end + len(identities))
        for part, column in self._identity.items():
            column.add(every, [encode(getattr(one, part)) for one in identities])
        for key, (rows, values) in staged.items():
            column = self._columns.get(key, FieldColumn())
            column.add(rows, values)
            if key not in self._columns:
                self._keep(key, column)
        return written

    def _keep(self, key: Key, column: FieldColumn) -> None:
        """Register a column by its key and by the last words of its names."""
        self._columns[key] = column
        for word in fields.last_words(*key):
            self._by_word.setdefault(word, {})[key] = column

    def _takes(self, leaves: Sequence[fields.Leaf], staged: AbstractSet[Key]) -> bool:
        if len(leaves) > MAX_VALUES or self._values + len(leaves) > _MAX_ALL:
            return False
        if any(isinstance(v, str) and len(v) > _MAX_CHARACTERS for _, _, v in leaves):
            return False
        if len(self._columns) + len(staged) + MAX_VALUES <= _MAX_COLUMNS:
            return True
        keys = {(path, lists) for path, lists, _ in leaves}
        return len(keys | staged | self._columns.keys()) <= _MAX_COLUMNS

    def publish(self, written: WrittenRows) -> None:
        """Make written rows visible, in place of the earlier rows of their objects."""
        ids, end = written.ids, self.end + len(written.ids)
        self.outside.difference_update(ids)
        self.outside.update(number for number in written.outside if number in self._view.places)
        places = self._view.find_each(ids)
        # objects may have been removed meanwhile
        is_there = places >= 0
        self._ids = append_rows(self._ids, self.end, ids)
        self._places = append_rows(self._places, self.end, np.maximum(places, 0))
        self._is_current = append_rows(self._is_current, self.end, is_there)
        self._give(places[is_there], np.arange(self.end, end)[is_there])
        self.end = end

    def _give(self, places: NDArray[np.intp], rows: NDArray[np.intp]) -> None:
        """Assign new rows to the objects at places, and mark their earlier rows as outdated."""
        known, size = len(self._row_of), self._view.end
        if known < size:
            self._row_of = np.append(
                self._row_of, np.full(max(size, 2 * known) - known, NO_ROW, np.int32)
            )
        before = self._row_of[places]
        self._is_current[before[before >= 0]] = False
        self._row_of[places] = rows

    def snapshot(self) -> Snapshot:
        """Return the current rows, for evaluation on another thread."""
        return Snapshot(self.end, self._is_current[: self.end].copy())

    def refs_of(self, rows: NDArray[np.bool_]) -> EntryRefs:
        """Return references to the objects of the rows in a mask (rows,)."""
        at = np.flatnonzero(rows)
        return EntryRefs(self._places[at].astype(np.intp), self._ids[at])

    def rows_of(self, found: EntryRefs) -> NDArray[np.intp]:
        """Return the rows of objects, -1 for those without one."""
        rows = np.full(len(found.ids), -1, np.intp)
        is_there = found.places < len(self._row_of)
        rows[is_there] = self._row_of[found.places[is_there]]
        has_row = rows >= 0
        rows[has_row] = np.where(self._ids[rows[has_row]] == found.ids[has_row], rows[has_row], -1)
        return rows

    def meeting(
        self, condition: Condition, end: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return two masks of the first `end` rows for a condition.

        The first has the rows that meet it. The second has the rows whose object may meet it if
        other sources report the object, too.
        """
        exact, ending = self._having(condition, end)
        met, is_unequal = exact.matching_rows(), condition.operator == "!="
        if not ending.columns:
            return met, exact.present if is_unequal else met
        others = ending.matching_rows()
        perhaps = exact.present | ending.present if is_unequal else met | others
        return np.where(exact.present, met, others), perhaps

    def _having(self, condition: Condition, end: int) -> tuple["_Fields", "_Fields"]:
        """Return the fields whose names equal that of a condition, and those that end in it."""
        if always := self._identity.get(condition.field.lower()):
            return _Fields(condition, [always], end), _Fields(condition, [], end)
        wanted = fields.split(condition.field)
        found: dict[int, list[FieldColumn]] = {1: [], 2: []}
        for (path, lists), column in self._by_word.get(wanted[-1], {}).copy().items():
            if fit := fields.fit(wanted, path, lists):
                found[fit].append(column)
        return _Fields(condition, found[2], end), _Fields(condition, found[1], end)


class _Fields:
    """Columns that the name of a condition matches, evaluated for the first `end` rows."""

    def __init__(self, condition: Condition, columns: Sequence[FieldColumn], end: int) -> None:
        self.columns = columns
        self._condition = condition
        self._end = end

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """A mask (rows,) of the rows that have a value in one of the columns."""
        found = np.zeros(self._end, np.bool_)
        for column in self.columns:
            column.mark_all(found)
        return found

    def matching_rows(self) -> NDArray[np.bool_]:
        """Return a mask (rows,) of the rows that meet the condition in these columns."""
        is_met = np.zeros(self._end, np.bool_)
        for column in self.columns:
            column.mark(is_met, self._condition)
        if self._condition.operator == "!=":
            return self.present & ~is_met
        return is_met
