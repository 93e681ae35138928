"""The causes of drift transitions: the newest matching change of the object in history."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Final

from opdbus.drift import batch_comparison, rule_table
from opdbus.drift.compare import is_only_observed, is_wanted
from opdbus.drift.field import NOT_DECLARED, PRESENCE, Field, Path
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Sort
from opdbus.drift.transition_filter import DriftTransition
from opdbus.history.change import FIRST, STATE_FILE
from opdbus.history.row_filter import Filter, Row
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, Json, ObjectId

# History rows that are read of an object, and by how much (microseconds) they may precede the
# transition.
_NEWEST: Final = 8
_EARLIER: Final = 30 * 1_000_000
_OF_OBJECTS: Final = frozenset(("appeared", "changed", "gone", "event"))
_COMES_OR_GOES: Final = frozenset(("appeared", "gone"))
# A tuple, since values that are compared with it may be unhashable lists.
_THERE: Final = ("absent", "missing", "present")


class Reasons:
    """Finds the causes of drift transitions, and the fields that are no longer declared."""

    def __init__(self, memory: StateStore, pairs: Pairs) -> None:
        self._memory = memory
        self._pairs = pairs

    async def given(
        self, transitions: Sequence[DriftTransition], claims: frozenset[Sort]
    ) -> list[DriftTransition]:
        """Return the transitions with their causes and observed values."""
        found = []
        # one transition at a time: rows may be large
        for one in transitions:
            joined = rule_table.of_declared(one.object_id[:2]).joined
            sorts = [sort for sort, *_ in joined]
            since = int(max(0, one.at * 1e6 - _EARLIER))
            read = partial(_newest, self._pairs.about(one.object_id), sorts, since)
            recent = await self._memory.archive.read(read)
            declared = await self._declared(one)
            dropped = self._dropped(one, declared, claims)
            known = replace(one, dropped=dropped, is_gone=self._is_gone(one, declared))
            observed = {**_before(recent, one), **await self._after(known)}
            found.append(_with_causes(replace(known, observed=observed), recent))
        return found

    async def _after(self, one: DriftTransition) -> Mapping[Path, Sequence[Json]]:
        """Return the values that are now observed of healed fields."""
        if not one.healed:
            return {}
        plan = batch_comparison.plan(self._pairs, one.object_id)
        return await batch_comparison.observed(self._memory, plan, one.healed)

    async def _declared(self, one: DriftTransition) -> Mapping[str, Json] | None:
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

    def _dropped(
        self, one: DriftTransition, values: Mapping[str, Json] | None, claims: frozenset[Sort]
    ) -> list[Field]:
        """Return the fields that ended because the file no longer declares them."""
        if not one.ended:
            return []
        if values is None:
            is_claimed = rule_table.is_claimed(one.object_id, claims)
            return [field for field in one.ended if not (_is_extra(field) and is_claimed)]
        if is_only_observed(values):
            return one.ended
        return [f for f in one.ended if f.path != PRESENCE and not _has(values, f.path)]


def _before(rows: Sequence[Row], one: DriftTransition) -> Mapping[Path, Sequence[Json]]:
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
    object_ids: AbstractSet[ObjectId], joined: Sequence[Sort], since: int, store: Store
) -> list[Row]:
    """Return the newest rows about some objects without those about drift, the newest first.

    Rows about objects that belong to them, such as the addresses of an interface, are included:
    `joined` has the kinds of those.
    """
    rows = [
        row for object_id in object_ids for row in store.history.newest(object_id, _NEWEST, since)
    ]
    names = {object_id.name for object_id in object_ids}
    for plugin, kind in joined:
        wanted = Filter(since=since, plugin=plugin, kind=kind)
        parts = store.history.rows(wanted, store.history.numbers(wanted)).rows
        pattern = rule_table.JOINED[plugin, kind][1]
        rows += [r for r in parts if (m := pattern.fullmatch(r.identity.name)) and m[1] in names]
    return sorted((row for row in rows if row.what in _OF_OBJECTS), key=lambda row: -row.seq)


def _with_causes(one: DriftTransition, rows: Sequence[Row]) -> DriftTransition:
    """Return a transition with causes from rows about its object, the newest first."""
    began, ended = (_cause(rows, fields, side) for fields, side in ((one.began, 1), (one.ended, 0)))
    # the cause is the file: it claims the kind now, or the time of intended drift has ended
    is_of_file = any(map(_is_extra, one.began)) or (one.before and one.before.what == "intended")
    if not began and is_of_file:
        began = STATE_FILE
    return replace(one, began_by=began, ended_by=ended)


def _cause(rows: Sequence[Row], fields: Sequence[Field], side: int) -> str:
    """Return the cause of fields that began (side 1) or ended (side 0) to differ."""
    fitting = (row for row in rows if any(_fits(row, field, side) for field in fields))
    row = next(fitting, None)
    host = (row for row in rows if row.identity.source != FILE and row.cause != FIRST)
    # a later change on the host is as likely the cause as the edited file
    if (other := next(host, None)) and (row is None or _is_before(row, other)):
        row = other
    if row and row.cause == FIRST:
        # the file existed before its first reading, and is the cause all the same
        return STATE_FILE if row.identity.source == FILE else ""
    return row.cause if row else ""


def _is_before(row: Row, other: Row) -> bool:
    return row.identity.source == FILE and row.seq < other.seq


def _fits(row: Row, field: Field, side: int) -> bool:
    """Return whether a row changes a field, or another field from or to its observed value."""
    if row.identity.source == FILE:
        # rows of the first reading of the file have no fields
        return row.cause == FIRST or any(
            field.path[: len(path)] == tuple(path) for path, _, _ in row.fields
        )
    if field.path == PRESENCE or field.observed in _THERE:
        return row.what in _COMES_OR_GOES
    if any(tuple(change.path) == field.path for change in row.fields):
        return True
    sides = ((change.before, change.after)[side] for change in row.fields)
    return any(value and value[0] == field.observed for value in sides)


def _is_extra(field: Field) -> bool:
    """Return whether a field is the difference of an undeclared object that exists."""
    return field.path == PRESENCE and field.declared in (None, NOT_DECLARED)


def _has(values: Json | Mapping[str, Json], path: Sequence[str]) -> bool:
    """Return whether there is a value at a path."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True
