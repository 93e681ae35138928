"""Changes a booted host, and measures when op-dbus shows each change; runs inside that host.

Writes JSON to standard output: for each event the seconds from the end of the command that made
the change until the object shows it and until history has a row of it, all objects that changed
meanwhile, and all rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from opdbus.bus import paths
from opdbus.bus.names import BUS_NAME, HISTORY, STATE
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.library import Message
from opdbus.bus.transport.values import from_wire

UNITS = Path("/run/systemd/system")
LAMPS = "org.example.Lamps"
# As the contract has them, in seconds.
SOON, SLOW, PORTS = 0.3, 3.0, 2.0
# What follows from a change has followed by then.
_SETTLED_SECONDS = 1.5
_GIVE_UP_SECONDS = 20.0
_NEVER = float("inf")
_LISTEN = (
    "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 4711)); s.listen();"
    " time.sleep(1e6)"
)
_FILES = {
    "probe-run.service": "[Service]\nExecStart=/bin/sleep infinity\n",
    "probe-fail.service": "[Service]\nExecStart=/bin/false\n",
    "probe-enable.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=default.target\n",
    "probe-port.service": f'[Service]\nExecStart={sys.executable} -c "{_LISTEN}"\n',
    # written by the caller: tests/system/lamps.py
    "probe-lamps.service": (
        f"[Service]\nType=dbus\nBusName={LAMPS}\nExecStart={sys.executable} /run/lamps.py\n"
    ),
    "probe-loop.service": (
        # systemd's clock for restarts is coarse: the program waits instead
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/bin/sleep 0.09\nRestart=always\n"
        "RestartSec=0\n"
    ),
}
_TIMER = "[Timer]\nOnCalendar=daily\n"


class Event(NamedTuple):
    """A command, the object that it changes, what it then shows (None: it is gone), the limit.

    What it shows may only be known after the command.
    """

    name: str
    command: list[str]
    object_id: tuple[str, str, str]
    wanted: dict[str, Any] | Callable[[], dict[str, Any]] | None
    limit: float


class Probe:
    """A client that reads objects and remembers which of them changed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.changed: list[str] = []
        connection.on_signal = self._take

    def _take(self, message: Message) -> None:
        if message.member == "Changed":
            _, changes = from_wire(message.body)
            self.changed += [f"{what} {'/'.join(paths.parse(path))}" for path, what in changes]

    async def observed(self, object_id: tuple[str, str, str]) -> dict[str, Any] | None:
        """Return what is observed of a thing, None if there is no such object."""
        with suppress(RemoteError):
            member, path = f"{STATE}.Get", paths.of(*object_id)
            (text,) = await self.connection.call(
                BUS_NAME, paths.STATE, member, "oa{sv}", path, {"large": True}
            )
            found: dict[str, Any] = json.loads(text)["observed"]
            return found
        return None

    async def rows(self, after: int) -> list[dict[str, Any]]:
        """Return the rows of history after one, the newest first."""
        (rows,) = await self.connection.call(
            BUS_NAME, paths.HISTORY, f"{HISTORY}.Changes", "a{sv}u", {"after": after}, 1000
        )
        return list(rows)

    async def _recorded(self, object_id: tuple[str, str, str], after: int) -> float:
        """Wait for a row about a thing, and return when there was one; never without one."""
        end = time.monotonic() + _GIVE_UP_SECONDS
        while not await self._has_row(object_id, after) and time.monotonic() < end:  # noqa: ASYNC110 -- as a client without signals sees it
            await asyncio.sleep(0.005)
        return time.monotonic() if time.monotonic() < end else _NEVER

    async def _has_row(self, object_id: tuple[str, str, str], after: int) -> bool:
        found = ((row["plugin"], row["kind"], row["name"]) for row in await self.rows(after))
        return object_id in found

    async def measure(self, event: Event) -> dict[str, Any]:
        """Make a change, and return when it is shown and what else has changed."""
        self.changed.clear()
        newest = (await self.rows(0))[0]["seq"]
        began = time.monotonic()
        done = await asyncio.to_thread(
            subprocess.run, event.command, capture_output=True, text=True, check=False
        )
        ended = time.monotonic()
        recorded = asyncio.create_task(self._recorded(event.object_id, newest))
        wanted = event.wanted() if callable(event.wanted) else event.wanted
        while not _is_so(found := await self.observed(event.object_id), wanted):
            if time.monotonic() - ended > _GIVE_UP_SECONDS:
                break
            await asyncio.sleep(0.005)
        seen = time.monotonic()
        is_shown = _is_so(found, wanted)
        await asyncio.sleep(_SETTLED_SECONDS)
        in_history, rows = await recorded, await self.rows(newest)
        return {
            "event": event.name,
            "seconds": round(max(0.0, seen - ended), 3) if is_shown else None,
            "with the command": round(seen - began, 3),
            "row after": round(max(0.0, in_history - ended), 3) if in_history < _NEVER else None,
            "rows": [_short(row) for row in reversed(rows)],
            "limit": event.limit,
            "changed": sorted(set(self.changed)),
            **({} if is_shown else {"shows": found, "command": done.stderr or done.stdout}),
        }


