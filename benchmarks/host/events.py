"""Changes a booted host, and measures when op-dbus shows each change; runs inside that host.

Writes JSON to standard output: for each event the seconds from the end of the command that made
the change until the object shows it, and all objects that changed meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from opdbus.bus import paths
from opdbus.bus.names import BUS_NAME, STATE
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.library import Message
from opdbus.bus.transport.values import from_wire

UNITS = Path("/run/systemd/system")
# As the contract has them, in seconds.
SOON, SLOW, PORTS = 0.3, 3.0, 2.0
# What follows from a change has followed by then.
_SETTLED_SECONDS = 1.5
_GIVE_UP_SECONDS = 20.0
_LISTEN = (
    "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 4711)); s.listen();"
    " time.sleep(1e6)"
)
_FILES = {
    "probe-run.service": "[Service]\nExecStart=/bin/sleep infinity\n",
    "probe-fail.service": "[Service]\nExecStart=/bin/false\n",
    "probe-enable.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=default.target\n",
    "probe-port.service": f'[Service]\nExecStart={sys.executable} -c "{_LISTEN}"\n',
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
    thing: tuple[str, str, str]
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

    async def observed(self, thing: tuple[str, str, str]) -> dict[str, Any] | None:
        """Return what is observed of a thing, None if there is no such object."""
        with suppress(RemoteError):
            member, path = f"{STATE}.Get", paths.of(*thing)
            (text,) = await self.connection.call(
                BUS_NAME, paths.STATE, member, "oa{sv}", path, {"large": True}
            )
            found: dict[str, Any] = json.loads(text)["observed"]
            return found
        return None

    async def measure(self, event: Event) -> dict[str, Any]:
        """Make a change, and return when it is shown and what else has changed."""
        self.changed.clear()
        began = time.monotonic()
        done = await asyncio.to_thread(
            subprocess.run, event.command, capture_output=True, text=True, check=False
        )
        ended = time.monotonic()
        wanted = event.wanted() if callable(event.wanted) else event.wanted
        while not _is_so(found := await self.observed(event.thing), wanted):
            if time.monotonic() - ended > _GIVE_UP_SECONDS:
                break
            await asyncio.sleep(0.005)
        seen = time.monotonic()
        is_shown = _is_so(found, wanted)
        await asyncio.sleep(_SETTLED_SECONDS)
        return {
            "event": event.name,
            "seconds": round(max(0.0, seen - ended), 3) if is_shown else None,
            "with the command": round(seen - began, 3),
            "limit": event.limit,
            "changed": sorted(set(self.changed)),
            **({} if is_shown else {"shows": found, "command": done.stderr or done.stdout}),
        }


def _is_so(found: dict[str, Any] | None, wanted: dict[str, Any] | None) -> bool:
    if wanted is None or found is None:
        return found is None and wanted is None
    return found.items() >= wanted.items()


def events(folder: Path) -> list[Event]:
    """Return the changes, in an order in which each is one."""
    unit = lambda name: ("systemd", "unit", name)  # noqa: E731 -- a name for a tuple
    ctl = lambda *words: ["systemctl", *words]  # noqa: E731 -- a name for a list
    run, enable, port = (f"probe-{name}.service" for name in ("run", "enable", "port"))
    address = f"{sys.executable} {Path(__file__).with_name('address.py')}".split()
    reload = "systemctl daemon-reload"
    added = ("net", "address", "192.0.2.77/32 on lo")
    timer = UNITS / "probe-enable.timer"
    return [
        Event("start", ctl("start", run), unit(run), {"active_state": "active"}, SOON),
        Event("restart", ctl("restart", run), unit(run), _main_pid, SOON),
        Event("stop", ctl("stop", run), unit(run), {"active_state": "inactive"}, SOON),
        Event(
            "fail",
            ["sh", "-c", "systemctl start probe-fail; systemctl is-failed --wait probe-fail; :"],
            unit("probe-fail.service"),
            {"active_state": "failed"},
            SOON,
        ),
        Event("enable", ctl("enable", enable), unit(enable), {"enabled": True}, SOON),
        Event("disable", ctl("disable", enable), unit(enable), {"enabled": False}, SOON),
        Event(
            "mask",
            ctl("mask", "--runtime", "probe-mask.service"),
            unit("probe-mask.service"),
            {"masked": True},
            SOON,
        ),
        Event(
            "unmask",
            ctl("unmask", "--runtime", "probe-mask.service"),
            unit("probe-mask.service"),
            None,
            SOON,
        ),
        Event(
            "daemon-reload, nothing changed",
            ctl("daemon-reload"),
            unit(run),
            {"active_state": "inactive"},
            SOON,
        ),
        Event(
            "a new timer",
            ["sh", "-c", f"printf '{_TIMER}' >{timer}; {reload}; systemctl start {timer.name}"],
            unit(timer.name),
            {"active_state": "active"},
            SOON,
        ),
        Event(
            "a port opened",
            ctl("start", port),
            ("net", "listener", "tcp 127.0.0.1:4711"),
            {"unit": port},
            PORTS,
        ),
        Event(
            "a port closed",
            ctl("stop", port),
            ("net", "listener", "tcp 127.0.0.1:4711"),
            None,
            PORTS,
        ),
        Event("an address added", [*address, "add"], added, {"interface": "lo"}, SOON),
        Event("an address removed", [*address, "del"], added, None, SOON),
        Event(
            "a user added",
            ["useradd", "--no-create-home", "probe"],
            ("users", "account", "probe"),
            {"shell": "/bin/sh"},
            SLOW,
        ),
        Event(
            "a package installed",
            ["dpkg", "--install", str(_package(folder))],
            ("packages", "package", "op-dbus-probe"),
            {"version": "1.0"},
            SLOW,
        ),
        Event(
            "a package removed",
            ["dpkg", "--purge", "op-dbus-probe"],
            ("packages", "package", "op-dbus-probe"),
            None,
            SLOW,
        ),
    ]


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
    subprocess.run(["systemctl", "daemon-reload"], check=True)  # noqa: ASYNC221 -- nothing runs yet
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
