"""All units: those that PID 1 has loaded, and the unit files that it has not."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.history.change import START, Why
from opdbus.observe import pid1, unit_files, unit_properties
from opdbus.observe.documents import Places
from opdbus.observe.pace import Pace
from opdbus.observe.pid1 import Loaded, Pid1, UnitFile
from opdbus.observe.report import MAX_OBJECTS, Observer, Report
from opdbus.observe.system_bus import BURST_SECONDS, Signal
from opdbus.observe.unit_causes import UnitCauses, is_with_file, listed
from opdbus.observe.unit_documents import FACTS, UnitDocuments
from opdbus.observe.unit_folders import UnitFolders
from opdbus.observe.unit_loops import LOOP, UnitLoops
from opdbus.state.object import Json
from opdbus.tasks import until_first_ends

_KIND: Final = "unit"
# Units that are started and stopped; others change with the kernel, or with what they hold.
_STARTED: Final = (".service", ".socket", ".timer", ".path")
_FOLLOWED: Final = ("UnitNew", "UnitRemoved", "JobRemoved", "Reloading", "UnitFilesChanged")
# Sent of every unit while PID 1 reloads.
_OF_ALL: Final = frozenset(("UnitNew", "UnitRemoved"))
# Signals are read together: those of a change that is seen already come within this time.
_WAIT_SECONDS: Final = 1.5 * BURST_SECONDS
_OF_FILE: Final = ("fragment_path", "unit_file_state")
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
    """List all units, and follow them."""
    async with pid1.connected() as manager:
        units = _Units(manager, report, options)
        await units.begin()
        await until_first_ends(units.follow(), units.keep_up(), units.describe())


class _Units:
    """Keeps the units of a host in a report.

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
        # while many are read, to be reported together at the end
        self._is_quiet = True
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
        self._told: dict[str, dict[str, Json]] = {}
        self._loaded: set[str] = set()
        # new units: that they came with their files is written before they are read again
        self._started: set[str] = set()
        # units of which only an earlier run said what their files are
        self._of_earlier: set[str] = set()
        # of unit files that have changed since PID 1 read them
        self._states: dict[str, str] = {}

    async def begin(self) -> None:
        """Subscribe and then list, so that nothing that happens in between is lost."""
        rules = map(pid1.of_manager, _FOLLOWED)
        await self._pid1.subscribe(pid1.UNIT_CHANGED, pid1.SERVICE_CHANGED, *rules)
        await self._causes.date_reload(self._pid1)
        self._folders = UnitFolders(await self._pid1.folders())
        await self._folders.changed()
        stored = await self._report.stored(_KIND)
        self._told = {name: self._documents.remember(name, stored[name]) for name in stored}
        for name, told in self._told.items():
            self._loops.resume(name, told)
        await self._list()
        # what was unloaded since; the files of all others are listed later
        told = {name: self._told[name] for name in self._told.keys() - self._loaded}
        left = {name for name in told if unit_properties.unloaded(told[name]) != told[name]}
        await self._look_at_unloaded(left, "")
        await self._documents.look_up()
        self._is_quiet = False
        self._of_earlier = self._told.keys() - self._loaded - left
        for name in self._told.keys() - self._of_earlier:
            self._tell(name, self._told[name])
        if self._report.is_first:
            self._tell_since(stored, self._report.recorded_until)
        self._files_at = self._clock() + self._options.files_after

    def _tell_since(self, stored: Mapping[str, Mapping[str, Json]], since: float) -> None:
        """Report which units came up or ended since op-dbus ran, and are as they were before.

        A socket or timer that was restarted with its service is told of with that.
        """
        whys: dict[str, Why] = {}
        for name, (up, ended) in self._times.items():
            state = self._told[name].get("active_state")
            is_same = stored.get(name, {}).get("active_state") == state
            at, cause = {
                "active": (up, ""),
                "failed": (ended, f"{START}:failed"),
                "inactive": (ended, f"{START}:ran"),
            }.get(str(state), (0, ""))
            if is_same and isinstance(at, int) and at > since and name.endswith(_STARTED):
                whys[name] = Why(cause)
        for name, why in whys.items():
            if whys.keys().isdisjoint(listed(self._told[name], "triggers")):
                self._report.happened(_KIND, name, why)

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
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if at == _NEVER else at):
                    await self._news.wait()
            self._news.clear()
            if self._have_files_changed:
                await self._look_at_files()
            await self._look(self._pace.take(), self._of_reload())
            if self._list_at <= self._clock():
                await self._list()
            if self._files_at <= self._clock():
                await self._list_files()

    async def describe(self) -> None:
        """Look up in the host's documents what new units are, after they were reported.

        That it is known only now is no change of a unit, and takes no job from what is.
        """
        while True:
            await self._documents.has_new.wait()
            for name in await self._documents.look_up():
                if told := self._told.get(name):
                    shown = {**told, **self._documents.of(name, told)}
                    self._report.put(_KIND, name, shown, Why(seen=FACTS))

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
        if not self._is_quiet:
            await self._documents.expect(read)
        times = await self._folders.changed_at(self._other_files(read))
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

    def _other_files(self, read: Mapping[str, dict[str, Json]]) -> dict[str, set[str]]:
        """Return the files, of before and of now, of those units that have others than before."""
        if self._is_quiet:
            return {}
        before = {name: _files(self._told.get(name, {})) for name in read if self._knows(name)}
        # which drop-ins there are is seen when a unit is loaded
        known = [name for name in before if "load_state" in self._told.get(name, read[name])]
        now = {name: _files(read[name]) for name in known if not read[name].get("transient")}
        return {name: before[name] | now[name] for name in now if before[name] != now[name]}

    async def _properties(self, unit: Loaded, cause: str) -> dict[str, Json]:
        """Return the properties of a loaded unit; nothing if it is to be read later."""
        if self._is_coming(unit.name):
            return {}
        values = await self._pid1.properties(unit)
        self._hear_rest()
        states = values.get("LoadState"), values.get("ActiveState")
        if not values or states == ("not-found", "inactive"):
            return {}  # it was unloaded meanwhile: a signal comes next
        is_new = unit.name not in self._loaded and not self._is_quiet
        is_behind = self._causes.is_behind(unit.name, values, is_new=is_new)
        if is_behind and self._waits_for(unit.name, cause):
            return {}
        self._causes.has_read(unit.name, values)
        if is_new and isinstance(at := values.get("StateChangeTimestamp"), int) and at:
            self._came[unit.name] = at / 1e6
        if self._is_quiet:
            ended = values.get("InactiveEnterTimestamp")
            self._times[unit.name] = values.get("ActiveEnterTimestamp"), ended
        told = unit_properties.of_unit(values, self._states.get(unit.name, ""))
        lasting, again_in = self._loops.lasting(unit.name, told)
        if again_in:
            self._pace.changed(unit.name, again_in)
        return lasting

    def _is_coming(self, name: str) -> bool:
        """Return whether it is still to be written that a unit came; it is read again, then."""
        if name in self._started and self._report.is_waiting(_KIND, name):
            self._pace.changed(name, BURST_SECONDS)
            return True
        self._started.discard(name)
        return False

    def _waits_for(self, name: str, cause: str) -> bool:
        """Return whether signals of a unit may still come; it is looked at again, then."""
        until, _ = self._waited_for.setdefault(name, (self._clock() + _WAIT_SECONDS, cause))
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
            if self._causes.has_left(name, self._told.get(name, {}))
            or not self._waits_for(name, cause)
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
        if not self._is_quiet:
            await self._documents.expect({n: unit_properties.of_file(*files[n]) for n in there})
        for name in there:
            why = self._waited(name, cause)
            before = unit_properties.unloaded(self._told.get(name, {})) | texts.get(name, {})
            told = before | unit_properties.of_file(*files[name])
            self._tell(name, told, why or self._causes.latest(name, told))
        left = set(names) - set(there)
        if left and not self._is_quiet:
            await self._causes.date_reload(self._pid1)
        for name in left:
            why = self._waited(name, cause)
            self._documents.forget(name)
            of_file = self._of_file(name, {})
            last = self._told.pop(name, None)
            if last is not None and not self._is_quiet:
                other = why or self._causes.latest(name, last) or of_file
                why = self._causes.why_gone(name, last, other, of_file)
            self._report.gone(_KIND, name, why)

    async def _list_files(self) -> None:
        """Report all unit files that are not loaded; other units that are not loaded are gone."""
        self._files_at = _NEVER
        files = await self._pid1.files()
        cause = self._causes.reload if self._files_listed_at else ""
        self._files_listed_at = self._clock()
        self._is_quiet = True
        await self._tell_files((files.keys() | self._told.keys()) - self._loaded, files, cause)
        await self._documents.look_up()
        self._is_quiet = False
        told = {
            name: {**told, **self._documents.of(name, told)} for name, told in self._told.items()
        }
        # removes also what an earlier run stored and is not there any more
        self._report.replace(_KIND, told, cause)

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

    def _of_file(self, name: str, now: Mapping[str, Json]) -> str:
        """Return the cause of a change of a unit's file, which may be seen before a reload."""
        before = self._told.get(name, {})
        is_transient = before.get("transient") or now.get("transient")
        is_other = any(before.get(key) != now.get(key) for key in _OF_FILE)
        is_changed = self._knows(name) and is_other and not is_transient
        return self._causes.reload if is_changed else ""

    def _knows(self, name: str) -> bool:
        """Return whether it is known what a unit's file was: until all are listed, of few."""
        is_told = name in self._told and name not in self._of_earlier
        return is_told or self._files_listed_at > 0

    def _tell(self, name: str, properties: dict[str, Json], cause: str = "") -> None:
        before = self._told.get(name)
        if not self._is_quiet:
            cause = cause or self._of_file(name, properties)
            if before is None and is_with_file(name, properties, cause):
                self._started.add(name)
                if self._causes.was_started(name):
                    properties = unit_properties.unloaded(properties)
                    self._pace.changed(name)
        self._told[name] = properties
        self._of_earlier.discard(name)
        shown = {**properties, **self._documents.of(name, properties)}
        if self._is_quiet:
            return
        why, event = self._causes.whys(name, before, properties, cause)
        if before and LOOP in before and LOOP in properties:
            # restarts in a loop are no events
            why, event = Why(why.cause), None
        seen = unit_properties.newly_seen(before, properties)
        self._report.put(_KIND, name, shown, why._replace(seen=seen))
        if event:
            self._report.happened(_KIND, name, event)


def _files(told: Mapping[str, Json]) -> set[str]:
    drop_ins = told.get("drop_ins")
    found = [told.get("fragment_path"), *(drop_ins if isinstance(drop_ins, list) else ())]
    return {str(path) for path in found if path}


OBSERVER: Final = Observer(
    "systemd", "systemd", observe, volatile={_KIND: unit_properties.VOLATILE}
)
