"""Selection of the objects that match a filter of List."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from opdbus.bus.service import sorts
from opdbus.index.catalogue.catalogue import FILTER_KEYS, object_id_of
from opdbus.index.catalogue.declarations import absence_of
from opdbus.index.query import condition_matching
from opdbus.state import conditions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.bus.service.options import Options
    from opdbus.index.state_store.state_store import StateStore
    from opdbus.state.object import ObjectId

FILTER: Final = {**dict.fromkeys(FILTER_KEYS, str), "where": str}


async def object_ids(memory: StateStore, checked: Options) -> Sequence[ObjectId]:
    """Return the objects that match a filter, in listing order; raise InvalidArgs."""
    await sorts.require(memory, **checked.wanted("plugin", "kind"))
    where = conditions.parse(checked.get("where", ""))
    within = await condition_matching.found(memory, where) if where else None
    wanted = checked.wanted(*FILTER_KEYS)
    found = await asyncio.to_thread(memory.catalogue.object_ids, wanted, within)
    renamed = memory.declarations.renamed()
    if not renamed:
        return found
    # a filter by plugin or source selects the names that match it
    there, one = frozenset(found), memory.declarations.one
    return [
        object_id for object_id in found if object_id not in renamed or one(object_id) not in there
    ]


async def absent(memory: StateStore, declared: Sequence[ObjectId]) -> set[ObjectId]:
    """Return those of some objects, none of them observed, that are declared absent."""
    entries = [entry for object_id in declared for entry in memory.catalogue.about(object_id)[:1]]
    contents = await memory.content(entries)
    there = (entry for entry in entries if entry.id in contents)
    declarations = memory.declarations
    return {object_id_of(e) for e in there if absence_of(declarations, e, contents[e.id])}
