"""Brings what an observer reports into the memory: cleaned, redacted, and only what changed."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from opdbus.errors import InvalidArgs, OpDbusError
from opdbus.history import change
from opdbus.history.change import Why
from opdbus.index.events import Listed
from opdbus.index.memory import Memory
from opdbus.observe.changes_per_hour import ChangesPerHour
from opdbus.observe.field_hashes import FieldHashes, differing
from opdbus.observe.pace import Allowance
from opdbus.observe.report import Batch, Key, Observer, Report
from opdbus.state import publish
from opdbus.state.object import Identity, Json, StateObject
from opdbus.tasks import pauses

log = structlog.get_logger()

# What is reported within this time is written together.
_MERGE_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)
# Of all objects of an observer, as JSON: far more than there is on a sane host.
_MAX_BYTES: Final = 64 << 20


class _Seen(NamedTuple):
    """An object as it was seen: hashes of its fields, under a secret key.

    `stored` are those of what is stored, since when, and `latest` of what was reported last: they
    differ while a change is folded.
    """

    identity: Identity
    stored: Mapping[str, bytes]
    latest: Mapping[str, bytes]
    since: float
    size: int


@dataclass(slots=True)
class _Prepared:
    """A batch as the memory takes it, and what is to be remembered of it."""

    # objects that do not stay, and by how much all objects together grow
    leaving: set[Key]
    size: int
    objects: list[StateObject] = field(default_factory=list)
    volatile: dict[Identity, Mapping[str, Json]] = field(default_factory=dict)
    seen: dict[Key, _Seen] = field(default_factory=dict)
    holders: dict[Identity, Key] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    gone: set[Identity] = field(default_factory=set)
    # which fields changed, and what is folded: the properties to be stored later
    changed: dict[Key, frozenset[str]] = field(default_factory=dict)
    folded: dict[Key, Mapping[str, Json]] = field(default_factory=dict)
    # the fields of each kind that change all the time
    restless: dict[str, frozenset[str]] = field(default_factory=dict)
    # why objects changed, what left them as they were, and how many changes are counted later
    whys: dict[Identity, Why] = field(default_factory=dict)
    events: dict[Identity, Why] = field(default_factory=dict)
    counted: dict[Key, Why] = field(default_factory=dict)


class Writer:
    """Writes the reports of one observer."""

    def __init__(
        self,
        observer: Observer,
        report: Report,
        memory: Memory,
        changes: ChangesPerHour,
        *,
        is_first: bool = True,
    ) -> None:
        """Write what is reported; `is_first` where nothing was observed since the program began."""
        # set when the first listing is written
        self.has_written = asyncio.Event()
        # why nothing can be stored now
        self.fault = ""
        self._observer = observer
        self._report = report
        self._memory = memory
        self._changes = changes
        self._is_first = is_first
        # why a first listing differs from what is stored
        self._since = ""
        self._folded: dict[Key, Mapping[str, Json]] = {}
        # changes that the next row of an object stands for, and their cause
        self._counted: dict[Key, Why] = {}
        self._hashes = FieldHashes()
        self._seen: dict[Key, _Seen] = {}
        # without their secrets two names may be one: the first to have it keeps it
        self._holders: dict[Identity, Key] = {}
        self._refused: dict[Key, str] = {}
        self._size = 0
        # what the memory has from before, by kind, until that kind is listed
        self._earlier: dict[str, set[Identity]] = {}
        self._listed: set[str] = set()

    @property
    def left_out(self) -> str:
        """Which objects are not stored, and why; empty if all are."""
        if not self._refused:
            return ""
        which = "an object was" if len(self._refused) == 1 else f"{len(self._refused)} objects were"
        return f"{which} left out: {next(iter(self._refused.values()))}"

    async def run(self) -> None:
        """Write whenever something was reported, until cancelled; a full disk is waited out."""
        for entry in await self._memory.of_source(self._observer.source):
            self._earlier.setdefault(entry.identity.kind, set()).add(entry.identity)
        if self._is_first:
            self._since = self._memory.since_last_run if self._earlier else change.FIRST
        elif not self._earlier:
            self._since = change.SOURCE
        delays = pauses(_RETRY_SECONDS)
        allowance = Allowance(time.monotonic)
        while True:
            await self._until_news()
            await asyncio.sleep(_MERGE_SECONDS)
            started = time.monotonic()
            try:
                await self.write()
            except OpDbusError as error:
                if self.fault != str(error):
                    log.warning("not stored", observer=self._observer.name, reason=str(error))
                self.fault = str(error)
                await asyncio.sleep(next(delays))
            else:
                self.fault = ""
                delays = pauses(_RETRY_SECONDS)
                await asyncio.sleep(allowance.rest(time.monotonic() - started))

    async def _until_news(self) -> None:
        """Wait until something is reported, or what was folded is to be stored."""
        due = min(map(self._due, self._folded), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else due - self._changes.clock()):
                await self._report.news.wait()

    async def write(self) -> None:
        """Write what was reported; raises StoreError, after which it is still to be written."""
        batch = self._report.take()
        # on a thread: 1,000 objects take a tenth of a second
        new = await asyncio.to_thread(self._prepare, batch)
        self._refused = new.refused
        try:
            await self._memory.observe(
                new.objects,
                new.gone,
                new.volatile,
                lambda identity: new.whys.get(identity, Why(self._since)),
                new.events,
            )
        except OpDbusError:
            self._report.put_back(batch)
            raise
        for kind in self._kinds(batch):
            self._earlier.pop(kind, None)
            self._listed.add(kind)
        if batch.listed:
            self._tell_listed(self._listed)
        await asyncio.to_thread(self._remember, new)
        self.has_written.set()

    async def clear(self) -> None:
        """Remove all objects: they are gone with their source."""
        self._tell_listed(())
        entries = await self._memory.of_source(self._observer.source)
        gone = {entry.identity for entry in entries}
        await self._memory.observe([], gone, {}, lambda _: Why(change.SOURCE))

    def _tell_listed(self, kinds: Iterable[str]) -> None:
        sorts = frozenset((self._observer.plugin, kind) for kind in kinds)
        self._memory.notify(Listed(self._observer.source, sorts))

    def _prepare(self, batch: Batch) -> _Prepared:
        """Make objects of what differs from what was seen last."""
        overdue = {key: value for key, value in self._folded.items() if self._is_due(key)}
        objects = {**overdue, **batch.objects()}
        leaving = {key for key, value in objects.items() if value is None and key in self._seen}
        new = _Prepared(leaving, -sum(self._seen[key].size for key in leaving))
        new.refused.update((k, why) for k, why in self._refused.items() if k not in objects)
        for key, properties in objects.items():
            why = self._why(batch, key)
            if properties is None:
                if why.folded and key not in self._seen:  # it came and left between two writes
                    new.events[self._observer.identity(key)] = self._counting(key, why)
                continue
            try:
                self._add(new, key, properties, why)
            except InvalidArgs as error:
                self._refuse(new, key, str(error))
            except Exception as error:  # noqa: BLE001 -- one that is not sane costs only itself
                self._refuse(new, key, f"it cannot be read ({type(error).__name__})")
        new.gone |= self._gone(self._kinds(batch), new)
        for key in new.leaving:
            why = self._counting(key, self._why(batch, key))
            new.whys[self._seen[key].identity] = why
        return new

    def _why(self, batch: Batch, key: Key) -> Why:
        """Return why an object changed; a first state that is the last one again is no change."""
        why, before = batch.whys.get(key, Why()), self._seen.get(key)
        first = batch.firsts.get(key)
        if first is None or before is None:
            return why
        with suppress(InvalidArgs):
            moving = self._observer.volatile.get(key.kind, frozenset())
            if not differing(before.latest, self._hashes.of(first)) - moving:
                return why._replace(folded=why.folded - 1)
        return why

    def _add(self, new: _Prepared, key: Key, properties: Mapping[str, Json], why: Why) -> None:
        """Add an object to a batch if it differs; raises InvalidArgs and ValueError."""
        hashes = self._hashes.of(properties)
        before = self._seen.get(key)
        if before and hashes == before.latest == before.stored:
            self._add_same(new, key, properties, why, before)
            return
        identity = before.identity if before else self._observer.identity(key)
        item = publish.observed(*identity, properties)
        moving = self._observer.volatile.get(key.kind, frozenset())
        self._require_free(new, item.identity, key)
        if moving:
            new.volatile[item.identity] = {
                name: value for name, value in item.properties.items() if name in moving
            }
        if before and self._is_noise(new, key, hashes):
            new.folded[key] = properties
            new.seen[key] = before._replace(latest=hashes)
            is_new = bool(why.folded or differing(before.latest, hashes) - moving)
            self._count(new, key, why, is_one_more=is_new)
            return
        lasting = {name: value for name, value in item.properties.items() if name not in moving}
        size = len(item.name) + len(item.json())
        self._require_room(new, more := size - (before.size if before else 0))
        new.size += more
        new.holders[item.identity] = key
        since, is_back = self._changes.clock(), False
        if not before or differing(before.stored, hashes) - moving:
            new.objects.append(StateObject(item.identity, lasting))
            is_late = before is not None and before.latest == hashes and not why.folded
            new.whys[item.identity] = self._counting(key, why, is_late=is_late)
            new.counted[key] = Why()
        else:
            since = before.since
            is_back = bool(differing(before.latest, hashes) - moving)
            if key in self._folded:
                new.folded[key] = properties
        new.seen[key] = seen = _Seen(item.identity, hashes, hashes, since, size)
        if item.identity not in new.whys and (why.is_event or why.folded or is_back):
            self._add_same(new, key, properties, why, seen, is_back=is_back)

    def _add_same(
        self,
        new: _Prepared,
        key: Key,
        properties: Mapping[str, Json],
        why: Why,
        seen: _Seen,
        *,
        is_back: bool = False,
    ) -> None:
        """Add an object that is as it is stored, to count the states that it had meanwhile."""
        is_late = not (why.is_event or why.folded or is_back)
        waits = not why.is_event and bool(self._restless(new, key.kind)) and not self._is_due(key)
        if waits and not is_late:
            new.seen[key], new.folded[key] = seen, properties
            self._count(new, key, why, is_one_more=True)
        elif not waits and not (is_late and key not in self._counted):
            new.events[seen.identity] = self._counting(key, why, is_late=is_late)
            new.counted[key] = Why()
            new.folded.pop(key, None)
            new.seen[key] = seen._replace(since=self._changes.clock())

    def _count(self, new: _Prepared, key: Key, why: Why, *, is_one_more: bool) -> None:
        """Count changes for the next row of an object."""
        held = self._counted.get(key, Why())
        folded = held.folded + why.folded + is_one_more
        new.counted[key] = Why(why.cause or held.cause, folded)

    def _counting(self, key: Key, why: Why, *, is_late: bool = False) -> Why:
        """Return why an object changed, with the changes of it that were counted before.

        A late row is that of a change that was counted.
        """
        held = self._counted.get(key, Why())
        cause = why.cause or (held.cause if is_late else "") or self._cause(key)
        return Why(cause, max(0, why.folded + held.folded - is_late), why.is_event)

    def _cause(self, key: Key) -> str:
        """Return why something changed without a cause of its own."""
        return "" if key.kind in self._listed or key in self._seen else self._since

    def _is_noise(self, new: _Prepared, key: Key, hashes: Mapping[str, bytes]) -> bool:
        """Note what changed, and return whether it is restless fields, and can wait."""
        before = self._seen[key]
        moving = self._observer.volatile.get(key.kind, frozenset())
        if changed := differing(before.latest, hashes) - moving:
            new.changed[key] = changed
        # what is again as it is stored was something else meanwhile
        unstored = changed | (differing(before.stored, hashes) - moving)
        is_restless = bool(unstored) and unstored <= self._restless(new, key.kind)
        return is_restless and not self._is_due(key)

    def _restless(self, new: _Prepared, kind: str) -> frozenset[str]:
        """Return the fields of a kind that change all the time."""
        if kind not in new.restless:
            new.restless[kind] = self._changes.restless(kind, self._report.count(kind))
        return new.restless[kind]

    def _is_due(self, key: Key) -> bool:
        return self._due(key) <= self._changes.clock()

    def _due(self, key: Key) -> float:
        """Return when an object whose restless fields alone change may be stored again."""
        return self._seen[key].since + self._changes.fold_seconds

    def _refuse(self, new: _Prepared, key: Key, reason: str) -> None:
        """Leave an object out: what was stored of it before is not true any more."""
        new.refused[key] = reason
        if before := self._seen.get(key):
            new.leaving.add(key)
            new.size -= before.size

    def _kinds(self, batch: Batch) -> frozenset[str]:
        """Return the kinds that a batch lists, and of others those that the memory has."""
        return batch.listed.union(self._earlier if batch.is_all else ())

    def _gone(self, listed: frozenset[str], new: _Prepared) -> set[Identity]:
        """Return what is gone: what was reported so, and what a first listing did not have."""
        gone = {self._seen[key].identity for key in new.leaving}
        gone = gone.union(*(self._earlier.get(kind, ()) for kind in listed))
        return {identity for identity in gone if self._holder(new, identity) is None}

    def _holder(self, new: _Prepared, identity: Identity) -> Key | None:
        """Return which object has an identity after a batch, if any."""
        before = self._holders.get(identity)
        return new.holders.get(identity, None if before in new.leaving else before)

    def _remember(self, new: _Prepared) -> None:
        for key in new.leaving:
            new.counted[key] = Why()
            self._holders.pop(self._seen.pop(key).identity, None)
        self._changes.forget(new.leaving)
        for key, fields in new.changed.items():
            self._changes.note(key, fields, is_folded=key in new.folded)
        due = new.leaving | new.seen.keys()
        rest = {key: value for key, value in self._folded.items() if key not in due}
        self._folded = {**rest, **new.folded}
        counted = self._counted | new.counted
        self._counted = {key: why for key, why in counted.items() if why != Why()}
        self._seen |= new.seen
        self._holders |= new.holders
        self._size += new.size

    def _require_free(self, new: _Prepared, identity: Identity, key: Key) -> None:
        if self._holder(new, identity) not in {None, key}:
            raise InvalidArgs(f"without secrets its name is that of another {identity.kind}")

    def _require_room(self, new: _Prepared, more: int) -> None:
        if more > 0 and self._size + new.size + more > _MAX_BYTES:
            raise InvalidArgs(f"all objects together have more than {_MAX_BYTES >> 20} MiB")
