"""Exact matching of conditions: the objects that meet them, and fields and their values.

The database is read in batches, so that other readers are not held up.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

import numpy as np

from opdbus.index.catalogue import short_names
from opdbus.index.catalogue.catalogue import representative
from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.catalogue.volatile_values import VolatileValues
from opdbus.index.database.store import Entry, Store
from opdbus.index.fields.field_rows import FieldRows
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.slices import slices
from opdbus.state import fields
from opdbus.state.conditions import AllOf, Condition, pattern
from opdbus.state.object import UNIT, Identity, Json, ObjectId

T = TypeVar("T")
# An SQL clause and its parameters.
Clause: TypeAlias = tuple[str, list[str]]

# Objects in a batch: a few milliseconds of work.
_AT_A_TIME: Final = 256


async def object_ids(memory: StateStore, conditions: Sequence[Condition]) -> frozenset[ObjectId]:
    """Return the objects that meet all conditions."""
    view = memory.catalogue.view
    met = await found(memory, conditions)
    return await asyncio.to_thread(lambda: frozenset(view.object_ids(view.existing(met))))


async def aliased(memory: StateStore, name: str) -> list[ObjectId]:
    """Return the objects with this alias, in any case and with or without `.service`."""
    names = (name.lower(), f"{name.lower()}.service")
    found = [await object_ids(memory, [Condition("aliases", "=", each)]) for each in names]
    return sorted(frozenset().union(*found))


async def resolve(memory: StateStore, name: str) -> tuple[list[ObjectId], list[ObjectId]]:
    """Return the objects that a short name or an alias means, and else those of close names."""
    objects, close = await asyncio.to_thread(short_names.find_in, memory.catalogue, name)
    # an alias of a unit may equal the name of another object, such as an account
    is_open = "/" not in name and UNIT not in {object_id[:2] for object_id in objects}
    if not objects or is_open:
        others = await aliased(memory, name.rpartition("/")[2])
        objects, close = [*objects, *others], [] if others else close
    return objects, close


async def found(
    memory: StateStore, conditions: Sequence[Condition], *, only_first: bool = False
) -> EntryRefs:
    """Return the entries of the objects that meet all conditions.

    With `only_first`, return as soon as some are found. Observed values of an object take
    precedence over declared ones, as in `StateStore.merge_properties`. Objects that the field index
    does not cover, or not in their present state, are read one by one.
    """
    wanted, catalogue = AllOf(conditions), memory.catalogue
    moving = memory.volatile.entries_with(wanted.names)
    moved = await asyncio.to_thread(catalogue.existing, moving) if moving else {}
    unread = memory.fields.unread()
    ids = {*unread.ids, *(entry.id for entry in moved.values())}
    view = catalogue.view
    rows = FieldRows(memory.fields.index, view, catalogue.shared(), view.refs_of(ids))
    met, perhaps = await asyncio.to_thread(rows.look, conditions)
    if only_first and len(met.ids):
        return met

    def matching(identity: Identity, properties: Mapping[str, Json]) -> list[ObjectId]:
        object_id = identity.object_id
        is_met = wanted.hold(identity, properties) and not catalogue.is_shared(object_id)
        return [object_id] if is_met else []

    # objects of one source that the field index does not cover
    clauses: list[tuple[Clause, int]] = []
    if unread.after < unread.last:
        clause, texts = _clause(wanted)
        clauses.append(((f"{clause} AND id <= {unread.last:d}", texts), unread.after))
    if ids:
        listed = "id IN (SELECT value FROM json_each(?))", [json.dumps(sorted(ids))]
        clauses.append((listed, 0))
    others: set[ObjectId] = set()
    for within, after in clauses:
        async for part in read_parts(memory, within, memory.volatile, matching, after):
            others.update(part)
            if others and only_first:
                return catalogue.refs_of(others)
    # objects that several sources report, and that may meet the conditions
    shared = await _each(
        memory,
        perhaps,
        lambda entries, known: any(wanted.hold(entry.identity, known) for entry in entries),
    )
    others.update(object_id for object_id, is_met in shared if is_met)
    every, renamed = met.and_also(catalogue.refs_of(others)), memory.declarations.renamed()
    if not renamed:
        return every
    # without declared objects that are observed under another name
    left_out = await asyncio.to_thread(catalogue.refs_of, tuple(renamed))
    is_left = ~np.isin(every.ids, left_out.ids)
    return EntryRefs(every.places[is_left], every.ids[is_left])


async def values(
    memory: StateStore, object_ids: Sequence[ObjectId], names: Sequence[str]
) -> list[dict[str, list[Json]]]:
    """Return the values of each object's fields by the given names; {} for an absent object."""
    wanted = fields.Names(names)
    found = dict(
        await _each(
            memory,
            object_ids,
            lambda entries, known: wanted.values(representative(entries).identity, known),
        )
    )
    return [found.get(object_id, {}) for object_id in object_ids]


