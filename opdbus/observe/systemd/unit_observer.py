"""Observer of all units: loaded units, and unit files that PID 1 has not loaded."""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.history.change import START, Cause
from opdbus.observe.core.pace import Pace
from opdbus.observe.core.report import MAX_OBJECTS, Observer, Report
from opdbus.observe.core.system_bus import BURST_SECONDS, Signal
from opdbus.observe.packages.documents import Places
from opdbus.observe.systemd import pid1, unit_files, unit_properties
from opdbus.observe.systemd.pid1 import LoadedUnit, Pid1, UnitFile
from opdbus.observe.systemd.unit_causes import UnitCauses, is_with_file, with_ended_pid
from opdbus.observe.systemd.unit_documents import FACTS, UnitDocuments
from opdbus.observe.systemd.unit_files import UnitFolders
from opdbus.observe.systemd.unit_jobs import EXIT, TRIGGERS
from opdbus.observe.systemd.unit_loops import LOOP, OF_END, UnitLoops
from opdbus.observe.systemd.unit_properties import Values
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.object import Json

KIND: Final = "unit"
_FOLLOWED: Final = ("UnitNew", "UnitRemoved", "JobRemoved", "Reloading", "UnitFilesChanged")
# Sent of every unit while PID 1 reloads.
_OF_ALL: Final = frozenset(("UnitNew", "UnitRemoved"))
# Units that are started and stopped; others change with the kernel, or with what they hold.
_STARTED: Final = (".service", ".socket", ".timer", ".path")
_UP: Final = frozenset(("active", "activating", "reloading"))
_OF_FILE: Final = ("fragment_path", "unit_file_state")
# Signals are read together: the rest of a change that was read early comes within this time.
_WAIT_SECONDS: Final = 1.5 * BURST_SECONDS
# The state `reloading` is reported only if it lasts longer.
_RELOAD_SECONDS: Final = 1.0
_NEVER: Final = float("inf")
Fields = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Options:
    """Intervals in seconds of PID 1's expensive listings, the limit of units, and file locations.

    Only tests choose others.
    """

    # delay of listing all unit files after the start or a change, and pause between two listings
    files_after: float = 10.0
    files_every: float = 600.0
    # pause between two listings of all units, when one reload follows another
    units_every: float = 1.0
    most_units: int = MAX_OBJECTS
    places: Places = field(default_factory=Places)
    # a run of a timer that is over sooner is only an event
    run_seconds: float = 15.0


async def observe(report: Report, options: Options = Options()) -> None:
    """List all units and follow their changes until the connection is lost."""
    async with Pid1() as manager:
        units = _Units(manager, report, options)
        await units.list_first()
        await until_first_ends(
            units.queue_changes(), units.read_changes(), units.reported.add_facts()
        )


