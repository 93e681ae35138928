"""Names from the state file of kinds that are only observed if an object names them."""

import json
from collections.abc import Iterable, Iterator, Mapping

from opdbus.drift import rule_table
from opdbus.drift.rule_table import Sort
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, ObjectId


async def names(memory: StateStore, observed: Sort) -> frozenset[str]:
    """Return the names under which declared objects of an observed kind would be observed."""
    sorts = rule_table.declared_of(observed)
    found = (memory.catalogue.about(object_id)[0] for object_id in memory.catalogue.of_sorts(sorts))
    entries = [entry for entry in found if entry.identity.source == FILE]
    whole = [entry for entry in entries if rule_table.of_declared(_object_id(entry)[:2]).each]
    contents = await memory.content(whole)
    return frozenset(name for entry in entries for name in _names(entry, contents))


def plugins(object_ids: Iterable[ObjectId]) -> set[str]:
    """Return the plugins that would observe objects if the file declares them."""
    return {
        rule_table.of_declared(sort).observed[0]
        for sort in {object_id[:2] for object_id in object_ids}
    }


def _names(entry: Entry, contents: Mapping[int, Content]) -> Iterator[str]:
    object_id = _object_id(entry)
    row = rule_table.of_declared(object_id[:2])
    if not row.each:
        yield row.declared_key(object_id.kind, object_id.name)
    elif entry.id in contents:
        for field in json.loads(contents[entry.id].properties):
            yield row.declared_key(object_id.kind, field)


def _object_id(entry: Entry) -> ObjectId:
    return ObjectId(*entry.identity[1:])
