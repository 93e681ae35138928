"""Which objects meet conditions, which fields there are, and what they hold: exact.

The database is read in parts, so that others read meanwhile.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

import numpy as np

from opdbus.index.catalogue.catalogue import representative
from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.catalogue.volatile_values import VolatileValues
from opdbus.index.database.store import Content, Entry, Store
from opdbus.index.fields.field_reader import Unread
from opdbus.index.fields.field_rows import Rows
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.slices import slices
from opdbus.state import fields
from opdbus.state.conditions import AllOf, Condition, pattern
from opdbus.state.object import Identity, Json, ObjectId

T = TypeVar("T")
# An SQL clause, and the values of its parameters.
Clause: TypeAlias = tuple[str, list[str]]

# Objects read at a time: some milliseconds' work.
_AT_A_TIME: Final = 256


async def object_ids(memory: StateStore, conditions: Sequence[Condition]) -> frozenset[ObjectId]:
    """Return the things that meet all conditions."""
    view = memory.catalogue.view
    met = await found(memory, conditions)
    return await asyncio.to_thread(lambda: frozenset(view.object_ids(view.there(met))))


async def aliased(memory: StateStore, name: str) -> list[ObjectId]:
    """Return the units that have another name, which may be given without `.service`."""
    names = (name.lower(), f"{name.lower()}.service")
    found = [await object_ids(memory, [Condition("aliases", "=", each)]) for each in names]
    return sorted(frozenset().union(*found))


async def found(
    memory: StateStore, conditions: Sequence[Condition], *, only_first: bool = False
) -> EntryRefs:
    """Return all entries about the things that meet all conditions, or some of them.

    What is observed of a thing counts, and what is declared only where nothing is observed, as
    Memory.joined has it. What the index of fields does not have is looked at one by one.
    """
    wanted, catalogue = AllOf(conditions), memory.catalogue
    moving = memory.volatile.asked(wanted.names)
    moved = await asyncio.to_thread(catalogue.known_of, moving) if moving else {}
    unread = memory.fields.unread()
    ids = {*unread.ids, *(entry.id for entry in moved.values())}
    rows = Rows(memory.fields.index, catalogue.shared(), catalogue.view.found(ids))
    met, perhaps = await asyncio.to_thread(rows.look, conditions)
    if only_first and len(met.ids):
        return met
    others: set[ObjectId] = set()
    async for part in _left(memory, wanted, unread, sorted(ids)):
        others.update(part)
        if others and only_first:
            return catalogue.found(others)
    others |= await _shared(memory, wanted, perhaps)
    every, renamed = met.and_also(catalogue.found(others)), memory.declarations.renamed()
    if not renamed:
        return every
    # what is declared of a thing that is observed under another name
    left_out = await asyncio.to_thread(catalogue.found, tuple(renamed))
    is_left = ~np.isin(every.ids, left_out.ids)
    return EntryRefs(every.places[is_left], every.ids[is_left])


async def _left(
    memory: StateStore, wanted: AllOf, unread: Unread, ids: Sequence[int]
) -> AsyncIterator[list[ObjectId]]:
    """Yield things that meet conditions of those that no row of the index tells of."""

    def matching(identity: Identity, properties: Mapping[str, Json]) -> list[ObjectId]:
        if not wanted.hold(identity, properties):
            return []
        object_id = ObjectId(*identity[1:])
        return [] if memory.catalogue.is_shared(object_id) else [object_id]

    if unread.after < unread.last:
        clause, values = _clause(wanted)
        within = f"{clause} AND id <= {unread.last:d}", values
        async for part in parts(memory, within, memory.volatile, matching, unread.after):
            yield part
    if ids:
        listed = "id IN (SELECT value FROM json_each(?))", [json.dumps(ids)]
        async for part in parts(memory, listed, memory.volatile, matching):
            yield part


async def _shared(
    memory: StateStore, wanted: AllOf, object_ids: Sequence[ObjectId]
) -> set[ObjectId]:
    """Return the things that meet all conditions, of some that several sources tell of."""

    def meets(entries: Sequence[Entry], known: Mapping[str, Json]) -> bool:
        return any(wanted.hold(entry.identity, known) for entry in entries)

    met = await _each(memory, object_ids, meets)
    return {object_id for object_id, is_met in met if is_met}


async def values(
    memory: StateStore, object_ids: Sequence[ObjectId], names: Sequence[str]
) -> list[dict[str, list[Json]]]:
    """Return what each thing has of fields by their names; of one that is gone, nothing."""
    wanted = fields.Names(names)

    def read(entries: Sequence[Entry], known: Mapping[str, Json]) -> dict[str, list[Json]]:
        return wanted.values(representative(entries).identity, known)

    found = dict(await _each(memory, object_ids, read))
    return [found.get(object_id, {}) for object_id in object_ids]


async def leaves(memory: StateStore, object_ids: Sequence[ObjectId]) -> list[dict[str, Json]]:
    """Return the scalar fields of each thing by their last keys; of one that is gone, nothing."""

    def read(_entries: Sequence[Entry], known: Mapping[str, Json]) -> dict[str, Json]:
        return {path.rpartition(".")[2]: value for path, _, value in fields.leaves(known)}

    found = dict(await _each(memory, object_ids, read))
    return [found.get(object_id, {}) for object_id in object_ids]


async def _each(
    memory: StateStore,
    object_ids: Sequence[ObjectId],
    work: Callable[[Sequence[Entry], Mapping[str, Json]], T],
) -> list[tuple[ObjectId, T]]:
    """Return things that there are, each with what work gives for its entries and their fields."""

    def worked(
        about: Mapping[ObjectId, Sequence[Entry]], contents: Mapping[int, Content]
    ) -> list[tuple[ObjectId, T]]:
        return [
            (t, work(entries, memory.joined(entries, contents))) for t, entries in about.items()
        ]

    found: list[tuple[ObjectId, T]] = []
    for part in slices(object_ids, _AT_A_TIME):
        about = {t: memory.catalogue.about(t) for t in part if memory.catalogue.has(t)}
        contents = await memory.content([entry for entries in about.values() for entry in entries])
        found += await asyncio.to_thread(worked, about, contents)
    return found


async def field_names(memory: StateStore, wanted: Mapping[str, str]) -> Counter[str]:
    """Count the entries of a plugin or kind that have each field, as conditions name it."""
    clause = " AND ".join(["TRUE", *(f"{key} = ?" for key in wanted)]), [*wanted.values()]

    def paths(_identity: Identity, properties: Mapping[str, Json]) -> set[str]:
        return {f".{p}" if p.lower() in fields.IDENTITY else p for p in fields.paths(properties)}

    found: Counter[str] = Counter()
    async for part in parts(memory, clause, memory.volatile, paths):
        found.update(part)
    return found


async def parts(
    memory: StateStore,
    clause: Clause,
    volatile: VolatileValues | None,
    work: Callable[[Identity, Mapping[str, Json]], Sequence[T] | set[T]],
    last: int = 0,
) -> AsyncIterator[list[T]]:
    """Yield what work gives for objects after a `last` one of which a clause is true, in parts.

    With what is `volatile` of them, too.
    """

    def read(store: Store, after: int) -> tuple[int, list[T]]:
        rows = store.words.sift(after, *clause, _AT_A_TIME)
        found: list[T] = []
        for number, properties in rows:
            # without those that are being removed
            if entry := memory.catalogue.view.entry(number):
                if volatile:
                    properties.update(volatile.get(entry.identity))
                found += work(entry.identity, properties)
        return (rows[-1][0] if len(rows) == _AT_A_TIME else 0), found

    while True:
        last, found = await memory.archive.read(partial(read, after=last))
        yield found
        if not last:
            return


def _clause(wanted: AllOf) -> Clause:
    """Return SQL that is true of all that may meet conditions, so that little else is read."""
    clauses, values = ["TRUE"], []
    for condition in wanted.conditions:
        more, their = _clause_of(condition)
        clauses += more
        values += their
    return " AND ".join(clauses), values


def _clause_of(condition: Condition) -> tuple[list[str], list[str]]:
    if (column := condition.field.lower()) in fields.IDENTITY:
        return [f"{column} LIKE ? ESCAPE '\\'"], [pattern(condition.part)]
    patterns = condition.patterns
    return ["properties LIKE ? ESCAPE '\\'"] * len(patterns), patterns
