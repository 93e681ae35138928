"""Notifications to systemd: that the service is ready, its status, and the watchdog's pings."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from opdbus.errors import ConfigError, OpDbusError
from opdbus.settings.parsing import decimal
from opdbus.systemd import unit

# `systemctl status` is read by people: often enough to see that it goes on.
STATUS_SECONDS: Final = 0.5
_MAX_STATUS: Final = 500
# Three pings to a deadline: two may come late.
_PINGS: Final = 3
_FIRST_PASSED: Final = 3
# So long a start may take after each report that it goes on; see sd_notify(3).
_LONGER_USEC: Final = 120_000_000
_STARTING: Final = "Making the database ready"


class Systemd:
    """The service's side of sd_notify(3): `send` gets every message.

    `renew` says that the status may have changed; `describe` then gives it, at most once in
    `status_seconds`.
    """

    def __init__(
        self,
        send: Callable[[str], object],
        watchdog_seconds: float = 0.0,
        status_seconds: float = STATUS_SECONDS,
    ) -> None:
        self.describe: Callable[[], str] = str
        self._send = send
        self._watchdog_seconds = watchdog_seconds
        self._status_seconds = status_seconds
        self._status = ""
        self._next: asyncio.TimerHandle | None = None
        self._is_stale = False
        self._is_stopping = False
        self._is_ready = False

    async def watched(self) -> None:
        """Ping the watchdog for as long as the event loop runs; never ends by itself."""
        while self._watchdog_seconds:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / _PINGS)
        await asyncio.Event().wait()

    def progress(self) -> None:
        """Notify that long work goes on: a start takes longer, or the status may have changed."""
        if self._is_ready:
            self.renew()
        else:
            self._notify(f"EXTEND_TIMEOUT_USEC={_LONGER_USEC}", _STARTING)

    def ready(self) -> None:
        """Notify that the service is ready: it owns its name on the bus."""
        self._is_ready = True
        self._notify("READY=1", self.describe())

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Notify that settings are read again, and when that is over, however it ends."""
        now = time.monotonic_ns() // 1000
        self._notify(
            "RELOADING=1", f"MONOTONIC_USEC={now}", "Reading settings and state file again"
        )
        try:
            yield
        finally:
            self.ready()

    def stopping(self, fault: BaseException | None = None) -> None:
        """Notify that the service ends, by a fault if one is given, and say nothing more."""
        self._notify("STOPPING=1", _ended(fault) if isinstance(fault, OpDbusError) else "Stopping")
        self._is_stopping = True

    def failed(self, error: OpDbusError) -> None:
        """Make the fault the status, which systemd keeps when the service has ended."""
        self._notify(_ended(error))

    def renew(self) -> None:
        """Send the status if it has changed, now or as soon as the last one is old enough."""
        self._is_stale = True
        if self._next is None:
            self._renewed()

    def _renewed(self) -> None:
        self._next = None
        if self._is_stopping or not self._is_stale:
            return
        self._is_stale = False
        if (status := self.describe()) != self._status:
            self._notify(status)
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(self._status_seconds, self._renewed)

    def _notify(self, *assignments: str) -> None:
        """Send assignments, the last of which is the status; nothing once it is stopping."""
        if self._is_stopping:
            return
        *rest, self._status = assignments
        # a line break would begin another assignment
        line = " ".join(self._status.split())[:_MAX_STATUS]
        self._send("\n".join([*rest, f"STATUS={line}"]))


def connect(environ: Mapping[str, str], pid: int) -> Systemd:
    """Connect to the systemd that started the process `pid`; elsewhere nothing is sent.

    Raises ConfigError where the watchdog's time is no number.
    """
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return Systemd(lambda _message: None)
    try:
        from systemd.daemon import notify  # of the extra `systemd`, which needs a compiler
    except ImportError:
        notify = partial(_notify, path)
    return Systemd(notify, _watchdog_seconds(environ, pid))


def _notify(path: str, message: str) -> None:
    """Send one message to systemd, as sd_notify(3) says under "Standalone implementations".

    What cannot be sent is dropped: systemd then waits until its own time is over, and says so.
    """
    # a name that begins with `@` is of the abstract namespace
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(message.encode())


def passed(environ: MutableMapping[str, str], pid: int) -> dict[str, socket.socket]:
    """Take the sockets that systemd opened for the process `pid`, by name; see sd_listen_fds(3).

    What says so is removed from the environment, since it is not meant for children. Raises
    ConfigError where a descriptor is no socket.
    """
    owner, count, names = (environ.pop(f"LISTEN_{key}", "") for key in ("PID", "FDS", "FDNAMES"))
    if owner != str(pid):
        return {}
    try:
        descriptors = range(_FIRST_PASSED, _FIRST_PASSED + int(count))
        found = dict(zip(names.split(":"), map(_socket, descriptors), strict=True))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"LISTEN_FDS={count!r} with LISTEN_FDNAMES={names!r} is not accepted: {error}; let"
            " systemd pass sockets, or unset LISTEN_FDS"
        ) from error
    return found


def leave(environ: Mapping[str, str], pid: int, error: OpDbusError) -> None:
    """Leave a fault as the status of the service, where it ends before it could be connected."""
    with suppress(ConfigError):
        connect(environ, pid).failed(error)


def _socket(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)  # noqa: FBT003 -- it takes no keywords
    return socket.socket(fileno=descriptor)


def _ended(fault: OpDbusError) -> str:
    return unit.FAILED + str(fault)


def _watchdog_seconds(environ: Mapping[str, str], pid: int) -> float:
    """Return the time within which systemd expects a ping; 0.0: none, see sd_watchdog(3)."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    given = environ.get("WATCHDOG_USEC", "0")
    microseconds = decimal(given)
    if microseconds is None:
        raise ConfigError(f"WATCHDOG_USEC={given!r} is not accepted: give a number of microseconds")
    return microseconds / 1e6
