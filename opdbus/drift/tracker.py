"""Follows the events of the state store and keeps track of drift."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from opdbus.drift import baseline, batch_comparison, rule_table
from opdbus.drift.baseline import BaselineEntry, Change, Scope
from opdbus.drift.batch_comparison import AT_A_TIME, PairedDeclarations, Plan
from opdbus.drift.coverage import Coverage
from opdbus.drift.drift_records import Records
from opdbus.drift.drift_report import Ranked, rank_drifted, select_drifted
from opdbus.drift.field import Field, Severity
from opdbus.drift.pairs import Pairs
from opdbus.drift.reasons import DriftHistory
from opdbus.drift.transition_filter import (
    CLASSES,
    MOST_QUIET_SECONDS,
    DriftTransition,
    TransitionFilter,
)
from opdbus.drift.unobserved import MOST_NAMES, UnobservedRow, find_unobserved
from opdbus.drift.unobserved_kinds import UnobservedKinds
from opdbus.history.row_filter import Row
from opdbus.index.database.store import Entry
from opdbus.index.state_store.events import Changed, Claimed, Event, Listed
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.metrics import Family
from opdbus.platform.slices import slices
from opdbus.platform.tasks import at_most
from opdbus.state.object import FILE, KindId, ObjectId


class WorkQueue:
    """Objects in order of arrival; `news` is set when some are added."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._parts: deque[Iterator[ObjectId]] = deque()

    @property
    def is_more(self) -> bool:
        """True if objects may be queued."""
        return bool(self._parts)

    def add(self, object_ids: Iterable[ObjectId]) -> None:
        """Queue objects; an iterator is consumed lazily, without a copy."""
        self._parts.append(
            object_ids if isinstance(object_ids, Iterator) else iter(tuple(object_ids))
        )
        self.news.set()

    def take(self) -> list[ObjectId]:
        """Return about AT_A_TIME queued objects, each once."""
        found: dict[ObjectId, None] = {}
        while self._parts and len(found) < AT_A_TIME:
            part = dict.fromkeys(islice(self._parts[0], AT_A_TIME))
            if not part:
                self._parts.popleft()
            found |= part
        return list(found)


# While a host boots and starts its units, differences do not count yet.
BOOT_SECONDS: Final = 90.0
# More active kinds than the rule table has, and than hosts have by themselves.
_MANY_KINDS: Final = 500


