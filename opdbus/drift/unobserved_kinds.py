"""Declared things of sorts that nothing but the state file has told of are taken in together.

There is nothing to compare them with, and a state file may declare 100,000.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from opdbus.drift import rule_table
from opdbus.drift.coverage import Coverage
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Sort
from opdbus.drift.transition_filter import TransitionFilter
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.state.object import FILE, ObjectId

_SORT: Final = itemgetter(slice(2))


class ActivationPlan(NamedTuple):
    """Which sorts are to be active, when the first was declared, and what is to be looked at."""

    sorts: set[Sort]
    declared_at: int
    left: Sequence[ObjectId]


class UnobservedKinds:
    """Takes in what is declared and cannot be observed yet."""

    def __init__(self, catalogue: Catalogue, pairs: Pairs, coverage: Coverage) -> None:
        self._catalogue = catalogue
        self._pairs = pairs
        self._coverage = coverage

    def take(self, object_ids: Sequence[ObjectId], transitions: TransitionFilter) -> ActivationPlan:
        """Take in those of some things that are alone; returns the others to be looked at."""
        sorts, left, times = set[Sort](), list[ObjectId](), list[int]()
        for sort, group in groupby(object_ids, _SORT):
            same = list(group)
            if not self._is_alone(sort):
                left += same
                continue
            places = self._catalogue.places(same)
            taken, at = list[ObjectId](), list[int]()
            for object_id, place in zip(same, places, strict=True):
                if place >= 0 and not transitions.knows(object_id):
                    taken.append(object_id)
                    at.append(place)
                else:
                    left.append(object_id)
            sorts |= self._declare(sort, taken)
            times += self._catalogue.view.times[at].tolist()
        return ActivationPlan(sorts, min(times, default=0), left)

    def _is_alone(self, sort: Sort) -> bool:
        """Return whether no thing of a sort can be compared: what there is of it is declared."""
        row = rule_table.of_declared(sort)
        told = {sort, row.observed}
        others = (of for of in self._catalogue.view.of_number if of[1:] in told)
        return not (
            row.each
            or self._coverage.lists(row.observed)
            or any(source != FILE for source, *_ in others)
        )

    def _declare(self, sort: Sort, object_ids: Sequence[ObjectId]) -> set[Sort]:
        if object_ids:
            self._coverage.note_alone(sort)
        return self._pairs.declare_each(sort, object_ids)
