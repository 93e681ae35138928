"""Reported properties of each unit, and the report of changes with their causes."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.history.change import START, Why
from opdbus.observe.core.report import Report
from opdbus.observe.systemd import unit_properties
from opdbus.observe.systemd.unit_causes import UnitCauses, is_with_file, listed
from opdbus.observe.systemd.unit_documents import FACTS, UnitDocuments
from opdbus.observe.systemd.unit_loops import LOOP
from opdbus.state.object import Json

KIND: Final = "unit"
# Units that are started and stopped; others change with the kernel, or with what they hold.
_STARTED: Final = (".service", ".socket", ".timer", ".path")
_OF_FILE: Final = ("fragment_path", "unit_file_state")
# How a unit's properties come from PID 1, or from its file.
Told = dict[str, Json]


class UnitReport:
    """Last reported properties of each unit, without the facts from documents."""

    def __init__(self, report: Report, documents: UnitDocuments, causes: UnitCauses) -> None:
        self._report = report
        self._documents = documents
        self._causes = causes
        self._told: dict[str, Told] = {}
        # new units: that they came with their files is written before they are read again
        self._started: set[str] = set()
        # units of which only an earlier run said what their files are
        self._of_earlier: set[str] = set()
        # while many are read, to be reported together at the end
        self.is_quiet = True
        # whether all unit files were listed
        self.has_all = False

    async def resume(self) -> Mapping[str, Mapping[str, Json]]:
        """Load and return the properties that an earlier run stored."""
        stored = await self._report.stored(KIND)
        self._told = {name: self._documents.remember(name, stored[name]) for name in stored}
        return stored

    @property
    def names(self) -> AbstractSet[str]:
        """Names of the reported units."""
        return self._told.keys()

    def last(self, name: str) -> Mapping[str, Json]:
        """Return a unit's last reported properties; empty for an unreported unit."""
        return self._told.get(name, {})

    def left_since(self, loaded: AbstractSet[str]) -> set[str]:
        """Return the units that were told of as loaded, and are not any more."""
        told = {name: self._told[name] for name in self._told.keys() - loaded}
        return {name for name in told if unit_properties.unloaded(told[name]) != told[name]}

    def begin(self, of_earlier: AbstractSet[str]) -> None:
        """Report all units, but for those of which only an earlier run told."""
        self.is_quiet = False
        self._of_earlier = set(of_earlier)
        for name in self._told.keys() - self._of_earlier:
            self.tell(name, self._told[name])

    def tell_since(
        self, stored: Mapping[str, Mapping[str, Json]], times: Mapping[str, tuple[Plain, Plain]]
    ) -> None:
        """Report which units came up or ended since op-dbus ran, and are as they were before.

        `times` are when each came up last and when it ended, in microseconds since 1970. A socket
        or timer that was restarted with its service is told of with that.
        """
        whys: dict[str, Why] = {}
        for name, (up, ended) in times.items():
            state = self._told[name].get("active_state")
            is_same = stored.get(name, {}).get("active_state") == state
            at, cause = {
                "active": (up, ""),
                "failed": (ended, f"{START}:failed"),
                "inactive": (ended, f"{START}:ran"),
            }.get(str(state), (0, ""))
            is_new = isinstance(at, int) and at > self._report.recorded_until
            if is_same and is_new and name.endswith(_STARTED):
                whys[name] = Why(cause)
        for name, why in whys.items():
            if whys.keys().isdisjoint(listed(self._told[name], "triggers")):
                self._report.happened(KIND, name, why)

    def tell(self, name: str, properties: Told, cause: str = "") -> bool:
        """Report a unit's properties; return whether to read it again soon.

        A new unit that was started is first reported as unloaded, with its file as the cause.
        """
        before, is_in_parts = self._told.get(name), False
        if not self.is_quiet:
            cause = cause or self.of_file(name, properties)
            if before is None and is_with_file(name, properties, cause):
                self._started.add(name)
                is_in_parts = properties.get("active_state") not in {"inactive", None}
                if is_in_parts := is_in_parts or self._causes.was_started(name):
                    properties = unit_properties.unloaded(properties)
        self._told[name] = properties
        self._of_earlier.discard(name)
        shown = self._shown(name)
        if not self.is_quiet:
            self._put(name, before, shown, cause)
        return is_in_parts

    def _put(self, name: str, before: Mapping[str, Json] | None, shown: Told, cause: str) -> None:
        now = self._told[name]
        why, event = self._causes.whys(name, before, now, cause)
        if before and LOOP in before and LOOP in now:
            # restarts in a loop are no events
            why, event = Why(why.cause), None
        seen = unit_properties.newly_seen(before, now)
        self._report.put(KIND, name, shown, why._replace(seen=seen))
        if event:
            self._report.happened(KIND, name, event)

    def left(self, name: str, cause: str) -> None:
        """Report the removal of a unit and drop its properties."""
        self._documents.forget(name)
        of_file = self.of_file(name, {})
        last = self._told.pop(name, None)
        if last is not None and not self.is_quiet:
            other = cause or self._causes.latest(name, last) or of_file
            cause = self._causes.why_gone(name, last, other, of_file)
        self._report.gone(KIND, name, cause)

    def replace(self, cause: str) -> None:
        """Report all units that were told of; what an earlier run stored besides is gone."""
        self.has_all = True
        self._report.replace(KIND, {name: self._shown(name) for name in self._told}, cause)

    async def describe(self) -> None:
        """Look up in the host's documents what new units are, after they were reported.

        That it is known only now is no change of a unit, and takes no job from what is.
        """
        while True:
            await self._documents.has_new.wait()
            for name in await self._documents.look_up():
                if name in self._told:
                    self._report.put(KIND, name, self._shown(name), Why(seen=FACTS))

    def is_coming(self, name: str) -> bool:
        """Return whether it is still to be written that a unit came."""
        if name in self._started and self._report.is_waiting(KIND, name):
            return True
        self._started.discard(name)
        return False

    def other_files(self, read: Mapping[str, Told]) -> dict[str, set[str]]:
        """Return the files, of before and of now, of those units that have others than before."""
        if self.is_quiet:
            return {}
        before = {name: _files(self.last(name)) for name in read if self._knows(name)}
        # which drop-ins there are is seen when a unit is loaded
        known = [name for name in before if "load_state" in self._told.get(name, read[name])]
        now = {name: _files(read[name]) for name in known if not read[name].get("transient")}
        return {name: before[name] | now[name] for name in now if before[name] != now[name]}

    def of_file(self, name: str, now: Mapping[str, Json]) -> str:
        """Return the cause of a change of a unit's file, which may be seen before a reload."""
        before = self.last(name)
        is_transient = before.get("transient") or now.get("transient")
        is_other = any(before.get(key) != now.get(key) for key in _OF_FILE)
        is_changed = self._knows(name) and is_other and not is_transient
        return self._causes.reload if is_changed else ""

    def _knows(self, name: str) -> bool:
        """Return whether it is known what a unit's file was: until all are listed, of few."""
        is_told = name in self._told and name not in self._of_earlier
        return is_told or self.has_all

    def _shown(self, name: str) -> Told:
        told = self._told[name]
        return {**told, **self._documents.of(name, told)}


def _files(told: Mapping[str, Json]) -> set[str]:
    drop_ins = told.get("drop_ins")
    found = [told.get("fragment_path"), *(drop_ins if isinstance(drop_ins, list) else ())]
    return {str(path) for path in found if path}
