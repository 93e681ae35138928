"""Reads the declared and observed entries of a batch of objects and compares them."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from opdbus.drift import field_comparison, network_values, rule_table
from opdbus.drift.field import MISSING, Field, Path
from opdbus.drift.pairs import Pairs, is_one
from opdbus.drift.rule_table import Row
from opdbus.index.catalogue.declarations import ABSENT_AS_DECLARED, NOTHING_DECLARED, Declaration
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Json, ObjectId

log = structlog.get_logger()

# Objects in a batch: some milliseconds of work.
AT_A_TIME: Final = 100
# Kinds of interface that have members.
_HOLDERS: Final = frozenset({"bridge", "bond", "team", "vrf"})
# The most parts that are read of one object: a router has thousands of routes.
_MAX_PARTS: Final = 500


class ObservedParts(NamedTuple):
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
    observed: Sequence[ObservedParts]
    # the row of the rule table for the comparison
    row: Row

    @property
    def entries(self) -> list[Entry]:
        """All entries to read."""
        seen = [e for o in self.observed for e in o.entries]
        seen += [e for o in self.observed for _, entries in o.parts for e in entries]
        return [self.declared, *seen] if self.declared else seen

    def is_complete(self, contents: Mapping[int, Content]) -> bool:
        """Return whether no entry was removed meanwhile."""
        return all(entry.id in contents for entry in self.entries)


def plan(pairs: Pairs, object_id: ObjectId) -> Plan:
    """Return the entries to read for a comparison of an object."""
    sides = pairs.sides(object_id)
    if sides.declared is None:
        row = rule_table.of_observed(object_id[:2])
        return Plan(object_id, None, [ObservedParts(sides.observed, (), {})], row)
    found = []
    for one in pairs.observed(object_id):
        parts = []
        for part in sorted(pairs.parts(one))[:_MAX_PARTS]:
            members = rule_table.of_observed(part[:2]).members
            joined = rule_table.JOINED.get(part[:2])
            place = joined.field if joined else members.members_field if members else ""
            parts.append((place, pairs.sides(part).observed))
        found.append(ObservedParts(pairs.sides(one).observed, parts, pairs.other_names(one)))
    return Plan(object_id, sides.declared, found, pairs.row(object_id))


async def compare_batch(memory: StateStore, plans: Sequence[Plan]) -> list[list[Field] | None]:
    """Return the differences of each object; None where an entry of it was removed meanwhile."""
    contents = await memory.content([entry for plan in plans for entry in plan.entries])
    # on a thread: this takes about 0.1 ms an object
    return await asyncio.to_thread(lambda: [_compare(plan, contents) for plan in plans])


def _compare(plan: Plan, contents: Mapping[int, Content]) -> list[Field] | None:
    if not plan.is_complete(contents):
        return None
    try:
        if plan.declared is None:
            return field_comparison.undeclared(plan.row, view(plan.row, plan.observed[0], contents))
        declared = json.loads(contents[plan.declared.id].properties)
        # without any part, each field counts as not observed
        seen: list[Mapping[str, Json] | None] = [*views(plan, contents)]
        seen = seen or [None if is_one(plan.object_id) else {}]
        name = plan.object_id.name
        found = [field_comparison.compare(plan.row, declared, one, name) for one in seen]
    except Exception as error:  # noqa: BLE001 -- published values may have any shape
        log.warning("not compared", object="/".join(plan.object_id), reason=type(error).__name__)
        return []
    # one of several objects of a name suffices, such as a package of two architectures
    return min(found, key=lambda fields: max((f.severity for f in fields), default=-1))


async def observed(
    memory: StateStore, plan: Plan, fields: Sequence[Field]
) -> Mapping[Path, Sequence[Json]]:
    """Return the present values of fields of an object, an empty list for an unknown value."""
    contents = await memory.content(plan.entries)
    if not plan.is_complete(contents):
        return {}
    # without any entry there is no object
    seen = next(iter(views(plan, contents)), None) if contents else None
    return {one.path: field_comparison.observed(plan.row, one, seen) for one in fields}


def views(plan: Plan, contents: Mapping[int, Content]) -> list[Mapping[str, Json]]:
    """Return the properties of each observed object that is meant; parts count as one object."""
    row, name = plan.row, plan.object_id.name
    found = [view(row, one, contents) for one in plan.observed]
    if row.parts or row.each:
        return [_merge_parts(plan, found)] if found else []
    return [one for one in found if row.suits(name, one)]


def nearest_view(
    plan: Plan, declared: Mapping[str, Json], contents: Mapping[int, Content]
) -> Mapping[str, Json] | None:
    """Return the observed properties that differ least from declared ones, None without any."""

    def count(seen: Mapping[str, Json]) -> int:
        return len(field_comparison.compare(plan.row, declared, seen))

    return min(views(plan, contents), key=count, default=None)


async def unseen(memory: StateStore, plans: Sequence[Plan]) -> list[Mapping[str, str]]:
    """Return `field_comparison.unseen` of each plan; empty unless it is declared and observed."""
    contents = await memory.content([entry for plan in plans for entry in plan.entries])

    def find(plan: Plan) -> Mapping[str, str]:
        row, name = plan.row, plan.object_id.name
        if plan.declared is None or row.each or not plan.is_complete(contents):
            return {}
        declared = json.loads(contents[plan.declared.id].properties)
        found = (field_comparison.unseen(row, name, declared, one) for one in views(plan, contents))
        return min(found, key=len, default={})

    return await asyncio.to_thread(lambda: list(map(find, plans)))


def _merge_parts(plan: Plan, parts: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Return parts merged to one object, each also under its name; the first part wins."""
    names = (one.entries[0].identity.name for one in plan.observed)
    named: dict[str, Json] = dict(zip(names, parts, strict=True))
    if field := plan.row.each:
        return {
            name: part.get(field, MISSING)
            for name, part in named.items()
            if field in part or part.get("missing")
        }
    for part in reversed(parts):
        named |= part
    return named


