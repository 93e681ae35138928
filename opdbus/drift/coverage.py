"""Declared objects that are not observed, and the kinds that sources list completely."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final

from opdbus.drift import rule_table
from opdbus.drift.pairs import Pairs
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.state.object import KindId, ObjectId

_STILL: Final = float("inf")


class Coverage:
    """Kinds that sources list completely, and declared objects that are not observed.

    `clock` returns the time of day.
    """

    def __init__(self, pairs: Pairs, clock: Callable[[], float], catalogue: Catalogue) -> None:
        self._pairs = pairs
        self._clock = clock
        self._catalogue = catalogue
        self._objects_of_kinds = catalogue.of_kinds
        # kinds that each source has listed completely
        self._listed: dict[str, frozenset[KindId]] = {}
        # declared objects that are not observed, by the kind in which they would be observed
        self._missing: dict[KindId, set[ObjectId]] = {}
        # declared kinds without any observed object, by the kind in which they would be observed;
        # their objects, up to a million, are not in `_missing`
        self._unobserved: dict[KindId, set[KindId]] = {}
        # whether one of these kinds lost a declared object since the last call of `plugins_to_list`
        self._has_removals = False
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
        if self._has_removals:
            self._has_removals, there = False, self._catalogue.kinds
            left = {of: kind_ids & there for of, kind_ids in self._unobserved.items()}
            self._unobserved = {of: kind_ids for of, kind_ids in left.items() if kind_ids}
        wanted = claimed | self._unobserved.keys() | self._missing.keys()
        return {kind_id[0] for kind_id in wanted if not self.lists(kind_id)}

    def missing(self, kind_id: KindId) -> Iterator[ObjectId]:
        """Return the declared objects of an observed kind that are not observed.

        Also stops treating its declared kinds as wholly unobserved; the caller must `note` every
        object that is yielded.
        """
        alone = self._unobserved.pop(kind_id, set())
        return chain(
            tuple(self._missing.get(kind_id, ())), self._objects_of_kinds(alone) if alone else ()
        )

    def all_missing(self) -> Iterator[ObjectId]:
        """Yield all declared objects that are not observed; the set may change meanwhile."""
        yield from chain(
            *map(tuple, self._missing.values()),
            self._objects_of_kinds(set(chain(*self._unobserved.values()))),
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
        observed = rule_table.of_declared(object_id[:2]).observed
        alone = self._unobserved.get(observed, set())
        is_alone = object_id[:2] in alone
        if not is_missing:
            if is_alone:
                alone.remove(object_id[:2])
                if not alone:
                    del self._unobserved[observed]
                self._replace_missing(observed, {*self._objects_of_kinds({object_id[:2]})}, set())
            self._replace_missing(observed, set(), {object_id})
            self._last_observed[object_id] = _STILL
            return
        if not is_alone:
            self._missing.setdefault(observed, set()).add(object_id)
        if self._last_observed.get(object_id) == _STILL:
            self._last_observed[object_id] = self._clock()

    def note_unobserved_kind(self, kind_id: KindId) -> None:
        """Record a declared kind without any observed object now."""
        observed = rule_table.of_declared(kind_id).observed
        self._unobserved.setdefault(observed, set()).add(kind_id)
        known = self._missing.get(observed, ())
        self._replace_missing(observed, set(), {one for one in known if one[:2] == kind_id})

    def forget(self, object_id: ObjectId) -> None:
        """Drop an object that is no longer declared."""
        observed = rule_table.of_declared(object_id[:2]).observed
        self._has_removals |= object_id[:2] in self._unobserved.get(observed, ())
        self._replace_missing(observed, set(), {object_id})
        self._last_observed.pop(object_id, None)

    def _replace_missing(
        self, kind_id: KindId, new: AbstractSet[ObjectId], old: AbstractSet[ObjectId]
    ) -> None:
        """Add and drop missing objects of an observed kind; a kind without any is forgotten."""
        missing = self._missing.setdefault(kind_id, set())
        missing |= new
        missing -= old
        if not missing:
            del self._missing[kind_id]
