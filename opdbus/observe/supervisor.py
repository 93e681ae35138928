"""Supervisor of the observers: restarts each when its source was lost or appears."""

import asyncio
import json
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from opdbus.bus.transport.connection import RemoteError
from opdbus.drift import observed_kinds, unobserved
from opdbus.errors import OpDbusError
from opdbus.history import acts, change
from opdbus.history.change import Cause
from opdbus.index.state_store.events import Changed, Event
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe import selection
from opdbus.observe.core.changes_per_hour import ChangesPerHour
from opdbus.observe.core.recent_causes import Causes
from opdbus.observe.core.report import Absent, LostSource, Observer, Report
from opdbus.observe.core.report_writer import Writer
from opdbus.platform import lines
from opdbus.platform.metrics import Family
from opdbus.platform.tasks import at_most, pauses, until_first_ends
from opdbus.state.object import FILE, LIVE, SETTINGS, UNIT, Identity, Json, KindId
from opdbus.state.redact import redact_text

log = structlog.get_logger()

# Pauses before restarts of an observer: a source that restarts is back soon.
_RETRY_SECONDS: Final = (0.2, 1.0, 5.0, 20.0, 60.0)
_LEAST_SECONDS: Final = 0.1
# An observer that ran this long begins with the shortest pause again.
_STEADY_SECONDS: Final = 5.0
# Maximum age of the cached note on frequently changing fields, which covers an hour.
_NOISE_SECONDS: Final = 10.0
# Characters of a message that are redacted, and that are shown.
_MAX_READ: Final = 4096
_MAX_SHOWN: Final = 500
STARTING, UP, ABSENT, FAILED = "starting", "up", "absent", "failed"
_NO_JOURNAL: Final = "who did what, and why units failed, is unknown"
_JOURNAL, _ENGINES = "journal", ("podman", "docker", "incus")
# The objects in which publishers note what they did not understand.
_READERS: Final = (
    Identity(acts.READER, *acts.READER_KIND, acts.PUBLISHER),
    *(Identity(f"publish:{name}.reader", name, "reader", name) for name in _ENGINES),
)
_JOURNAL_UNIT: Final = Identity("live:systemd", *UNIT, f"{acts.PUBLISHER}.service")


class Status(NamedTuple):
    """Status of an observer; `state` is starting, up, absent or failed, `detail` the reason."""

    name: str
    state: str
    objects: int
    detail: str


