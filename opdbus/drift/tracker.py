"""Follows the events of the state store and keeps track of drift."""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from opdbus.drift import batch_comparison, ranking, rule_table
from opdbus.drift.batch_comparison import Plan
from opdbus.drift.coverage import Coverage
from opdbus.drift.declarations import PairedDeclarations
from opdbus.drift.drift_records import Records
from opdbus.drift.field import Field
from opdbus.drift.intended import Intended
from opdbus.drift.pairs import Pairs, Sides
from opdbus.drift.ranking import Ranked
from opdbus.drift.reasons import Reasons
from opdbus.drift.rule_table import Sort
from opdbus.drift.transition_filter import (
    MOST_QUIET_SECONDS,
    Drifted,
    DriftTransition,
    TransitionFilter,
)
from opdbus.drift.unobserved import Unobserved, unobserved
from opdbus.drift.unobserved_kinds import UnobservedKinds
from opdbus.drift.work_queue import AT_A_TIME, WorkQueue
from opdbus.index.database.store import Entry
from opdbus.index.state_store.events import Changed, Claimed, Event, Listed
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.slices import slices
from opdbus.platform.tasks import at_most
from opdbus.state.object import FILE, ObjectId

# While a host boots and starts its units, differences do not count yet.
BOOT_SECONDS: Final = 90.0


