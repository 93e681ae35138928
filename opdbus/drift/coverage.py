"""Which declared things are not observed, and whether they would be if they were there."""

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
    """What sources list; `wall` is the time of day, `of_sorts` yields all things of some sorts."""

    def __init__(
        self,
        pairs: Pairs,
        wall: Callable[[], float],
        of_sorts: Callable[[Collection[Sort]], Iterator[ObjectId]],
    ) -> None:
        self._pairs = pairs
        self._wall = wall
        self._of_sorts = of_sorts
        # the sorts that each source has listed
        self._listed: dict[str, frozenset[Sort]] = {}
        # declared things that are not observed, by the sort that they would be of
        self._missing: dict[Sort, set[ObjectId]] = {}
        # declared sorts of which nothing is observed: a million things are not listed here, too
        self._alone: set[Sort] = set()
        # those of them of which something has gone since
        self._fewer: set[Sort] = set()
        # until when declared things were observed, if they ever were
        self._until: dict[ObjectId, float] = {}

    def list(self, source: str, sorts: frozenset[Sort]) -> frozenset[Sort]:
        """Note which sorts a source has listed, none if it is gone; return those that are news."""
        known = self._listed.pop(source, frozenset())
        if not sorts:
            return known
        self._listed[source] = known | sorts
        return sorts - known

    def lists(self, sort: Sort) -> bool:
        """Return whether a source has listed all of its objects of a sort."""
        return any(sort in sorts for sorts in self._listed.values())

    def unlisted(self, claimed: AbstractSet[Sort]) -> set[str]:
        """Return the plugins of observed sorts of which it is not known yet what there is not.

        Such as are declared and not observed, or of which the file declares all.
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
        """Return the declared things of an observed sort that are not observed.

        They are to be looked at one by one.
        """
        alone = {one for one in self._alone if rule_table.of_declared(one).observed == sort}
        self._alone -= alone
        return chain(tuple(self._missing.get(sort, ())), self._of_sorts(alone) if alone else ())

    def all_missing(self) -> Iterator[ObjectId]:
        """Yield all declared things that are not observed; others may come and go meanwhile."""
        yield from chain(*map(tuple, self._missing.values()), self._of_sorts(self._alone))

    def left_at(self, object_id: ObjectId) -> float:
        """Return when a declared thing ceased to be observed; 0 if it never was."""
        return self._until.get(object_id, 0.0)

    def covers(self, object_id: ObjectId) -> bool:
        """Return whether a thing that is not observed would be if it were there.

        A program may publish few things of many: of these it would tell only what it told before.
        """
        sort = rule_table.of_declared(object_id[:2]).observed
        if self.lists(sort):
            return True
        return object_id in self._until and self._pairs.is_published(sort)

    def note(self, object_id: ObjectId, *, is_missing: bool) -> None:
        """Note whether a declared thing is observed."""
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
        """Note that no thing of a declared sort was ever observed."""
        self._alone.add(sort)

    def forget(self, object_id: ObjectId) -> None:
        """Forget a thing that is not declared any more."""
        self._fewer.add(object_id[:2])
        self._missing.get(rule_table.of_declared(object_id[:2]).observed, set()).discard(object_id)
        self._until.pop(object_id, None)
