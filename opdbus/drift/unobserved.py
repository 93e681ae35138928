"""Declared objects and fields that cannot be compared because nothing observes them, and why."""

import asyncio
import json
from collections.abc import Callable, Iterable
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

from opdbus.drift import batch_comparison, rule_table
from opdbus.drift.batch_comparison import AT_A_TIME
from opdbus.drift.coverage import Coverage
from opdbus.drift.field_comparison import is_only_observed, is_wanted
from opdbus.drift.pairs import Pairs
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.slices import batches, slices
from opdbus.state.object import FILE, KindId, ObjectId

# Limits of the result: names of a kind, characters of a name, and rows.
MOST_NAMES: Final = 3
_MAX_NAME: Final = 64
_MOST_ROWS: Final = 50
# Missing objects whose declared properties are read.
_MOST: Final = 1000
# Limits of the search for fields: declared objects, and objects that are compared.
_MOST_DECLARED: Final = 20_000
_MOST_COMPARED: Final = 2000
_NO_SUCH: Final = (
    "none of this name is observed; `op-dbus list --plugin {} --kind {}` has the others"
)


class UnobservedRow(NamedTuple):
    """Declared objects of a kind: their number, the first names, and why they are not observed."""

    kind: KindId
    total: int
    names: list[str]
    why: str


async def find_unobserved(
    memory: StateStore,
    pairs: Pairs,
    coverage: Coverage,
    why_not: Callable[[KindId], str],
    most_names: int,
) -> list[UnobservedRow]:
    """Return the declared objects and fields that cannot be compared, at most 50 rows.

    `why_not` returns why a kind is not listed; rows for which it returns an empty text are left
    out.
    """
    whys: dict[KindId, str] = {}
    found: dict[tuple[KindId, str], list[str]] = {}
    for object_id in await _missing_objects(memory, pairs, coverage):
        kind_id = rule_table.of_declared(object_id[:2]).observed
        if kind_id not in whys:
            is_listed = coverage.lists(kind_id)
            whys[kind_id] = _NO_SUCH.format(*kind_id) if is_listed else why_not(kind_id)
        found.setdefault((object_id[:2], whys[kind_id]), []).append(object_id.name)
    for kind_id in filter(coverage.lists, rule_table.LOOKED_AT):
        for name, why in await _hidden(memory, pairs, kind_id):
            found.setdefault((kind_id, why), []).append(name)
    for object_id, field, why in await _fields(memory, pairs):
        found.setdefault((object_id[:2], why), []).append(f"{field} of {object_id.name}")
    rows = (
        UnobservedRow(
            kind_id, len(names), [n[:_MAX_NAME] for n in nsmallest(most_names, names)], why
        )
        for (kind_id, why), names in found.items()
    )
    return sorted(row for row in rows if row.why)[:_MOST_ROWS]


async def _missing_objects(memory: StateStore, pairs: Pairs, coverage: Coverage) -> list[ObjectId]:
    """Return the declared objects that are not observed and whose absence is not drift."""
    object_ids: list[ObjectId] = []
    for part in batches(coverage.all_missing(), _MOST):
        object_ids += [object_id for object_id in part if _is_silent(object_id, pairs, coverage)]
        await asyncio.sleep(0)
    entries = {object_id: pairs.sides(object_id).declared for object_id in object_ids[:_MOST]}
    contents = await memory.content([entry for entry in entries.values() if entry])
    passed = set[ObjectId]()
    for object_id, entry in entries.items():
        if entry and entry.id in contents:
            declared = json.loads(contents[entry.id].properties)
            is_listed = coverage.lists(rule_table.of_declared(object_id[:2]).observed)
            # an object that is declared absent need not be observed
            if is_only_observed(declared) or (is_listed and not is_wanted(declared)):
                passed.add(object_id)
    return [object_id for object_id in object_ids if object_id not in passed]


def _is_silent(object_id: ObjectId, pairs: Pairs, coverage: Coverage) -> bool:
    row = pairs.row(object_id)
    if not coverage.lists(row.observed):
        return not coverage.covers(object_id)
    return row.missing is None and row.observed not in rule_table.LOOKED_AT


async def _fields(memory: StateStore, pairs: Pairs) -> list[tuple[ObjectId, str, str]]:
    """Return the declared fields of observed objects that cannot be compared, and why."""
    object_ids = [*islice(memory.catalogue.object_ids_of(FILE), _MOST_DECLARED)]
    found: list[tuple[ObjectId, str, str]] = []
    left = _MOST_COMPARED
    for part in slices(object_ids, AT_A_TIME):
        plans = [batch_comparison.plan(pairs, object_id) for object_id in part]
        seen = [plan for plan in plans if plan.observed][:left]
        left -= len(seen)
        for plan, fields in zip(seen, await batch_comparison.unseen(memory, seen), strict=True):
            found += [(plan.object_id, field, why) for field, why in fields.items()]
        if not left:
            break
        # let other tasks run between batches
        await asyncio.sleep(0)
    return found


async def _hidden(memory: StateStore, pairs: Pairs, kind_id: KindId) -> list[tuple[str, str]]:
    """Return the names of objects that were looked up but could not be read, and why."""
    seen = [
        (name, entry)
        for name in await find_named(memory, kind_id)
        for entry in pairs.sides(ObjectId(*kind_id, name)).observed
    ]
    contents = await memory.content([entry for _, entry in seen])
    found = []
    for name, entry in seen:
        properties = json.loads(contents[entry.id].properties) if entry.id in contents else {}
        is_read = rule_table.LOOKED_AT[kind_id] in properties
        if properties and not is_read and not properties.get("missing"):
            why = properties.get("not_measured") or properties.get("description")
            found.append((name, str(why)))
    return found


async def find_named(memory: StateStore, observed: KindId) -> frozenset[str]:
    """Return the names under which declared objects of an observed kind would be observed.

    Objects of some kinds are only observed if the state file names them.
    """
    kind_ids = rule_table.declared_of(observed)
    found = (
        memory.catalogue.require_entries(object_id)[0]
        for object_id in memory.catalogue.of_kinds(kind_ids)
    )
    declared = [
        (entry, entry.identity.object_id) for entry in found if entry.identity.source == FILE
    ]
    contents = await memory.content(
        [entry for entry, object_id in declared if rule_table.of_declared(object_id[:2]).each]
    )
    names = set[str]()
    for entry, object_id in declared:
        row = rule_table.of_declared(object_id[:2])
        own = [] if row.each else [object_id.name]
        fields = json.loads(contents[entry.id].properties) if entry.id in contents else ()
        names |= {row.declared_key(object_id.kind, name) for name in (*own, *fields)}
    return frozenset(names)


def plugins(object_ids: Iterable[ObjectId]) -> set[str]:
    """Return the plugins that would observe objects if the file declares them."""
    kind_ids = {object_id[:2] for object_id in object_ids}
    return {rule_table.of_declared(kind_id).observed[0] for kind_id in kind_ids}
