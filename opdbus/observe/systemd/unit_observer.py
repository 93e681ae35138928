"""Observer of all units: loaded units, and unit files that PID 1 has not loaded."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.observe.core.pace import Pace
from opdbus.observe.core.report import MAX_OBJECTS, Observer, Report
from opdbus.observe.core.system_bus import BURST_SECONDS, Signal
from opdbus.observe.packages.documents import Places
from opdbus.observe.systemd import pid1, unit_files, unit_properties
from opdbus.observe.systemd.pid1 import Loaded, Pid1, UnitFile
from opdbus.observe.systemd.unit_causes import UnitCauses
from opdbus.observe.systemd.unit_documents import FACTS, UnitDocuments
from opdbus.observe.systemd.unit_folders import UnitFolders
from opdbus.observe.systemd.unit_loops import UnitLoops
from opdbus.observe.systemd.unit_report import KIND, UnitReport
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.object import Json

_FOLLOWED: Final = ("UnitNew", "UnitRemoved", "JobRemoved", "Reloading", "UnitFilesChanged")
# Sent of every unit while PID 1 reloads.
_OF_ALL: Final = frozenset(("UnitNew", "UnitRemoved"))
# Signals are read together: those of a change that is seen already come within this time.
_WAIT_SECONDS: Final = 1.5 * BURST_SECONDS
# A unit that has reloaded by then is as it was before: that is told, and not that it reloads.
_RELOAD_SECONDS: Final = 1.0
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Options:
    """When PID 1 lists what takes it long, in seconds, and what else tests choose."""

    # all unit files: after the start or a change, and since the last time
    files_after: float = 10.0
    files_every: float = 600.0
    # all units: since the last time, when one reload follows another
    units_every: float = 1.0
    most_units: int = MAX_OBJECTS
    places: Places = field(default_factory=Places)


async def observe(report: Report, options: Options = Options()) -> None:
    """List all units and follow their changes until the connection is lost."""
    async with pid1.connected() as manager:
        units = _Units(manager, report, options)
        await units.begin()
        await until_first_ends(units.follow(), units.keep_up(), units.told.describe())


class _Units:
    """State of the observer, which keeps a report of the host's units up to date.

    Reading a unit loads it, and loading it sends a signal: two programs that answer each signal by
    reading would never end. So after a change, PID 1 is asked which of the names are loaded, and
    only those are read.
    """

    def __init__(self, manager: Pid1, report: Report, options: Options) -> None:
        self._pid1 = manager
        self._report = report
        self._options = options
        self._documents = UnitDocuments(options.places)
        self._causes = UnitCauses(report.causes)
        self.told = UnitReport(report, self._documents, self._causes)
        # when units came up last, and when they ended, in microseconds since 1970
        self._times: dict[str, tuple[Plain, Plain]] = {}
        # when new units were started, in seconds since 1970
        self._came: dict[str, float] = {}
        self._clock = asyncio.get_running_loop().time
        self._news = asyncio.Event()
        self._pace = Pace(self._clock)
        # units whose signals are still to come, until when, and the cause if none does
        self._waited_for: dict[str, tuple[float, str]] = {}
        self._is_reloading = False
        self._have_files_changed = False
        # when to list all units, and all unit files; and when that was done
        self._list_at = self._files_at = _NEVER
        self._listed_at = self._files_listed_at = 0.0
        self._folders = UnitFolders()
        self._loops = UnitLoops(self._clock)
        self._loaded: set[str] = set()
        # of unit files that have changed since PID 1 read them
        self._states: dict[str, str] = {}

    async def begin(self) -> None:
        """Subscribe and then list, so that nothing that happens in between is lost."""
        rules = map(pid1.of_manager, _FOLLOWED)
        await self._pid1.subscribe(pid1.UNIT_CHANGED, pid1.SERVICE_CHANGED, *rules)
        await self._causes.date_reload(self._pid1)
        self._folders = UnitFolders(await self._pid1.folders())
        await self._folders.changed()
        stored = await self.told.resume()
        for name in self.told.names:
            self._loops.resume(name, self.told.last(name))
        await self._list()
        # what was unloaded since; the files of all others are listed later
        left = self.told.left_since(self._loaded)
        await self._look_at_unloaded(left, "")
        await self._documents.look_up()
        self.told.begin(self.told.names - self._loaded - left)
        if self._report.is_first:
            self.told.tell_since(stored, self._times)
        self._files_at = self._clock() + self._options.files_after

    async def follow(self) -> None:
        """Note which units to read."""
        async for burst in self._pid1.bursts():
            for signal in burst:
                self._hear(signal)
            self._news.set()

    async def keep_up(self) -> None:
        """Read what has changed, when it is time for it."""
        while True:
            at = min(self._list_at, self._files_at, self._pace.next_at)
            async with at_most(at - self._clock()):
                await self._news.wait()
            self._news.clear()
            if self._have_files_changed:
                await self._look_at_files()
            await self._look(self._pace.take(), self._of_reload())
            if self._list_at <= self._clock():
                await self._list()
            if self._files_at <= self._clock():
                await self._list_files()

    def _of_reload(self) -> str:
        """Return why units differ until they are listed after a reload."""
        is_due = self._is_reloading or self._list_at != _NEVER
        return self._causes.reload if is_due else ""

    def _hear_rest(self) -> None:
        """Hear what PID 1 said before its last answer: it may be why that is as it is."""
        for signal in self._pid1.take():
            self._hear(signal)

    def _hear(self, signal: Signal) -> None:
        now, first = self._clock(), signal.body[0] if signal.body else None
        if self._is_reloading and signal.member in _OF_ALL:
            return
        self._causes.hear(signal)
        match signal.member:
            case "PropertiesChanged":
                self._changed(pid1.unit_at(signal.path))
            case "UnitNew" | "UnitRemoved":
                self._changed(first)
            case "JobRemoved":
                self._changed(next(iter(signal.body[2:]), None))
            case "Reloading":
                self._is_reloading = first is True
                if not self._is_reloading:
                    self._have_files_changed = True
                    self._list_at = max(now, self._listed_at + self._options.units_every)
            case "UnitFilesChanged":
                self._have_files_changed = True
                options = self._options
                due = max(now + options.files_after, self._files_listed_at + options.files_every)
                self._files_at = min(self._files_at, due)

    def _changed(self, name: object) -> None:
        if isinstance(name, str) and unit_files.is_unit(name):
            self._pace.changed(name)

    async def _list(self) -> None:
        """Read all units that are loaded, new ones first; those that are not any more are gone."""
        self._list_at = _NEVER
        units = await self._pid1.units()
        most = self._options.most_units
        self._report.busy(
            f"of {len(units):,} units {most:,} are observed" if len(units) > most else ""
        )
        units = units[:most]
        # what PID 1 has read again is as new as can be
        self._states.clear()
        cause = self._causes.reload
        await self._look_at_unloaded(self._loaded - {unit.name for unit in units}, cause)
        new = [unit for unit in units if unit.name not in self._loaded]
        known = [unit for unit in units if unit.name in self._loaded]
        await self._read(new, cause)
        for unit in known:
            await self._read([unit], cause)
            # others must not wait until all are read
            await self._look(self._pace.take(), cause)
        self._listed_at = self._clock()

    async def _look(self, names: Collection[str], cause: str) -> None:
        """Read those of some units that are loaded; the cause is that of all but their states."""
        if not names:
            return
        units = await self._pid1.units_of(names)
        self._hear_rest()
        await self._causes.ask(self._pid1, names)
        await self._read(sorted(units, key=lambda unit: self._causes.order(unit.name)), cause)
        await self._look_at_unloaded(set(names) - {unit.name for unit in units}, cause)

    async def _read(self, units: Collection[Loaded], cause: str) -> None:
        """Read and report units that are loaded."""
        texts = await self._folders.texts(unit.name for unit in units if unit.state == "masked")
        read: dict[str, dict[str, Json]] = {}
        for unit in units:
            if told := await self._properties(unit, cause):
                read[unit.name] = texts.get(unit.name, {}) | told
        if not self.told.is_quiet:
            await self._documents.expect(read)
        times = await self._folders.changed_at(self.told.other_files(read))
        if self._is_reloading or self._have_files_changed:
            await self._causes.date_reload(self._pid1)
        for name, told in read.items():
            # what was started before a package run did not come with it
            at = min(times.get(name, _NEVER), self._came.pop(name, _NEVER))
            of_files = self._causes.of_files(at) if name in times else cause or self._of_reload()
            why = self._waited(name, of_files)
            if name not in self._loaded:
                why = why or self._causes.latest(name, told)
            self._loaded.add(name)
            self._tell(name, told, why)

    async def _properties(self, unit: Loaded, cause: str) -> dict[str, Json]:
        """Return the properties of a loaded unit; nothing if it is to be read later."""
        if self.told.is_coming(unit.name):
            self._pace.changed(unit.name, BURST_SECONDS)
            return {}
        values = await self._pid1.properties(unit)
        self._hear_rest()
        states = values.get("LoadState"), values.get("ActiveState")
        if not values or states == ("not-found", "inactive"):
            return {}  # it was unloaded meanwhile: a signal comes next
        is_new = unit.name not in self._loaded and not self.told.is_quiet
        is_behind = self._causes.is_behind(unit.name, values, is_new=is_new)
        if is_behind and self._waits_for(unit.name, cause):
            return {}
        is_reloading = values.get("ActiveState") == "reloading" and not self.told.is_quiet
        if is_reloading and self._waits_for(unit.name, cause, _RELOAD_SECONDS):
            return {}
        self._causes.has_read(unit.name, values)
        if is_new and isinstance(at := values.get("StateChangeTimestamp"), int) and at:
            self._came[unit.name] = at / 1e6
        if self.told.is_quiet:
            ended = values.get("InactiveEnterTimestamp")
            self._times[unit.name] = values.get("ActiveEnterTimestamp"), ended
        told = unit_properties.of_unit(values, self._states.get(unit.name, ""))
        lasting, again_in = self._loops.lasting(unit.name, told)
        if again_in:
            self._pace.changed(unit.name, again_in)
        return lasting

    def _waits_for(self, name: str, cause: str, seconds: float = _WAIT_SECONDS) -> bool:
        """Return whether signals of a unit may still come; it is looked at again, then."""
        until, _ = self._waited_for.setdefault(name, (self._clock() + seconds, cause))
        wait = until - self._clock()
        if wait > 0:
            self._pace.changed(name, wait)
        return wait > 0

    def _waited(self, name: str, cause: str) -> str:
        """Return the cause that a unit was waited for with, if it was."""
        return self._waited_for.pop(name, (0.0, cause))[1]

    async def _look_at_unloaded(self, names: Collection[str], cause: str) -> None:
        """Report what the files of unloaded units say; a unit without a file is gone."""
        names = {
            name
            for name in names
            if self._causes.has_left(name, self.told.last(name)) or not self._waits_for(name, cause)
        }
        self._loaded -= names
        for name in names:
            self._loops.forget(name)
            self._causes.has_read(name, {})
        await self._tell_files(names, await self._pid1.files_of(names), cause)

    async def _tell_files(
        self, names: Iterable[str], files: Mapping[str, UnitFile], cause: str
    ) -> None:
        there = [
            name for name in names if name in files and not self._folders.is_alias(files[name])
        ]
        texts = await self._folders.texts(there)
        if not self.told.is_quiet:
            await self._documents.expect({n: unit_properties.of_file(*files[n]) for n in there})
        for name in there:
            why = self._waited(name, cause)
            before = unit_properties.unloaded(self.told.last(name)) | texts.get(name, {})
            told = before | unit_properties.of_file(*files[name])
            self._tell(name, told, why or self._causes.latest(name, told))
        left = set(names) - set(there)
        if left and not self.told.is_quiet:
            await self._causes.date_reload(self._pid1)
        for name in left:
            self.told.left(name, self._waited(name, cause))

    async def _list_files(self) -> None:
        """Report all unit files that are not loaded; other units that are not loaded are gone."""
        self._files_at = _NEVER
        files = await self._pid1.files()
        cause = self._causes.reload if self.told.has_all else ""
        self._files_listed_at = self._clock()
        self.told.is_quiet = True
        await self._tell_files((files.keys() | self.told.names) - self._loaded, files, cause)
        await self._documents.look_up()
        self.told.is_quiet = False
        # removes also what an earlier run stored and is not there any more
        self.told.replace(cause)

    async def _look_at_files(self) -> None:
        """Read the units whose files have changed, and whether they are enabled now."""
        self._have_files_changed = False
        await self._causes.date_reload(self._pid1)
        changed = await self._folders.changed()
        self._documents.outdate(changed)
        files = await self._pid1.files_of(changed.keys())
        self._states |= {name: file.state for name, file in files.items()}
        by_cause: dict[str, list[str]] = {}
        for name, at in changed.items():
            by_cause.setdefault(self._causes.of_files(at), []).append(name)
        for cause, names in by_cause.items():
            await self._look(names, cause)

    def _tell(self, name: str, properties: dict[str, Json], cause: str) -> None:
        if self.told.tell(name, properties, cause):
            self._pace.changed(name)


OBSERVER: Final = Observer(
    "systemd",
    "systemd",
    observe,
    volatile={KIND: unit_properties.VOLATILE},
    derived={KIND: FACTS},
)
