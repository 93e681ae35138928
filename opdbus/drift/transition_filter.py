"""Decides when a difference counts as drift and when it is healed: after a time of quiet, and once.

It does no I/O. Times are seconds of a monotonic clock, but `since`, `at` and `wall` are since 1970.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from opdbus.drift.field import QUIET_SECONDS, Field, Path, Severity
from opdbus.state.object import Json, ObjectId

# `intended`: the declaration has changed, and the host has not followed yet.
Class: TypeAlias = Literal["drift", "intended"]

CLASSES: Final = ("drift", "intended")
# A field that changes all the time delays the other fields of its object at most this long.
MOST_QUIET_SECONDS: Final = 10.0
# Tolerance in seconds, so that a due field is not missed by rounding.
_ROUNDING: Final = 0.001


@dataclass(frozen=True, slots=True)
class DriftState:
    """The fields of an object that count as drift, their class, and since when."""

    what: Class
    since: float
    fields: Sequence[Field]

    @property
    def severity(self) -> Severity:
        """The severity of the worst field."""
        return max(one.severity for one in self.fields)


@dataclass(frozen=True, slots=True)
class DriftTransition:
    """The start or end of drift in one or more fields of an object.

    `at` is the time at which the fields changed. The rest is filled in later: the causes, the ended
    fields that were `dropped` from the file, whether the object is gone, and the values observed of
    each field before it began and after it ended to differ (an empty list for no value).
    """

    object_id: ObjectId
    before: DriftState | None
    after: DriftState | None
    at: float = 0.0
    began_by: str = ""
    ended_by: str = ""
    dropped: Sequence[Field] = ()
    is_gone: bool = False
    observed: Mapping[Path, Sequence[Json]] = field(default_factory=dict)

    @property
    def began(self) -> list[Field]:
        """The fields that begin to count, or count with another class or severity."""
        if self.after is None:
            return []
        known = {f.path: f.severity for f in self.before.fields} if self.before else {}
        if self.before and self.before.what != self.after.what:
            return list(self.after.fields)
        return [f for f in self.after.fields if known.get(f.path) != f.severity]

    @property
    def ended(self) -> list[Field]:
        """The fields that no longer count."""
        after = {one.path for one in self.after.fields} if self.after else set()
        return [one for one in (self.before.fields if self.before else ()) if one.path not in after]

    @property
    def healed(self) -> list[Field]:
        """The ended fields that are as declared again."""
        return [one for one in self.ended if one not in self.dropped and not self.is_gone]


@dataclass(slots=True)
class _Pending:
    """An object with fields whose present state does not count yet."""

    first_at: float
    changed_at: float
    intended_until: float
    fields: Mapping[Path, Field] = field(default_factory=dict)
    # when each field changed to its present state, different or not
    since: dict[Path, float] = field(default_factory=dict)
    due: float = 0.0


class TransitionFilter:
    """The drift state of all objects: fields that count, and fields that may count soon."""

    def __init__(self, not_before: float = 0.0) -> None:
        self._not_before = not_before
        self.counted: dict[ObjectId, DriftState] = {}
        # the number of these that were compared since the start
        self.known_by: Counter[tuple[Severity, Class]] = Counter()
        # the number of changes of `counted`
        self.changes = 0
        self._pending: dict[ObjectId, _Pending] = {}
        self._queue: list[tuple[float, int, ObjectId]] = []
        self._numbers = itertools.count()

    @property
    def due(self) -> float:
        """The time at which `take` has work; infinity if never."""
        return self._queue[0][0] if self._queue else float("inf")

    @property
    def known(self) -> int:
        """The number of objects that count and were compared since the start."""
        return self.known_by.total()

    def recall(self, counted: Mapping[ObjectId, DriftState]) -> None:
        """Load the drift state that was stored before."""
        for object_id, drifted in counted.items():
            self._set(object_id, drifted)

    def knows(self, object_id: ObjectId) -> bool:
        """Return whether an object counts as drifted, or may count soon."""
        return object_id in self.counted or object_id in self._pending

    def compare(
        self,
        object_id: ObjectId,
        fields: Iterable[Field],
        now: float,
        intended_until: float = 0.0,
        *,
        is_by_file: bool = False,
    ) -> None:
        """Record the present differences of an object; they are intended until a time.

        With `is_by_file`, the state file has changed: what only ends by that ends at once.
        """
        new = {one.path: one for one in fields}
        counted, pending = self.counted.get(object_id), self._pending.get(object_id)
        if not new and counted is None:
            self._pending.pop(object_id, None)
            return
        what: Class = "intended" if now < intended_until else "drift"
        if counted and what == counted.what and _form(new.values()) == _form(counted.fields):
            self._set(object_id, replace(counted, fields=tuple(new.values())))
            # checked again at the end of its intended drift, if it is intended now
            self._pending.pop(object_id, None)
            if now < intended_until:
                self._pending[object_id] = _Pending(now, now, intended_until, new)
                self._wait(object_id, intended_until)
            return
        if pending is None:
            before = {one.path: one for one in counted.fields} if counted else {}
            pending = self._pending[object_id] = _Pending(now, now, intended_until, before)
        moved = [
            path
            for path in new.keys() | pending.fields.keys()
            if _verdict(new, path) != _verdict(pending.fields, path)
        ]
        pending.since |= dict.fromkeys(moved, now)
        was_intended = now < pending.intended_until
        if moved or was_intended is not (what == "intended"):
            # an object that waited only for the end of intended drift was quiet until now
            is_quiet = pending.due == pending.intended_until
            pending.first_at = now if is_quiet else pending.first_at
            pending.changed_at = now
        pending.fields, pending.intended_until = new, intended_until
        quiet = pending.changed_at + QUIET_SECONDS
        due = max(min(quiet, pending.first_at + MOST_QUIET_SECONDS), self._not_before)
        if is_by_file and moved and new.keys().isdisjoint(moved):
            pending.since |= dict.fromkeys(moved, now - QUIET_SECONDS)
            due = now
        self._wait(object_id, due)

    def take(self, now: float, wall: float, most: int) -> list[DriftTransition]:
        """Return the transitions of at most `most` objects whose fields were quiet long enough.

        `now` is the monotonic clock, `wall` the time of day.
        """
        found: list[DriftTransition] = []
        while self.due <= now + _ROUNDING and len(found) < most:
            due, _, object_id = heapq.heappop(self._queue)
            pending = self._pending.get(object_id)
            if pending and pending.due == due:
                found += self._count(object_id, pending, now, wall)
        return found

    def _count(
        self, object_id: ObjectId, pending: _Pending, now: float, wall: float
    ) -> Iterator[DriftTransition]:
        before = self.counted.get(object_id)
        fields, later = _settle(pending, before, now)
        is_intended = now + _ROUNDING < pending.intended_until
        if fields and is_intended:
            later.append(pending.intended_until)
        if later:
            pending.first_at = now
            self._wait(object_id, min(later))
        else:
            del self._pending[object_id]
        after: DriftState | None = None
        if fields:
            what: Class = "intended" if is_intended else "drift"
            if before and any(one.path not in pending.fields for one in fields):
                # fields that are about to end do not begin as another class
                what = before.what
            after = DriftState(what, before.since if before else wall, fields)
        self._set(object_id, after)
        transition = DriftTransition(object_id, before, after)
        if moved := [*transition.began, *transition.ended]:
            ago = now - min(pending.since.get(one.path, now) for one in moved)
            yield replace(transition, at=wall - ago)

    def _set(self, object_id: ObjectId, drifted: DriftState | None) -> None:
        before = self.counted.pop(object_id, None)
        if drifted:
            self.counted[object_id] = drifted
        for one, number in (before, -1), (drifted, 1):
            if one and any(each.is_known for each in one.fields):
                self.known_by[one.severity, one.what] += number
        self.changes += 1

    def _wait(self, object_id: ObjectId, due: float) -> None:
        self._pending[object_id].due = due
        heapq.heappush(self._queue, (due, next(self._numbers), object_id))


def _settle(
    pending: _Pending, before: DriftState | None, now: float
) -> tuple[list[Field], list[float]]:
    """Return the fields that count now, the worst first, and the times of the next checks."""
    counted = {one.path: one for one in before.fields} if before else {}
    fields, later = [], []
    for path in counted.keys() | pending.fields.keys():
        found = pending.fields.get(path)
        due = pending.since.get(path, 0.0) + (found.patience if found else QUIET_SECONDS)
        is_settled = due <= now + _ROUNDING
        # a field that already differs keeps counting while its value changes again
        one = found if is_settled else (path in counted and found) or counted.get(path)
        fields += [one] if one else []
        later += [] if is_settled or (found and path in counted) else [due]
    fields.sort(key=lambda one: (-one.severity, one.path))
    return fields, later


def _form(fields: Iterable[Field]) -> dict[Path, Severity]:
    return {one.path: one.severity for one in fields}


def _verdict(fields: Mapping[Path, Field], path: Path) -> tuple[Severity, float] | None:
    """Return the severity and patience of a field; None if it does not differ."""
    found = fields.get(path)
    return (found.severity, found.patience) if found else None
