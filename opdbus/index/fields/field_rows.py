"""Evaluation of conditions on the column index, for objects of one or several sources."""

from collections.abc import Sequence

import numpy as np

from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.catalogue.shared_objects import SharedRows
from opdbus.index.fields.field_index import FieldIndex
from opdbus.state.conditions import Condition
from opdbus.state.object import ObjectId


class FieldRows:
    """Current rows of the column index, for one evaluation of conditions.

    Create it on the thread of the catalogue; `look` may run on any thread, but only once. Entries
    in `left` are excluded, since their rows are missing or outdated.
    """

    def __init__(self, index: FieldIndex, shared: SharedRows, left: EntryRefs) -> None:
        self._index = index
        self._shared = shared
        self._end, self._is_current = index.snapshot()
        for entries in (left, shared.entries):
            rows = index.rows_of(entries)
            self._is_current[rows[rows >= 0]] = False
        # rows of the entries of shared objects, -1 where the entry itself must be checked
        self._of_shared = np.where(np.isin(shared.entries.ids, left.ids), -1, rows)

    def look(self, conditions: Sequence[Condition]) -> tuple[EntryRefs, Sequence[ObjectId]]:
        """Return the entries that meet all conditions, and the shared objects that may meet them.

        Shared objects are those that several sources report; none of their entries is returned.
        """
        object_ids, starts, _ = self._shared
        is_met, is_wanted = self._is_current, np.ones(len(object_ids), np.bool_)
        is_known = self._of_shared >= 0
        for condition in conditions:
            met, perhaps = self._index.meeting(condition, self._end)
            is_met &= met
            if len(object_ids):
                may = ~is_known
                may[is_known] = perhaps[self._of_shared[is_known]]
                is_wanted &= np.logical_or.reduceat(may, starts)
        wanted = [object_ids[at] for at in np.flatnonzero(is_wanted).tolist()]
        return self._index.refs_of(is_met), wanted
