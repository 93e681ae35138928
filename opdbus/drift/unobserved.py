"""Declared objects and fields that cannot be compared because nothing observes them, and why."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

from opdbus.drift import batch_comparison, named_objects, rule_table
from opdbus.drift.compare import is_only_observed, is_wanted
from opdbus.drift.coverage import Coverage
from opdbus.drift.pairs import Pairs
from opdbus.drift.rule_table import Sort
from opdbus.drift.work_queue import AT_A_TIME
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.slices import batches, slices
from opdbus.state.object import FILE, Json, ObjectId

# Limits of the result: names of a kind, characters of a name, and rows.
_MOST_NAMES: Final = 3
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


class Unobserved(NamedTuple):
    """Declared objects of a kind: their number, the first names, and why they are not observed."""

    sort: Sort
    total: int
    names: list[str]
    why: str


async def unobserved(
    memory: StateStore, pairs: Pairs, coverage: Coverage, why_not: Callable[[Sort], str]
) -> list[Unobserved]:
    """Return the declared objects and fields that cannot be compared, at most 50 rows.

    `why_not` returns why a kind is not listed; rows for which it returns an empty text are left
    out.
    """
    whys: dict[Sort, str] = {}
    found: dict[tuple[Sort, str], list[str]] = {}
    for object_id in await _meant(memory, pairs, coverage):
        sort = rule_table.of_declared(object_id[:2]).observed
        if sort not in whys:
            is_listed = coverage.lists(sort)
            whys[sort] = _NO_SUCH.format(*sort) if is_listed else why_not(sort)
        found.setdefault((object_id[:2], whys[sort]), []).append(object_id.name)
    for sort in filter(coverage.lists, rule_table.LOOKED_AT):
        for name, why in await _hidden(memory, pairs, sort):
            found.setdefault((sort, why), []).append(name)
    for object_id, field, why in await _fields(memory, pairs):
        found.setdefault((object_id[:2], why), []).append(f"{field} of {object_id.name}")
    rows = (
        Unobserved(sort, len(names), [n[:_MAX_NAME] for n in nsmallest(_MOST_NAMES, names)], why)
        for (sort, why), names in found.items()
    )
    return sorted(row for row in rows if row.why)[:_MOST_ROWS]


async def _meant(memory: StateStore, pairs: Pairs, coverage: Coverage) -> list[ObjectId]:
    """Return the declared objects that are not observed and whose absence is not drift."""
    object_ids: list[ObjectId] = []
    for part in batches(coverage.all_missing(), _MOST):
        object_ids += [object_id for object_id in part if _is_silent(object_id, coverage)]
        await asyncio.sleep(0)
    entries = {object_id: pairs.sides(object_id).declared for object_id in object_ids[:_MOST]}
    contents = await memory.content([entry for entry in entries.values() if entry])
    passed = {
        object_id
        for object_id, entry in entries.items()
        if entry
        and entry.id in contents
        and not _is_meant(json.loads(contents[entry.id].properties), object_id, coverage)
    }
    return [object_id for object_id in object_ids if object_id not in passed]


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


def _is_silent(object_id: ObjectId, coverage: Coverage) -> bool:
    row = rule_table.of_declared(object_id[:2])
    if not coverage.lists(row.observed):
        return not coverage.covers(object_id)
    return row.missing is None and row.observed not in rule_table.LOOKED_AT


def _is_meant(declared: Mapping[str, Json], object_id: ObjectId, coverage: Coverage) -> bool:
    """Return whether an object would have to be observed; one that is declared absent would not."""
    is_listed = coverage.lists(rule_table.of_declared(object_id[:2]).observed)
    return not is_only_observed(declared) and (is_wanted(declared) or not is_listed)


async def _hidden(memory: StateStore, pairs: Pairs, sort: Sort) -> Iterator[tuple[str, str]]:
    """Yield the names of objects that were looked up but could not be read, and why."""
    names = await named_objects.names(memory, sort)
    seen = {name: pairs.sides(ObjectId(*sort, name)).observed for name in names}
    contents = await memory.content([entry for entries in seen.values() for entry in entries])
    return _unseen(
        (name, contents[entry.id].properties)
        for name, entries in seen.items()
        for entry in entries
        if entry.id in contents
    )


def _unseen(object_ids: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, text in object_ids:
        properties = json.loads(text)
        if "value" not in properties and not properties.get("missing"):
            yield name, str(properties.get("not_measured") or properties.get("description"))
