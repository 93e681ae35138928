"""What the state file names of things that are only looked at where something names them."""

import json
from collections.abc import Iterable, Iterator, Mapping

from opdbus.drift import rule_table
from opdbus.drift.rule_table import Sort
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, ObjectId


async def names(memory: StateStore, observed: Sort) -> frozenset[str]:
    """Return the names under which what the file declares of a sort would be observed."""
    sorts = rule_table.declared_of(observed)
    found = (memory.catalogue.about(thing)[0] for thing in memory.catalogue.of_sorts(sorts))
    entries = [entry for entry in found if entry.identity.source == FILE]
    whole = [entry for entry in entries if rule_table.of_declared(_thing(entry)[:2]).each]
    contents = await memory.content(whole)
    return frozenset(name for entry in entries for name in _names(entry, contents))


def plugins(things: Iterable[ObjectId]) -> set[str]:
    """Return the plugins under which things would be observed, if the file declares them."""
    return {rule_table.of_declared(sort).observed[0] for sort in {thing[:2] for thing in things}}


def _names(entry: Entry, contents: Mapping[int, Content]) -> Iterator[str]:
    thing = _thing(entry)
    row = rule_table.of_declared(thing[:2])
    if not row.each:
        yield row.declared_key(thing.kind, thing.name)
    elif entry.id in contents:
        for field in json.loads(contents[entry.id].properties):
            yield row.declared_key(thing.kind, field)


def _thing(entry: Entry) -> ObjectId:
    return ObjectId(*entry.identity[1:])
