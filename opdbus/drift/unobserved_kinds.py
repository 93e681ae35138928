"""Registers declared objects of kinds that only the state file reports, a kind at a time.

They cannot be compared, and a state file may declare 100,000 of them.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from opdbus.drift import rule_table
from opdbus.drift.coverage import Coverage
from opdbus.drift.pairs import Pairs
from opdbus.drift.transition_filter import TransitionFilter
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.state.object import FILE, KindId, ObjectId

_KIND_ID: Final = itemgetter(slice(2))


class ActivationPlan(NamedTuple):
    """Kinds to activate, the earliest time of a declaration, and objects still to be compared."""

    kinds: set[KindId]
    declared_at: int
    left: Sequence[ObjectId]


class UnobservedKinds:
    """Registers declared objects of kinds that cannot be observed yet."""

    def __init__(self, catalogue: Catalogue, pairs: Pairs, coverage: Coverage) -> None:
        self._catalogue = catalogue
        self._pairs = pairs
        self._coverage = coverage

    def take(self, object_ids: Sequence[ObjectId], transitions: TransitionFilter) -> ActivationPlan:
        """Register objects of kinds that cannot be observed yet; return the rest in the plan."""
        kind_ids, left, times = set[KindId](), list[ObjectId](), list[int]()
        observed = {of[1:] for of in self._catalogue.view.source_kinds if of[0] not in {"", FILE}}
        for kind_id, group in groupby(object_ids, _KIND_ID):
            same = list(group)
            if not self._is_unobserved(kind_id, observed):
                left += same
                continue
            taken = list[ObjectId]()
            for object_id in same:
                entries = self._catalogue.entries(object_id)
                if entries and not transitions.knows(object_id):
                    taken.append(object_id)
                    times.append(entries[0].updated_at)
                else:
                    left.append(object_id)
            kind_ids |= self._declare(kind_id, taken)
        return ActivationPlan(kind_ids, min(times, default=0), left)

    def _is_unobserved(self, kind_id: KindId, observed: AbstractSet[KindId]) -> bool:
        """Return whether no object of a kind can be compared: only the file reports it."""
        row = rule_table.of_declared(kind_id)
        is_observed = not observed.isdisjoint({kind_id, row.observed})
        return not (row.each or is_observed or self._coverage.lists(row.observed))

    def _declare(self, kind_id: KindId, object_ids: Sequence[ObjectId]) -> set[KindId]:
        if object_ids:
            self._coverage.note_unobserved_kind(kind_id)
        return self._pairs.declare_each(kind_id, object_ids)