def _short(row: dict[str, Any]) -> str:
    fields = ", ".join(path for path, _, _ in row["fields"])
    return f"{row['what']} {row['name']} by {row['cause'] or 'nobody knows'}: {fields}"


def _is_so(found: dict[str, Any] | None, wanted: dict[str, Any] | None) -> bool:
    if wanted is None or found is None:
        return found is None and wanted is None
    return found.items() >= wanted.items()


def events(folder: Path) -> list[Event]:
    """Return the changes, in an order in which each is one."""
    return [
        *_of_units(),
        *_of_unit_files(),
        *_of_ports(),
        *_of_addresses(),
        *_of_accounts(),
        *_of_packages(_package(folder)),
        *_of_files(),
        *_of_devices(),
        *_of_mirrored(),
    ]


def _unit(name: str) -> tuple[str, str, str]:
    return "systemd", "unit", name


def _systemctl(*words: str) -> list[str]:
    return ["systemctl", *words]


def _of_units() -> Iterator[Event]:
    run, fail = "probe-run.service", "probe-fail.service"
    yield Event("start", _systemctl("start", run), _unit(run), {"active_state": "active"}, SOON)
    yield Event("restart", _systemctl("restart", run), _unit(run), _main_pid, SOON)
    yield Event("stop", _systemctl("stop", run), _unit(run), {"active_state": "inactive"}, SOON)
    failing = f"systemctl start {fail}; systemctl is-failed --wait {fail}; :"
    yield Event("fail", ["sh", "-c", failing], _unit(fail), {"active_state": "failed"}, SOON)


def _of_unit_files() -> Iterator[Event]:
    enable, mask = _unit("probe-enable.service"), _unit("probe-mask.service")
    yield Event("enable", _systemctl("enable", enable[2]), enable, {"enabled": True}, SOON)
    yield Event("disable", _systemctl("disable", enable[2]), enable, {"enabled": False}, SOON)
    masking = _systemctl("mask", "--runtime", mask[2])
    yield Event("mask", masking, mask, {"masked": True}, SOON)
    yield Event("unmask", _systemctl("unmask", "--runtime", mask[2]), mask, None, SOON)
    idle = {"active_state": "inactive"}
    reload = _systemctl("daemon-reload")
    yield Event("daemon-reload, nothing changed", reload, _unit("probe-run.service"), idle, SOON)
    timer = UNITS / "probe-enable.timer"
    writing = f"printf '{_TIMER}' >{timer}; {' '.join(reload)}; systemctl start {timer.name}"
    active = {"active_state": "active"}
    yield Event("a new timer", ["sh", "-c", writing], _unit(timer.name), active, SOON)


def _of_ports() -> Iterator[Event]:
    unit, port = "probe-port.service", ("net", "listener", "tcp 127.0.0.1:4711")
    yield Event("a port opened", _systemctl("start", unit), port, {"unit": unit}, PORTS)
    yield Event("a port closed", _systemctl("stop", unit), port, None, PORTS)


def _of_addresses() -> Iterator[Event]:
    change = [sys.executable, str(Path(__file__).with_name("address.py"))]
    added = ("net", "address", "192.0.2.77/32 on lo")
    yield Event("an address added", [*change, "add"], added, {"interface": "lo"}, SOON)
    yield Event("an address removed", [*change, "del"], added, None, SOON)


