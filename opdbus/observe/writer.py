"""Brings what an observer reports into the memory: cleaned, redacted, and only what changed."""

import asyncio
import marshal
import secrets
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import structlog

from opdbus.errors import InvalidArgs, OpDbusError
from opdbus.index.memory import Memory
from opdbus.observe.report import Batch, Key, Observer, Report
from opdbus.state import publish
from opdbus.state.flatten import bounded
from opdbus.state.object import Identity, Json, StateObject, digest
from opdbus.state.redact import redact_identity
from opdbus.tasks import pauses

log = structlog.get_logger()

# What is reported within this time is written together.
_MERGE_SECONDS: Final = 0.05
# The writer rests so many times as long as it worked: it takes at most 5% of a core.
_REST: Final = 19
_MAX_REST_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


# Of all objects of an observer, as JSON: far more than there is on a sane host.
_MAX_BYTES: Final = 64 << 20


class _Seen(NamedTuple):
    """An object as it was seen last: hashes of its fields, under a key that nobody knows."""

    identity: Identity
    hashes: Mapping[str, bytes]
    size: int


class _Prepared(NamedTuple):
    """A batch as the memory takes it."""

    objects: list[StateObject]
    volatile: dict[Identity, Mapping[str, Json]]
    seen: dict[Key, _Seen]


class Writer:
    """Writes the reports of one observer."""

    def __init__(self, observer: Observer, report: Report, memory: Memory) -> None:
        # set when the first listing is written
        self.has_written = asyncio.Event()
        self._observer = observer
        self._report = report
        self._memory = memory
        self._key = secrets.token_bytes(16)
        self._seen: dict[Key, _Seen] = {}
        self._bytes = 0
        # what the memory has from before, by kind, until that kind is listed
        self._earlier: dict[str, set[Identity]] = {}
        for entry in memory.catalogue.of_source(observer.source):
            self._earlier.setdefault(entry.identity.kind, set()).add(entry.identity)

    async def run(self) -> None:
        """Write whenever something was reported, until cancelled; a full disk is waited out."""
        delays = pauses(_RETRY_SECONDS)
        while True:
            await self._report.news.wait()
            await asyncio.sleep(_MERGE_SECONDS)
            started = time.monotonic()
            try:
                await self.write()
            except OpDbusError as error:
                log.warning("not stored", observer=self._observer.name, reason=str(error))
                self._report.refused = str(error)
                await asyncio.sleep(next(delays))
            else:
                delays = pauses(_RETRY_SECONDS)
                rest = _REST * (time.monotonic() - started)
                await asyncio.sleep(min(rest, _MAX_REST_SECONDS))

    async def write(self) -> None:
        """Write what was reported; raises StoreError, after which it is still to be written."""
        batch = self._report.take()
        try:
            # on a thread: 1,000 objects take a tenth of a second
            new = await asyncio.to_thread(self._prepare, batch)
            await self._memory.observe(new.objects, self._gone(batch, new), new.volatile)
        except OpDbusError:
            self._report.put_back(batch)
            raise
        for kind in batch.listed:
            self._earlier.pop(kind, None)
        self._remember(batch, new)
        self.has_written.set()

    async def clear(self) -> None:
        """Remove all objects: they are gone with their source."""
        entries = self._memory.catalogue.of_source(self._observer.source)
        await self._memory.observe([], {entry.identity for entry in entries}, {})

    def _prepare(self, batch: Batch) -> _Prepared:
        """Make objects of what differs from what was seen last."""
        new = _Prepared([], {}, {})
        for key, properties in batch.objects.items():
            if properties is None:
                continue
            try:
                self._add(new, key, properties)
            except (InvalidArgs, ValueError) as error:
                self._report.refused = f"an object was left out: {error}"
        return new

    def _add(self, new: _Prepared, key: Key, properties: Mapping[str, Json]) -> None:
        """Add an object to a batch if it differs; raises InvalidArgs and ValueError."""
        hashes = {name: self._hash(value) for name, value in properties.items()}
        before = self._seen.get(key)
        if before and before.hashes == hashes:
            return
        identity = before.identity if before else self._identity(key)
        item = publish.observed(*identity, properties)
        moving = self._observer.volatile.get(key.kind, frozenset())
        lasting = {name: value for name, value in item.properties.items() if name not in moving}
        size = len(item.json())
        self._require_room(size - (before.size if before else 0))
        new.seen[key] = _Seen(item.identity, hashes, size)
        if moving:
            new.volatile[item.identity] = {
                name: value for name, value in item.properties.items() if name in moving
            }
        if not before or _without(before.hashes, moving) != _without(hashes, moving):
            new.objects.append(StateObject(item.identity, lasting))

    def _gone(self, batch: Batch, new: _Prepared) -> set[Identity]:
        """Return what is gone: what was reported so, and what a first listing did not have."""
        gone = {
            self._seen[key].identity
            for key, properties in batch.objects.items()
            if properties is None and key in self._seen
        }
        gone = gone.union(*(self._earlier.get(kind, ()) for kind in batch.listed))
        if not gone:
            return gone
        # two names may be one without their secrets
        left = [key for key in self._seen if batch.objects.get(key, key) is not None]
        return gone - {self._seen[key].identity for key in left}.union(
            seen.identity for seen in new.seen.values()
        )

    def _remember(self, batch: Batch, new: _Prepared) -> None:
        for key, properties in batch.objects.items():
            if properties is None and (before := self._seen.pop(key, None)):
                self._bytes -= before.size
        for key, seen in new.seen.items():
            before = self._seen.get(key)
            self._bytes += seen.size - (before.size if before else 0)
            self._seen[key] = seen

    def _require_room(self, more: int) -> None:
        # those of the same batch are not counted yet: a batch may go past the limit once
        if self._bytes + more > _MAX_BYTES:
            raise InvalidArgs(f"all objects together have more than {_MAX_BYTES >> 20} MiB")

    def _identity(self, key: Key) -> Identity:
        kind, name = (part.encode(errors="replace").decode().replace("\0", "?") for part in key)
        raw = Identity(self._observer.source, self._observer.plugin, kind, name or "?")
        return bounded(redact_identity(raw))

    def _hash(self, value: Json) -> bytes:
        # newer formats of marshal depend on what else refers to a value
        return digest(marshal.dumps(value, 2), self._key)


def _without(hashes: Mapping[str, bytes], names: frozenset[str]) -> dict[str, bytes]:
    return {name: value for name, value in hashes.items() if name not in names}
