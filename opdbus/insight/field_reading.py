"""Reads the fields of all objects from the database in parts, grouped by kind."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opdbus.index.query import condition_matching
from opdbus.insight import fault_rules
from opdbus.insight.gathering import kind_of
from opdbus.insight.kind_survey import LEAST, Survey
from opdbus.platform.slices import slices
from opdbus.state.object import FILE, Identity, Json, ObjectId, matches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from opdbus.index.state_store.state_store import StateStore
    from opdbus.insight.gathering import Kind

    # runs a function on another thread
    Run: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]

# Objects of several sources in one read.
_AT_A_TIME: Final = 256
# Accounts with a lower uid are system accounts.
_FIRST_PERSON: Final = 1000


class _Item(NamedTuple):
    object_id: ObjectId
    is_observed: bool
    properties: Mapping[str, Json]


async def surveys(store: StateStore, wanted: Mapping[str, str], run: Run) -> Sequence[Survey]:
    """Return the surveys of kinds that have enough objects or a rule.

    `wanted` may have a plugin and a kind. Volatile fields are left out. Declared and observed
    objects are in different surveys, since they have different fields.
    """
    catalogue, renamed = store.catalogue, frozenset(store.declarations.renamed())
    known = [object_id for object_id in catalogue.all_object_ids() if object_id not in renamed]
    counts = Counter(map(kind_of, known))
    services = await _system_accounts(store, known)
    found: dict[tuple[Kind, bool], Survey] = {}

    def add(items: Sequence[_Item]) -> None:
        for item in items:
            kind = kind_of(item.object_id)
            if counts[kind] >= LEAST or kind[:2] in fault_rules.KINDS:
                survey = found.setdefault((kind, item.is_observed), Survey(services))
                survey.add(item.object_id, item.properties)

    clause = " AND ".join(["TRUE", *(f"{key} = ?" for key in wanted)]), [*wanted.values()]

    def alone(identity: Identity, properties: Mapping[str, Json]) -> list[_Item]:
        object_id = identity.object_id
        if catalogue.is_shared(object_id) or object_id in renamed:
            return []
        return [_Item(object_id, identity.source != FILE, properties)]

    async for items in condition_matching.read_parts(store, clause, None, alone):
        await run(partial(add, items))
    shared = {*catalogue.view.object_ids(catalogue.shared().places)}
    for part in slices([one for one in sorted(shared) if matches(one, wanted)], _AT_A_TIME):
        about, contents = await store.read_objects(part)
        items = []
        for object_id, entries in about.items():
            is_observed = any(entry.identity.source != FILE for entry in entries)
            properties = store.merge_properties(entries, contents, only_stored=True)
            items.append(_Item(object_id, is_observed, properties))
        await run(partial(add, items))
    return [found[key] for key in sorted(found)]


async def _system_accounts(store: StateStore, known: Sequence[ObjectId]) -> frozenset[str]:
    """Return the names of system accounts."""
    accounts = [object_id for object_id in known if object_id[:2] == ("users", "account")]
    rows = await condition_matching.values(store, accounts, ["system", "uid"])
    return frozenset(
        account.name
        for account, row in zip(accounts, rows, strict=True)
        if True in row.get("system", [])
        or any(isinstance(uid, int) and uid < _FIRST_PERSON for uid in row.get("uid", []))
    )
