"""D-Bus calls to systemd's manager; none of them loads a unit."""

import asyncio
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Final, NamedTuple

from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.observe.core.report import Absent, LostSource
from opdbus.observe.core.system_bus import Service
from opdbus.observe.systemd.unit_files import is_unit

NAME: Final = "org.freedesktop.systemd1"
_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = f"{NAME}.Manager"
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_UNITS: Final = f"{_PATH}/unit"
SERVICE: Final = f"{NAME}.Service"
# Type-specific properties change only together with those of the Unit interface. The Service
# interface is followed as well, because a restart overwrites how the process before ended.
_CHANGED: Final = f"path_namespace='{_UNITS}',interface='{_PROPERTIES}',member='PropertiesChanged'"
UNIT_CHANGED: Final = f"{_CHANGED},arg0='{NAME}.Unit'"
SERVICE_CHANGED: Final = f"{_CHANGED},arg0='{SERVICE}'"
# Listing all unit files blocks PID 1 for a second or longer.
_FILES_SECONDS: Final = 120.0
# PID 1 compares each name with each unit; for more names, list all units instead.
_MAX_NAMES: Final = 200
_ESCAPED: Final = re.compile("_([0-9a-f]{2})")
_PROTOCOLS: Final = {"Stream": "tcp", "Datagram": "udp"}
_REQUIREMENTS: Final = ("Requires", "Requisite", "BindsTo", "PartOf", "Wants", "Upholds")
# Nearly every unit requires some of these, which say nothing about it.
_REQUIRED_BY_MOST: Final = (".target", ".slice")
_REQUIREMENTS_SECONDS: Final = 2.0


class LoadedUnit(NamedTuple):
    """A loaded unit: name, description, load state and D-Bus object path."""

    name: str
    description: str
    state: str
    path: str


class UnitFile(NamedTuple):
    """A unit file's path and its state as systemd names it, such as `enabled`."""

    path: str
    state: str


class Boot(NamedTuple):
    """A run of the host: its id, and when it began, in seconds since 1970 (0: unknown)."""

    id: str
    at: float = 0.0


class Pid1(Service):
    """Connection to systemd's manager; methods raise LostSource when PID 1 does not answer.

    `loaded_at` and `unit_properties` return an empty value when PID 1 answers with an error.
    """

    def __init__(self) -> None:
        super().__init__(NAME)

    async def subscribe(self, *rules: str) -> None:
        """Subscribe to PID 1's signals and receive those that match one of the rules."""
        try:
            await self.call(_PATH, f"{_MANAGER}.Subscribe")
        except RemoteError as error:
            if not error.name.endswith(".AlreadySubscribed"):
                raise LostSource(f"PID 1 refused Subscribe: {error}") from None
        for rule in rules:
            await self.follow(rule)

    async def own_properties(self) -> Mapping[str, Plain]:
        """Return the properties of the Manager interface."""
        try:
            return await self.properties(_PATH, _MANAGER)
        except RemoteError as error:
            raise LostSource(f"PID 1 refused its properties: {error}") from None

    async def folders(self) -> list[str]:
        """Return the folders of unit files; earlier folders take precedence."""
        folders = await self._ask(f"{_PROPERTIES}.Get", "ss", _MANAGER, "UnitPath")
        return [folder for folder in folders if isinstance(folder, str)]

    async def loaded_at(self) -> float:
        """Return when PID 1 last loaded its units, in seconds since 1970; 0 if unknown."""
        with suppress(RemoteError):
            name = "UnitsLoadTimestamp"
            match await self.call(_PATH, f"{_PROPERTIES}.Get", "ss", _MANAGER, name):
                case [int(at)]:
                    return at / 1e6
        return 0.0

    async def units(self) -> list[LoadedUnit]:
        """Return all loaded units."""
        return list(_parse_units(await self._ask(f"{_MANAGER}.ListUnits")))

    async def units_of(self, names: Collection[str]) -> list[LoadedUnit]:
        """Return the loaded units among the names."""
        if len(names) > _MAX_NAMES:
            return [unit for unit in await self.units() if unit.name in names]
        return await self._units_by_patterns([], names)

    async def active(self, patterns: Collection[str]) -> list[LoadedUnit]:
        """Return the active units whose names match a pattern such as `*.mount`."""
        return await self._units_by_patterns(["active"], patterns)

    async def unit_properties(self, unit: LoadedUnit, interface: str = "") -> Mapping[str, Plain]:
        """Return a unit's properties, of all interfaces or one; empty if it was unloaded."""
        with suppress(RemoteError):
            return await self.properties(unit.path, interface)
        return {}

    async def files(self) -> dict[str, UnitFile]:
        """Return all unit files by name; this blocks PID 1 for a second or longer."""
        rows = await self._ask(f"{_MANAGER}.ListUnitFiles", seconds=_FILES_SECONDS)
        return dict(_parse_files(rows))

    async def files_of(self, names: Collection[str]) -> dict[str, UnitFile]:
        """Return the existing unit files among the names, by name."""
        if not names:
            return {}
        method = f"{_MANAGER}.ListUnitFilesByPatterns"
        rows = await self._ask(method, "asas", [], list(names), seconds=_FILES_SECONDS)
        return dict(_parse_files(rows))

    async def jobs(self) -> dict[int, str]:
        """Return the types of all current jobs, such as `restart`, by job number."""
        found = {}
        for row in await self._ask(f"{_MANAGER}.ListJobs"):
            with suppress(TypeError, ValueError):
                number, _, name, *_ = row
                found[int(number)] = str(name)
        return found

    async def _units_by_patterns(
        self, states: list[str], patterns: Collection[str]
    ) -> list[LoadedUnit]:
        method = f"{_MANAGER}.ListUnitsByPatterns"
        return list(_parse_units(await self._ask(method, "asas", states, list(patterns))))

    async def _ask(
        self, member: str, signature: str = "", *arguments: Plain, seconds: float = 10.0
    ) -> list[Plain]:
        """Call a method that answers with one list."""
        try:
            answer = await self.call(_PATH, member, signature, *arguments, seconds=seconds)
        except RemoteError as error:
            raise LostSource(f"PID 1 refused {member.rpartition('.')[2]}: {error}") from None
        return answer[0] if answer and isinstance(answer[0], list) else []


