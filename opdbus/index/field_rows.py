"""Which rows of the index of fields meet conditions, and what that says of things."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue import Catalogue
from opdbus.index.field_index import FieldIndex
from opdbus.index.view import Found
from opdbus.state.conditions import Condition
from opdbus.state.object import Thing


class Shared(NamedTuple):
    """The things that several sources tell of, where the entries of each begin, and all entries."""

    things: Sequence[Thing]
    starts: Sequence[int]
    entries: Found

    @classmethod
    def of(cls, catalogue: Catalogue) -> Self:
        """Return those of a catalogue."""
        things, starts, ids = catalogue.shared(), list[int](), list[int]()
        for thing in things:
            starts.append(len(ids))
            ids += [entry.id for entry in catalogue.about(thing)]
        return cls(things, starts, catalogue.view.found(ids))


class Rows:
    """The rows that there are now; to be made on the thread of the catalogue, used on any."""

    def __init__(self, index: FieldIndex) -> None:
        self._index = index
        self._end, self._is_current = index.snapshot()

    def look(
        self, conditions: Sequence[Condition], shared: Shared, left: NDArray[np.int64]
    ) -> tuple[Found, Sequence[Thing]]:
        """Return the entries that meet all conditions, and the shared things that perhaps do.

        Of entries that are `left` the rows say nothing.
        """
        is_met = self._is_current.copy()
        for condition in conditions:
            is_met &= self._index.meeting(condition, self._end)
        met = self._index.found(is_met)
        is_told = ~np.isin(met.ids, left) & ~np.isin(met.ids, shared.entries.ids)
        return Found(met.places[is_told], met.ids[is_told]), self._perhaps(conditions, shared, left)

    def _perhaps(
        self, conditions: Sequence[Condition], shared: Shared, left: NDArray[np.int64]
    ) -> Sequence[Thing]:
        if not shared.things:
            return []
        rows = self._index.rows_of(shared.entries)
        is_known = (rows >= 0) & (rows < self._end) & ~np.isin(shared.entries.ids, left)
        rows = np.where(is_known, rows, 0)
        is_wanted = np.ones(len(shared.things), np.bool_)
        for condition in conditions:
            may = ~is_known
            if self._end:
                may |= self._index.perhaps(condition, self._end)[rows]
            is_wanted &= np.logical_or.reduceat(may, shared.starts)
        return [shared.things[at] for at in np.flatnonzero(is_wanted).tolist()]
