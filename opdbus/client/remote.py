"""Calls to the daemon and its signals; its errors are raised as those of `opdbus.errors`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from opdbus import errors
from opdbus.bus.names import BUS_NAME
from opdbus.bus.transport.connection import Connection, RemoteError

# Longer than the usual D-Bus timeout: computing vectors may take long.
PATIENCE_SECONDS: Final = 120.0
# After this time without a reply, the daemon's process is checked.
_SILENCE_SECONDS: Final = 3.0
_NOT_THERE: Final = (
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.Disconnected",
    # the bus started a service that did not appear
    "org.freedesktop.DBus.Error.TimedOut",
    "org.freedesktop.DBus.Error.Spawn.",
    "org.freedesktop.systemd1.",
)

Json: TypeAlias = Any


class Remote:
    """The daemon on a bus, as a context; raises BusError without a bus."""

    def __init__(self, bus: str) -> None:
        self._where = bus
        self._connection = Connection(bus)
        # whether polkit may ask the user for a password, as a desktop does
        self.may_ask_user = True

    async def __aenter__(self) -> Self:
        """Connect to the bus."""
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Disconnect."""
        await self._connection.__aexit__(*error)

    async def is_there(self) -> bool:
        """Return whether a daemon owns the bus name; start none."""
        return bool((await self._connection.ask_bus("NameHasOwner", "s", BUS_NAME))[0])

    async def heard(self, *rules: str) -> AsyncGenerator[list[tuple[str, list[Json]]], None]:
        """Yield (member, body) of all signals since the last time.

        The first list is empty: from then on, none is missed. Raises BusError once the bus is gone.
        """
        signals: list[tuple[str, list[Json]]] = []
        news = asyncio.Event()

        def hear(member: str, body: list[Json]) -> None:
            signals.append((member, body))
            news.set()

        self._connection.on_signal = lambda message: hear(message.member or "", list(message.body))
        for rule in rules:
            await self._connection.subscribe(rule)
        yield []
        lost = asyncio.ensure_future(self._connection.closed())
        try:
            while not lost.done():
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                news.clear()
                taken, signals = signals, []
                if taken:
                    yield taken
        finally:
            lost.cancel()
        raise errors.BusError(f"the connection to the {self._where} bus was lost")

    def at(self, path: str, interface: str) -> "Interface":
        """Return one interface of one of the daemon's objects."""
        return Interface(self, path, interface)

    async def call(self, path: str, member: str, signature: str, *body: Json) -> list[Json]:
        """Call `interface.method`, and wait for its reply without a time limit.

        Raises BusError if the daemon's process is stopped, since it would never answer.
        """
        reply = asyncio.ensure_future(
            self._connection.call(
                BUS_NAME, path, member, signature, *body, is_interactive=self.may_ask_user
            )
        )
        try:
            await asyncio.wait({reply}, timeout=_SILENCE_SECONDS)
            if not reply.done():
                await self._refuse_if_stopped()
            return await reply
        except RemoteError as error:
            raise self._translated(error) from None
        finally:
            reply.cancel()

    async def _refuse_if_stopped(self) -> None:
        """Raise BusError if the daemon's process is stopped, as by SIGSTOP or a debugger."""
        with suppress(RemoteError):
            (pid,) = await self._connection.ask_bus("GetConnectionUnixProcessID", "s", BUS_NAME)
            if _is_stopped(int(pid)):
                raise errors.BusError(
                    f"op-dbus is stopped and cannot answer: `kill -CONT {pid}` lets its process go"
                    " on, unless a debugger holds it"
                )

    def _translated(self, error: RemoteError) -> errors.OpDbusError:
        if error.name.startswith(_NOT_THERE):
            return errors.BusError(
                f"op-dbus is not running on the {self._where} bus: start it with"
                " `systemctl start op-dbus` or `op-dbus daemon`, or name another bus:"
                " `op-dbus --bus BUS status`"
            )
        if error.name.endswith("AccessDenied"):
            return errors.AccessDenied(str(error))
        known = {kind.dbus_name: kind for kind in errors.tree()}
        return known.get(error.name, errors.OpDbusError)(str(error))


class Interface:
    """One interface of an object of the daemon."""

    def __init__(self, remote: Remote, path: str, name: str) -> None:
        self._remote = remote
        self._path = path
        self._name = name

    async def properties(self) -> dict[str, Json]:
        """Return all properties."""
        every = Interface(self._remote, self._path, "org.freedesktop.DBus.Properties")
        return dict(await every.one("GetAll", "s", self._name))

    async def one(self, method: str, signature: str, *body: Json) -> Json:
        """Call a method, and return the first value of its reply."""
        return (await self.ask(method, signature, *body))[0]

    async def ask(self, method: str, signature: str, *body: Json) -> list[Json]:
        """Call a method, and return its reply; raise BusError after PATIENCE_SECONDS."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self.ask_patiently(method, signature, *body)
        except TimeoutError:
            raise errors.BusError(
                f"op-dbus did not answer within {PATIENCE_SECONDS:.0f} s: see its log; if it does"
                " nothing, `systemctl restart op-dbus` starts it again"
            ) from None

    async def ask_patiently(self, method: str, signature: str, *body: Json) -> list[Json]:
        """Call a method, and return its reply, without a time limit."""
        return await self._remote.call(self._path, f"{self._name}.{method}", signature, *body)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped: see proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[:1] in (["T"], ["t"])
