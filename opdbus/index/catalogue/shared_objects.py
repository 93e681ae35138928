"""Objects that several sources report, with all their entries in arrays."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import EntryRefs, EntryView
from opdbus.state.object import ObjectId


class SharedRows(NamedTuple):
    """Shared objects, the offset in `entries` at which those of each begin, and all entries."""

    object_ids: Sequence[ObjectId]
    starts: NDArray[np.intp]
    entries: EntryRefs


class SharedObjects:
    """Places of the entries of objects that several sources report, the declared entry first."""

    def __init__(self, view: EntryView) -> None:
        self._view = view
        self._places: dict[ObjectId, tuple[int, ...]] = {}
        # cached result of `all`, until a change
        self._all: SharedRows | None = None

    def __bool__(self) -> bool:
        """Return whether there is a shared object."""
        return bool(self._places)

    def __contains__(self, object_id: ObjectId) -> bool:
        """Return whether several sources report an object."""
        return object_id in self._places

    def get(self, object_id: ObjectId) -> tuple[int, ...]:
        """Return the places of an object's entries, () unless several sources report it."""
        return self._places.get(object_id, ())

    def put(self, object_id: ObjectId, places: Sequence[int]) -> None:
        """Set the places of an object's entries; with fewer than two, forget the object."""
        if tuple(places) == self._places.get(object_id):
            return
        if len(places) > 1:
            self._places[object_id] = tuple(places)
            self._all = None
        elif self._places.pop(object_id, None):
            self._all = None

    def all(self) -> SharedRows:
        """Return all shared objects; the arrays are rebuilt only after a change."""
        if self._all is None:
            counts = np.fromiter(map(len, self._places.values()), np.intp, len(self._places))
            places = np.fromiter(chain.from_iterable(self._places.values()), np.intp, counts.sum())
            entries = EntryRefs(places, self._view.ids[places])
            self._all = SharedRows([*self._places], np.cumsum(counts) - counts, entries)
        return self._all
