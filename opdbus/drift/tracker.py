"""Follows the memory, and knows what of the host is other than declared."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import structlog

from opdbus.drift import look, table
from opdbus.drift.crossings import Crossing, Crossings, Drifted
from opdbus.drift.field import Field, Severity
from opdbus.drift.look import Plan
from opdbus.drift.pairs import Pairs
from opdbus.drift.record import Records
from opdbus.drift.table import Sort
from opdbus.index.events import Changed, Claimed, Event, Listed
from opdbus.index.memory import Memory
from opdbus.index.store import Entry
from opdbus.state.object import FILE, Thing

log = structlog.get_logger()

# What changes in the declaration is intended for so long, unless the host changes, too.
INTENDED_SECONDS: Final = 600.0
# Units are being started while a host boots: what differs then counts later.
BOOT_SECONDS: Final = 90.0
# Things that are looked at at a time: some milliseconds' work.
_AT_A_TIME: Final = 100
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
        self._crossings = Crossings({})
        self._records = Records(memory, self._pairs)
        self._news = asyncio.Event()
        # each with the only sorts of them that are to be looked at, if not all
        self._changes: deque[tuple[Iterator[Thing], frozenset[Sort] | None]] = deque()
        # the sorts that each source has listed, and those that the file declares all objects of
        self._listed: dict[str, frozenset[Sort]] = {}
        self._claims: frozenset[Sort] = frozenset()
        self._knows_claims = False
        # declared things that were not observed, by the sort that they would be of
        self._missing: dict[Sort, set[Thing]] = {}
        # declared things that were observed, and when others ceased to be
        self._met: set[Thing] = set()
        self._left: dict[Thing, float] = {}
        self._ranked: Sequence[tuple[Thing, Drifted]] | None = None

    @property
    def counted(self) -> Mapping[Thing, Drifted]:
        """What is other than declared."""
        return self._crossings.counted

    @property
    def count(self) -> int:
        """How many things are other than declared."""
        return len(self._crossings.counted)

    async def report(
        self, wanted: Mapping[str, str], severity: str, what: str
    ) -> Sequence[tuple[Thing, Drifted]]:
        """Return what is other than declared, the worst first: at least so bad, of one class.

        `wanted` has values of plugin, kind and name; an empty class means all.
        """
        rows = await self._ranks()
        least = Severity[severity.upper()]
        if not wanted and not what and least == Severity.INFO:
            return rows
        return [
            (thing, drifted)
            for thing, drifted in rows
            if drifted.severity >= least
            and what in {"", drifted.what}
            and all(getattr(thing, key) == value for key, value in wanted.items())
        ]

    def entries(self, thing: Thing) -> tuple[Entry | None, Entry | None]:
        """Return the entry that declares a thing, and the first that tells what was observed."""
        sides = self._pairs.sides(thing)
        met = self._pairs.observed(thing) if sides.declared else [thing]
        seen = [entry for one in met for entry in self._pairs.sides(one).observed]
        return sides.declared, next(iter(seen), None)

    async def _ranks(self) -> Sequence[tuple[Thing, Drifted]]:
        """Return what is other than declared, the worst first."""
        if self._ranked is None:
            counted = list(self._crossings.counted.items())
            # on a thread: 100,000 take a tenth of a second
            found = await asyncio.to_thread(sorted, counted, key=_rank)
            self._ranked = found
        return self._ranked

    def hear(self, event: Event) -> None:
        """Note what may have changed; to be called with each event of the memory."""
        if isinstance(event, Changed):
            self._look_at(event.changes)
        elif isinstance(event, Listed):
            self._hear_listed(event)
        elif isinstance(event, Claimed):
            self._hear_claimed(event.sorts)

    def _hear_listed(self, event: Listed) -> None:
        known = self._listed.pop(event.source, frozenset())
        if event.sorts:
            self._listed[event.source] = known | event.sorts
        for sort in event.sorts - known if event.sorts else known:
            self._look_at(self._missing.get(sort, ()))

    def _hear_claimed(self, sorts: frozenset[Sort]) -> None:
        self._knows_claims = True
        self._claim(frozenset(table.of_declared(sort).observed for sort in sorts))

    def _claim(self, claims: frozenset[Sort]) -> None:
        """Take observed sorts as those of which all objects are declared."""
        for sort in claims ^ self._claims:
            self._activate({sort})
        self._claims = claims
        self._records.claims = claims

    def _look_at(self, things: Iterable[Thing]) -> None:
        self._changes.append((iter(list(things) if isinstance(things, set) else things), None))
        self._news.set()

    def _activate(self, sorts: set[Sort]) -> None:
        """Look at all observed things of some sorts, which nothing declared met so far."""
        self._pairs.active |= sorts
        self._changes.append((iter(self._memory.catalogue.known()), frozenset(sorts)))
        self._news.set()

    async def run(self) -> None:
        """Compare what changes, until cancelled."""
        await self.begin()
        while True:
            await self._until_news()
            await self.work()

    async def begin(self) -> None:
        """Learn what was counted before, and begin with all things."""
        stored, claims = await self._records.read()
        if self._memory.catalogue.sources[FILE]:
            latest = await self._memory.archive.read(lambda store: store.latest(FILE))
            self._records.declare(latest)
        self._crossings = Crossings(stored, BOOT_SECONDS)
        self._ranked = None
        if not self._knows_claims:
            self._claim(claims)
        self._look_at([*self._memory.catalogue.known(), *stored])

    async def work(self) -> bool:
        """Compare some of what has changed, and count what is due; return whether more waits."""
        if things := self._next():
            await self._take(things)
        await self._count()
        return bool(self._changes)

    async def _until_news(self) -> None:
        """Wait for changes, or until something counts."""
        if self._changes:
            await asyncio.sleep(0)
            return
        due = self._crossings.due
        wait = None if due == _NEVER else max(0.0, due - self._clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._news.wait()
        self._news.clear()

    def _next(self) -> list[Thing]:
        """Return some things that may have changed; those of no interest cost next to nothing."""
        found: dict[Thing, None] = {}
        while self._changes and len(found) < _AT_A_TIME:
            things, sorts = self._changes[0]
            part = list(islice(things, _AT_A_TIME))
            if not part:
                self._changes.popleft()
            if sorts is not None:
                found |= dict.fromkeys(thing for thing in part if thing[:2] in sorts)
                break
            found |= dict.fromkeys(part)
        return list(found)

    async def _take(self, things: Sequence[Thing]) -> None:
        """Find out which declared things changes concern, and compare those."""
        concerned: dict[Thing, None] = {}
        observed = [thing for thing in things if thing[:2] in self._pairs.active]
        for thing in things:
            if declared := self._pairs.sides(thing).declared:
                self._records.declare(declared.updated_at)
                if new := self._pairs.declare(thing):
                    self._activate(new)
                concerned[thing] = None
            else:
                concerned |= self._undeclare(thing)
        concerned |= await self._observe(observed)
        await self._compare(list(concerned))

    def _undeclare(self, thing: Thing) -> dict[Thing, None]:
        """Forget what was declared of a thing; return what that concerns."""
        met = self._pairs.observed(thing) if self._claims else ()
        self._pairs.undeclare(thing)
        self._forget(thing)
        is_known = self._crossings.knows(thing) or thing[:2] in self._claims
        return dict.fromkeys([*met, *([thing] if is_known else ())])

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
            if thing[:2] in self._claims and not self._pairs.sides(thing).declared:
                concerned[thing] = None
            if was_published is not self._pairs.is_published(thing[:2]):
                self._look_at(self._missing.get(thing[:2], set()))
        return concerned

    async def _compare(self, things: Sequence[Thing]) -> None:
        for n in range(0, len(things), _AT_A_TIME):
            plans = [look.plan(self._pairs, thing) for thing in things[n : n + _AT_A_TIME]]
            wanted = [one for one in plans if self._is_wanted(one)]
            found = await look.look(self._memory, wanted) if wanted else []
            for plan, fields in zip(wanted, found, strict=True):
                if fields is not None:
                    self._note(plan, fields)
            await asyncio.sleep(0)

    def _is_wanted(self, plan: Plan) -> bool:
        """Return whether a thing can be compared; what nobody observes stays as it was."""
        if plan.declared is None:
            is_extra = plan.thing[:2] in self._claims and plan.observed[0].entries
            if is_extra and not self._pairs.declared(plan.thing):
                return True
            self._note(plan, [])
            return False
        sort = plan.row.observed
        self._note_missing(plan.thing, is_missing=not plan.observed)
        if plan.observed or self._is_covered(plan.thing, sort):
            return True
        if plan.thing not in self._crossings.counted:
            self._note(plan, [])
        return False

    def _note(self, plan: Plan, fields: Sequence[Field]) -> None:
        now, self._ranked = self._clock(), None
        self._crossings.compare(plan.thing, fields, now, now + self._intended_for(plan))
        for one in plan.observed if plan.declared else ():
            extra = Thing(*one.entries[0].identity[1:])
            # it was not declared before
            if extra != plan.thing and self._crossings.knows(extra):
                self._crossings.compare(extra, [], now)

    def _intended_for(self, plan: Plan) -> float:
        """Return for how many seconds more a difference is intended."""
        if plan.declared is None:
            return 0.0
        at = plan.declared.updated_at
        if at <= self._records.declared_since:
            return 0.0
        latest: float = max(
            (e.updated_at for e in plan.entries if e is not plan.declared), default=0
        )
        if not plan.observed:
            latest = max(latest, self._left.get(plan.thing, 0))
        return max(0.0, at + INTENDED_SECONDS - self._wall()) if at > latest else 0.0

    def _is_covered(self, thing: Thing, sort: Sort) -> bool:
        """Return whether a thing would be observed if it were there.

        A program may publish few things of many: of these it would tell only what it told before.
        """
        if any(sort in sorts for sorts in self._listed.values()):
            return True
        return thing in self._left and self._pairs.is_published(sort)

    def _note_missing(self, thing: Thing, *, is_missing: bool) -> None:
        missing = self._missing.setdefault(table.of_declared(thing[:2]).observed, set())
        if not is_missing:
            missing.discard(thing)
            self._left.pop(thing, None)
            self._met.add(thing)
            return
        missing.add(thing)
        if thing in self._met:
            self._met.discard(thing)
            self._left[thing] = self._wall()

    def _forget(self, thing: Thing) -> None:
        """Forget what was noted of a thing that is not declared any more."""
        self._missing.get(table.of_declared(thing[:2]).observed, set()).discard(thing)
        self._left.pop(thing, None)
        self._met.discard(thing)

    async def _count(self) -> None:
        """Count what has differed for long enough: store it, and then tell."""
        while found := self._crossings.take(self._clock(), self._wall(), _AT_A_TIME):
            self._ranked = None
            await self._records.write(found)
            for crossing in found:
                self._on_change(crossing)
            await asyncio.sleep(0)


def _is_read(sort: Sort) -> bool:
    """Return whether an object's properties say what else it is called, or belongs to."""
    row = table.of_observed(sort)
    return bool(row.aliases or row.members)


def _rank(row: tuple[Thing, Drifted]) -> tuple[object, ...]:
    thing, drifted = row
    has_failed = any(str(one.observed).startswith("failed") for one in drifted.fields)
    return -drifted.severity, not has_failed, drifted.what != "drift", thing
