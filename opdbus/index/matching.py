"""Which objects meet conditions, and which fields they have: exact, over all objects.

The database is read in parts, so that others read meanwhile.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from opdbus.index.memory import Memory
from opdbus.index.store import Content, Entry, Store
from opdbus.state import fields
from opdbus.state.conditions import AllOf, Condition, pattern
from opdbus.state.object import Identity, Json, Thing

T = TypeVar("T")
# Values that are kept in memory only, by entry.
Volatile: TypeAlias = Mapping[Identity, Mapping[str, Json]]
# An SQL clause, and the values of its parameters.
Clause: TypeAlias = tuple[str, list[str]]

# Objects read at a time: some milliseconds' work.
_AT_A_TIME: Final = 256


async def things(
    memory: Memory, conditions: Sequence[Condition], *, only_first: bool = False
) -> frozenset[Thing]:
    """Return the things that meet all conditions.

    Where several sources tell of a thing, what was observed counts before what is declared, as
    Memory.joined has it.
    """
    # a copy, for other threads
    volatile = dict(memory.volatile)
    wanted = AllOf(conditions)
    clause = await asyncio.to_thread(_clause, wanted, volatile, memory)

    def matching(identity: Identity, properties: Mapping[str, Json]) -> list[Thing]:
        if not wanted.hold(identity, properties):
            return []
        thing = Thing(*identity[1:])
        return [] if memory.catalogue.is_shared(thing) else [thing]

    found: set[Thing] = set()
    async for part in _parts(memory, clause, volatile, matching):
        found.update(part)
        if found and only_first:
            return frozenset(found)
    return frozenset(found | await _shared(memory, wanted))


async def _shared(memory: Memory, wanted: AllOf) -> set[Thing]:
    """Return the things that meet all conditions of those that several sources tell of."""
    found: set[Thing] = set()
    things = memory.catalogue.shared()
    for part in (things[n : n + _AT_A_TIME] for n in range(0, len(things), _AT_A_TIME)):
        about = {t: memory.catalogue.about(t) for t in part if memory.catalogue.has(t)}
        contents = await memory.content([entry for entries in about.values() for entry in entries])
        found.update(await asyncio.to_thread(_meeting, memory, wanted, about, contents))
    return found


def _meeting(
    memory: Memory,
    wanted: AllOf,
    about: Mapping[Thing, Sequence[Entry]],
    contents: Mapping[int, Content],
) -> list[Thing]:
    joined = {thing: memory.joined(entries, contents) for thing, entries in about.items()}
    return [
        thing
        for thing, entries in about.items()
        if any(wanted.hold(entry.identity, joined[thing]) for entry in entries)
    ]


async def field_names(memory: Memory, wanted: Mapping[str, str]) -> Counter[str]:
    """Count the entries of a plugin or kind that have each field, by its dotted path."""
    clause = " AND ".join(["TRUE", *(f"{key} = ?" for key in wanted)]), [*wanted.values()]

    def paths(_identity: Identity, properties: Mapping[str, Json]) -> set[str]:
        return fields.paths(properties)

    found: Counter[str] = Counter()
    async for part in _parts(memory, clause, dict(memory.volatile), paths):
        found.update(part)
    return found


async def _parts(
    memory: Memory,
    clause: Clause,
    volatile: Volatile,
    work: Callable[[Identity, Mapping[str, Json]], Sequence[T] | set[T]],
) -> AsyncIterator[list[T]]:
    """Yield what work gives for objects of which a clause is true, part by part."""

    def read(store: Store, after: int) -> tuple[int, list[T]]:
        rows = store.words.sift(after, *clause, _AT_A_TIME)
        found: list[T] = []
        for number, properties in rows:
            # without those that are being removed
            if entry := memory.catalogue.view.entry(number):
                if volatile:
                    properties.update(volatile.get(entry.identity, {}))
                found += work(entry.identity, properties)
        return (rows[-1][0] if len(rows) == _AT_A_TIME else 0), found

    last = 0
    while True:
        last, found = await memory.archive.read(partial(read, after=last))
        yield found
        if not last:
            return


def _clause(wanted: AllOf, volatile: Volatile, memory: Memory) -> Clause:
    """Return SQL that is true of all that may meet conditions, so that little else is read."""
    clauses, values = [], []
    for condition in wanted.conditions:
        more, their = _clause_of(condition)
        clauses += more
        values += their
    # what is volatile is not in the database
    moving = [
        entry.id
        for identity, moved in volatile.items()
        if wanted.names.are_in(fields.paths(moved)) and (entry := memory.catalogue.get(identity))
    ]
    every = " AND ".join(["TRUE", *clauses])
    return f"{every} OR id IN (SELECT value FROM json_each(?))", [*values, json.dumps(moving)]  # noqa: S608 -- our own constants


def _clause_of(condition: Condition) -> tuple[list[str], list[str]]:
    if (column := condition.field.lower()) in fields.IDENTITY:
        part = pattern(condition.part)
        return [f"({column} LIKE ? ESCAPE '\\' OR properties LIKE ?)"], [part, f"%{column}%"]
    patterns = condition.patterns
    return ["properties LIKE ? ESCAPE '\\'"] * len(patterns), patterns
