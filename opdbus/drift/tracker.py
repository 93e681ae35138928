"""Follows the memory, and knows what of the host is other than declared."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from opdbus.drift import look, ranking, table
from opdbus.drift.coverage import Coverage
from opdbus.drift.crossings import Crossing, Crossings, Drifted
from opdbus.drift.field import QUIET_SECONDS, Field
from opdbus.drift.look import Plan
from opdbus.drift.pairs import Pairs
from opdbus.drift.ranking import Ranked
from opdbus.drift.record import Records
from opdbus.drift.table import Sort
from opdbus.drift.waiting import AT_A_TIME, Waiting
from opdbus.index.events import Changed, Claimed, Event, Listed
from opdbus.index.memory import Memory
from opdbus.index.store import Entry
from opdbus.state.object import FILE, Thing

log = structlog.get_logger()

# What changes in the declaration is intended for so long, unless the host changes, too.
INTENDED_SECONDS: Final = 600.0
# Units are being started while a host boots: what differs then counts later.
BOOT_SECONDS: Final = 90.0
_NEVER: Final = float("inf")


class Tracker:
    """What drifted, kept up to date while `run` runs.

    `on_change` is called with each crossing; `clock` never jumps and begins when the host does;
    `wall` is the time of day.
    """

    def __init__(
        self,
        memory: Memory,
        on_change: Callable[[Crossing], None] = lambda _crossing: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._memory = memory
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        self._pairs = Pairs(memory.catalogue)
        self._crossings = Crossings({}, BOOT_SECONDS)
        self._records = Records(memory, self._pairs)
        self._waiting = Waiting()
        self._coverage = Coverage(self._pairs, wall)
        # what was counted after so many changes of it
        self._ranked: tuple[int, Ranked] = 0, ()

    @property
    def counted(self) -> Mapping[Thing, Drifted]:
        """What is other than declared."""
        return self._crossings.counted

    async def report(self, wanted: Mapping[str, str], severity: str, what: str) -> Ranked:
        """Return what is other than declared, the worst first: see `ranking.chosen`."""
        changes = self._crossings.changes
        if self._ranked[0] != changes:
            self._ranked = changes, await ranking.ranked(self._crossings.counted)
        return ranking.chosen(self._ranked[1], wanted, severity, what)

    def entries(self, thing: Thing) -> tuple[Entry | None, Entry | None]:
        """Return the entry that declares a thing, and the first that tells what was observed."""
        sides = self._pairs.sides(thing)
        met = self._pairs.observed(thing) if sides.declared else [thing]
        seen = [entry for one in met for entry in self._pairs.sides(one).observed]
        return sides.declared, next(iter(seen), None)

    def is_observed(self, thing: Thing) -> bool:
        """Return whether anything was observed under the name of a thing."""
        return bool(self._pairs.sides(thing).observed)

    def same(self, thing: Thing) -> set[Thing]:
        """Return what declares a thing, and what is observed of it, under other names."""
        met = self._pairs.observed(thing) if self._pairs.sides(thing).declared else ()
        return {*self._pairs.declared(thing), *met} - {thing}

    def hear(self, event: Event) -> None:
        """Note what may have changed; to be called with each event of the memory."""
        if isinstance(event, Changed):
            self._waiting.add(event.changes)
        elif isinstance(event, Listed):
            for sort in self._coverage.list(event.source, event.sorts):
                self._waiting.add(self._coverage.missing(sort))
        elif isinstance(event, Claimed):
            self._claim(event.sorts)

    def _claim(self, claims: frozenset[Sort]) -> None:
        """Take sorts as those of which the file declares all objects."""
        others = claims ^ (self._records.claims or frozenset())
        self._records.claims = claims
        self._activate({table.of_declared(sort).observed for sort in others})

    def _activate(self, sorts: set[Sort]) -> None:
        """Look at all observed things of some sorts, which nothing declared met so far."""
        if sorts:
            self._pairs.active |= sorts
            self._waiting.add(self._memory.catalogue.known(), sorts)

    async def run(self) -> None:
        """Compare what changes, until cancelled."""
        await self.begin()
        while True:
            await self._until_news()
            await self.work()

    async def begin(self) -> None:
        """Learn what was counted before, and begin with all things."""
        stored = await self._records.read()
        if self._memory.catalogue.sources[FILE]:
            latest = await self._memory.archive.read(lambda store: store.latest(FILE))
            self._records.declare(latest)
        self._crossings.recall(stored)
        claimed = self._records.claims or frozenset()
        self._pairs.active |= {table.of_declared(sort).observed for sort in claimed}
        self._waiting.add([*self._memory.catalogue.known(), *stored])

    async def work(self) -> bool:
        """Compare some of what has changed, and count what is due; return whether more waits."""
        if things := self._waiting.take():
            await self._take(things)
        await self._count()
        return self._waiting.is_more

    async def _until_news(self) -> None:
        """Wait for changes, or until something counts."""
        if self._waiting.is_more:
            await asyncio.sleep(0)
            return
        due = self._crossings.due
        wait = None if due == _NEVER else max(0.0, due - self._clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._waiting.news.wait()
        self._waiting.news.clear()

    async def _take(self, things: Sequence[Thing]) -> None:
        """Find out which declared things changes concern, and compare those."""
        concerned: dict[Thing, None] = {}
        observed = [thing for thing in things if thing[:2] in self._pairs.active]
        for thing in things:
            if declared := self._pairs.sides(thing).declared:
                self._records.declare(declared.updated_at)
                self._activate(self._pairs.declare(thing, await self._fields(declared)))
                concerned[thing] = None
            else:
                concerned |= self._undeclare(thing)
        concerned |= await self._observe(observed)
        await self._compare(list(concerned))

    async def _fields(self, declared: Entry) -> Sequence[str]:
        """Return the fields of a declared thing, if they name what it meets."""
        if not table.of_declared(declared.identity[1:3]).each:
            return ()
        content = (await self._memory.content([declared])).get(declared.id)
        return tuple(json.loads(content.properties)) if content else ()

    def _undeclare(self, thing: Thing) -> dict[Thing, None]:
        """Forget what was declared of a thing; return what that concerns."""
        met = self._pairs.observed(thing) if self._records.claims else ()
        self._pairs.undeclare(thing)
        self._coverage.forget(thing)
        is_known = self._crossings.knows(thing) or self._is_claimed(thing)
        return dict.fromkeys([*met, *([thing] if is_known else ())])

    def _is_claimed(self, thing: Thing) -> bool:
        return table.is_claimed(thing, self._records.claims or frozenset())

    async def _observe(self, things: Sequence[Thing]) -> dict[Thing, None]:
        """Take in what was observed of things; return the declared ones that this concerns."""
        there = {thing: self._pairs.sides(thing).observed for thing in things}
        readable = [t for t in things if there[t] and _is_read(t[:2])]
        contents = await self._memory.content([e for t in readable for e in there[t]])
        concerned: dict[Thing, None] = {}
        for thing in things:
            was_published = self._pairs.is_published(thing[:2])
            before = self._pairs.declared(thing)
            entries = [entry for entry in there[thing] if entry.id in contents]
            properties = look.merged(entries, contents)
            self._pairs.observe(thing, properties if there[thing] else None)
            concerned |= dict.fromkeys([*before, *self._pairs.declared(thing)])
            if self._is_claimed(thing) and not self._pairs.sides(thing).declared:
                concerned[thing] = None
            if was_published is not self._pairs.is_published(thing[:2]):
                self._waiting.add(self._coverage.missing(thing[:2]))
        return concerned

    async def _compare(self, things: Sequence[Thing]) -> None:
        for n in range(0, len(things), AT_A_TIME):
            plans = [look.plan(self._pairs, thing) for thing in things[n : n + AT_A_TIME]]
            wanted = [one for one in plans if self._is_wanted(one)]
            found = await look.look(self._memory, wanted) if wanted else []
            for plan, fields in zip(wanted, found, strict=True):
                if fields is not None:
                    self._note(plan, fields)
            await asyncio.sleep(0)

    def _is_wanted(self, plan: Plan) -> bool:
        """Return whether a thing can be compared; what nobody observes stays as it was."""
        if plan.declared is None:
            is_extra = self._is_claimed(plan.thing) and plan.observed[0].entries
            if is_extra and not self._pairs.declared(plan.thing):
                return True
            self._note(plan, [])
            return False
        self._coverage.note(plan.thing, is_missing=not plan.observed)
        if plan.observed or self._coverage.covers(plan.thing):
            return True
        if plan.thing not in self._crossings.counted:
            self._note(plan, [])
        return False

    def _note(self, plan: Plan, fields: Sequence[Field]) -> None:
        now = self._clock()
        self._crossings.compare(plan.thing, fields, now, now + self._intended_for(plan, fields))
        for one in plan.observed if plan.declared else ():
            extra = Thing(*one.entries[0].identity[1:])
            # it was not declared before
            if extra != plan.thing and self._crossings.knows(extra):
                self._crossings.compare(extra, [], now)

    def _intended_for(self, plan: Plan, fields: Sequence[Field]) -> float:
        """Return for how many seconds more a difference is intended: until the host has followed.

        What is on its way, such as a package that is being installed, has not followed yet.
        """
        if plan.declared is None:
            return 0.0
        at = plan.declared.updated_at
        if at <= self._records.declared_since:
            return 0.0
        latest: float = max(
            (e.updated_at for e in plan.entries if e is not plan.declared), default=0
        )
        if not plan.observed:
            latest = max(latest, self._coverage.left_at(plan.thing))
        has_followed = at <= latest and all(one.patience == QUIET_SECONDS for one in fields)
        return 0.0 if has_followed else max(0.0, at + INTENDED_SECONDS - self._wall())

    async def _count(self) -> None:
        """Count what has differed for long enough: store it, and then tell."""
        while found := self._crossings.take(self._clock(), self._wall(), AT_A_TIME):
            await self._records.write(found)
            for crossing in found:
                self._on_change(crossing)
            await asyncio.sleep(0)


def _is_read(sort: Sort) -> bool:
    """Return whether an object's properties say what else it is called, or belongs to."""
    row = table.of_observed(sort)
    return bool(row.aliases or row.members)