class _ReportedUnits:
    """Last reported fields of each unit, without the facts from documents."""

    def __init__(self, report: Report, documents: UnitDocuments, causes: UnitCauses) -> None:
        self._report = report
        self._documents = documents
        self._causes = causes
        self._fields: dict[str, Fields] = {}
        # units with a state that is written before they are read again: new ones whose file is the
        # cause, and those that were up between two readings
        self._new: set[str] = set()
        # units whose files only an earlier run has read
        self._of_earlier: set[str] = set()
        # while many are read, to be reported together at the end
        self.is_quiet = True
        # whether all unit files were listed
        self.has_all = False

    async def resume(self) -> Mapping[str, Fields]:
        """Load and return the properties that an earlier run stored."""
        stored = await self._report.stored(KIND)
        self._fields = {name: self._documents.remember(name, stored[name]) for name in stored}
        return stored

    @property
    def names(self) -> AbstractSet[str]:
        """Names of the reported units."""
        return self._fields.keys()

    def last(self, name: str) -> Fields:
        """Return a unit's last reported fields; empty for an unreported unit."""
        return self._fields.get(name, {})

    def begin(self, of_earlier: AbstractSet[str]) -> None:
        """Report all units that were read in this run."""
        self.is_quiet = False
        self._of_earlier = set(of_earlier)
        for name in self._fields.keys() - self._of_earlier:
            self.put(name, self._fields[name])

    def report_missed(
        self, stored: Mapping[str, Fields], times: Mapping[str, tuple[Plain, Plain]]
    ) -> None:
        """Report units that came up or ended since op-dbus ran, and are in the same state as then.

        `times` are when each came up last and when it ended, in microseconds since 1970. A socket
        or timer that was restarted with its service is left out.
        """
        whys, now = dict[str, Cause](), time.time() * 1e6
        for name, (up, ended) in times.items():
            state = self._fields[name].get("active_state")
            at, cause = {
                "active": (up, ""),
                "failed": (ended, f"{START}:failed"),
                "inactive": (ended, f"{START}:ran"),
            }.get(str(state), (0, ""))
            is_same = stored.get(name, {}).get("active_state") == state
            # a time that is to come is of a clock that was set back since, and is not new
            is_missed = isinstance(at, int) and self._report.recorded_until < at <= now
            if is_same and is_missed and name.endswith(_STARTED):
                whys[name] = Cause(cause)
        for name, why in whys.items():
            if whys.keys().isdisjoint(unit_properties.names_in(self._fields[name], "triggers")):
                self._report.happened(KIND, name, why)

    def put(self, name: str, fields: Fields, cause: str = "") -> bool:
        """Report a unit's fields; return whether to read it again soon.

        A new unit that was started is first reported as unloaded, with its file as the cause.
        """
        before, is_started = self._fields.get(name), False
        if not self.is_quiet:
            of_file = self._cause_of_file(name, fields)
            # a job or an exit just before changes states, and enables nothing
            is_of_run = cause.startswith(("job:", EXIT)) and before is not None
            cause = of_file if of_file and is_of_run else cause or of_file
            if before is None and is_with_file(name, fields, cause):
                self._new.add(name)
                is_up = fields.get("active_state") not in {"inactive", None}
                is_started = is_up or self._causes.jobs.has_work(name)
                if is_started:
                    fields = unit_properties.fields_of_unloaded(fields)
        self._fields[name] = fields
        self._tally(name, fields)
        self._of_earlier.discard(name)
        shown = self._with_facts(name)
        if self.is_quiet:
            return False
        why, event = self._causes.explain(name, before, fields, cause)
        if before and LOOP in before and LOOP in fields:
            # restarts in a loop are no events
            why, event = Cause(why.cause), None
        seen = unit_properties.newly_seen(before, fields)
        why = with_ended_pid(why._replace(ignored_fields=seen), before)
        self._report.put(KIND, name, shown, why)
        if event:
            self._report.happened(KIND, name, with_ended_pid(event, before))
        return is_started

    def put_missed_start(self, name: str) -> None:
        """Report that a unit that was starting came up, before it is read again."""
        fields = {n: value for n, value in self._fields[name].items() if n not in OF_END}
        self._fields[name] = fields | {"active_state": "active", "sub_state": "running"}
        self._new.add(name)
        self._report.put(
            KIND, name, self._with_facts(name), self._causes.explain_missed_start(name)
        )

    def remove(self, name: str, cause: str) -> None:
        """Report the removal of a unit and drop its fields."""
        self._documents.forget(name)
        of_file = self._cause_of_file(name, {})
        last = self._fields.pop(name, None)
        self._tally(name, {})
        if last is not None and not self.is_quiet:
            other = cause or self._causes.latest(name, last) or of_file
            cause = self._causes.explain_removal(name, last, other, of_file)
        self._report.gone(KIND, name, cause)

    def replace(self, cause: str) -> None:
        """Report all units; others that an earlier run stored are gone."""
        self.has_all = True
        self._report.replace(KIND, {name: self._with_facts(name) for name in self._fields}, cause)

    async def add_facts(self) -> None:
        """Look up new units in the host's documents, after they were reported.

        The facts are no change of a unit, and take no job from one.
        """
        while True:
            await self._documents.has_new.wait()
            for name in await self._documents.look_up():
                if name in self._fields:
                    self._report.put(
                        KIND, name, self._with_facts(name), Cause(ignored_fields=FACTS)
                    )

    def is_new(self, name: str) -> bool:
        """Return whether the appearance or start of a unit is still to be written."""
        if name in self._new and self._report.is_waiting(KIND, name):
            return True
        self._new.discard(name)
        return False

    def other_files(self, read: Mapping[str, Fields]) -> dict[str, set[str]]:
        """Return the files, of before and of now, of units that were read with other files."""
        if self.is_quiet:
            return {}
        found = {}
        for name, fields in read.items():
            # the drop-ins of a unit are only known if it was loaded
            is_known = self._has_file(name) and "load_state" in self._fields.get(name, fields)
            before, now = _files(self.last(name)), _files(fields)
            if is_known and before != now and not fields.get("transient"):
                found[name] = before | now
        return found

    def _tally(self, name: str, fields: Fields) -> None:
        is_failed = fields.get("active_state") == "failed"
        self._report.tally(name, {"failed": is_failed, "looping": bool(fields.get(LOOP))})

    def _cause_of_file(self, name: str, fields: Fields) -> str:
        """Return the cause of a change of a unit's file, which may be seen before a reload."""
        before = self.last(name)
        is_transient = before.get("transient") or fields.get("transient")
        is_other = any(before.get(key) != fields.get(key) for key in _OF_FILE)
        is_changed = self._has_file(name) and is_other and not is_transient
        return self._causes.reload if is_changed else ""

    def _has_file(self, name: str) -> bool:
        """Return whether this run has read the file of a unit: until all are listed, of few."""
        return self.has_all or (name in self._fields and name not in self._of_earlier)

    def _with_facts(self, name: str) -> Fields:
        fields = self._fields[name]
        return {**fields, **self._documents.facts_of(name, fields)}


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
        self.reported = _ReportedUnits(report, self._documents, self._causes)
        # when units came up last, and when they ended, in microseconds since 1970
        self._times: dict[str, tuple[Plain, Plain]] = {}
        # when new units were started, in seconds since 1970
        self._came: dict[str, float] = {}
        self._clock = asyncio.get_running_loop().time
        self._news = asyncio.Event()
        self._pace = Pace(self._clock)
        # units whose signals are still to come, until when, and the cause if none does
        self._waited_for: dict[str, tuple[float, str]] = {}
        # until when services that timers run are not read
        self._runs: dict[str, float] = {}
        self._is_reloading = False
        self._have_files_changed = False
        # when to list all units, and all unit files; and when that was done
        self._list_at = self._files_at = _NEVER
        self._listed_at = self._files_listed_at = 0.0
        self._folders = UnitFolders()
        self._loops = UnitLoops(self._clock)
        self._loaded: set[str] = set()
        # states of unit files that have changed since PID 1 read them
        self._states: dict[str, str] = {}

    async def list_first(self) -> None:
        """Subscribe to signals, then list all units: no change in between is lost."""
        rules = map(pid1.of_manager, _FOLLOWED)
        await self._pid1.subscribe(pid1.UNIT_CHANGED, pid1.SERVICE_CHANGED, *rules)
        await self._causes.date_reload(self._pid1)
        self._folders = UnitFolders(await self._pid1.folders())
        await self._folders.take_changes()
        stored = await self.reported.resume()
        for name, fields in stored.items():
            self._loops.resume(name, fields)
        await self._list()
        # units that were unloaded since; the files of others are listed later
        others = {name: self.reported.last(name) for name in self.reported.names - self._loaded}
        left = {
            name
            for name in others
            if unit_properties.fields_of_unloaded(others[name]) != others[name]
        }
        await self._report_unloaded(left, "")
        await self._documents.look_up()
        self.reported.begin(self.reported.names - self._loaded - left)
        if self._report.is_first:
            self.reported.report_missed(stored, self._times)
        self._files_at = self._clock() + self._options.files_after

    async def queue_changes(self) -> None:
        """Receive signals, and queue the units to read."""
        async for burst in self._pid1.bursts():
            for signal in burst:
                self._on_signal(signal)
            self._news.set()

    async def read_changes(self) -> None:
        """Read queued units, and list units or unit files, each when it is due."""
        while True:
            at = min(self._list_at, self._files_at, self._pace.next_at)
            async with at_most(at - self._clock()):
                await self._news.wait()
            self._news.clear()
            if self._have_files_changed:
                await self._read_changed_files()
            await self._read_names(self._pace.take(), self._cause_of_reload())
            if self._list_at <= self._clock():
                await self._list()
            if self._files_at <= self._clock():
                await self._list_files()

    def _cause_of_reload(self) -> str:
        """Return the cause of differences until units are listed after a reload."""
        is_due = self._is_reloading or self._list_at != _NEVER
        return self._causes.reload if is_due else ""

    def _on_signal(self, signal: Signal) -> None:
        if self._is_reloading and signal.member in _OF_ALL:
            return
        self._causes.on_signal(signal)
        now, options = self._clock(), self._options
        first = name = signal.body[0] if signal.body else None
        match signal.member:
            case "PropertiesChanged":
                name = pid1.unit_at(signal.path)
            case "JobRemoved":
                name = next(iter(signal.body[2:]), None)
            case "Reloading":
                self._is_reloading = first is True
                if not self._is_reloading:
                    # PID 1 has read the files again; units are listed later
                    self._states.clear()
                    self._have_files_changed = True
                    self._list_at = max(now, self._listed_at + options.units_every)
            case "UnitFilesChanged":
                self._have_files_changed = True
                due = max(now + options.files_after, self._files_listed_at + options.files_every)
                self._files_at = min(self._files_at, due)
        if unit_files.is_unit(name):
            self._pace.queue(name)

    def _take_signals(self) -> None:
        """Process the signals that PID 1 sent before its last answer: they may explain it."""
        for signal in self._pid1.take():
            self._on_signal(signal)

    async def _list(self) -> None:
        """Read all loaded units, new ones first; units that were unloaded are gone."""
        self._list_at = _NEVER
        units = await self._pid1.units()
        most = self._options.most_units
        self._report.busy(
            f"of {len(units):,} units {most:,} are observed" if len(units) > most else ""
        )
        units = units[:most]
        cause = self._causes.reload
        await self._report_unloaded(self._loaded - {unit.name for unit in units}, cause)
        known = [unit for unit in units if unit.name in self._loaded]
        await self._read([unit for unit in units if unit.name not in self._loaded], cause)
        for unit in known:
            await self._read([unit], cause)
            # others must not wait until all are read
            await self._read_names(self._pace.take(), cause)
        self._listed_at = self._clock()

    async def _read_names(self, names: Collection[str], cause: str) -> None:
        """Read the loaded units among the names; report the files of the others.

        The cause is that of changes other than of a unit's state.
        """
        if not names:
            return
        units = await self._pid1.units_of(names)
        self._take_signals()
        jobs = self._causes.jobs
        if jobs.are_unclear(names):
            jobs.set_types(await self._pid1.jobs())
        # units with jobs come first, and the units that they trigger before the triggers
        units.sort(key=lambda unit: (not jobs.has_work(unit.name), unit.name.endswith(TRIGGERS)))
        await self._read(units, cause)
        if unloaded := set(names) - {unit.name for unit in units}:
            await self._report_unloaded(unloaded, cause)

    async def _read(self, units: Collection[LoadedUnit], cause: str) -> None:
        """Read and report units that are loaded."""
        texts = await self._folders.describe(unit.name for unit in units if unit.state == "masked")
        read: dict[str, Fields] = {}
        for unit in units:
            if fields := await self._read_fields(unit, cause):
                read[unit.name] = texts.get(unit.name, {}) | fields
        if not self.reported.is_quiet:
            await self._documents.expect(read)
        times = await unit_files.find_change_times(self.reported.other_files(read))
        if self._is_reloading or self._have_files_changed:
            await self._causes.date_reload(self._pid1)
        for name, fields in read.items():
            # a unit that was started before a package run did not come with it
            at = min(times.get(name, _NEVER), self._came.pop(name, _NEVER))
            is_other = name in times
            of_files = self._causes.of_files(at) if is_other else cause or self._cause_of_reload()
            why = self._pop_waited_cause(name, of_files)
            if name not in self._loaded:
                why = why or self._causes.latest(name, fields)
            self._loaded.add(name)
            self._put(name, fields, why)

    async def _read_fields(self, unit: LoadedUnit, cause: str) -> Fields:
        """Return the fields of a loaded unit; nothing if it is to be read later."""
        name, is_quiet = unit.name, self.reported.is_quiet
        if self.reported.is_new(name):
            self._pace.queue(name, BURST_SECONDS)
            return {}
        values = await self._pid1.unit_properties(unit)
        self._take_signals()
        state = values.get("ActiveState")
        if not values or (values.get("LoadState"), state) == ("not-found", "inactive"):
            return {}  # it was unloaded meanwhile: a signal comes next
        is_new = name not in self._loaded and not is_quiet
        is_behind = self._causes.jobs.is_behind(name, values, is_new=is_new)
        if is_behind and self._must_wait(name, cause):
            return {}
        if state not in _UP and self._put_missed_start(name):
            return {}
        if state == "reloading" and not is_quiet and self._must_wait(name, cause, _RELOAD_SECONDS):
            return {}
        if self._is_short_run(name, values):
            return {}
        self._causes.jobs.set_read(name, values)
        if is_new and isinstance(at := values.get("StateChangeTimestamp"), int) and at:
            self._came[name] = at / 1e6
        if is_quiet:
            ended = values.get("InactiveEnterTimestamp")
            self._times[name] = values.get("ActiveEnterTimestamp"), ended
        fields = unit_properties.of_unit(values, self._states.get(name, ""))
        steady, again_in = self._loops.steady(name, fields)
        if again_in:
            self._pace.queue(name, again_in)
        return steady

    def _is_short_run(self, name: str, values: Values) -> bool:
        """Return whether a service that a timer runs may end soon; queue it for later if so."""
        is_run = unit_properties.is_short_run(values, self.reported.last(name))
        if not is_run or self.reported.is_quiet:
            self._runs.pop(name, None)
            return False
        now = self._clock()
        wait = self._runs.setdefault(name, now + self._options.run_seconds) - now
        if wait > 0:
            self._pace.queue(name, wait)
        return wait > 0

    def _put_missed_start(self, name: str) -> bool:
        """Report the start of a unit that is down, was starting when it was read last, and came up.

        Return whether that is still to be written; the unit is then queued for later. A restart
        loop, which is one state, is no start.
        """
        last = self.reported.last(name)
        is_starting = last.get("active_state") == "activating" and LOOP not in last
        if is_starting and not self.reported.is_quiet and self._causes.jobs.was_active(name):
            self.reported.put_missed_start(name)
        elif not self.reported.is_new(name):
            return False
        self._pace.queue(name, BURST_SECONDS)
        return True

    def _must_wait(self, name: str, cause: str, seconds: float = _WAIT_SECONDS) -> bool:
        """Return whether signals of a unit may still come; queue it for later if so."""
        until, _ = self._waited_for.setdefault(name, (self._clock() + seconds, cause))
        wait = until - self._clock()
        if wait > 0:
            self._pace.queue(name, wait)
        return wait > 0

    def _pop_waited_cause(self, name: str, cause: str) -> str:
        """Return the cause from before a unit's wait for signals, or else `cause`."""
        return self._waited_for.pop(name, (0.0, cause))[1]

    async def _report_unloaded(self, names: Collection[str], cause: str) -> None:
        """Report the files of unloaded units; a unit without a file is gone."""
        names = {
            name
            for name in names
            if not self._put_missed_start(name)
            if self._causes.has_left(name, self.reported.last(name))
            or not self._must_wait(name, cause)
        }
        self._loaded -= names
        for name in names:
            self._loops.forget(name)
            self._runs.pop(name, None)
            self._causes.jobs.set_read(name, {})
        await self._report_files(names, await self._pid1.files_of(names), cause)

    async def _report_files(
        self, names: Iterable[str], files: Mapping[str, UnitFile], cause: str
    ) -> None:
        there = [n for n in names if n in files and not self._folders.is_alias(files[n].path)]
        texts = await self._folders.describe(there)
        if not self.reported.is_quiet:
            await self._documents.expect({n: unit_properties.of_file(*files[n]) for n in there})
        for name in there:
            why = self._pop_waited_cause(name, cause)
            before = unit_properties.fields_of_unloaded(self.reported.last(name)) | texts.get(
                name, {}
            )
            fields = before | unit_properties.of_file(*files[name])
            self._put(name, fields, why or self._causes.latest(name, fields))
        left = set(names) - set(there)
        if left and not self.reported.is_quiet:
            await self._causes.date_reload(self._pid1)
        for name in left:
            self.reported.remove(name, self._pop_waited_cause(name, cause))

    async def _list_files(self) -> None:
        """Report all unit files that are not loaded; other units that are not loaded are gone."""
        self._files_at = _NEVER
        files = await self._pid1.files()
        cause = self._causes.reload if self.reported.has_all else ""
        self._files_listed_at = self._clock()
        self.reported.is_quiet = True
        await self._report_files((files.keys() | self.reported.names) - self._loaded, files, cause)
        await self._documents.look_up()
        self.reported.is_quiet = False
        # removes also units that an earlier run stored and that are gone
        self.reported.replace(cause)

    async def _read_changed_files(self) -> None:
        """Read the units whose files have changed, and whether they are enabled now."""
        self._have_files_changed = False
        await self._causes.date_reload(self._pid1)
        changed = await self._folders.take_changes()
        names = set(changed.times)
        if changed.has_undone:
            # a state in between may have been read, of any unit
            every = await self._pid1.files()
            names |= {name for name in every if self._is_other_state(name, every[name].state)}
            files = {name: every[name] for name in names & every.keys()}
        else:
            files = await self._pid1.files_of(names)
        self._documents.outdate(names)
        self._states |= {name: file.state for name, file in files.items()}
        by_cause: dict[str, list[str]] = {}
        for name in names:
            at = changed.times.get(name, _NEVER)
            by_cause.setdefault(self._causes.of_files(at), []).append(name)
        for cause, each in by_cause.items():
            await self._read_names(each, cause)

    def _is_other_state(self, name: str, state: str) -> bool:
        """Return whether a unit's file was reported, in another state."""
        last = self.reported.last(name).get("unit_file_state")
        return last is not None and last != state

    def _put(self, name: str, fields: Fields, cause: str) -> None:
        if self.reported.put(name, fields, cause):
            self._pace.queue(name)


def _files(fields: Fields) -> set[str]:
    paths = [fields.get("fragment_path"), *unit_properties.names_in(fields, "drop_ins")]
    return {str(path) for path in paths if path}


OBSERVER: Final = Observer(
    "systemd",
    "systemd",
    observe,
    volatile={KIND: unit_properties.VOLATILE},
    derived={KIND: FACTS},
)
