"""A host that was booted for a test: commands inside, its units, its journal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Generous: it only ends a test that would otherwise never end.
PATIENCE_SECONDS = 120.0
PROGRAM = "/usr/local/lib/op-dbus"
Entry = dict[str, Any]
_NSENTER = "nsenter --pid --mount --uts --ipc --net --cgroup --root --wd".split()
_CLEAN = "env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin LC_ALL=C.UTF-8".split()
_SUBSCRIBE = """
import asyncio
from dbus_fast import BusType, Message
from dbus_fast.aio import MessageBus

async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    where = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
    await bus.call(Message(*where, "org.freedesktop.systemd1.Manager", "Subscribe"))
    print("subscribed", flush=True)
    await bus.wait_for_disconnect()

asyncio.run(main())
"""


class Host:
    """Commands inside the namespaces of a process, the first of its host."""

    def __init__(self, init: int) -> None:
        self.init = init

    def enter(self, *command: str, user: str = "") -> list[str]:
        """Give the command line that runs a command inside, as a user of that host."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [*_NSENTER, f"--target={self.init}", *_CLEAN, *become, *command]

    def run(
        self, *command: str, user: str = "", stdin: str = "", seconds: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end."""
        return subprocess.run(
            self.enter(*command, user=user),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def ask(self, *command: str, user: str = "", stdin: str = "") -> str:
        """Run a command inside that has to succeed, and give what it printed."""
        done = self.run(*command, user=user, stdin=stdin)
        assert done.returncode == 0, (
            f"{' '.join(command)}: {done.returncode}\n{done.stderr}\n{self.log()}"
        )
        return done.stdout.strip()

    def path(self, inside: str) -> Path:
        """Give where one of its files is seen from outside."""
        return Path(f"/proc/{self.init}/root", inside.lstrip("/"))

    def write(self, inside: str, text: str) -> None:
        """Write one of its files, in one step as editors do, which keep the mode and the group."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.new")
        part.write_text(text)
        before = path.stat() if path.exists() else None
        part.chmod(before.st_mode & 0o777 if before else 0o644)
        os.chown(part, -1, before.st_gid if before else -1)
        part.rename(path)

    def show(self, unit: str, name: str) -> str:
        """Give one property of a unit."""
        return self.ask("systemctl", "show", unit, f"--property={name}", "--value")

    # journalctl's own matches would skip the first entry where that at the cursor is none

    def cursor(self) -> str:
        """Give the place in the journal where what comes next will begin."""
        self.ask("journalctl", "--sync")
        text = self.ask("journalctl", "--lines=1", "--show-cursor", "--quiet")
        return text.rsplit("-- cursor: ", 1)[1].strip()

    def journal(self, *, after: str = "", **fields: str) -> list[Entry]:
        """Give the entries with these fields, those after a cursor or all."""
        self.ask("journalctl", "--sync")
        since = [f"--after-cursor={after}"] if after else []
        text = self.ask("journalctl", "--output=json", "--all", "--quiet", *since)
        entries = [json.loads(line) for line in text.splitlines()]
        return [entry for entry in entries if fields.items() <= entry.items()]

    def await_entry(self, after: str, **fields: str) -> Entry:
        """Wait for the first entry after a cursor that has these fields."""
        command = ["journalctl", "--follow", "--output=json", "--all", f"--after-cursor={after}"]
        with self._lines(*command, "--no-tail") as lines:
            for line in lines:
                entry: Entry = json.loads(line)
                if fields.items() <= entry.items():
                    return entry
        raise AssertionError(f"the journal does not tell of {fields}:\n{self.log()}")

    def log(self) -> str:
        """Give the end of the journal, for people."""
        return self.run("journalctl", "--no-pager", "--lines=60").stdout

    @contextmanager
    def monitor(self, *matches: str) -> Iterator[Monitor]:
        """Hear what is said on the bus from now on."""
        command = ["busctl", "--json=short", "monitor", *(f"--match={match}" for match in matches)]
        with self.running(*command) as process:
            assert process.stdout
            assert process.stderr
            # said once the bus has made it a monitor
            assert b"Monitoring" in process.stderr.readline()
            yield Monitor(process.stdout.fileno())

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """Have a client that asked systemd to send its signals."""
        with self.running(f"{PROGRAM}/bin/python", "-c", _SUBSCRIBE) as process:
            assert process.stdout
            assert process.stdout.readline() == b"subscribed\n"
            yield

    @contextmanager
    def _lines(self, *command: str) -> Iterator[Iterator[bytes]]:
        """Follow what a command prints, a line at a time, no longer than patience lasts."""
        with self.running(*command) as process:
            assert process.stdout
            yield until_late(process.stdout.fileno())

    @contextmanager
    def running(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command inside until we leave, or end."""
        # nsenter forks, and what it forked would outlive it
        tied = self.enter("sh", "-c", '"$@" & read -r _; kill $!', "sh", *command)
        pipe = subprocess.PIPE
        with subprocess.Popen(tied, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            yield process


class Monitor:
    """What was said on the bus, in order, as `busctl monitor` tells it."""

    def __init__(self, descriptor: int) -> None:
        self.heard: list[Entry] = []
        self._descriptor = descriptor
        self._rest = b""

    def until(self, is_so: Callable[[], object]) -> None:
        """Ask again after all that is said until it is so.

        A question that takes long is asked less often: it would keep those busy that it waits for.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            asked = time.monotonic()
            if is_so():
                break
            answered = time.monotonic()
            assert answered < end, f"it did not become so; heard {self.heard[-5:]}"
            self._listen(0.2)  # some properties change without a signal
            time.sleep(min(2 * (answered - asked), 1.0))
            self._listen(0.0)
        self._listen(0.0)

    def changes(self, name: str) -> list[Any]:
        """Give the values that a property was told to have, each once in a row."""
        bodies = [
            m["payload"]["data"] for m in self.heard if m.get("member") == "PropertiesChanged"
        ]
        values = [body[1][name]["data"] for body in bodies if name in body[1]]
        return [
            value for value, before in zip(values, [None, *values], strict=False) if value != before
        ]

    def index(self, member: str, *telling: Any) -> int:
        """Give the place of the first signal of this name whose values have these among them."""
        for place, message in enumerate(self.heard):
            if message.get("member") == member and all(
                value in message["payload"]["data"] for value in telling
            ):
                return place
        raise AssertionError(f"no {member} with {telling} in {self.heard}")

    def _listen(self, seconds: float) -> None:
        while select.select([self._descriptor], [], [], seconds)[0]:
            if not (more := os.read(self._descriptor, 1 << 20)):
                return
            *lines, self._rest = (self._rest + more).split(b"\n")
            self.heard += [json.loads(line) for line in lines]
            seconds = 0.0


def until_late(descriptor: int) -> Iterator[bytes]:
    """Give what is written, a line at a time, until its end or no longer than patience lasts."""
    end, rest = time.monotonic() + PATIENCE_SECONDS, b""
    while select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
        if not (more := os.read(descriptor, 65536)):
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from lines
