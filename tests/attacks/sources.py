"""Sources that mean harm, each a program: PID 1, logind, and a service to mirror."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any

from harness.observing import FakeService

from attacks.planted import (
    LAMPS,
    LISTED,
    LOGIND,
    MACHINED,
    MANAGED,
    MARK,
    MIRRORED,
    PID1,
    serve_secrets,
)
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.message_socket import Written
from opdbus.bus.transport.messages import new_signal

SECRET = f"{MARK}-PLANTED"
UNITS, SESSIONS = "/org/freedesktop/systemd1/unit", "/org/freedesktop/login1/session"
MACHINES = "/org/freedesktop/machine1/machine"
LAMP = f"{MIRRORED}.Lamp"
CHANGED = "org.freedesktop.DBus.Properties.PropertiesChanged"
_ADDED, _NEW = "org.freedesktop.DBus.ObjectManager.InterfacesAdded", "oa{sa{sv}}"
# Of RequestName: others may replace us, we replace others (D-Bus specification).
_REPLACING = 1 | 2
# A little less than the largest message that a bus takes.
_LARGEST = 31 << 20
# Signals that are sent together.
_TOGETHER = 500
_NAMES = (
    f"password={SECRET}",
    "\x1b[2J\x07bell",
    "right\u202eto left",
    "two\nlines\r",
    "../../etc/shadow",
    "x" * 100_000,
    "",
)
_Rows = list[list[Any]]


def sane(services: dict[str, FakeService], units: int = 300) -> None:
    """Answer as PID 1, logind, machined and a service with lamps do."""
    names = [f"unit{n}.service" for n in range(units)]
    rows = [_unit(name, f"{UNITS}/{name.replace('.', '_2e')}") for name in names]
    serve(services, rows, [["1", 1000, "alice", "seat0", f"{SESSIONS}/_31"]])
    for row in rows:
        services[PID1].properties[row[6]] = {
            "Id": row[0],
            "LoadState": "loaded",
            "ActiveState": "active",
            "Description": f"{row[0]} --password={SECRET}",
        }
    services[LOGIND].properties[f"{SESSIONS}/_31"] = {"Name": "alice", "TTY": f"token={SECRET}"}
    serve_lamps(services, {f"{LAMPS}/{n}": {"Name": f"lamp{n}"} for n in range(50)})


def serve(services: dict[str, FakeService], units: _Rows, sessions: _Rows) -> None:
    """Answer with these rows, each of them as ListUnits and ListSessions have them."""
    manager = f"{PID1}.Manager"
    services[PID1].answers = {
        f"{manager}.Subscribe": lambda _: ("", []),
        f"{manager}.ListUnits": lambda _: ("a(ssssssouso)", [units]),
        f"{manager}.ListUnitsByPatterns": lambda *_: ("a(ssssssouso)", [units]),
        f"{manager}.ListUnitFiles": lambda _: ("a(ss)", [[]]),
        f"{manager}.ListUnitFilesByPatterns": lambda *_: ("a(ss)", [[]]),
        "org.freedesktop.DBus.Properties.Get": lambda *_: ("v", [["/nowhere"]]),
    }
    manager = f"{LOGIND}.Manager"
    services[LOGIND].answers = {
        f"{manager}.ListSessions": lambda _: ("a(susso)", [sessions]),
        f"{manager}.ListUsers": lambda _: ("a(uso)", [[]]),
        f"{manager}.ListSeats": lambda _: ("a(so)", [[]]),
        f"{manager}.ListInhibitors": lambda _: ("a(ssssuu)", [[]]),
    }
    services[MACHINED].answers = {f"{MACHINED}.Manager.ListMachines": lambda _: ("a(ssso)", [[]])}


def serve_lamps(services: dict[str, FakeService], lamps: dict[str, dict[str, Any]]) -> None:
    """Have lamps with these properties at these paths."""
    tree = {path: {LAMP: lamp} for path, lamp in lamps.items()}
    services[MIRRORED].answers = {MANAGED: lambda _: (LISTED, [tree])}


def _unit(name: str, path: str) -> list[Any]:
    return [name, name, "loaded", "active", "running", "", path, 0, "", "/"]


async def hang(services: dict[str, FakeService]) -> None:
    """Answer nothing."""
    for service in services.values():
        service.is_silent = True
    await asyncio.Event().wait()


async def flood(services: dict[str, FakeService]) -> None:
    """Send as many signals as the bus takes."""
    sane(services)
    blocks = []
    flooded = {PID1: UNITS, LOGIND: SESSIONS, MACHINED: MACHINES}
    for service, path in ((services[name], path) for name, path in flooded.items()):
        for n in range(_TOGETHER):
            outgoing = new_signal(f"{path}/unit{n}_2eservice", CHANGED, "sa{sv}as", _changed(path))
            blocks.append((service, service.connection.encode(outgoing).data))
    mirrored = services[MIRRORED]
    for n in range(_TOGETHER):
        path, lamp = f"{LAMPS}/{n % 70}", {"Level": n, "Words": f"token={SECRET}"}
        outgoing = new_signal(path, CHANGED, "sa{sv}as", [LAMP, lamp, ["Name"]])
        if n % 2:
            outgoing = new_signal(LAMPS, _ADDED, _NEW, [path, {LAMP: lamp}])
        blocks.append((mirrored, mirrored.connection.encode(outgoing).data))
    while True:
        for service in services.values():
            data = b"".join(block for owner, block in blocks if owner is service)
            service.connection.send(Written(data, [], ""))
            await service.connection.wait_flushed()


def _changed(path: str) -> list[Any]:
    return [
        f"{PID1}.Unit" if path == UNITS else f"{LOGIND}.Session",
        {"ActiveState": f"token={SECRET}"},
        [],
    ]


async def lie(services: dict[str, FakeService]) -> None:
    """Answer with other types, names that are not sane, and values without measure."""
    nested: Any = {"password": SECRET}
    for _ in range(20):
        nested = {"a": nested, "passwords": [SECRET]}
    deep = {"Id": nested, "Description": "y" * 500_000, "ActiveState": [1, [2.5, {"b": b"\xff"}]]}
    sane(services, 50)
    paths = [f"{UNITS}/odd{n}" for n in range(len(_NAMES))] + ["/somewhere/else"]
    units = [_unit(f"{n}.service", path) for n, path in zip((*_NAMES, "a"), paths, strict=True)]
    sessions = [[n, 1 << 31, n, n, f"{SESSIONS}/{i}"] for i, n in enumerate(_NAMES)]
    serve(services, [*units, _unit("a.service", paths[0])], sessions)
    services[PID1].properties = dict.fromkeys(paths, deep)
    services[LOGIND].properties = {row[4]: {"Name": n} for row, n in zip(sessions, _NAMES)}  # noqa: B905 -- as many
    machines = [[n, "", "", path] for n, path in zip(_NAMES, paths)]  # noqa: B905 -- one is enough
    services[MACHINED].answers = {
        f"{MACHINED}.Manager.ListMachines": lambda _: ("a(ssso)", [machines])
    }
    services[MACHINED].properties = dict.fromkeys(paths, deep)
    mirrored, lamps = services[MIRRORED], {f"{LAMPS}/odd{n}": deep for n in range(7)}
    named = {f"{LAMPS}/n{n}": {"Name": name} for n, name in enumerate(_NAMES)}
    away = {"/org/freedesktop/systemd1": {"Name": "not its own"}, "/": {}}
    serve_lamps(services, {**lamps, **named, **away})
    for n in count():
        if n % 20 == 10:
            services[LOGIND].answers[f"{LOGIND}.Manager.ListSessions"] = lambda _: ("i", [7])
        services[PID1].signal(f"{UNITS}/odd{n % 7}", CHANGED, "i", n)
        services[PID1].signal(f"{UNITS}/odd{n % 7}", CHANGED, "sa{sv}as", PID1, deep, [])
        services[LOGIND].signal(SESSIONS, f"{LOGIND}.Manager.SessionNew", "s", _NAMES[n % 7])
        services[MACHINED].signal(MACHINES, f"{MACHINED}.Manager.MachineNew", "s", _NAMES[n % 7])
        mirrored.signal(f"{LAMPS}/n{n % 7}", CHANGED, "sa{sv}as", LAMP, deep, [_NAMES[n % 7]])
        mirrored.signal(f"{LAMPS}/n{n % 7}", CHANGED, "v", [n])
        mirrored.signal(LAMPS, _ADDED, _NEW, "/etc/shadow", {LAMP: {"Name": "x"}})
        mirrored.signal(f"{LAMPS}/n1", CHANGED, "sa{sv}as", LAMP, {"Name": "z" * 2_000_000}, [])
        await asyncio.sleep(0.05)


async def many(services: dict[str, FakeService]) -> None:
    """Answer with as many rows as a message of the bus can hold, and half as many; lamps, too."""
    sane(services)
    rows = [["1", 1, "a", "", "/a"]] * (_LARGEST // 40)
    units = [_unit(f"{n}.service", f"{UNITS}/u{n}") for n in range(60_000)]
    serve(services, units, rows)
    lamp = {"Level": 1, "Words": f"token={SECRET}"}
    serve_lamps(services, {f"{LAMPS}/{n}": {"Name": f"lamp{n}", **lamp} for n in range(100_000)})
    for n in count():
        services[LOGIND].signal("/org/freedesktop/login1", f"{LOGIND}.Manager.SessionNew")
        path, lamp = f"{LAMPS}/more{n}", {LAMP: {"Name": f"more{n}"}}
        services[MIRRORED].signal(LAMPS, _ADDED, _NEW, path, lamp)
        if n == 20:
            serve(services, units, rows[: len(rows) // 2])
        await asyncio.sleep(0.1)


async def flap(services: dict[str, FakeService]) -> None:
    """Go away and come back ten times a second."""
    sane(services)
    while True:
        for name, service in services.items():
            await service.connection.ask_bus("ReleaseName", "s", name)
            await asyncio.sleep(0.05)  # the rhythm is the attack
            await service.connection.ask_bus("RequestName", "su", name, _REPLACING)
            await asyncio.sleep(0.05)  # the rhythm is the attack


async def leak(services: dict[str, FakeService]) -> None:
    """Answer as PID 1 and logind of a host with a secret in every field."""
    serve_secrets(services)
    await asyncio.Event().wait()


async def behave(services: dict[str, FakeService]) -> None:
    """Answer as PID 1 and logind do: what is replaced by an attack."""
    sane(services)
    await asyncio.Event().wait()


SANE, SECRETS = "behaves", "has secrets"
BUSES: dict[str, Callable[[dict[str, FakeService]], Coroutine[Any, Any, None]]] = {
    SANE: behave,
    SECRETS: leak,
    "hangs": hang,
    "floods": flood,
    "lies": lie,
    "has 400,000 rows": many,
    "comes and goes": flap,
}


@asynccontextmanager
async def replacing(address: str) -> AsyncIterator[dict[str, FakeService]]:
    """Own the names of all of them until another program takes them, and again after it."""
    async with AsyncExitStack() as stack:
        services = {}
        for name in (PID1, LOGIND, MACHINED, MIRRORED):
            connection = await stack.enter_async_context(Connection(address))
            services[name] = FakeService(connection)
            await connection.ask_bus("RequestName", "su", name, _REPLACING)
        yield services


async def _on_bus(work: Callable[[dict[str, FakeService]], Any], address: str) -> None:
    async with replacing(address) as services:
        await work(services)


def main(name: str, target: str, seconds: float) -> None:
    """Attack a bus."""
    with suppress(TimeoutError):
        asyncio.run(asyncio.wait_for(_on_bus(BUSES[name], target), seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
