"""Observer of containers and virtual machines that are registered with systemd-machined."""

from contextlib import suppress
from functools import partial
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.observe.core.report import MAX_OBJECTS, LostSource, Observer, Report
from opdbus.observe.core.system_bus import Service, until_owned

_NAME: Final = "org.freedesktop.machine1"
_PATH: Final = "/org/freedesktop/machine1"
# machined lists the host itself as a machine.
_SELF: Final = ".host"
# The properties that are reported, and their field names.
_FIELDS: Final = {
    "Class": "type", "Service": "service", "Unit": "unit", "RootDirectory": "root",
    "State": "state", "Timestamp": "since",
}  # fmt: skip
_TYPES: Final = {"vm": "virtual machine"}


async def observe(report: Report) -> None:
    """Follow machined; raises Absent also when it exits, as it does without machines."""
    try:
        # by the machine's path; kept because each query starts a process in machined
        systems: dict[str, str] = {}
        async with Service(_NAME) as machined:
            await machined.follow(f"path_namespace='{_PATH}'")
            await _list(machined, report, systems)
            async for _ in machined.bursts():
                await _list(machined, report, systems)
    except LostSource:
        async with Service(_NAME):
            raise


async def _list(machined: Service, report: Report, systems: dict[str, str]) -> None:
    (rows,) = await machined.call(_PATH, f"{_NAME}.Manager.ListMachines")
    found = {}
    for name, _, _, path in rows[:MAX_OBJECTS]:
        if name == _SELF:
            continue
        with suppress(RemoteError):  # it has ended meanwhile
            values = await machined.properties(path, f"{_NAME}.Machine")
            if path not in systems:
                systems[path] = await _operating_system(machined, name)
            fields = {field: values[key] for key, field in _FIELDS.items() if values.get(key)}
            kind = str(fields.get("type", "machine"))
            fields["type"] = _TYPES.get(kind, kind)
            described = ", ".join(filter(None, (fields["type"], systems[path])))
            found[name] = {"description": described} | fields
            if systems[path]:
                found[name]["os"] = systems[path]
    for path in systems.keys() - {row[3] for row in rows}:
        del systems[path]
    report.replace("machine", found)


async def _operating_system(machined: Service, name: str) -> str:
    """Return the name of the machine's operating system; empty if machined reports none."""
    with suppress(RemoteError):
        (release,) = await machined.call(_PATH, f"{_NAME}.Manager.GetMachineOSRelease", "s", name)
        return str(release.get("PRETTY_NAME", ""))
    return ""


OBSERVER: Final = Observer("machined", "machined", observe, appears=partial(until_owned, _NAME))
