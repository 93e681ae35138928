"""Declared objects that are not observed, and the kinds that sources list completely."""

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final

from opdbus.drift import rule_table
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import KindId
from opdbus.state.object import ObjectId

_STILL: Final = float("inf")


class Coverage:
    """Kinds that sources list completely, and declared objects that are not observed.

    `clock` returns the time of day; `objects_of_kinds` yields all objects of some kinds.
    """

    def __init__(
        self,
        pairs: Pairs,
        clock: Callable[[], float],
        objects_of_kinds: Callable[[Collection[KindId]], Iterator[ObjectId]],
    ) -> None:
        self._pairs = pairs
        self._clock = clock
        self._objects_of_kinds = objects_of_kinds
        # kinds that each source has listed completely
        self._listed: dict[str, frozenset[KindId]] = {}
        # declared objects that are not observed, by the kind in which they would be observed
        self._missing: dict[KindId, set[ObjectId]] = {}
        # declared kinds without any observed object; their objects, up to a million, are not in
        # `_missing`
        self._unobserved_kinds: set[KindId] = set()
        # kinds that lost a declared object since the last call of `plugins_to_list`
        self._kinds_with_removals: set[KindId] = set()
        # when each declared object was last observed; `_STILL` while it is observed
        self._last_observed: dict[ObjectId, float] = {}

    def set_listed(self, source: str, kind_ids: frozenset[KindId]) -> frozenset[KindId]:
        """Record the kinds that a source has listed; return those with changed coverage.

        An empty set means that the source is gone: all kinds that it had listed are returned.
        """
        known = self._listed.pop(source, frozenset())
        if not kind_ids:
            return known
        self._listed[source] = known | kind_ids
        return kind_ids - known

    def lists(self, kind_id: KindId) -> bool:
        """Return whether a source has listed all of its objects of a kind."""
        return any(kind_id in kind_ids for kind_ids in self._listed.values())

    def plugins_to_list(self, claimed: AbstractSet[KindId]) -> set[str]:
        """Return the plugins of kinds that must be listed before drift is known.

        These are the kinds of declared objects that are not observed, and those that the file
        claims.
        """
        for kind_id in self._kinds_with_removals & self._unobserved_kinds:
            if not any(True for _ in self._objects_of_kinds({kind_id})):
                self._unobserved_kinds.remove(kind_id)
        self._kinds_with_removals.clear()
        alone = {rule_table.of_declared(kind_id).observed for kind_id in self._unobserved_kinds}
        wanted = (
            claimed
            | alone
            | {kind_id for kind_id, object_ids in self._missing.items() if object_ids}
        )
        return {kind_id[0] for kind_id in wanted if not self.lists(kind_id)}

    def missing(self, kind_id: KindId) -> Iterator[ObjectId]:
        """Return the declared objects of an observed kind that are not observed.

        Also stops treating its declared kinds as wholly unobserved; the caller must `note` every
        object that is yielded.
        """
        alone = {
            one for one in self._unobserved_kinds if rule_table.of_declared(one).observed == kind_id
        }
        self._unobserved_kinds -= alone
        return chain(
            tuple(self._missing.get(kind_id, ())), self._objects_of_kinds(alone) if alone else ()
        )

    def all_missing(self) -> Iterator[ObjectId]:
        """Yield all declared objects that are not observed; the set may change meanwhile."""
        yield from chain(
            *map(tuple, self._missing.values()), self._objects_of_kinds(self._unobserved_kinds)
        )

    def last_observed_at(self, object_id: ObjectId) -> float:
        """Return when a declared object was last observed; 0 if never, infinity if it still is."""
        return self._last_observed.get(object_id, 0.0)

    def covers(self, object_id: ObjectId) -> bool:
        """Return whether an unobserved object would be observed if it existed.

        A publisher may publish only a part of a kind; there, only objects that were observed before
        count.
        """
        kind_id = rule_table.of_declared(object_id[:2]).observed
        if self.lists(kind_id):
            return True
        return object_id in self._last_observed and self._pairs.is_published(kind_id)

    def note(self, object_id: ObjectId, *, is_missing: bool) -> None:
        """Record whether a declared object is missing, that is, not observed."""
        missing = self._missing.setdefault(rule_table.of_declared(object_id[:2]).observed, set())
        is_alone = object_id[:2] in self._unobserved_kinds
        if not is_missing:
            if is_alone:
                self._unobserved_kinds.remove(object_id[:2])
                missing.update(self._objects_of_kinds({object_id[:2]}))
            missing.discard(object_id)
            self._last_observed[object_id] = _STILL
            return
        if not is_alone:
            missing.add(object_id)
        if self._last_observed.get(object_id) == _STILL:
            self._last_observed[object_id] = self._clock()

    def note_unobserved_kind(self, kind_id: KindId) -> None:
        """Record a declared kind without any observed object now."""
        self._unobserved_kinds.add(kind_id)
        observed = rule_table.of_declared(kind_id).observed
        missing = self._missing.get(observed, ())
        self._missing[observed] = {object_id for object_id in missing if object_id[:2] != kind_id}

    def forget(self, object_id: ObjectId) -> None:
        """Drop an object that is no longer declared."""
        self._kinds_with_removals.add(object_id[:2])
        self._missing.get(rule_table.of_declared(object_id[:2]).observed, set()).discard(object_id)
        self._last_observed.pop(object_id, None)
