"""Listing order of objects: by plugin, kind and name."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import EntryView
from opdbus.platform.lean_imports import distinct
from opdbus.state.object import ObjectId


def in_order(view: EntryView, places: NDArray[np.intp]) -> list[ObjectId]:
    """Return the distinct object ids of the entries at places, in listing order."""
    source_kinds, ids = view.source_kinds, view.source_kind_ids[places]
    numbers: dict[tuple[str, str], list[int]] = {}
    for number in distinct(ids).tolist():
        numbers.setdefault(source_kinds[number][1:], []).append(number)
    found: list[ObjectId] = []
    for kind in sorted(numbers):
        names = {*view.names.of(places[np.isin(ids, numbers[kind])].tolist())}
        found += [ObjectId(*kind, name) for name in sorted(names)]
    return found


class ListingOrder:
    """Cached listing order of all objects, sorted anew only after objects were added or removed."""

    def __init__(self, known: Callable[[], Sequence[ObjectId]]) -> None:
        self._known = known
        # `Catalogue._membership_version` when sorted, and the sorted objects
        self._ordered: tuple[int, Sequence[ObjectId]] = 0, ()

    def all(self, version: int) -> Sequence[ObjectId]:
        """Return all objects in order, sorted anew if `version` differs from the last call."""
        done, order = self._ordered
        if done != version:
            known = {*self._known()}
            # two sorted runs, which Timsort merges in one pass
            kept = [object_id for object_id in order if object_id in known]
            order = sorted([*kept, *sorted(known - set(kept))])
            self._ordered = version, order
        return order
