"""What PID 1 is asked: never anything that would load a unit."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Final, NamedTuple

from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.observe.report import LostSource
from opdbus.observe.system_bus import Service
from opdbus.observe.unit_files import is_unit

NAME: Final = "org.freedesktop.systemd1"
_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = f"{NAME}.Manager"
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"
_UNITS: Final = f"{_PATH}/unit"
# PID 1 does nothing else while it lists all unit files, for a second or longer.
_FILES_SECONDS: Final = 120.0
# It compares each name with each unit: for more names, all units are listed.
_MAX_NAMES: Final = 200
_ESCAPED: Final = re.compile("_([0-9a-f]{2})")


class Loaded(NamedTuple):
    """A unit that PID 1 has loaded: its name, the path of its object, and its load state."""

    name: str
    path: str
    state: str


class UnitFile(NamedTuple):
    """Where a unit file is, and in systemd's words whether it is enabled."""

    path: str
    state: str


class Pid1:
    """Systemd's manager; every method raises LostSource if it does not answer as it should."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def subscribe(self) -> None:
        """Have PID 1 send signals, and receive those of units and of the manager."""
        try:
            await self._service.call(_PATH, f"{_MANAGER}.Subscribe")
        except RemoteError as error:
            if not error.name.endswith(".AlreadySubscribed"):
                raise LostSource(f"PID 1 refused Subscribe: {error}") from None
        # what is special to a unit's type changes only together with what all units have
        changed = f"interface='{_PROPERTIES}',member='PropertiesChanged',arg0='{NAME}.Unit'"
        await self._service.follow(f"path_namespace='{_UNITS}',{changed}")
        for member in ("UnitNew", "UnitRemoved", "Reloading", "UnitFilesChanged"):
            await self._service.follow(f"path='{_PATH}',interface='{_MANAGER}',member='{member}'")

    async def folders(self) -> list[str]:
        """Return the folders of unit files, the first one counts."""
        folders = await self._ask(f"{_PROPERTIES}.Get", "ss", _MANAGER, "UnitPath")
        return [folder for folder in _listed(folders) if isinstance(folder, str)]

    async def units(self) -> list[Loaded]:
        """Return all units that are loaded."""
        return _loaded(await self._ask(f"{_MANAGER}.ListUnits"))

    async def units_of(self, names: Collection[str]) -> list[Loaded]:
        """Return those of some units that are loaded."""
        if len(names) > _MAX_NAMES:
            return [unit for unit in await self.units() if unit.name in names]
        method = f"{_MANAGER}.ListUnitsByPatterns"
        return _loaded(await self._ask(method, "asas", [], list(names)))

    async def properties(self, unit: Loaded) -> Mapping[str, Plain]:
        """Return all properties of a unit that is loaded; nothing if it is not any more."""
        with suppress(RemoteError):
            return await self._service.properties(unit.path, "")
        return {}

    async def files(self) -> dict[str, UnitFile]:
        """Return all unit files by name, which takes PID 1 a second or longer."""
        return _files(await self._ask(f"{_MANAGER}.ListUnitFiles", seconds=_FILES_SECONDS))

    async def files_of(self, names: Collection[str]) -> dict[str, UnitFile]:
        """Return those of some unit files that there are, by name."""
        if not names:
            return {}
        method = f"{_MANAGER}.ListUnitFilesByPatterns"
        return _files(await self._ask(method, "asas", [], list(names), seconds=_FILES_SECONDS))

    async def _ask(
        self, member: str, signature: str = "", *arguments: Plain, seconds: float = 10.0
    ) -> Plain:
        try:
            answer = await self._service.call(_PATH, member, signature, *arguments, seconds=seconds)
        except RemoteError as error:
            raise LostSource(f"PID 1 refused {member.rpartition('.')[2]}: {error}") from None
        return answer[0] if answer else None


def unit_at(path: str) -> str:
    """Return the name of the unit whose object is at a path."""
    escaped = path.removeprefix(f"{_UNITS}/")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), escaped)


def _listed(value: Plain) -> list[Plain]:
    return value if isinstance(value, list) else []


def _loaded(rows: Plain) -> list[Loaded]:
    """Return the units of a listing; a unit that others only name is not there."""
    found = []
    for row in _listed(rows):
        with suppress(TypeError, ValueError):
            name, _, state, _, _, _, path, *_ = row
            if is_unit(name) and state != "not-found" and str(path).startswith(_UNITS):
                found.append(Loaded(name, str(path), str(state)))
    return found


def _files(rows: Plain) -> dict[str, UnitFile]:
    """Return the unit files of a listing; another name of a unit is no unit of its own."""
    found = {}
    for row in _listed(rows):
        with suppress(TypeError, ValueError):
            path, state = row
            name = PurePath(path).name
            if is_unit(name) and state != "alias":
                found[name] = UnitFile(path, str(state))
    return found
