"""Declarations of observed objects, by the pairs and the rules of drift."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import structlog

from opdbus.drift import batch_comparison, compare, rule_table
from opdbus.drift.batch_comparison import Plan
from opdbus.drift.pairs import Pairs, is_one
from opdbus.index.catalogue.declarations import ABSENT_AS_DECLARED, NOTHING_DECLARED, Declaration
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Json, ObjectId

log = structlog.get_logger()


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
        self._is_missing = is_missing
        self._covers = covers

    def observed(self, object_id: ObjectId) -> Sequence[ObjectId]:
        """Return the observed objects of a declared one: itself, an alias, or its parts."""
        return self._pairs.observed(object_id)

    def one(self, object_id: ObjectId) -> ObjectId:
        """Return the observed object that a declared one is; any other object unchanged."""
        sides = self._pairs.sides(object_id)
        if sides.observed or not sides.declared or not is_one(object_id):
            return object_id
        return next(iter(self._pairs.observed(object_id)), object_id)

    def renamed(self) -> AbstractSet[ObjectId]:
        """Return the declared objects that are observed under another name."""
        return self._pairs.renamed

    def is_missing(self, object_id: ObjectId) -> bool:
        """Return whether a declared object counts as missing."""
        return self._is_missing(object_id)

    def absence(self, object_id: ObjectId, declared: Mapping[str, Json]) -> str:
        """Return the message that an object is declared absent; empty if it is not.

        The message also states whether the absence is confirmed by observation.
        """
        if compare.is_only_observed(declared) or compare.is_wanted(declared):
            return ""
        # without a severity for missing objects, not all objects of a kind are listed
        is_known = (
            self._covers(object_id) and rule_table.of_declared(object_id[:2]).missing is not None
        )
        return ABSENT_AS_DECLARED if is_known else "declared absent"

    def declares(self, object_id: ObjectId) -> Entry | None:
        """Return the entry that declares an observed object."""
        return self._pairs.joined(object_id).declared

    async def read(self, object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, Declaration]:
        """Return the declarations of objects that are observed; removed ones are left out."""
        plans = [batch_comparison.plan(self._pairs, object_id) for object_id in object_ids]
        plans = [plan for plan in plans if plan.declared and plan.observed]
        contents = await self._memory.content([e for plan in plans for e in plan.entries])
        there = [plan for plan in plans if all(e.id in contents for e in plan.entries)]

        def work() -> Mapping[ObjectId, Declaration]:
            return {plan.object_id: _declaration(plan, contents) for plan in there}

        return await asyncio.to_thread(work) if there else {}


def _declaration(plan: Plan, contents: Mapping[int, Content]) -> Declaration:
    declared = json.loads(contents[plan.declared.id].properties) if plan.declared else {}
    try:
        found = [
            compare.declaration(plan.row, declared, one)
            for one in batch_comparison.views(plan, contents)
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