def view(row: Row, one: ObservedParts, contents: Mapping[int, Content]) -> dict[str, Json]:
    """Return the properties of an observed object, with its parts in their fields."""
    seen = merge_entries(one.entries, contents)
    member_field = row.members.members_field if row.members else ""
    if "addresses" in seen:
        seen |= {one.field: [] for one in row.joined}
        if member_field and seen.get("type") in _HOLDERS:
            seen[member_field] = []
    for place, entries in one.parts:
        if isinstance(held := seen.get(place), list):
            is_member = place == member_field
            held.append(entries[0].identity.name if is_member else merge_entries(entries, contents))
    return {**seen, network_values.OTHER_NAMES: {**one.other_names}} if row.related else seen


def merge_entries(entries: Iterable[Entry], contents: Mapping[int, Content]) -> dict[str, Json]:
    """Return the merged properties of entries; the first entry wins."""
    found: dict[str, Json] = {}
    for entry in reversed(list(entries)):
        found |= json.loads(contents[entry.id].properties)
    return found


class PairedDeclarations:
    """Declarations for a state store with drift: see index.catalogue.declarations.Declarations."""

    def __init__(
        self,
        memory: StateStore,
        pairs: Pairs,
        is_missing: Callable[[ObjectId], bool] = lambda _object_id: False,
        covers: Callable[[ObjectId], bool] = lambda _object_id: False,
    ) -> None:
        self._memory = memory
        self._pairs = pairs
        self._covers = covers
        self.is_missing = is_missing
        self.observed = pairs.observed

    def one(self, object_id: ObjectId) -> ObjectId:
        """Return the observed object that a declared one is; any other object unchanged."""
        sides = self._pairs.sides(object_id)
        if sides.observed or not sides.declared or not is_one(object_id):
            return object_id
        return next(iter(self._pairs.observed(object_id)), object_id)

    def renamed(self) -> AbstractSet[ObjectId]:
        """Return the declared objects that are observed under another name."""
        return self._pairs.renamed

    def absence(self, object_id: ObjectId, declared: Mapping[str, Json]) -> str:
        """Return the message that an object is declared absent; empty if it is not.

        The message also states whether the absence is confirmed by observation.
        """
        if field_comparison.is_only_observed(declared) or field_comparison.is_wanted(declared):
            return ""
        # without a severity for missing objects, not all objects of a kind are listed
        is_listed = self._pairs.row(object_id).missing is not None
        return ABSENT_AS_DECLARED if is_listed and self._covers(object_id) else "declared absent"

    def declares(self, object_id: ObjectId) -> Entry | None:
        """Return the entry that declares an observed object."""
        return self._pairs.joined(object_id).declared

    async def read(self, object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, Declaration]:
        """Return the declarations of objects that are observed; removed ones are left out."""
        plans = [plan(self._pairs, object_id) for object_id in object_ids]
        plans = [one for one in plans if one.declared and one.observed]
        contents = await self._memory.content([e for one in plans for e in one.entries])
        there = [one for one in plans if one.is_complete(contents)]

        def work() -> Mapping[ObjectId, Declaration]:
            return {one.object_id: _declaration(one, contents) for one in there}

        return await asyncio.to_thread(work) if there else {}


def _declaration(plan: Plan, contents: Mapping[int, Content]) -> Declaration:
    declared = json.loads(contents[plan.declared.id].properties) if plan.declared else {}
    try:
        found = [
            field_comparison.declaration(plan.row, declared, one) for one in views(plan, contents)
        ]
    except Exception as error:  # noqa: BLE001 -- published values may have any shape
        log.warning("not compared", object="/".join(plan.object_id), reason=type(error).__name__)
        return Declaration({key: (value, None) for key, value in declared.items()}, {})
    if not found:
        return NOTHING_DECLARED
    # one of several objects of a name is meant, such as a package of two architectures
    nearest = min(found, key=lambda one: len(one.differing))
    rest = {k: v for k, v in nearest.unobserved.items() if str(v) != plan.object_id.name}
    return nearest._replace(unobserved=rest)