class Tracker:
    """The drift of all objects, kept up to date while `run` runs.

    `pairs` and `transitions` may be read. `on_change` is called with each transition; `clock` is
    monotonic and begins at boot; `wall` is the time of day.
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
        self.pairs = Pairs(memory.catalogue)
        self.transitions = TransitionFilter(BOOT_SECONDS)
        self._records = Records(memory, self.pairs)
        self._waiting = WorkQueue()
        self._coverage = Coverage(self.pairs, wall, memory.catalogue)
        self._unobserved = UnobservedKinds(memory.catalogue, self.pairs, self._coverage)
        self.declarations = PairedDeclarations(
            memory, self.pairs, self._is_missing, self._coverage.covers
        )
        self._history = DriftHistory(memory, self.pairs, self._records, self._coverage, clock, wall)
        # when tracking began, or a source last listed kinds for the first time
        self._news_at = clock()
        # the number of changes of the drift state, and the ranking as of it
        self._ranked: tuple[int, Ranked] = 0, ()
        # the fingerprint of the declaration or claim of each object that differs, as compared
        self._marks: dict[ObjectId, str] = {}
        # whether an object of an active kind has gone since kinds were last forgotten
        self._has_gone = False

    def awaits(
        self, observers: Callable[[Collection[str], Collection[str]], Sequence[str]]
    ) -> list[str]:
        """Return what is awaited after a start; until then, some drift may be unknown.

        `observers(plugins, unlisted)` returns the observers of `plugins` that have not listed
        anything yet, and those of `unlisted` that have not listed all.
        """
        plugins = {kind_id[0] for kind_id in self.pairs.active}
        unlisted = self._coverage.plugins_to_list(self._claimed_kinds)
        waits = [f"observer {name}" for name in observers(plugins, unlisted)]
        if self._clock() < BOOT_SECONDS:
            waits.append(f"the first {BOOT_SECONDS:.0f} seconds after the boot")
        is_new = self._clock() < self._news_at + MOST_QUIET_SECONDS
        soon = self._clock() + MOST_QUIET_SECONDS
        if is_new and (self._waiting.is_more or self.transitions.due <= soon):
            waits.append("comparison")
        return waits

    def metrics(self) -> Iterator[Family]:
        """Yield the number of drifted objects of each severity and class."""
        known = self.transitions.known_by
        counts = {(s.word, what): known[s, what] for s in Severity for what in CLASSES}
        yield Family("drifted_objects", counts)

    async def report(self, wanted: Mapping[str, str], severity: str, what: str) -> Ranked:
        """Return the drifted objects that match, the worst first: see `select_drifted`."""
        changes = self.transitions.changes
        if self._ranked[0] != changes:
            self._ranked = changes, await rank_drifted(self.transitions.counted)
        return select_drifted(self._ranked[1], wanted, severity, what)

    async def origins(self, object_ids: Iterable[ObjectId]) -> Mapping[ObjectId, Mapping[str, Row]]:
        """Return the change that made each field of drifted objects differ, as far as known."""
        counted = self.transitions.counted
        return await self._history.origins({t: counted[t] for t in object_ids if t in counted})

    async def unobserved(
        self, why_not: Callable[[KindId], str], most_names: int = MOST_NAMES
    ) -> list[UnobservedRow]:
        """Return the declared objects that cannot be compared: see `unobserved.find_unobserved`."""
        return await find_unobserved(self._memory, self.pairs, self._coverage, why_not, most_names)

    async def baseline(
        self, object_ids: Sequence[ObjectId], scope: Scope
    ) -> list[BaselineEntry | None]:
        """Return declarations of observed objects: see `baseline.declarations`."""
        return await baseline.declarations(self._memory, self.pairs, object_ids, scope)

    @property
    def claimable(self) -> list[KindId]:
        """The kinds that a baseline claims and of which a source lists all objects."""
        kind_ids = (row.observed for row in rule_table.ROWS if row.is_claimed)
        return [kind_id for kind_id in kind_ids if self._coverage.lists(kind_id)]

    async def take_over(self, object_id: ObjectId) -> tuple[Change, ...]:
        """Return the changes of a declaration that end its drift: see `baseline.take_over`."""
        counted = self.transitions.counted.get(object_id)
        fields = [one for one in counted.fields if one.is_known] if counted else []
        plan = batch_comparison.plan(self.pairs, object_id)
        return await baseline.take_over(self._memory, plan, fields)

    def entries(self, object_id: ObjectId) -> tuple[Entry | None, Entry | None]:
        """Return the entry that declares an object, and the first that observes it."""
        sides = self.pairs.sides(object_id)
        met = self.pairs.observed(object_id) if sides.declared else [object_id]
        seen = [entry for one in met for entry in self.pairs.sides(one).observed]
        return sides.declared, next(iter(seen), None)

    def _is_missing(self, object_id: ObjectId) -> bool:
        counted = self.transitions.counted.get(object_id)
        return counted is not None and any(field.is_absence for field in counted.fields)

    def same(self, object_id: ObjectId) -> set[ObjectId]:
        """Return the declared and observed objects that are this one under other names."""
        met = self.pairs.observed(object_id) if self.pairs.sides(object_id).declared else ()
        return {*self.pairs.declared(object_id), *met} - {object_id}

    def on_event(self, event: Event) -> None:
        """Queue the objects that an event of the state store may have changed."""
        if isinstance(event, Changed):
            self._waiting.add(event.changes)
        elif isinstance(event, Listed):
            news = self._coverage.set_listed(event.source, event.kinds)
            self._news_at = self._clock() if news else self._news_at
            for kind_id in news:
                self._waiting.add(self._coverage.missing(kind_id))
        elif isinstance(event, Claimed):
            others = self._records.claim(event.kinds, self._wall())
            self._activate(rule_table.observed_of(others))

    def _activate(self, kind_ids: set[KindId]) -> None:
        """Activate observed kinds and queue their objects, which had no declared counterpart."""
        if kind_ids:
            self.pairs.active |= kind_ids
            self._waiting.add(self._memory.catalogue.of_kinds(kind_ids))

    async def run(self) -> None:
        """Compare objects as they change, until cancelled."""
        await self.begin()
        while True:
            if self._waiting.is_more:
                await asyncio.sleep(0)
            else:
                async with at_most(self.transitions.due - self._clock()):
                    await self._waiting.news.wait()
                self._waiting.news.clear()
            await self._memory.archive.no_bulk_load.wait()
            await self.work()

    async def begin(self) -> None:
        """Load the stored drift state; queue its objects and all declared ones."""
        stored = await self._records.read()
        if self._memory.catalogue.sources[FILE]:
            latest = await self._memory.archive.read(lambda store: store.latest(FILE))
            await self._records.declare(latest)
        self.transitions.recall(stored)
        self._activate(self._claimed_kinds)
        # other observed objects have no state that could be outdated
        catalogue = self._memory.catalogue
        self._waiting.add(catalogue.object_ids_of(FILE))
        self._waiting.add(stored)

    def _forget_kinds(self) -> None:
        """Forget active kinds that came and went: files and publishers name any number."""
        known = self._memory.catalogue.kinds | rule_table.OBSERVED | self._claimed_kinds
        self.pairs.active &= known
        self._has_gone = False

    async def work(self) -> bool:
        """Compare a batch of objects, and store and report the transitions that are due.

        Return whether more objects are queued.
        """
        if object_ids := self._waiting.take():
            await self._take(object_ids)
        while due := self.transitions.take(self._clock(), self._wall(), AT_A_TIME):
            found = await self._history.explain(due, self._claims)
            await self._records.write(found)
            for transition in found:
                self._on_change(transition)
            await asyncio.sleep(0)
        # after the last change of their objects
        if self._has_gone and not self._waiting.is_more and len(self.pairs.active) > _MANY_KINDS:
            self._forget_kinds()
        return self._waiting.is_more

    async def _take(self, object_ids: Sequence[ObjectId]) -> None:
        """Find the declared objects that changes of a batch affect, and compare them."""
        taken = self._unobserved.take(object_ids, self.transitions)
        if taken.declared_at:
            await self._records.declare(taken.declared_at)
            self._activate(taken.kinds)
        object_ids = taken.left
        concerned: dict[ObjectId, None] = {}
        observed = [object_id for object_id in object_ids if object_id[:2] in self.pairs.active]
        for object_id in object_ids:
            if declared := self.pairs.sides(object_id).declared:
                fields: Sequence[str] = ()
                if rule_table.of_declared(object_id[:2]).each:
                    # its fields name its observed objects
                    content = (await self._memory.content([declared])).get(declared.id)
                    fields = tuple(json.loads(content.properties)) if content else ()
                await self._records.declare(declared.updated_at)
                self._activate(self.pairs.declare(object_id, fields))
                concerned[object_id] = None
                continue
            concerned |= dict.fromkeys(self.pairs.observed(object_id) if self._claims else ())
            self.pairs.undeclare(object_id)
            self._coverage.forget(object_id)
            is_gone = (
                object_id[:2] in self.pairs.active and not self.pairs.sides(object_id).observed
            )
            self._has_gone |= is_gone
            if self.transitions.knows(object_id) or self._is_claimed(object_id):
                concerned[object_id] = None
        concerned |= await self._observe(observed)
        await self._compare(list(concerned))

    @property
    def _claims(self) -> frozenset[KindId]:
        return self._records.claims or frozenset()

    @property
    def _claimed_kinds(self) -> set[KindId]:
        """The observed kinds of the kinds that the file claims."""
        return rule_table.observed_of(self._claims)

    def _is_claimed(self, object_id: ObjectId) -> bool:
        return rule_table.is_claimed(object_id, self._claims)

    async def _observe(self, object_ids: Sequence[ObjectId]) -> dict[ObjectId, None]:
        """Register observed objects; return the objects to be compared."""
        there = {object_id: self.pairs.sides(object_id).observed for object_id in object_ids}
        readable = [t for t in object_ids if there[t] and rule_table.is_read(t[:2])]
        contents = await self._memory.content([e for t in readable for e in there[t]])
        concerned: dict[ObjectId, None] = {}
        renamed: set[KindId] = set()
        for object_id in object_ids:
            was_published = self.pairs.is_published(object_id[:2])
            before = self.pairs.declared(object_id)
            entries = [entry for entry in there[object_id] if entry.id in contents]
            properties = batch_comparison.merge_entries(entries, contents)
            if self.pairs.observe(object_id, properties if there[object_id] else None):
                renamed.add(object_id[:2])
            met = {*before, *self.pairs.declared(object_id)}
            for other in met:
                self.pairs.note(other)
            concerned |= dict.fromkeys(met)
            if self._is_claimed(object_id) and not self.pairs.sides(object_id).declared:
                concerned[object_id] = None
            if was_published is not self.pairs.is_published(object_id[:2]):
                self._waiting.add(self._coverage.missing(object_id[:2]))
        if renamed:
            self._waiting.add(self._memory.catalogue.of_kinds(renamed))
        return concerned

    async def _compare(self, object_ids: Sequence[ObjectId]) -> None:
        for part in slices(object_ids, AT_A_TIME):
            plans = [batch_comparison.plan(self.pairs, object_id) for object_id in part]
            wanted = [one for one in plans if self._is_wanted(one)]
            found = await batch_comparison.compare_batch(self._memory, wanted) if wanted else []
            compared = [
                (plan, fields)
                for plan, fields in zip(wanted, found, strict=True)
                if fields is not None
            ]
            since = await self._history.declared_at(compared)
            for plan, fields in compared:
                self._note(plan, fields, since.get(plan.object_id, 0))
            await asyncio.sleep(0)

    def _is_wanted(self, plan: Plan) -> bool:
        """Return whether an object can be compared; otherwise, its drift state stays."""
        if plan.declared is None:
            is_extra = self._is_claimed(plan.object_id) and plan.observed[0].entries
            if is_extra and not self.pairs.declared(plan.object_id):
                return True
            self._note(plan, [])
            return False
        self._coverage.note(plan.object_id, is_missing=not plan.observed)
        if plan.observed or self._coverage.covers(plan.object_id):
            return True
        if plan.object_id not in self.transitions.counted:
            self._note(plan, [])
        return False

    def _note(self, plan: Plan, fields: Sequence[Field], declared_at: int = 0) -> None:
        now = self._clock()
        intended = self._history.seconds(plan, fields, declared_at)
        # an object of a kind that the file claims differs by the claim
        claimed = "claimed" if self._is_claimed(plan.object_id) else ""
        mark = plan.declared.fingerprint if plan.declared else claimed
        before = self._marks.pop(plan.object_id, mark)
        self.transitions.compare(
            plan.object_id, fields, now, now + intended, is_by_file=mark != before
        )
        if self.transitions.knows(plan.object_id):
            self._marks[plan.object_id] = mark
        for one in plan.observed if plan.declared else ():
            extra = one.entries[0].identity.object_id
            # it has a declaration now, and its drift as an undeclared object ends
            if extra != plan.object_id and self.transitions.knows(extra):
                self.transitions.compare(extra, [], now, is_by_file=True)