async def leaves(memory: StateStore, object_ids: Sequence[ObjectId]) -> list[dict[str, Json]]:
    """Return the scalar fields of each object by their last keys; {} for an absent object."""

    def read(_entries: Sequence[Entry], known: Mapping[str, Json]) -> dict[str, Json]:
        return {path.rpartition(".")[2]: value for path, _, value in fields.leaves(known)}

    found = dict(await _each(memory, object_ids, read))
    return [found.get(object_id, {}) for object_id in object_ids]


async def _each(
    memory: StateStore,
    object_ids: Sequence[ObjectId],
    work: Callable[[Sequence[Entry], Mapping[str, Json]], T],
) -> list[tuple[ObjectId, T]]:
    """Return each object that exists with the result of `work` for its entries and joined fields.

    `work` runs on a thread.
    """
    found: list[tuple[ObjectId, T]] = []
    for part in slices(object_ids, _AT_A_TIME):
        about, contents = await memory.read_objects(part)
        found += await asyncio.to_thread(
            lambda about, contents: [
                (one, work(entries, memory.merge_properties(entries, contents)))
                for one, entries in about.items()
            ],
            about,
            contents,
        )
    return found


async def field_names(memory: StateStore, wanted: Mapping[str, str]) -> Counter[str]:
    """Count the entries that have each field, among those whose identity columns equal `wanted`.

    Fields are named as conditions name them: with a leading dot if an identity column is called so.
    """
    clause = " AND ".join(["TRUE", *(f"{key} = ?" for key in wanted)]), [*wanted.values()]

    def paths(_identity: Identity, properties: Mapping[str, Json]) -> set[str]:
        return {f".{p}" if p.lower() in fields.IDENTITY else p for p in fields.paths(properties)}

    found: Counter[str] = Counter()
    async for part in read_parts(memory, clause, memory.volatile, paths):
        found.update(part)
    return found


async def read_parts(
    memory: StateStore,
    clause: Clause,
    volatile: VolatileValues | None,
    work: Callable[[Identity, Mapping[str, Json]], Sequence[T] | set[T]],
    last: int = 0,
) -> AsyncIterator[list[T]]:
    """Yield the results of `work` for objects above the id `last` that match a clause, in batches.

    `work` is called in the archive's reader, with the properties and the volatile values, if given.
    """

    def read(store: Store, after: int) -> tuple[int, list[T]]:
        rows = store.words.sift(after, *clause, _AT_A_TIME)
        found: list[T] = []
        for number, properties in rows:
            # an entry that is being removed is no longer in the view
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
    """Return SQL that is true of every object that may meet the conditions; it only narrows."""
    clauses, values = ["TRUE"], list[str]()
    for condition in wanted.conditions:
        column = condition.field.lower()
        is_identity = column in fields.IDENTITY
        patterns = [pattern(condition.part)] if is_identity else condition.patterns
        like = f"{column if is_identity else 'properties'} LIKE ? ESCAPE '\\'"
        clauses += [like] * len(patterns)
        values += patterns
    return " AND ".join(clauses), values
