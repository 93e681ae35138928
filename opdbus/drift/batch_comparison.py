"""Reads the declared and observed entries of a batch of objects and compares them."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from opdbus.drift import compare, network_values, rule_table
from opdbus.drift.field import MISSING, Field, Path
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Row, Sort
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Json, ObjectId

log = structlog.get_logger()

# Kinds of interface that have members.
_HOLDERS: Final = frozenset({"bridge", "bond", "team", "vrf"})
# The most parts that are read of one object: a router has thousands of routes.
_MAX_PARTS: Final = 500


class Observed(NamedTuple):
    """Entries of an observed object, and of its parts with the field that each is put in.

    `other_names` has the names of related objects of the same kind, by their other names.
    """

    entries: Sequence[Entry]
    parts: Sequence[tuple[str, Sequence[Entry]]]
    other_names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The entries to read for a comparison of an object; `declared` is None if undeclared."""

    object_id: ObjectId
    declared: Entry | None
    observed: Sequence[Observed]

    @property
    def row(self) -> Row:
        """The row of the rule table for the comparison."""
        return (rule_table.of_declared if self.declared else rule_table.of_observed)(
            self.object_id[:2]
        )

    @property
    def entries(self) -> list[Entry]:
        """All entries to read."""
        seen = [e for o in self.observed for e in o.entries]
        seen += [e for o in self.observed for _, entries in o.parts for e in entries]
        return [self.declared, *seen] if self.declared else seen


def plan(pairs: Pairs, object_id: ObjectId) -> Plan:
    """Return the entries to read for a comparison of an object."""
    sides = pairs.sides(object_id)
    if sides.declared is None:
        return Plan(object_id, None, [Observed(sides.observed, (), {})])
    return Plan(
        object_id, sides.declared, [_observed(pairs, one) for one in pairs.observed(object_id)]
    )


def _observed(pairs: Pairs, object_id: ObjectId) -> Observed:
    parts = sorted(pairs.parts(object_id))[:_MAX_PARTS]
    placed = ((_place(part[:2]), pairs.sides(part).observed) for part in parts)
    return Observed(pairs.sides(object_id).observed, list(placed), pairs.other_names(object_id))


def _place(sort: Sort) -> str:
    if sort in rule_table.JOINED:
        return rule_table.JOINED[sort][2]
    members = rule_table.of_observed(sort).members
    return members[1] if members else ""


async def look(memory: StateStore, plans: Sequence[Plan]) -> list[list[Field] | None]:
    """Return the differences of each object; None where an entry of it was removed meanwhile."""
    contents = await memory.content([entry for plan in plans for entry in plan.entries])
    # on a thread: this takes about 0.1 ms an object
    return await asyncio.to_thread(lambda: [_safely(plan, contents) for plan in plans])


def _safely(plan: Plan, contents: Mapping[int, Content]) -> list[Field] | None:
    try:
        return _compared(plan, contents)
    except Exception as error:  # noqa: BLE001 -- published values may have any shape
        log.warning("not compared", object="/".join(plan.object_id), reason=type(error).__name__)
        return []


def _compared(plan: Plan, contents: Mapping[int, Content]) -> list[Field] | None:
    if any(entry.id not in contents for entry in plan.entries):
        return None
    row = plan.row
    observed = [_view(row, one, contents) for one in plan.observed]
    if plan.declared is None:
        return compare.undeclared(row, observed[0])
    declared = json.loads(contents[plan.declared.id].properties)
    if row.parts or row.each:
        return compare.compare(row, declared, _whole(plan, observed))
    meant = [one for one in observed if row.suits(plan.object_id.name, one)]
    found = [compare.compare(row, declared, one) for one in meant]
    found = found or [compare.compare(row, declared, None)]
    # one of several objects of a name suffices, such as a package of two architectures
    return min(found, key=lambda fields: max((f.severity for f in fields), default=-1))


async def observed(
    memory: StateStore, plan: Plan, fields: Sequence[Field]
) -> Mapping[Path, Sequence[Json]]:
    """Return the present values of fields of an object, an empty list for an unknown value."""
    contents = await memory.content(plan.entries)
    if any(entry.id not in contents for entry in plan.entries):
        return {}
    seen = next(iter(views(plan, contents)), None)
    return {one.path: compare.observed(plan.row, one, seen) for one in fields}


def views(plan: Plan, contents: Mapping[int, Content]) -> list[dict[str, Json]]:
    """Return the properties of each observed object that is meant; parts count as one object."""
    row, name = plan.row, plan.object_id.name
    found = [_view(row, one, contents) for one in plan.observed]
    if row.parts or row.each:
        return [_whole(plan, found)] if found else []
    return [one for one in found if row.suits(name, one)]


async def unseen(memory: StateStore, plans: Sequence[Plan]) -> list[Mapping[str, str]]:
    """Return for each plan the result of `compare.unseen`; empty if not declared and observed."""
    contents = await memory.content([entry for plan in plans for entry in plan.entries])
    there = [all(entry.id in contents for entry in plan.entries) for plan in plans]

    def work() -> list[Mapping[str, str]]:
        rows = zip(plans, there, strict=True)
        return [_unseen(plan, contents) if is_there else {} for plan, is_there in rows]

    return await asyncio.to_thread(work)


def _unseen(plan: Plan, contents: Mapping[int, Content]) -> Mapping[str, str]:
    row, name = plan.row, plan.object_id.name
    if plan.declared is None or row.each:
        return {}
    declared = json.loads(contents[plan.declared.id].properties)
    found = (compare.unseen(row, name, declared, one) for one in views(plan, contents))
    return min(found, key=len, default={})


def _whole(plan: Plan, parts: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Return parts merged to one object, each also under its name; the first part wins."""
    names = (one.entries[0].identity.name for one in plan.observed)
    named: dict[str, Json] = dict(zip(names, parts, strict=True))
    if each := plan.row.each:
        return {
            name: part.get(each, MISSING)
            for name, part in zip(named, parts, strict=True)
            if each in part or part.get("missing")
        }
    for part in reversed(parts):
        named |= part
    return named


def _view(row: Row, one: Observed, contents: Mapping[int, Content]) -> dict[str, Json]:
    seen = merged(one.entries, contents)
    if "addresses" in seen:
        seen |= {place: [] for _, _, place in row.joined}
        if row.members and seen.get("type") in _HOLDERS:
            seen[row.members[1]] = []
    for place, entries in one.parts:
        if isinstance(held := seen.get(place), list):
            part = merged(entries, contents)
            is_member = row.members is not None and place == row.members[1]
            held.append(entries[0].identity.name if is_member else part)
    return {**seen, network_values.OTHER_NAMES: {**one.other_names}} if row.related else seen


def merged(entries: Iterable[Entry], contents: Mapping[int, Content]) -> dict[str, Json]:
    """Return the merged properties of entries; the first entry wins."""
    found: dict[str, Json] = {}
    for entry in reversed(list(entries)):
        found |= json.loads(contents[entry.id].properties)
    return found
