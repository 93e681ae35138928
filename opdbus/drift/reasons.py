"""Reads from history since when a difference is intended, and the causes of drift transitions."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Final

from opdbus.drift import batch_comparison, rule_table
from opdbus.drift.batch_comparison import Plan
from opdbus.drift.coverage import Coverage
from opdbus.drift.drift_records import Records
from opdbus.drift.field import NOT_DECLARED, PRESENCE, QUIET_SECONDS, Field, Path
from opdbus.drift.field_comparison import is_only_observed, is_wanted
from opdbus.drift.pairs import Pairs
from opdbus.drift.transition_filter import DriftState, DriftTransition
from opdbus.history.change import FIRST, STATE_FILE
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes import history_reader
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, Json, KindId, ObjectId

# A changed declaration is intended for this time, unless the host changes, too.
INTENDED_SECONDS: Final = 600.0
# From this number on, declarations that are intended no longer are forgotten.
_MAX_INTENDED: Final = 1000
# The most history rows that are read of an object to find when it was declared.
_MAX_DECLARATIONS: Final = 100
# History rows that are read of an object to find a cause, and by how much (microseconds) they may
# precede the transition.
_NEWEST: Final = 8
_EARLIER: Final = 30 * 1_000_000
# History rows that are read of an object to find the change of each field that differs, and of a
# kind whose objects are parts of others.
_NEWEST_OF_FIELDS: Final = 50
_NEWEST_OF_KIND: Final = 1000
_OF_OBJECTS: Final = frozenset(("appeared", "changed", "gone", "event"))
# A tuple, since values that are compared with it may be unhashable lists.
_THERE: Final = ("absent", "missing", "present")
# Fields of observed objects that say whether there is such an object.
_OF_PRESENCE: Final = frozenset(("missing", "removed", "status", "load_state"))


class DriftHistory:
    """Finds when differing fields were declared, and the causes of drift transitions.

    `clock` is monotonic, and `wall` the time of day, which may be set.
    """

    def __init__(
        self,
        memory: StateStore,
        pairs: Pairs,
        records: Records,
        coverage: Coverage,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._pairs = pairs
        self._records = records
        self._coverage = coverage
        self._clock = clock
        self._wall = wall
        # the time of day at the start of `clock`, as of now
        self._began = wall() - clock()
        # until when, by `clock`, objects declared at a time of day are intended
        self._until: dict[tuple[ObjectId, int], float] = {}

    @property
    def _declared_since(self) -> float:
        """The time of the first declaration; 0 if the clock was ahead then."""
        since = self._records.declared_since
        return since if since <= self._wall() else 0.0

    async def declared_at(
        self, compared: Sequence[tuple[Plan, Sequence[Field]]]
    ) -> Mapping[ObjectId, int]:
        """Return when differing fields were declared, for objects where all were so recently."""
        # the earlier one: the clock may have been set since
        wall = min(self._wall(), self._began + self._clock())
        least = max(wall - INTENDED_SECONDS, self._declared_since)
        new = [
            (plan, fields)
            for plan, fields in compared
            if fields and plan.declared and plan.declared.updated_at > least
        ]
        if not new:
            return {}
        since = int(least * 1e6)
        rows = await self._memory.archive.read(
            lambda store: [_read_declarations(store, plan.object_id, since) for plan, _ in new]
        )
        found = {
            plan.object_id: min(_declared_at(field, found) for field in fields)
            for (plan, fields), found in zip(new, rows, strict=True)
        }
        # objects that went away before the daemon's start
        gone = {
            plan.object_id: self._pairs.about(plan.object_id)
            for plan, _ in new
            if not (plan.observed or self._coverage.last_observed_at(plan.object_id))
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
        if at <= self._declared_since:
            return 0.0
        times: list[float] = [e.updated_at for e in plan.entries if e is not plan.declared]
        if not plan.observed:
            times.append(self._coverage.last_observed_at(plan.object_id))
        # what is dated in the future is as old as can be: the clock was ahead
        latest = max((time for time in times if time <= self._wall()), default=0.0)
        has_followed = at <= latest and all(one.patience == QUIET_SECONDS for one in fields)
        until = self._intended_until(plan.object_id, at)
        return 0.0 if has_followed else max(0.0, until - self._clock())

    def _intended_until(self, object_id: ObjectId, at: int) -> float:
        """Return until when, by `clock`, an object declared at a time of day is intended.

        The time of day counts at the first call alone, and for at most INTENDED_SECONDS.
        """
        now, wall = self._clock(), self._wall()
        if (known := self._until.get((object_id, at))) is not None:
            return known
        if len(self._until) >= _MAX_INTENDED:
            self._until = {
                key: until
                for key, until in self._until.items()
                if until > now or key[1] + INTENDED_SECONDS > wall
            }
        left = min(max(0.0, at + INTENDED_SECONDS - wall), INTENDED_SECONDS)
        return self._until.setdefault((object_id, at), now + left)

    async def explain(
        self, transitions: Sequence[DriftTransition], claims: frozenset[KindId]
    ) -> list[DriftTransition]:
        """Return the transitions with their causes and observed values."""
        found = []
        # one transition at a time: rows may be large
        for one in transitions:
            joined = rule_table.of_declared(one.object_id[:2]).joined
            kind_ids = [one.kind for one in joined]
            since = int(max(0, one.at * 1e6 - _EARLIER))
            read = partial(_newest, self._pairs.about(one.object_id), kind_ids, since)
            recent = await self._memory.archive.read(read)
            declared = await self._read_declared(one)
            dropped = self._find_undeclared(one, declared, claims)
            known = replace(one, dropped=dropped, is_gone=self._is_gone(one, declared))
            observed = _observed_before(recent, one)
            if known.healed:
                plan = batch_comparison.plan(self._pairs, one.object_id)
                observed |= await batch_comparison.observed(self._memory, plan, known.healed)
            claimed_at = self._records.claimed_at(one.object_id)
            found.append(_with_causes(replace(known, observed=observed), recent, claimed_at))
        return found

    async def origins(
        self, drifted: Mapping[ObjectId, DriftState]
    ) -> Mapping[ObjectId, Mapping[str, Row]]:
        """Return the change that made each field differ, as far as history has it.

        Other reads run between those of two objects, and of two parts of history.
        """
        begun = {one: int(max(0, state.since * 1e6 - _EARLIER)) for one, state in drifted.items()}
        since: dict[KindId, int] = {}
        for one, at in begun.items():
            for joined in rule_table.of_declared(one[:2]).joined:
                since[joined.kind] = min(at, since.get(joined.kind, at))
        joined_rows = [
            row
            for (plugin, kind), at in since.items()
            for row in await history_reader.first_rows(
                self._memory, Filter(since=at, plugin=plugin, kind=kind), _NEWEST_OF_KIND
            )
        ]
        found: dict[ObjectId, Mapping[str, Row]] = {}
        for one, state in drifted.items():
            about = self._pairs.about(one)
            kind_ids = {joined.kind for joined in rule_table.of_declared(one[:2]).joined}
            parts = [r for r in joined_rows if r.identity[1:3] in kind_ids and r.at >= begun[one]]
            own = await self._memory.archive.read(
                partial(_newest_of_each, about, begun[one], _NEWEST_OF_FIELDS)
            )
            rows = _of_objects([*own, *_of_parts(parts, about)])
            firsts = {field.name: _first_fit(rows, [field], 1) for field in state.fields}
            found[one] = {n: row for n, row in firsts.items() if row and row.cause != FIRST}
        return found

    async def _read_declared(self, one: DriftTransition) -> Mapping[str, Json] | None:
        """Return the declared properties of an object; None if it is not declared."""
        if (declared := self._pairs.sides(one.object_id).declared) is None:
            return None
        content = (await self._memory.content([declared])).get(declared.id)
        return json.loads(content.properties) if content else {}

    def _is_gone(self, one: DriftTransition, declared: Mapping[str, Json] | None) -> bool:
        """Return whether fields ended because the declared object no longer exists.

        An object that is declared absent and does not exist is as declared.
        """
        if one.after and any(field.is_absence for field in one.after.fields):
            return True
        is_meant = declared is not None and is_wanted(declared)
        return is_meant and not self._pairs.observed(one.object_id)

    def _find_undeclared(
        self, one: DriftTransition, declared: Mapping[str, Json] | None, claims: frozenset[KindId]
    ) -> list[Field]:
        """Return the fields that ended because the file no longer declares them."""
        if not one.ended:
            return []
        if declared is None:
            is_claimed = rule_table.is_claimed(one.object_id, claims)
            return [field for field in one.ended if not (_is_extra(field) and is_claimed)]
        if is_only_observed(declared):
            return one.ended
        return [f for f in one.ended if f.path != PRESENCE and not _has_value(declared, f.path)]


def _read_declarations(store: Store, object_id: ObjectId, since: int) -> list[Row]:
    """Return the newest changes of an object's declaration since a time (microseconds)."""
    rows = store.history.newest(object_id, _MAX_DECLARATIONS, since)
    return [
        r for r in rows if r.identity.source == FILE and r.change_type in {"appeared", "changed"}
    ]