def _of_accounts() -> Iterator[Event]:
    adding = ["useradd", "--no-create-home", "probe"]
    account = ("users", "account", "probe")
    yield Event("a user added", adding, account, {"shell": "/bin/sh"}, SLOW)


def _of_packages(file: Path) -> Iterator[Event]:
    name = "op-dbus-probe"
    package = ("packages", "package", name)
    installing = ["dpkg", "--install", str(file)]
    yield Event("a package installed", installing, package, {"version": "1.0"}, SLOW)
    yield Event("a package removed", ["dpkg", "--purge", name], package, None, SLOW)


def _of_files() -> Iterator[Event]:
    job, file = ("cron", "job", "/etc/cron.d/probe save"), "/etc/cron.d/probe"
    adding = ["sh", "-c", f"echo '10 3 * * * root /opt/save' >{file}"]
    yield Event("a cron job added", adding, job, {"schedule": "every day at 03:10"}, SOON)
    yield Event("a cron job removed", ["rm", file], job, None, SOON)
    setting, file = ("kernel", "sysctl", "vm.swappiness"), "/etc/sysctl.d/90-probe.conf"
    adding = ["sh", "-c", f"echo 'vm.swappiness = 7' >{file}"]
    yield Event("a sysctl that differs", adding, setting, {"differs": True}, SOON)
    yield Event("its file removed", ["rm", file], setting, None, SOON)


def _of_devices() -> Iterator[Event]:
    """Give a size to an unused disk in memory of the machine, where it has one, and take it."""
    disks = Path("/sys/block").glob("zram*")
    disk = next((path for path in disks if (path / "size").read_text() == "0\n"), None)
    if disk is None:
        return
    device = ("devices", "block", disk.name)
    # the kernel has no event of its own for a first size
    filling = f"mount -o remount,rw /sys; echo 64M >{disk}/disksize; echo change >{disk}/uevent"
    yield Event("a disk filled", ["sh", "-c", filling], device, {"size_gb": 0.067}, SOON)
    emptying = f"echo 1 >{disk}/reset; echo change >{disk}/uevent"
    yield Event("a disk emptied", ["sh", "-c", emptying], device, None, SOON)


def _of_mirrored() -> Iterator[Event]:
    lamp = ("lamps", "lamp", "desk")
    telling = ["busctl", "call", LAMPS, f"/{LAMPS.replace('.', '/')}", LAMPS]
    yield Event("a mirrored object added", [*telling, "Add", "s", "desk"], lamp, {}, SOON)
    yield Event("a mirrored object removed", [*telling, "Remove", "s", "desk"], lamp, None, SOON)


def _main_pid() -> dict[str, Any]:
    command = ["systemctl", "show", "probe-run.service", "--property=MainPID", "--value"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"main_pid": int(done.stdout)}


def _package(folder: Path) -> Path:
    """Build a package that holds one file."""
    control = folder / "probe" / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(
        "Package: op-dbus-probe\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <a@b.c>\n"
        "Description: a package that comes and goes\n"
    )
    subprocess.run(
        ["dpkg-deb", "--build", str(control.parent.parent), str(folder / "probe.deb")],
        check=True,
        capture_output=True,
    )
    return folder / "probe.deb"


async def main() -> None:
    """Make every change, and print what was measured."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bus", default="system")
    address = options.parse_args().bus
    for name, text in _FILES.items():
        (UNITS / name).write_text(text)
    for command in (["daemon-reload"], ["start", "probe-lamps.service"]):
        subprocess.run(["systemctl", *command], check=True)  # noqa: ASYNC221 -- nothing runs yet
    await asyncio.sleep(_SETTLED_SECONDS)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with Connection(address) as connection:
            probe = Probe(connection)
            await connection.subscribe(f"type='signal',sender='{BUS_NAME}'")
            for event in events(Path(folder)):
                rows.append(await probe.measure(event))
                print(f"{rows[-1]['event']}: {rows[-1]['seconds']}", file=sys.stderr)
    json.dump(rows, sys.stdout, indent=1)


if __name__ == "__main__":
    asyncio.run(main())
