"""Brings what an observer reports into the memory: cleaned, redacted, and only what changed."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import structlog

from opdbus.errors import InvalidArgs, OpDbusError
from opdbus.history import change
from opdbus.history.change import Why
from opdbus.index.events import Listed
from opdbus.index.memory import Memory
from opdbus.observe.changes_per_hour import ChangesPerHour
from opdbus.observe.field_hashes import FieldHashes, differing
from opdbus.observe.folding import Fate, Seen, counted, decide
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


@dataclass(slots=True)
class _Prepared:
    """A batch as the memory takes it, and what is to be remembered of it."""

    # the fields of a kind that change all the time
    restless: Callable[[str], frozenset[str]]
    # what all objects have after it: names, and bytes
    holders: dict[Identity, Key]
    size: int
    # objects that do not stay
    leaving: set[Key] = field(default_factory=set)
    objects: list[StateObject] = field(default_factory=list)
    volatile: dict[Identity, Mapping[str, Json]] = field(default_factory=dict)
    seen: dict[Key, Seen] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    gone: set[Identity] = field(default_factory=set)
    # why objects changed, and what left them as they were
    whys: dict[Identity, Why] = field(default_factory=dict)
    events: dict[Identity, Why] = field(default_factory=dict)


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
        self._hashes = FieldHashes()
        self._seen: dict[Key, Seen] = {}
        # objects with changes that are stored later
        self._folded: set[Key] = set()
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
        restless = cache(lambda kind: self._changes.restless(kind, self._report.count(kind)))
        new = _Prepared(restless, dict(self._holders), self._size)
        overdue = {key: self._seen[key].folded for key in self._folded if self._is_due(key)}
        objects = {**overdue, **batch.objects()}
        new.refused.update((k, why) for k, why in self._refused.items() if k not in objects)
        for key, properties in objects.items():
            if properties is None:
                self._leave(new, key)
        for key, properties in objects.items():
            why = self._why(batch, key)
            if properties is not None:
                self._add(new, key, properties, why)
            elif why.folded and key not in self._seen:  # it came and left between two writes
                new.events[self._observer.identity(key)] = why
        new.gone = self._gone(objects, self._kinds(batch), new)
        for key in new.leaving:
            seen = self._seen[key]
            new.whys[seen.identity] = counted(seen.held, self._why(batch, key))
        for key, why in batch.events.items():
            identity = self._observer.identity(key)
            more = new.events[identity].folded + 1 if identity in new.events else 0
            new.events[identity] = why._replace(folded=why.folded + more)
        return new

    def _leave(self, new: _Prepared, key: Key) -> None:
        if before := self._seen.get(key):
            new.leaving.add(key)
            new.holders.pop(before.identity, None)
            new.size -= before.size

    def _is_due(self, key: Key) -> bool:
        return self._due(key) <= self._changes.clock()

    def _due(self, key: Key) -> float:
        """Return when an object whose restless fields alone change may be stored again."""
        return self._seen[key].since + self._changes.fold_seconds

    def _why(self, batch: Batch, key: Key) -> Why:
        """Return why an object changed; a first state that is the last one again is no change."""
        why, before = batch.whys.get(key, Why()), self._seen.get(key)
        if before is None:
            is_listed = key.kind in self._listed
            return why._replace(cause=why.cause or ("" if is_listed else self._since))
        first = batch.firsts.get(key)
        with suppress(InvalidArgs):
            if first is not None and not self._changed(key, self._hashes.of(first)):
                return why._replace(folded=why.folded - 1)
        return why

    def _add(self, new: _Prepared, key: Key, properties: Mapping[str, Json], why: Why) -> None:
        """Add an object to a batch if it differs; if it cannot be stored, it is left out."""
        try:
            self._put(new, key, properties, why)
        except InvalidArgs as error:
            new.refused[key] = str(error)
        except Exception as error:  # noqa: BLE001 -- one that is not sane costs only itself
            new.refused[key] = f"it cannot be read ({type(error).__name__})"
        if key in new.refused:  # what was stored of it before is not true any more
            self._leave(new, key)

    def _put(self, new: _Prepared, key: Key, properties: Mapping[str, Json], why: Why) -> None:
        before, hashes = self._seen.get(key), self._hashes.of(properties)
        moving = self._moving(key.kind)
        fate: Fate = "written"
        if before:
            can_wait = frozenset[str]() if self._is_due(key) else new.restless(key.kind)
            fate, why = decide(before, hashes, why, moving, can_wait)
            if fate == "nothing" and hashes == before.latest:
                return
        identity = before.identity if before else self._observer.identity(key)
        item = publish.observed(*identity, properties)
        size = len(item.name) + len(item.json())
        _take(new, key, item.identity, size - (before.size if before else 0))
        seen = Seen(item.identity, hashes, hashes, self._changes.clock(), size)
        if before and fate in {"folded", "nothing"}:
            seen = seen._replace(stored=before.stored, since=before.since, held=why)
        new.seen[key] = seen._replace(folded=properties if seen.held.folded else None)
        fields = item.properties.items()
        if moving:
            new.volatile[item.identity] = {k: value for k, value in fields if k in moving}
        if fate == "written":
            lasting = {k: value for k, value in fields if k not in moving}
            new.objects.append(StateObject(item.identity, lasting))
            new.whys[item.identity] = why
        elif fate == "event":
            new.events[item.identity] = why

    def _moving(self, kind: str) -> frozenset[str]:
        """Return the fields of a kind that are part of no comparison."""
        return self._observer.volatile.get(kind, frozenset())

    def _changed(self, key: Key, hashes: Mapping[str, bytes]) -> frozenset[str]:
        """Return the fields of an object that are not as they were reported last."""
        return differing(self._seen[key].latest, hashes) - self._moving(key.kind)

    def _kinds(self, batch: Batch) -> frozenset[str]:
        """Return the kinds that a batch lists, and of others those that the memory has."""
        return batch.listed.union(self._earlier if batch.is_all else ())

    def _gone(
        self,
        objects: Mapping[Key, Mapping[str, Json] | None],
        listed: frozenset[str],
        new: _Prepared,
    ) -> set[Identity]:
        """Return what is gone: what was reported so, and what a first listing did not have."""
        left = {key for key, properties in objects.items() if properties is None}
        gone = {self._observer.identity(key) for key in left | new.leaving}
        gone = gone.union(*(self._earlier.get(kind, ()) for kind in listed))
        return {identity for identity in gone if identity not in new.holders}

    def _remember(self, new: _Prepared) -> None:
        for key in new.leaving:
            del self._seen[key]
        self._changes.forget(new.leaving)
        for key, seen in new.seen.items():
            if key in self._seen:
                fields = self._changed(key, seen.latest)
                self._changes.note(key, fields, is_folded=seen.folded is not None)
        self._folded -= new.leaving | new.seen.keys()
        self._folded |= {key for key, seen in new.seen.items() if seen.folded is not None}
        self._seen |= new.seen
        self._holders, self._size = new.holders, new.size


def _take(new: _Prepared, key: Key, identity: Identity, more: int) -> None:
    """Take a name, and room for so many more bytes; raises InvalidArgs if it is not to be had."""
    if new.holders.get(identity, key) != key:
        raise InvalidArgs(f"without secrets its name is that of another {identity.kind}")
    if more > 0 and new.size + more > _MAX_BYTES:
        raise InvalidArgs(f"all objects together have more than {_MAX_BYTES >> 20} MiB")
    new.holders[identity] = key
    new.size += more
