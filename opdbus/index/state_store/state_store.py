"""The state store: all entries of the host on disk and in in-memory indexes that agree."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final, Self

from opdbus.errors import StoreError
from opdbus.history import change
from opdbus.history.change import Cause
from opdbus.history.forget import Forgotten, Target
from opdbus.history.row_ages import Moment, RowAges
from opdbus.index.catalogue.catalogue import ChangeKind
from opdbus.index.catalogue.declarations import Declarations, NoPairing
from opdbus.index.catalogue.volatile_values import VolatileValues
from opdbus.index.database.database import Damaged
from opdbus.index.database.quota import ROOT, Usage, is_published, owned, require_owner
from opdbus.index.database.records import begin
from opdbus.index.database.store import Content, Entry, Record, Store
from opdbus.index.state_store.erasure import Eraser
from opdbus.index.state_store.events import Changed, Event, Recorded
from opdbus.index.state_store.transaction_writer import BuiltRecords, TransactionWriter
from opdbus.index.storage import migration
from opdbus.index.storage.archive import Archive
from opdbus.platform import gc_tuning
from opdbus.platform.metrics import Family
from opdbus.platform.slices import batches, each, slices
from opdbus.state.object import FILE, Identity, Json, ObjectId, StateObject

# Objects of a source that are written in one transaction: some tenths of a second's work.
_PART: Final = 2_000
# Texts that are looked up at a time: a millisecond's work.
_TEXTS: Final = 1_024


class TransientObjects:
    """Map between transient objects and the D-Bus connections that hold them."""

    def __init__(self) -> None:
        self._holder: dict[Identity, str] = {}
        self._held: dict[str, set[Identity]] = {}

    def held_by(self, holder: str) -> frozenset[Identity]:
        """Return the objects that a connection holds."""
        return frozenset(self._held.get(holder, ()))

    def add(self, identities: Iterable[Identity], holder: str) -> None:
        """Assign objects to a connection, in place of the one that held them."""
        for identity in identities:
            self.discard([identity])
            self._holder[identity] = holder
            self._held.setdefault(holder, set()).add(identity)

    def discard(self, identities: Iterable[Identity]) -> None:
        """Forget objects that were removed or became permanent."""
        for identity in identities:
            holder = self._holder.pop(identity, None)
            if holder is None:
                continue
            self._held[holder].discard(identity)
            if not self._held[holder]:
                del self._held[holder]


class StateStore:
    """All entries of a host; an asynchronous context manager that opens and closes the database.

    `notify` is called on the event loop with each event. `clock` returns seconds since 1970, and
    `boot` identifies the boot of the host. `on_progress` is called on the event loop now and then
    while a database is opened, recovered or brought up to this version's rules.
    """

    def __init__(
        self,
        path: Path,
        notify: Callable[[Event], None] = lambda _event: None,
        usage: Usage | None = None,
        clock: Callable[[], float] = time.time,
        boot: str = "",
        booted_at: float = 0.0,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.archive = Archive(path, on_progress=on_progress)
        self._writer = TransactionWriter(self.archive, usage or Usage(), boot)
        self._one_writer = self._writer.one_writer
        self.catalogue = self._writer.catalogue
        self.fields = self._writer.fields
        self.words = self._writer.words
        self.moved = self._writer.moved
        self.volatile = VolatileValues()
        self._transient = TransientObjects()
        self.notify = notify
        # the pairing of declared objects with observed ones
        self.declarations: Declarations = NoPairing()
        # set whenever there may be objects without vectors
        self.stale = asyncio.Event()
        # set while there may be objects without static vectors
        self.unstaged = asyncio.Event()
        # set whenever there may be sentences of history without vectors
        self.unembedded = asyncio.Event()
        # set once full-text index and fields of the entries at the start are in memory
        self.indexes_built = asyncio.Event()
        # cause of differences found at the start: op-dbus was restarted, or the host was
        self.since_last_run = change.START
        # time of the last row of history at the start, in microseconds since 1970; infinite if the
        # row is not of this boot, or no clock tells
        self.recorded_until = math.inf
        self._clock = clock
        self.boot = boot
        self._booted_at = booted_at
        self.eraser = Eraser(
            self.archive,
            boot,
            self._now,
            lambda last: self.notify(Recorded(last)),
            on_progress,
        )
        # number of running `publish` calls of each holder
        self._publishing: Counter[str] = Counter()

    @property
    def is_settled(self) -> bool:
        """True if no history is hidden and indexes are built, so that results are final."""
        return self.eraser.checked.is_set() and self.indexes_built.is_set()

    async def build_indexes(self) -> None:
        """Build the full-text index, and wait for the fields: both change the order of hits."""
        while not self.words.is_read.is_set():
            await self.words.begin()
        await self.fields.is_read.wait()
        self.indexes_built.set()

    @property
    def generation(self) -> int:
        """The number of transactions that changed objects."""
        return self._writer.generation

    async def __aenter__(self) -> Self:
        """Open the database and load its entries; a damaged one is replaced. Raises StoreError."""
        await self.archive.__aenter__()
        try:
            try:
                await self._load()
            except Damaged:
                await self.archive.reopen()
                await self._load()
        except BaseException:
            await self.archive.__aexit__(None, None, None)
            raise
        return self

    async def _load(self) -> None:
        # a read-only database is not migrated
        first = self.archive.read if self.archive.is_read_only else self.archive.write
        at = self._now()

        def load(store: Store) -> list[Entry]:
            # values that are secret by this version's rules are redacted first
            migration.migrate(store, at, self.boot)
            return store.entries(transient=False)

        # garbage collection would find nothing: all entries stay in use
        with gc_tuning.pause():
            self._writer.load(await first(load))
        generation = await self.archive.read(lambda store: store.fact("generation"))
        self._writer.generation = int(generation or 0)
        self.recorded_until = await self.archive.read(partial(_recorded_until, self.boot, at))
        booted_at = min(int(self._booted_at * 1e6) or at, at)
        self.since_last_run = await first(lambda store: begin(store, self.boot, at, booted_at))
        await self.eraser.begin()

    def _now(self) -> int:
        """Return the time in microseconds since 1970."""
        return int(self._clock() * 1e6)

    async def __aexit__(self, *error: object) -> None:
        """Close the database, and cancel unfinished work."""
        await self.archive.__aexit__(*error)

    def metrics(self) -> Iterator[Family]:
        """Yield the number of changes of objects since the start."""
        yield Family("changes_total", self._writer.counts)

    # writing: each change holds the lock from its first to its last use of the catalogue, and is
    # shielded from cancellation, so that database and catalogue always agree

    async def replace(
        self, source: str, present: AbstractSet[Identity], changed: Iterable[StateObject | Record]
    ) -> int:
        """Replace the objects of a source: those not in `present` are removed.

        `changed` has the new and changed ones. Many are written in parts, visible at once; the last
        part removes objects, and until then `present` may grow. For the first listing of a source,
        history gets no values and no sentences. Returns the number of changed and removed objects.
        """
        is_first = not self.catalogue.sources[source] and not await self.was_listed(source)
        parts = batches(changed, _PART)
        why = _always(change.FIRST if is_first else change.STATE_FILE)

        async def following() -> BuiltRecords | None:
            part = await asyncio.to_thread(next, parts, None)
            return None if part is None else await self._writer.build(part, ROOT, self._clock())

        async def work() -> int:
            count = 0
            part, later = await following() or BuiltRecords(self._clock(), []), await following()
            async with self.archive.busy() if later else nullcontext():
                while later is not None:
                    # build the next part while this one is stored: no one else writes this source
                    ahead = asyncio.ensure_future(following())
                    try:
                        async with self._one_writer:
                            count += len(await self._write(part, [], why))
                    finally:
                        part, later = later, await ahead
                async with self._one_writer:
                    gone = await asyncio.to_thread(self.catalogue.of_source, source, present)
                    count += len(await self._write(part, gone, why))
            await self.note_listed(source)
            return count

        return await self.archive.shield(work())

    async def publish(
        self, objects: Sequence[StateObject], owner: int, *, holder: str = "", cause: str = ""
    ) -> None:
        """Insert or replace objects that an owner published; raises AccessDenied for another's.

        With a `holder`, they are transient and live until `release(holder)`, but those that are
        permanent stay. Raises LimitsExceeded and StoreError.
        """

        async def work() -> None:
            try:
                async with self._one_writer:
                    named = [item.identity for item in objects]
                    known = await asyncio.to_thread(self.catalogue.existing, named)
                    for entry in known.values():
                        require_owner(entry, owner)
                    built = await self._writer.build(
                        objects, owner, self._clock(), transient=bool(holder)
                    )
                    await self._write(built, [], _always(cause))
                    if holder:
                        passing = (i for i in named if i not in known or known[i].transient)
                        self._transient.add(passing, holder)
                    else:
                        self._transient.discard(named)
            finally:
                self._publishing[holder] -= 1
                if not self._publishing[holder]:
                    del self._publishing[holder]

        # before the first await, so that `release` waits for this publication
        self._publishing[holder] += 1
        await self.archive.shield(work())

    async def observe(
        self,
        objects: Sequence[StateObject],
        gone: AbstractSet[Identity],
        volatile: Mapping[Identity, Mapping[str, Json]],
        why: Callable[[Identity], Cause] = lambda _: Cause(),
        events: Mapping[Identity, Cause] = {},
    ) -> None:
        """Insert or replace objects that an observer saw, and remove those that are gone.

        `volatile` has volatile values, which are kept in memory only. `events` happened to objects
        without changing them. Raises StoreError.
        """

        async def work() -> None:
            async with self._one_writer:
                entries = [entry for entry in map(self.catalogue.get, gone) if entry]
                built = await self._writer.build(objects, ROOT, self._clock())
                await self._write(built, entries, why, events)
                self.volatile.put(volatile)
                self.volatile.drop(gone)

        await self.archive.shield(work())

    async def record(self, changes: Sequence[change.Change], work: Callable[[Store], None]) -> None:
        """Run `work` and append rows of history that change no object, in one transaction.

        Raises StoreError.
        """
        at = self._now()

        def write(store: Store) -> range:
            with store.transaction():
                work(store)
                return store.ledger.append(changes, at, self.boot)

        if rows := await self.archive.write(write):
            self.notify(Recorded(rows[-1]))

    async def was_listed(self, source: str) -> bool:
        """Return whether a source was ever listed, even if it had no objects."""
        return bool(await self.archive.read(lambda store: store.fact(f"listed {source}")))

    async def note_listed(self, source: str) -> None:
        """Store that a source was listed; raises StoreError."""
        if not (self.archive.is_read_only or await self.was_listed(source)):
            await self.archive.write(lambda store: store.set_fact(f"listed {source}", "yes"))

    async def of_source(self, source: str) -> list[Entry]:
        """Return all entries of a source, after the running change is complete."""
        async with self._one_writer:
            return self.catalogue.of_source(source)

    async def withdraw(self, object_ids: Iterable[ObjectId], owner: int, cause: str = "") -> int:
        """Remove what an owner published about objects; return the number of entries.

        Objects that nobody publishes may have just gone. Raises AccessDenied if others alone
        publish one, or if all are observed or declared only, and UnknownObject if there is none.
        """

        async def work() -> int:
            async with self._one_writer:
                about = [*zip(named, await each(self.catalogue.entries, named), strict=True)]
                published = [entries for _, entries in about if is_published(entries)]
                gone = {e.id: e for entries in published for e in owned(entries, owner)}
                if about and not gone:
                    # the reason why there is nothing to withdraw
                    there = next((one for one, entries in about if entries), about[0][0])
                    owned(self.catalogue.require_entries(there), owner)
                nothing = BuiltRecords(self._clock(), [])
                await self._write(nothing, [*gone.values()], _always(cause), withdrawn=True)
                return len(gone)

        named = [*object_ids]
        return await self.archive.shield(work())

    async def forget(self, target: Target, cause: str) -> tuple[Forgotten, bool]:
        """Erase values from history; return the rows, and whether the files have no trace left."""
        return await self.archive.shield(self.eraser.forget(target, cause))

    async def release(self, holder: str) -> None:
        """Remove the transient objects of a holder; raises StoreError, and then tries again."""
        if not self._transient.held_by(holder) and holder not in self._publishing:
            return

        async def work() -> None:
            async with self._one_writer:
                found = map(self.catalogue.get, self._transient.held_by(holder))
                gone = [entry for entry in found if entry]
                await self._write(BuiltRecords(self._clock(), []), gone, _always(change.SOURCE))

        try:
            await self.archive.shield(work())
        except StoreError:
            self.archive.when_writable(lambda: self.release(holder))
            raise

    async def _write(
        self,
        built: BuiltRecords,
        gone: Sequence[Entry],
        why: Callable[[Identity], Cause],
        events: Mapping[Identity, Cause] = {},
        *,
        withdrawn: bool = False,
    ) -> Mapping[ObjectId, ChangeKind]:
        """Write changes, publish events, and wake up the vector loops."""
        generation, changes, rows = await self._writer.write(
            built, gone, why, events, withdrawn=withdrawn
        )
        self._transient.discard(entry.identity for entry in gone)
        if changes:
            self.notify(Changed(generation, changes))
            self.stale.set()
            self.unstaged.set()
        if rows:
            self.unembedded.set()
            self.notify(Recorded(rows[-1]))
        return changes

    # reading

    async def content(self, entries: Sequence[Entry]) -> dict[int, Content]:
        """Return the content of entries, by id."""
        ids = [entry.id for entry in entries]
        return await self.archive.read(lambda store: store.content(ids)) if ids else {}

    async def read_objects(
        self, object_ids: Iterable[ObjectId]
    ) -> tuple[dict[ObjectId, tuple[Entry, ...]], dict[int, Content]]:
        """Return the entries of the objects that exist, and the content of entries by id."""
        about = {one: entries for one in object_ids if (entries := self.catalogue.entries(one))}
        return about, await self.content([one for entries in about.values() for one in entries])

    def merge_properties(
        self,
        entries: Sequence[Entry],
        contents: Mapping[int, Content],
        *,
        only_stored: bool = False,
    ) -> dict[str, Json]:
        """Return the fields of an object, each from the first of its entries that has it.

        `entries` are in the catalogue's order: declared, op-dbus's observers, the latest publisher
        and so on. Declared fields count only if there is no observed entry. `only_stored` leaves
        out volatile values.
        """
        fields: dict[str, Json] = {}
        observed = [entry for entry in entries if entry.identity.source != FILE]
        for entry in reversed(observed or entries):
            if entry.id in contents:
                fields |= json.loads(contents[entry.id].properties)
                fields |= {} if only_stored else self.volatile.get(entry.identity)
        return fields

    async def texts(self, digests: Sequence[bytes]) -> Mapping[bytes, str]:
        """Return the texts of objects by digest, in the order of the digests.

        Texts of objects that are gone are left out.
        """
        found: dict[bytes, str] = {}
        for part in slices(digests, _TEXTS):
            texts = await self.archive.read(partial(Store.texts, digests=part))
            found |= {one: texts[one] for one in part if one in texts}
        return found


def _recorded_until(boot: str, now: int, store: Store) -> float:
    """Return the time of the last row of a boot; if it is ahead, of the last look at ages."""
    latest = store.ledger.latest(boot)
    if latest is None or latest <= now:
        return math.inf if latest is None else latest
    # the clock was set back since
    seen = RowAges.read(store.ledger, Moment(boot, 0.0, math.inf)).at
    return seen.wall * 1e6 if seen.boot == boot and seen.wall * 1e6 <= now else math.inf


def _always(cause: str) -> Callable[[Identity], Cause]:
    why = Cause(cause)
    return lambda _: why