def _has_left(store: Store, object_ids: AbstractSet[ObjectId], since: int) -> bool:
    """Return whether an observed object is gone since a time in seconds since 1970."""
    return any(
        row.change_type == "gone" and row.identity.source != FILE
        for one in object_ids
        for row in store.history.newest(one, _MAX_DECLARATIONS, since * 1_000_000)
    )


def _declared_at(field: Field, rows: Sequence[Row]) -> int:
    """Return when a field's declared value changed, in seconds since 1970; 0 if not in `rows`.

    A row also counts if it changes a part of the field, or a field that contains it.
    """
    for row in rows:
        pairs = (zip(change.path, field.path, strict=False) for change in row.fields)
        if row.change_type == "appeared" or any(all(a == b for a, b in pair) for pair in pairs):
            return row.at // 1_000_000
    return 0


def _observed_before(rows: Sequence[Row], one: DriftTransition) -> dict[Path, Sequence[Json]]:
    """Return the values that were observed before fields began to differ, if they are known."""
    counted = {f.path: f for f in one.before.fields} if one.before else {}
    found: dict[Path, Sequence[Json]] = {}
    for field in one.began:
        if (known := counted.get(field.path)) and known.is_known:
            found[field.path] = [known.observed]
            continue
        changes = (change for row in rows if row.identity.source != FILE for change in row.fields)
        meant = (c for c in changes if c.after and c.after[0] == field.observed)
        if (change := next(meant, None)) and change.before is not None:
            found[field.path] = change.before
    return found