class Tracker:
    """The drift of all objects, kept up to date while `run` runs.

    `on_change` is called with each transition; `clock` is monotonic and begins at boot; `wall` is
    the time of day.
    """

    def __init__(
        self,
        memory: StateStore,
        on_change: Callable[[DriftTransition], None] = lambda _transition: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._memory = memory
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        self._pairs = Pairs(memory.catalogue)
        self._transitions = TransitionFilter(BOOT_SECONDS)
        self._records = Records(memory, self._pairs)
        self._reasons = Reasons(memory, self._pairs)
        self._waiting = WorkQueue()
        self._coverage = Coverage(self._pairs, wall, memory.catalogue.of_sorts)
        self.declarations = PairedDeclarations(
            memory, self._pairs, self._is_missing, self._coverage.covers
        )
        self._alone = UnobservedKinds(memory.catalogue, self._pairs, self._coverage)
        self._intended = Intended(memory, self._pairs, self._records, self._coverage, wall)
        # when tracking began, or a source last listed kinds for the first time
        self._news_at = clock()
        # the number of changes of the drift state, and the ranking as of it
        self._ranked: tuple[int, Ranked] = 0, ()

    @property
    def counted(self) -> Mapping[ObjectId, Drifted]:
        """The drifted objects."""
        return self._transitions.counted

    @property
    def count(self) -> int:
        """The number of objects that `report` returns without conditions."""
        return self._transitions.known

    def awaits(
        self, observers: Callable[[Collection[str], Collection[str]], Sequence[str]]
    ) -> list[str]:
        """Return what is awaited after a start; until then, some drift may be unknown.

        `observers(plugins, unlisted)` returns the observers of `plugins` that have not listed
        anything yet, and those of `unlisted` that have not listed all.
        """
        plugins = {sort[0] for sort in self._pairs.active}
        unlisted = self._coverage.unlisted(self._claimed)
        waits = [f"observer {name}" for name in observers(plugins, unlisted)]
        if self._clock() < BOOT_SECONDS:
            waits.append(f"the first {BOOT_SECONDS:.0f} seconds after the boot")
        is_new = self._clock() < self._news_at + MOST_QUIET_SECONDS
        soon = self._clock() + MOST_QUIET_SECONDS
        if is_new and (self._waiting.is_more or self._transitions.due <= soon):
            waits.append("comparison")
        return waits

    async def worst_first(self) -> Ranked:
        """Return all drifted objects, the worst first."""
        changes = self._transitions.changes
        if self._ranked[0] != changes:
            self._ranked = changes, await ranking.ranked(self._transitions.counted)
        return self._ranked[1]

    async def report(self, wanted: Mapping[str, str], severity: str, what: str) -> Ranked:
        """Return the drifted objects that match: see `ranking.chosen`."""
        return ranking.chosen(await self.worst_first(), wanted, severity, what)

    async def unobserved(self, why_not: Callable[[Sort], str]) -> list[Unobserved]:
        """Return the declared objects that cannot be compared: see `unobserved.unobserved`."""
        return await unobserved(self._memory, self._pairs, self._coverage, why_not)

    def entries(self, object_id: ObjectId) -> tuple[Entry | None, Entry | None]:
        """Return the entry that declares an object, and the first that observes it."""
        sides = self._pairs.sides(object_id)
        met = self._pairs.observed(object_id) if sides.declared else [object_id]
        seen = [entry for one in met for entry in self._pairs.sides(one).observed]
        return sides.declared, next(iter(seen), None)

    def sides(self, object_id: ObjectId) -> Sides:
        """Return the entries of an object, including those under its other name."""
        return self._pairs.joined(object_id)

    def is_observed(self, object_id: ObjectId) -> bool:
        """Return whether an object was observed under this name."""
        return bool(self._pairs.sides(object_id).observed)

    def _is_missing(self, object_id: ObjectId) -> bool:
        counted = self._transitions.counted.get(object_id)
        return counted is not None and any(field.is_absence for field in counted.fields)

    def same(self, object_id: ObjectId) -> set[ObjectId]:
        """Return the declared and observed objects that are this one under other names."""
        met = self._pairs.observed(object_id) if self._pairs.sides(object_id).declared else ()
        return {*self._pairs.declared(object_id), *met} - {object_id}

    def hear(self, event: Event) -> None:
        """Queue the objects that an event of the state store may have changed."""
        if isinstance(event, Changed):
            self._waiting.add(event.changes)
        elif isinstance(event, Listed):
            news = self._coverage.list(event.source, event.sorts)
            self._news_at = self._clock() if news else self._news_at
            for sort in news:
                self._waiting.add(self._coverage.missing(sort))
        elif isinstance(event, Claimed):
            self._claim(event.sorts)

    def _claim(self, claims: frozenset[Sort]) -> None:
        """Set the kinds that the file declares completely."""
        others = claims ^ self._claims
        self._records.claims = claims
        self._activate({rule_table.of_declared(sort).observed for sort in others})

    def _activate(self, sorts: set[Sort]) -> None:
        """Activate observed kinds and queue their objects, which had no declared counterpart."""
        if sorts:
            self._pairs.active |= sorts
            self._waiting.add(self._memory.catalogue.of_sorts(sorts))

    async def run(self) -> None:
        """Compare objects as they change, until cancelled."""
        await self.begin()
        while True:
            await self._until_news()
            await self._memory.archive.calm.wait()
            await self.work()

    async def begin(self) -> None:
        """Load the stored drift state; queue its objects and all declared ones."""
        stored = await self._records.read()
        if self._memory.catalogue.sources[FILE]:
            latest = await self._memory.archive.read(lambda store: store.latest(FILE))
            await self._records.declare(latest)
        self._transitions.recall(stored)
        self._activate(self._claimed)
        # other observed objects have no state that could be outdated
        catalogue = self._memory.catalogue
        self._waiting.add(catalogue.object_ids_of(FILE))
        self._waiting.add(stored)

    async def work(self) -> bool:
        """Compare a batch of objects and process due ones; return whether more are queued."""
        if object_ids := self._waiting.take():
            await self._take(object_ids)
        await self._count()
        return self._waiting.is_more

    async def _until_news(self) -> None:
        """Wait until objects are queued or a difference is due."""
        if self._waiting.is_more:
            await asyncio.sleep(0)
            return
        async with at_most(self._transitions.due - self._clock()):
            await self._waiting.news.wait()
        self._waiting.news.clear()

    async def _take(self, object_ids: Sequence[ObjectId]) -> None:
        """Find the declared objects that changes of a batch affect, and compare them."""
        taken = self._alone.take(object_ids, self._transitions)
        if taken.declared_at:
            await self._records.declare(taken.declared_at)
            self._activate(taken.sorts)
        object_ids = taken.left
        concerned: dict[ObjectId, None] = {}
        observed = [object_id for object_id in object_ids if object_id[:2] in self._pairs.active]
        for object_id in object_ids:
            if declared := self._pairs.sides(object_id).declared:
                await self._records.declare(declared.updated_at)
                self._activate(self._pairs.declare(object_id, await self._fields(declared)))
                concerned[object_id] = None
            else:
                concerned |= self._undeclare(object_id)
        concerned |= await self._observe(observed)
        await self._compare(list(concerned))

    async def _fields(self, declared: Entry) -> Sequence[str]:
        """Return the fields of a declared object if they name its observed objects."""
        if not rule_table.of_declared(declared.identity[1:3]).each:
            return ()
        content = (await self._memory.content([declared])).get(declared.id)
        return tuple(json.loads(content.properties)) if content else ()

    def _undeclare(self, object_id: ObjectId) -> dict[ObjectId, None]:
        """Drop the declaration of an object; return the objects to be compared."""
        met = self._pairs.observed(object_id) if self._claims else ()
        self._pairs.undeclare(object_id)
        self._coverage.forget(object_id)
        is_known = self._transitions.knows(object_id) or self._is_claimed(object_id)
        return dict.fromkeys([*met, *([object_id] if is_known else ())])

    @property
    def _claims(self) -> frozenset[Sort]:
        return self._records.claims or frozenset()

    @property
    def _claimed(self) -> set[Sort]:
        """The observed kinds of the kinds that the file claims."""
        return {rule_table.of_declared(sort).observed for sort in self._claims}

    def _is_claimed(self, object_id: ObjectId) -> bool:
        return rule_table.is_claimed(object_id, self._claims)

    async def _observe(self, object_ids: Sequence[ObjectId]) -> dict[ObjectId, None]:
        """Register observed objects; return the objects to be compared."""
        there = {object_id: self._pairs.sides(object_id).observed for object_id in object_ids}
        readable = [t for t in object_ids if there[t] and rule_table.is_read(t[:2])]
        contents = await self._memory.content([e for t in readable for e in there[t]])
        concerned: dict[ObjectId, None] = {}
        renamed: set[Sort] = set()
        for object_id in object_ids:
            was_published = self._pairs.is_published(object_id[:2])
            before = self._pairs.declared(object_id)
            entries = [entry for entry in there[object_id] if entry.id in contents]
            properties = batch_comparison.merged(entries, contents)
            if self._pairs.observe(object_id, properties if there[object_id] else None):
                renamed.add(object_id[:2])
            met = {*before, *self._pairs.declared(object_id)}
            for other in met:
                self._pairs.note(other)
            concerned |= dict.fromkeys(met)
            if self._is_claimed(object_id) and not self._pairs.sides(object_id).declared:
                concerned[object_id] = None
            if was_published is not self._pairs.is_published(object_id[:2]):
                self._waiting.add(self._coverage.missing(object_id[:2]))
        if renamed:
            self._waiting.add(self._memory.catalogue.of_sorts(renamed))
        return concerned

    async def _compare(self, object_ids: Sequence[ObjectId]) -> None:
        for part in slices(object_ids, AT_A_TIME):
            plans = [batch_comparison.plan(self._pairs, object_id) for object_id in part]
            wanted = [one for one in plans if self._is_wanted(one)]
            found = await batch_comparison.look(self._memory, wanted) if wanted else []
            compared = [
                (plan, fields)
                for plan, fields in zip(wanted, found, strict=True)
                if fields is not None
            ]
            since = await self._intended.declared_at(compared)
            for plan, fields in compared:
                self._note(plan, fields, since.get(plan.object_id, 0))
            await asyncio.sleep(0)

    def _is_wanted(self, plan: Plan) -> bool:
        """Return whether an object can be compared; otherwise, its drift state stays."""
        if plan.declared is None:
            is_extra = self._is_claimed(plan.object_id) and plan.observed[0].entries
            if is_extra and not self._pairs.declared(plan.object_id):
                return True
            self._note(plan, [])
            return False
        self._coverage.note(plan.object_id, is_missing=not plan.observed)
        if plan.observed or self._coverage.covers(plan.object_id):
            return True
        if plan.object_id not in self._transitions.counted:
            self._note(plan, [])
        return False

    def _note(self, plan: Plan, fields: Sequence[Field], declared_at: int = 0) -> None:
        now = self._clock()
        intended = self._intended.seconds(plan, fields, declared_at)
        self._transitions.compare(plan.object_id, fields, now, now + intended)
        for one in plan.observed if plan.declared else ():
            extra = ObjectId(*one.entries[0].identity[1:])
            # it has a declaration now, and its drift as an undeclared object ends
            if extra != plan.object_id and self._transitions.knows(extra):
                self._transitions.compare(extra, [], now)

    async def _count(self) -> None:
        """Process differences that lasted long enough: store transitions, then report them."""
        while crossed := self._transitions.take(self._clock(), self._wall(), AT_A_TIME):
            found = await self._reasons.given(crossed, self._claims)
            await self._records.write(found)
            for transition in found:
                self._on_change(transition)
            await asyncio.sleep(0)