class _RunningObserver:
    """An observer with its report, writer and state."""

    def __init__(
        self, observer: Observer, store: StateStore, changes: ChangesPerHour, causes: Causes
    ) -> None:
        self.observer = observer
        self._causes = causes
        self.changes = changes
        self._store = store
        # true until the first batch is written
        self.is_first = True
        # whether it ever listed all objects of a kind
        self.has_listed = False
        # number of times that it ended by a fault, and had to list its source again
        self.faults = 0
        self._noise_at = -_NOISE_SECONDS
        self._noise = ""
        self.state, self.reason = STARTING, ""
        self._renew()

    def _renew(self) -> None:
        """Replace report and writer by empty ones, for another attempt."""
        self.report = Report(
            self.observer.volatile,
            self._causes,
            self._stored,
            named=lambda kind: unobserved.find_named(self._store, (self.observer.plugin, kind)),
            is_first=self.is_first,
            recorded_until=self._store.recorded_until,
        )
        self.writer = Writer(
            self.observer, self.report, self._store, self.changes, is_first=self.is_first
        )

    async def _stored(self, kind: str) -> Mapping[str, dict[str, Json]]:
        entries = await self._store.of_source(self.observer.source)
        entries = [entry for entry in entries if entry.identity.kind == kind]
        contents = await self._store.content(entries)
        # on a thread: of 1,000 objects it takes 10 ms
        by_name = {e.identity.name: contents[e.id] for e in entries if e.id in contents}
        return await asyncio.to_thread(
            lambda: {name: json.loads(content.properties) for name, content in by_name.items()}
        )

    @property
    def detail(self) -> str:
        now = self.changes.clock()
        if now - self._noise_at >= _NOISE_SECONDS:
            self._noise_at = now
            self._noise = self.changes.proposal(self.observer.plugin, self.report.count)
        report, writer = self.report, self.writer
        faults = (self.reason, writer.fault, report.left_out, writer.tracker.rejected)
        return "; ".join(filter(None, (*faults, _line(report.note), report.skipped, self._noise)))

    def set(self, state: str, reason: str = "") -> None:
        reason = _line(reason)
        if (state, reason) != (self.state, self.reason):
            write = log.warning if state == FAILED else log.info
            why = {"reason": reason} if reason else {}
            write("observer", name=self.observer.name, state=state, **why)
        self.state, self.reason = state, reason

    async def keep_running(self, retry_seconds: Sequence[float]) -> None:
        """Run the observer again and again, with pauses; an absent source may end a pause."""
        clock = asyncio.get_running_loop().time
        delays = pauses(retry_seconds)
        while True:
            started = clock()
            self.set(*await self._run_once())
            self.faults += self.state == FAILED
            if clock() - started > _STEADY_SECONDS:
                delays = pauses(retry_seconds)
            seconds = next(delays)
            if self.state == ABSENT:
                await asyncio.sleep(min(seconds, _LEAST_SECONDS))
                async with at_most(seconds):
                    await self.observer.appears()
            else:
                await asyncio.sleep(seconds)

    async def _run_once(self) -> tuple[str, str]:
        """Run the observer until it ends, and return its state and the reason."""
        self._renew()
        try:
            await until_first_ends(
                self.observer.observe(self.report), self.writer.run(), self._note_progress()
            )
        except Absent as error:
            with suppress(OpDbusError):  # the next attempt removes the remaining objects
                await self.writer.clear()
            return ABSENT, str(error)
        except RemoteError as error:
            return FAILED, f"it was answered with {error.name}: {error}"
        except (LostSource, OpDbusError, OSError) as error:
            return FAILED, str(error)
        except Exception as error:  # noqa: BLE001 -- whatever one raises must not end the others
            # the message may quote file contents
            reason = f"{type(error).__name__}: {error}"
            if _line(reason) != self.reason:
                where = "".join(traceback.format_tb(error.__traceback__))
                log.error("observer fault", name=self.observer.name, where=where)  # noqa: TRY400 -- without what was read
            return FAILED, reason
        return FAILED, "it ended, although its source is there"

    async def _note_progress(self) -> None:
        """Set the state to up once the first batch is written, and note the first listing."""
        await self.writer.has_written.wait()
        self.is_first = False
        self.set(UP)
        await self.writer.has_listed.wait()
        self.has_listed = True
        await asyncio.Event().wait()


