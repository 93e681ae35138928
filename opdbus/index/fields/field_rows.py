"""Evaluation of conditions on the column index, for objects of one or several sources."""

from collections.abc import Sequence
from itertools import compress

import numpy as np

from opdbus.index.catalogue.entry_view import EntryRefs, EntryView
from opdbus.index.fields.field_index import FieldIndex
from opdbus.platform.lean_imports import distinct
from opdbus.state.conditions import Condition
from opdbus.state.object import ObjectId


class FieldRows:
    """Current rows of the column index, for one evaluation of conditions.

    Create it on the thread of the catalogue; `look` may run on any thread, but only once. `shared`
    has the entries of all objects that several sources report. Entries in `left` are excluded,
    since their rows are missing or outdated.
    """

    def __init__(
        self, index: FieldIndex, view: EntryView, shared: EntryRefs, left: EntryRefs
    ) -> None:
        self._index = index
        self._end, self._is_current = index.snapshot()
        for entries in (left, shared):
            rows = index.rows_of(entries)
            self._is_current[rows[rows >= 0]] = False
        # rows of the entries of shared objects, -1 where the entry itself must be checked
        self._of_shared = np.where(np.isin(shared.ids, left.ids), -1, rows)
        # the place of the first entry of the object of each of them, and these entries
        self._firsts = view.firsts[shared.places]
        self._shared = distinct(self._firsts)
        self._entries = [*map(view.at, self._shared.tolist())]

    def look(self, conditions: Sequence[Condition]) -> tuple[EntryRefs, Sequence[ObjectId]]:
        """Return the entries that meet all conditions, and the shared objects that may meet them.

        Shared objects are those that several sources report; none of their entries is returned.
        """
        is_met, is_known = self._is_current, self._of_shared >= 0
        is_wanted = np.ones(len(self._shared), np.bool_)
        for condition in conditions:
            met, perhaps = self._index.meeting(condition, self._end)
            is_met &= met
            may = ~is_known
            may[is_known] = perhaps[self._of_shared[is_known]]
            is_wanted &= np.isin(self._shared, self._firsts[may])
        wanted = compress(self._entries, is_wanted)
        return self._index.refs_of(is_met), [one.identity.object_id for one in wanted if one]
