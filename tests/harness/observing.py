"""What tests of observers need: a memory, and an observer that runs under the supervisor."""

import asyncio
import json
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from harness.running import PATIENCE_SECONDS
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.messages import Call
from opdbus.history.change import take_severity
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.core.changes_per_hour import ChangesPerHour
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.supervisor import Status, Supervisor
from opdbus.platform.tasks import cancel
from opdbus.state.object import Identity

PATIENCE = PATIENCE_SECONDS
# Fast: a test does not wait for a source that was lost.
RETRIES = (0.01,)


MOVING = {"lamp": frozenset({"watts"})}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        # seconds that the time of day was set ahead
        self.ahead = 0.0

    def wall(self) -> float:
        """Return the time of day."""
        return self.now + 4e9 + self.ahead

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Source:
    """Lamps that a test's observer sees, while there is no fault."""

    def __init__(self) -> None:
        self.lamps: dict[str, dict[str, object]] = {"desk": {"colour": "red", "watts": 3}}
        self.fault: Exception | None = None
        self.report = Report()
        self.runs = 0
        self.news = asyncio.Event()

    @property
    def observer(self) -> Observer:
        """The observer of it."""
        return Observer("lamps", "house", self.observe, MOVING)

    async def observe(self, report: Report) -> None:
        """List the lamps, and again after each change."""
        self.report = report
        self.runs += 1
        while True:
            if self.fault:
                raise self.fault
            report.replace("lamp", self.lamps)
            await self.news.wait()
            self.news.clear()

    def change(self, **lamps: dict[str, object]) -> None:
        """Set the lamps."""
        self.lamps = dict(lamps)
        self.news.set()


@contextmanager
def less_than(size: int) -> Iterator[None]:
    """Assert that Python holds at most `size` bytes more at any time within."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        # what is traced takes several times as long
        tracemalloc.stop()


class Host:
    """A memory that one observer fills."""

    def __init__(self, memory: StateStore, supervisor: Supervisor) -> None:
        self.memory = memory
        self.supervisor = supervisor

    @property
    def status(self) -> Status:
        """How the observer is."""
        return self.supervisor.statuses[0]

    @property
    def names(self) -> set[str]:
        """The objects that there are, as plugin/kind/name."""
        return {"/".join(entry.identity[1:]) for entry in self.memory.catalogue}

    async def properties(self, name: str) -> dict[str, Any]:
        """Return what is shown of the object plugin/kind/name; raises KeyError if there is none."""
        for entry in self.memory.catalogue:
            if "/".join(entry.identity[1:]) == name:
                content = (await self.memory.content([entry]))[entry.id]
                return json.loads(content.properties) | dict(self.volatile(entry.identity))
        raise KeyError(name)

    def volatile(self, identity: Identity) -> dict[str, Any]:
        """Return the fields of an object that are only in memory."""
        return dict(self.memory.volatile.get(identity))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(PATIENCE):
            while not is_so():  # noqa: ASYNC110 -- not everything that changes says so
                await asyncio.sleep(0.005)

    async def until_shown(self, name: str, **values: object) -> dict[str, Any]:
        """Wait until an object has these values, and return all that it has."""
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    if name in self.names:
                        found = await self.properties(name)
                        if found.items() >= values.items():
                            # it may be on the disk and not yet in the catalogue
                            await self.memory.of_source("")
                            return found
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{name} is {found}, not {values}; {self.status}") from None


def history(folder: Path) -> list[dict[str, Any]]:
    """Return all rows of history, as any other program would read them."""
    with closing(sqlite3.connect(folder / "memory.db")) as reader:
        reader.row_factory = sqlite3.Row
        found = reader.execute("SELECT * FROM history ORDER BY seq").fetchall()
    # without the severity of drift
    return [{**row, "fields": take_severity(json.loads(row["fields"]))[0]} for row in found]


def rows(folder: Path, name: str) -> list[tuple[str, str, int]]:
    """Return (what happened, cause, number of coalesced changes) of an object in history."""
    found = [row for row in history(folder) if row["name"] == name]
    return [(row["what"], row["cause"], row["folded"]) for row in found]


@asynccontextmanager
async def observed(
    folder: Path,
    *observers: Observer,
    changes: Callable[[], ChangesPerHour] = ChangesPerHour,
    boot: str = "",
) -> AsyncIterator[Host]:
    """Run observers on a memory in a folder, in a run of the host."""
    async with StateStore(folder / "memory.db", boot=boot) as memory:
        supervisor = Supervisor(observers, memory, RETRIES, changes)
        memory.notify = supervisor.on_event
        task = asyncio.create_task(supervisor.run())
        try:
            yield Host(memory, supervisor)
        finally:
            await cancel([task])


class FakeService:
    """A service on a private bus: answers method calls from tables, and sends signals.

    `answers` has for `interface.Method` what makes (signature, values) of a call's path and
    arguments; `properties` the properties at a path. It can be told to be silent.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.answers: dict[str, Callable[..., tuple[str, list[Any]]]] = {}
        self.properties: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str, list[Any]]] = []
        self.is_silent = False
        connection.on_call = self._take

    def _take(self, call: Call) -> None:
        if self.is_silent:
            return
        member = f"{call.interface}.{call.member}"
        arguments = call.body
        self.calls.append((call.path, member, arguments))
        try:
            if member == "org.freedesktop.DBus.Properties.GetAll":
                signature, values = "a{sv}", [self.properties[call.path]]
            else:
                signature, values = self.answers[member](call.path, *arguments)
        except KeyError:
            self.connection.send_error(
                call.sender, call.serial, "org.freedesktop.DBus.Error.UnknownObject", "none"
            )
        else:
            self.connection.reply(call, signature, values)

    def signal(self, path: str, member: str, signature: str = "", *values: Any) -> None:
        """Send the signal `interface.member`."""
        self.connection.emit(path, member, signature, *values)

    def changed(self, path: str, interface: str, **values: Any) -> None:
        """Change properties, and say so."""
        self.properties[path] |= values
        member = "org.freedesktop.DBus.Properties.PropertiesChanged"
        self.signal(path, member, "sa{sv}as", interface, values, [])


@asynccontextmanager
async def fake_service(address: str, name: str) -> AsyncIterator[FakeService]:
    """Own a name on a bus."""
    async with Connection(address) as connection:
        service = FakeService(connection)
        await connection.own(name)
        yield service