async def socket_units() -> dict[str, str]:
    """Return active socket units by port, such as `tcp [::]%lo:22`; raise Absent or LostSource."""
    found: dict[str, str] = {}
    async with Pid1() as manager:
        for unit in await manager.active(["*.socket"]):
            values = await manager.unit_properties(unit, f"{NAME}.Socket")
            for kind, address in values.get("Listen", []):
                # an address of one interface may name that behind the port
                plain, _, scope = str(address).partition("%")
                host, _, port = plain.rpartition(":")
                if device := values.get("BindToDevice") or scope:
                    plain = f"{host}%{device}:{port}"
                found[f"{_PROTOCOLS.get(kind, kind)} {plain}"] = unit.name
    return found


async def descriptions(units: Collection[str]) -> dict[str, str]:
    """Return the descriptions of the loaded units; raise Absent or LostSource."""
    async with Pid1() as manager:
        return {unit.name: unit.description for unit in await manager.units_of(units)}


async def find_boot(kernels_id: str, seconds: float = _REQUIREMENTS_SECONDS) -> Boot:
    """Return this run of the host, which begins with PID 1; `kernels_id` is the kernel's id of it.

    A container, of which PID 1 has no time of the kernel, has a run of its own, whose id a sandbox
    may hide: then the id is made of the time.
    """
    with suppress(Absent, LostSource, TimeoutError):
        async with asyncio.timeout(seconds), Pid1() as manager:
            values = await manager.own_properties()
            at, of_kernel = (values.get(f"{name}Timestamp") for name in ("Userspace", "Kernel"))
            if isinstance(at, int) and at:
                made = hashlib.sha256(f"{kernels_id} {at}".encode()).hexdigest()[:32]
                return Boot(kernels_id if kernels_id and of_kernel else made, at / 1e6)
    return Boot(kernels_id)


async def active_units(names: Collection[str]) -> list[str]:
    """Return the active units among the names; none where PID 1 does not answer."""
    with suppress(Absent, LostSource):
        async with Pid1() as manager:
            return [unit.name for unit in await manager.active(names)]
    return []


async def required_by(unit: str) -> Collection[str]:
    """Return the units that a loaded unit requires or wants; none where PID 1 does not answer."""
    with suppress(Absent, LostSource, TimeoutError):
        async with asyncio.timeout(_REQUIREMENTS_SECONDS), Pid1() as manager:
            for loaded in await manager.units_of([unit]):
                if loaded.name == unit:  # and is no pattern
                    values = await manager.unit_properties(loaded, f"{NAME}.Unit")
                    names = {str(name) for key in _REQUIREMENTS for name in values.get(key) or ()}
                    return sorted(n for n in names if not n.endswith(_REQUIRED_BY_MOST))
    return []


def of_manager(member: str) -> str:
    """Return the match rule of a signal of the manager, such as UnitNew."""
    return f"path='{_PATH}',interface='{_MANAGER}',member='{member}'"


def unit_at(path: str) -> str:
    """Return the unit name that a D-Bus object path encodes."""
    escaped = path.removeprefix(f"{_UNITS}/")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), escaped)


def _parse_units(rows: list[Plain]) -> Iterator[LoadedUnit]:
    """Parse a unit listing, without inactive units that have no file.

    An active unit without a file is kept.
    """
    for row in rows:
        with suppress(TypeError, ValueError):
            name, description, state, active, _, _, path, *_ = row
            is_there = state != "not-found" or active != "inactive"
            if is_unit(name) and is_there and str(path).startswith(_UNITS):
                yield LoadedUnit(name, str(description), str(state), str(path))


def _parse_files(rows: list[Plain]) -> Iterator[tuple[str, UnitFile]]:
    """Parse a listing of unit files, without aliases."""
    for row in rows:
        with suppress(TypeError, ValueError):
            path, state = row
            name = PurePath(path).name
            if is_unit(name) and state != "alias":
                yield name, UnitFile(path, str(state))
