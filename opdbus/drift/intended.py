"""The time for which a difference is intended: the host is to follow a recent declaration."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from opdbus.drift.batch_comparison import Plan
from opdbus.drift.coverage import Coverage
from opdbus.drift.drift_records import Records
from opdbus.drift.field import QUIET_SECONDS, Field
from opdbus.drift.pairs import Pairs
from opdbus.history.row_filter import Row
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, ObjectId

# A changed declaration is intended for this time, unless the host changes, too.
INTENDED_SECONDS: Final = 600.0
# The most history rows that are read of an object.
_MOST: Final = 100
_DECLARES: Final = ("appeared", "changed")


class Intended:
    """Finds when differing fields were declared; `wall` is the time of day."""

    def __init__(
        self,
        memory: StateStore,
        pairs: Pairs,
        records: Records,
        coverage: Coverage,
        wall: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._pairs = pairs
        self._records = records
        self._coverage = coverage
        self._wall = wall

    async def declared_at(
        self, compared: Sequence[tuple[Plan, Sequence[Field]]]
    ) -> Mapping[ObjectId, int]:
        """Return when differing fields were declared, for objects where all were so recently."""
        least = max(self._wall() - INTENDED_SECONDS, self._records.declared_since)
        new = [
            (plan, fields)
            for plan, fields in compared
            if fields and plan.declared and plan.declared.updated_at > least
        ]
        if not new:
            return {}
        since = int(least * 1e6)
        rows = await self._memory.archive.read(
            lambda store: [_declarations(store, plan.object_id, since) for plan, _ in new]
        )
        found = {
            plan.object_id: min(_declared_at(field, found) for field in fields)
            for (plan, fields), found in zip(new, rows, strict=True)
        }
        # objects that went away before the daemon's start
        gone = {
            plan.object_id: self._pairs.about(plan.object_id)
            for plan, _ in new
            if not (plan.observed or self._coverage.left_at(plan.object_id))
        }
        left = await self._memory.archive.read(
            lambda store: {
                object_id
                for object_id in gone
                if _has_left(store, gone[object_id], found[object_id])
            }
        )
        return {object_id: at for object_id, at in found.items() if object_id not in left}

    def seconds(self, plan: Plan, fields: Sequence[Field], at: int) -> float:
        """Return for how many more seconds a difference is intended.

        `at` is when it was declared, in seconds since 1970. It ends when the host follows; an
        object in transition, such as a package that is being installed, has not followed yet.
        """
        if at <= self._records.declared_since:
            return 0.0
        latest: float = max(
            (e.updated_at for e in plan.entries if e is not plan.declared), default=0
        )
        if not plan.observed:
            latest = max(latest, self._coverage.left_at(plan.object_id))
        has_followed = at <= latest and all(one.patience == QUIET_SECONDS for one in fields)
        return 0.0 if has_followed else max(0.0, at + INTENDED_SECONDS - self._wall())


def _declarations(store: Store, object_id: ObjectId, since: int) -> list[Row]:
    """Return the newest changes of an object's declaration since a time (microseconds)."""
    rows = store.history.newest(object_id, _MOST, since)
    return [row for row in rows if row.identity.source == FILE and row.what in _DECLARES]


def _has_left(store: Store, object_ids: AbstractSet[ObjectId], since: int) -> bool:
    """Return whether an observed object is gone since a time in seconds since 1970."""
    rows = (
        row for one in object_ids for row in store.history.newest(one, _MOST, since * 1_000_000)
    )
    return any(row.what == "gone" and row.identity.source != FILE for row in rows)


def _declared_at(field: Field, rows: Sequence[Row]) -> int:
    """Return when a field's declared value changed, in seconds since 1970; 0 if not in `rows`."""
    found = (row.at // 1_000_000 for row in rows if row.what == "appeared" or _is_of(row, field))
    return next(found, 0)


def _is_of(row: Row, field: Field) -> bool:
    """Return whether a row changes a field, a part of it, or a field that contains it."""
    pairs = (zip(change.path, field.path, strict=False) for change in row.fields)
    return any(all(one == other for one, other in pair) for pair in pairs)
