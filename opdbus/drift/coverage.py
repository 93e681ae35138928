"""Declared objects that are not observed, and the kinds that sources list completely."""

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final

from opdbus.drift import rule_table
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Sort
from opdbus.state.object import ObjectId

_STILL: Final = float("inf")


class Coverage:
    """Kinds that sources list completely, and declared objects that are not observed.

    `wall` returns the time of day; `of_sorts` yields all objects of some kinds.
    """

    def __init__(
        self,
        pairs: Pairs,
        wall: Callable[[], float],
        of_sorts: Callable[[Collection[Sort]], Iterator[ObjectId]],
    ) -> None:
        self._pairs = pairs
        self._wall = wall
        self._of_sorts = of_sorts
        # kinds that each source has listed completely
        self._listed: dict[str, frozenset[Sort]] = {}
        # declared objects that are not observed, by the kind in which they would be observed
        self._missing: dict[Sort, set[ObjectId]] = {}
        # declared kinds without any observed object; their objects, up to a million, are not in
        # `_missing`
        self._alone: set[Sort] = set()
        # kinds that lost a declared object since the last call of `unlisted`
        self._fewer: set[Sort] = set()
        # when each declared object was last observed; `_STILL` while it is observed
        self._until: dict[ObjectId, float] = {}

    def set_listed(self, source: str, sorts: frozenset[Sort]) -> frozenset[Sort]:
        """Record the kinds that a source has listed; return those with changed coverage.

        An empty set means that the source is gone: all kinds that it had listed are returned.
        """
        known = self._listed.pop(source, frozenset())
        if not sorts:
            return known
        self._listed[source] = known | sorts
        return sorts - known

    def lists(self, sort: Sort) -> bool:
        """Return whether a source has listed all of its objects of a kind."""
        return any(sort in sorts for sorts in self._listed.values())

    def unlisted(self, claimed: AbstractSet[Sort]) -> set[str]:
        """Return the plugins of observed kinds that no source has listed yet, but must.

        These are the kinds of declared objects that are not observed, and those that the file
        claims.
        """
        for sort in self._fewer & self._alone:
            if not any(True for _ in self._of_sorts({sort})):
                self._alone.remove(sort)
        self._fewer.clear()
        alone = {rule_table.of_declared(sort).observed for sort in self._alone}
        wanted = (
            claimed | alone | {sort for sort, object_ids in self._missing.items() if object_ids}
        )
        return {sort[0] for sort in wanted if not self.lists(sort)}

    def missing(self, sort: Sort) -> Iterator[ObjectId]:
        """Return the declared objects of an observed kind that are not observed.

        Its declared kinds without any observed object are then tracked object by object.
        """
        alone = {one for one in self._alone if rule_table.of_declared(one).observed == sort}
        self._alone -= alone
        return chain(tuple(self._missing.get(sort, ())), self._of_sorts(alone) if alone else ())

    def all_missing(self) -> Iterator[ObjectId]:
        """Yield all declared objects that are not observed; the set may change meanwhile."""
        yield from chain(*map(tuple, self._missing.values()), self._of_sorts(self._alone))

    def left_at(self, object_id: ObjectId) -> float:
        """Return when a declared object was last observed; 0 if never, infinity if it still is."""
        return self._until.get(object_id, 0.0)

    def covers(self, object_id: ObjectId) -> bool:
        """Return whether an unobserved object would be observed if it existed.

        A publisher may publish only a part of a kind; there, only objects that were observed before
        count.
        """
        sort = rule_table.of_declared(object_id[:2]).observed
        if self.lists(sort):
            return True
        return object_id in self._until and self._pairs.is_published(sort)

    def note(self, object_id: ObjectId, *, is_missing: bool) -> None:
        """Record whether a declared object is missing, that is, not observed."""
        missing = self._missing.setdefault(rule_table.of_declared(object_id[:2]).observed, set())
        is_alone = object_id[:2] in self._alone
        if not is_missing:
            if is_alone:
                self._alone.remove(object_id[:2])
                missing.update(self._of_sorts({object_id[:2]}))
            missing.discard(object_id)
            self._until[object_id] = _STILL
            return
        if not is_alone:
            missing.add(object_id)
        if self._until.get(object_id) == _STILL:
            self._until[object_id] = self._wall()

    def note_alone(self, sort: Sort) -> None:
        """Record a declared kind without any observed object now."""
        self._alone.add(sort)
        observed = rule_table.of_declared(sort).observed
        missing = self._missing.get(observed, ())
        self._missing[observed] = {object_id for object_id in missing if object_id[:2] != sort}

    def forget(self, object_id: ObjectId) -> None:
        """Drop an object that is no longer declared."""
        self._fewer.add(object_id[:2])
        self._missing.get(rule_table.of_declared(object_id[:2]).observed, set()).discard(object_id)
        self._until.pop(object_id, None)