class Supervisor:
    """Supervisor of all observers; a fault in one does not affect the others."""

    def __init__(
        self,
        observers: Sequence[Observer],
        store: StateStore,
        retry_seconds: Sequence[float] = _RETRY_SECONDS,
        changes: Callable[[], ChangesPerHour] = ChangesPerHour,
    ) -> None:
        causes = Causes()
        self._watched = [_RunningObserver(each, store, changes(), causes) for each in observers]
        self._store = store
        self._retry_seconds = retry_seconds
        # the notes of publishers, which are read again after each change of one
        self._unread: dict[str, str] = {}
        self._has_reader_changed = asyncio.Event()

    @property
    def statuses(self) -> list[Status]:
        """The status of each observer."""
        counts = self._store.catalogue.sources
        found = [
            Status(w.observer.name, w.state, counts[w.observer.source], w.detail)
            for w in self._watched
        ]
        if any(status.name == "systemd" for status in found):
            # a service of its own, since it may read more than the daemon
            found.append(self._journal_status())
        notes = ((name, self._unread.get(name, "")) for name in _ENGINES)
        return found + [Status(n, UP, counts[f"publish:{n}"], note) for n, note in notes if note]

    def _journal_status(self) -> Status:
        counts = self._store.catalogue.sources
        if counts[acts.READER]:
            return Status(_JOURNAL, UP, counts[acts.SOURCE], self._unread.get(_JOURNAL, ""))
        # a container has no units of its own, and units are listed some time after a first start
        are_listed = any(w.has_listed for w in self._watched if w.observer.name == "systemd")
        detail = _NO_JOURNAL
        if self._store.catalogue.get(_JOURNAL_UNIT):
            detail += f": `systemctl enable --now {acts.PUBLISHER}`"
        elif are_listed:
            detail += f": this host has no {_JOURNAL_UNIT.name}"
        return Status(_JOURNAL, ABSENT, 0, detail)

    def metrics(self) -> Iterator[Family]:
        """Yield the metrics of observers, and the number of units in states that need somebody."""
        present = {(w.observer.name,): w for w in self._watched if w.state != ABSENT}
        yield Family("observer_up", {name: int(w.state == UP) for name, w in present.items()})
        counts = {name: w.changes for name, w in present.items()}
        yield Family("observer_events_total", {name: of.reports for name, of in counts.items()})
        yield Family("observer_folded_total", {name: of.delayed for name, of in counts.items()})
        yield Family("observer_resyncs_total", {name: w.faults for name, w in present.items()})
        tallies = [tally for w in self._watched for tally in w.report.tallies.items()]
        yield Family("units", {(state,): len(names) for state, names in tallies})
        sources = self._store.catalogue.sources
        objects = {(w.observer.name,): sources[w.observer.source] for w in self._watched}
        objects["file",] = sources[FILE]
        objects["published",] = len(self._store.catalogue.view.places) - sum(objects.values())
        yield Family("objects", objects)

    @property
    def starting(self) -> list[str]:
        """The names of the observers that have not written a first batch."""
        return [w.observer.name for w in self._watched if w.state == STARTING]

    def awaited(self, plugins: Collection[str], unlisted: Collection[str] = ()) -> list[str]:
        """Return the names of the observers of `plugins` that have written nothing yet.

        For plugins in `unlisted`, include observers that wrote objects but no complete listing.
        Absent observers are left out.
        """
        return [
            w.observer.name
            for w in self._watched
            if not w.has_listed and w.state != ABSENT
            if w.observer.plugin in (plugins if w.is_first else unlisted)
        ]

    def why_not(self, kind_id: KindId) -> str:
        """Return why no observer lists objects of a kind; empty while one may still do so."""
        of = [watched for watched in self._watched if watched.observer.plugin == kind_id[0]]
        if kind_id[1] == SETTINGS:
            return observed_kinds.why_not(kind_id)
        if not of and (names := selection.names_of_plugin(kind_id[0])):
            return f"OP_DBUS_OBSERVE leaves out the observer {' and '.join(names)}"
        for watched in of:
            if watched.state in {ABSENT, FAILED}:
                return f"the observer {watched.observer.name} is {watched.state}: {watched.detail}"
        return observed_kinds.why_not(kind_id) if all(watched.has_listed for watched in of) else ""

    def on_event(self, event: Event) -> None:
        """Wake observers whose objects the state file names; call for each state store event."""
        if isinstance(event, Changed):
            if any(reader.object_id in event.changes for reader in _READERS):
                self._has_reader_changed.set()
            plugins = unobserved.plugins(event.changes)
            for watched in self._watched:
                if watched.observer.plugin in plugins:
                    watched.report.renamed.set()

    async def run(self) -> None:
        """Remove the objects of observers that are not selected, then observe until cancelled."""
        wanted = {watched.observer.source for watched in self._watched}
        catalogue = self._store.catalogue
        others = {source for source in catalogue.sources if source.startswith(LIVE)} - wanted
        gone = {entry.identity for source in others for entry in catalogue.of_source(source)}
        with suppress(OpDbusError):  # at the next start, then
            await self._store.observe([], gone, {}, lambda _: Cause(change.SOURCE))
        async with asyncio.TaskGroup() as group:
            for watched in self._watched:
                group.create_task(watched.keep_running(self._retry_seconds))
            while True:
                await self._has_reader_changed.wait()
                self._has_reader_changed.clear()
                await self._read_notes()

    async def _read_notes(self) -> None:
        """Read what publishers did not understand."""
        entries = [entry for entry in map(self._store.catalogue.get, _READERS) if entry]
        with suppress(OpDbusError, KeyError):  # one is gone meanwhile
            found = await self._store.content(entries)
            notes = {e.identity.plugin: json.loads(found[e.id].properties) for e in entries}
            self._unread = {k: _line(str(note.get("unread", ""))) for k, note in notes.items()}


def _line(text: str) -> str:
    """Return a message as one redacted, printable line of at most _MAX_SHOWN characters."""
    line = lines.join_words(redact_text(text[:_MAX_READ]))
    return "".join(char if char.isprintable() else "?" for char in line[:_MAX_SHOWN])
