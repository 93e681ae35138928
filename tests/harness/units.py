"""A PID 1 that is none: units and unit files in tables, on a private bus, every call counted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.observing import FakeService, fake_service

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = f"{NAME}.Manager"
UNIT = f"{NAME}.Unit"
_DOWN = ("inactive", "failed")
_STAMPS = [
    f"{name}TimestampMonotonic"
    for name in ("InactiveExit", "ActiveExit", "InactiveEnter", "StateChange")
]
_ROW = "(ssssssouso)"


def path_of(name: str) -> str:
    """Return the path of a unit's object."""
    escaped = "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)
    return f"{PATH}/unit/{escaped}"


def install_tidy(folder: Path, unit_file: str) -> None:
    """Write dpkg's record of a package `tidy`, of which a unit's file is."""
    (folder / "dpkg" / "info").mkdir(parents=True)
    (folder / "dpkg" / "info" / "tidy.list").write_text(f"{unit_file}\n")
    status = "Package: tidy\nStatus: install ok installed\nDescription: tidies up\n"
    (folder / "dpkg" / "status").write_text(status)


@dataclass
class FakePid1:
    """Units that are loaded, with their properties, and the states of unit files by path."""

    service: FakeService
    folder: Path
    units: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    jobs: list[list[Any]] = field(default_factory=list)
    # in the units of PID 1's timestamps
    clock: int = 1000
    # when it read unit files, in seconds since 1970; 0 for a systemd that does not say so
    loaded_at: float = 0.0

    def __post_init__(self) -> None:
        """Answer what an observer asks."""
        self.service.answers = {
            f"{MANAGER}.Subscribe": lambda _: ("", []),
            "org.freedesktop.DBus.Properties.Get": self._property,
            f"{MANAGER}.ListUnits": lambda _: (f"a{_ROW}", [self._rows(self.units)]),
            f"{MANAGER}.ListUnitsByPatterns": lambda _path, _states, names: (
                f"a{_ROW}",
                [self._rows([name for name in names if name in self.units])],
            ),
            f"{MANAGER}.ListJobs": lambda _: ("a(usssoo)", [self.jobs]),
            f"{MANAGER}.ListUnitFiles": lambda _: ("a(ss)", [list(map(list, self.files.items()))]),
            f"{MANAGER}.ListUnitFilesByPatterns": lambda _path, _states, names: (
                "a(ss)",
                [[[path, state] for path, state in self.files.items() if Path(path).name in names]],
            ),
        }

    def _property(self, _path: str, _interface: str, name: str) -> tuple[str, list[Any]]:
        values: dict[str, Any] = {"UnitPath": [str(self.folder)]}
        if self.loaded_at:
            values["UnitsLoadTimestamp"] = int(self.loaded_at * 1e6)
        return "v", [values[name]]

    def _rows(self, names: Any) -> list[list[Any]]:
        rows = []
        for name in names:
            values = self.units[name]
            states = values["LoadState"], values["ActiveState"], values["SubState"]
            row = [name, values["Description"], *states, "", path_of(name), 0, "", "/"]
            rows.append(row)
        return rows

    def load(self, name: str, **values: Any) -> None:
        """Have a unit loaded, without saying so."""
        known = {"Id": name, "Names": [name], "Description": f"The {name}", "LoadState": "loaded"}
        states = {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "static"}
        self.units[name] = known | states | values
        self.service.properties[path_of(name)] = self.units[name]

    def unload(self, name: str) -> None:
        """Have a unit not loaded any more, without saying so."""
        del self.units[name], self.service.properties[path_of(name)]

    def change(self, name: str, **values: Any) -> None:
        """Change properties of a unit, and say so as PID 1 does: not everything is said."""
        self.units[name] |= values
        told = {"ActiveState": self.units[name]["ActiveState"]}
        self.service.changed(path_of(name), UNIT, **told)

    def work(self, name: str, job: int, *states: tuple[str, str]) -> None:
        """Have a job bring a unit into states, one after another; 0 is none: it changes itself."""
        self._say(name, job)
        for active, sub in states:
            self.units[name] |= {"ActiveState": active, "SubState": sub}
            self._moved(name, active)
            self._say(name, job)

    def end(self, name: str, job: int, result: str = "done") -> None:
        """Have a job end."""
        self.tell("JobRemoved", "uoss", job, f"{PATH}/job/{job}", name, result)
        if name in self.units:
            self._say(name, 0)

    def _moved(self, name: str, active: str) -> None:
        values, self.clock = self.units[name], self.clock + 1
        is_up, was_up = active not in _DOWN, bool(values.get("is_up"))
        values |= {"is_up": is_up, "StateChangeTimestampMonotonic": self.clock}
        if is_up != was_up:
            stamp = "InactiveExit" if is_up else "InactiveEnter"
            values[f"{stamp}TimestampMonotonic"] = self.clock

    def _say(self, name: str, job: int) -> None:
        values = self.units[name]
        told = {key: values.get(key, 0) for key in _STAMPS}
        told |= {"SubState": values["SubState"]}
        told |= {"ActiveState": values["ActiveState"], "Job": [job, f"{PATH}/job/{job}"]}
        self.service.changed(path_of(name), UNIT, **told)

    def tell(self, member: str, signature: str = "", *values: Any) -> None:
        """Send a signal of the manager."""
        self.service.signal(PATH, f"{MANAGER}.{member}", signature, *values)

    def tell_reloading(self, *, begins: bool) -> None:
        """Send that a reload begins, or that it is over."""
        self.tell("Reloading", "b", begins)

    def tell_of(self, member: str, name: str) -> None:
        """Send UnitNew or UnitRemoved."""
        self.tell(member, "so", name, path_of(name))

    def file(self, name: str, state: str, text: str = "[Unit]\n") -> Path:
        """Write a unit file."""
        path = self.folder / name
        path.write_text(text)
        self.files[str(path)] = state
        return path

    def asked(self, member: str, since: int = 0) -> list[tuple[str, list[Any]]]:
        """Return the paths and arguments of the calls of a method."""
        calls = self.service.calls[since:]
        return [(path, body) for path, name, body in calls if name.endswith(f".{member}")]

    @property
    def read(self) -> list[str]:
        """The paths whose properties were read, in order."""
        return [path for path, _ in self.asked("GetAll")]


@asynccontextmanager
async def fake_pid1(address: str, folder: Path) -> AsyncIterator[FakePid1]:
    """Serve as PID 1 on a bus, with unit files in a folder that there is."""
    async with fake_service(address, NAME) as service:
        yield FakePid1(service, folder)