def _newest(
    object_ids: AbstractSet[ObjectId],
    joined: Sequence[KindId],
    since: int,
    store: Store,
) -> list[Row]:
    """Return the newest rows about some objects without those about drift, the newest first.

    Rows about objects that belong to them, such as the addresses of an interface, are included:
    `joined` has the kinds of those.
    """
    rows = _newest_of_each(object_ids, since, _NEWEST, store)
    for plugin, kind in joined:
        wanted = Filter(since=since, plugin=plugin, kind=kind)
        parts = store.history.rows(wanted, store.history.candidate_range(wanted)).rows
        rows += _of_parts(parts, object_ids)
    return _of_objects(rows)


def _newest_of_each(
    object_ids: AbstractSet[ObjectId], since: int, most: int, store: Store
) -> list[Row]:
    """Return the newest rows about each of some objects, since a time (microseconds)."""
    return [row for one in object_ids for row in store.history.newest(one, most, since)]


def _of_parts(rows: Iterable[Row], object_ids: AbstractSet[ObjectId]) -> Iterator[Row]:
    """Yield the rows about parts of some objects, by the names that their names have."""
    names = {object_id.name for object_id in object_ids}
    for row in rows:
        pattern = rule_table.JOINED[row.identity.plugin, row.identity.kind].pattern
        if (match := pattern.fullmatch(row.identity.name)) and match[1] in names:
            yield row


def _of_objects(rows: Iterable[Row]) -> list[Row]:
    """Return the rows about objects, not about their drift, the newest first."""
    return sorted((row for row in rows if row.change_type in _OF_OBJECTS), key=lambda row: -row.seq)


def _with_causes(one: DriftTransition, rows: Sequence[Row], claimed_at: float) -> DriftTransition:
    """Return a transition with causes from rows about its object, the newest first.

    `claimed_at` is when the file began to claim its kind, in seconds since 1970.
    """
    began, ended = (_cause(rows, fields, side) for fields, side in ((one.began, 1), (one.ended, 0)))
    if any(map(_is_extra, one.began)):
        # only these rows count: another change of the object makes it no undeclared one
        row = _first_fit(rows, one.began, 1)
        is_known = row and row.cause != FIRST and row.at >= claimed_at * 1e6
        began = row.cause if row and is_known else STATE_FILE
    elif not began and one.before and one.before.what == "intended":
        # the time of intended drift has ended
        began = STATE_FILE
    return replace(one, began_by=began, ended_by=ended)


def _cause(rows: Sequence[Row], fields: Sequence[Field], side: int) -> str:
    """Return the cause of fields that began (side 1) or ended (side 0) to differ."""
    row = _first_fit(rows, fields, side)
    host = (row for row in rows if row.identity.source != FILE and row.cause != FIRST)
    # a later change on the host is as likely the cause as the edited file
    if (other := next(host, None)) and (
        row is None or (row.identity.source == FILE and row.seq < other.seq)
    ):
        row = other
    if row and row.cause == FIRST:
        # the file existed before its first reading, and is the cause all the same
        return STATE_FILE if row.identity.source == FILE else ""
    return row.cause if row else ""


def _first_fit(rows: Sequence[Row], fields: Sequence[Field], side: int) -> Row | None:
    return next((row for row in rows if any(_fits(row, field, side) for field in fields)), None)


def _fits(row: Row, field: Field, side: int) -> bool:
    """Return whether a row changes a field, or another field from or to its observed value."""
    is_presence = field.path == PRESENCE or field.observed in _THERE
    if is_presence and row.change_type in {"appeared", "gone"}:
        return True
    if row.identity.source == FILE:
        # rows of the first reading of the file have no fields
        return row.cause == FIRST or any(
            field.path[: len(path)] == tuple(path) for path, _, _ in row.fields
        )
    if is_presence:
        return any(change.path[-1:] and change.path[-1] in _OF_PRESENCE for change in row.fields)
    if any(tuple(change.path) == field.path for change in row.fields):
        return True
    sides = ((change.before, change.after)[side] for change in row.fields)
    return any(value and value[0] == field.observed for value in sides)


def _is_extra(field: Field) -> bool:
    """Return whether a field is the difference of an undeclared object that exists."""
    return field.path == PRESENCE and field.declared in (None, NOT_DECLARED)


def _has_value(values: Json | Mapping[str, Json], path: Sequence[str]) -> bool:
    """Return whether there is a value at a path."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True
