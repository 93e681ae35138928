"""Notifications to systemd: readiness, status text, watchdog pings and passed sockets."""

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

# `systemctl status` is for people, so that two updates a second are enough.
STATUS_SECONDS: Final = 0.5
_MAX_STATUS: Final = 500
# Three pings in each watchdog interval: two of them may be late.
_PINGS: Final = 3
_FIRST_PASSED: Final = 3
# The extension of the start timeout with each progress report; see sd_notify(3).
_LONGER_USEC: Final = 120_000_000
_STARTING: Final = "Making the database ready"


class Systemd:
    """The service's side of sd_notify(3); `send` gets every message.

    `renew` reports that the status may have changed. `describe` returns the status; it is called at
    most once in `status_seconds`.
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

    async def ping_watchdog(self) -> None:
        """Ping the watchdog while the event loop runs; never returns."""
        while self._watchdog_seconds:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / _PINGS)
        await asyncio.Event().wait()

    def progress(self) -> None:
        """Report progress of long work: extends the start timeout, later renews the status."""
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
        """Notify that settings are read again, and at the end that the service is ready."""
        now = time.monotonic_ns() // 1000
        self._notify(
            "RELOADING=1", f"MONOTONIC_USEC={now}", "Reading settings and state file again"
        )
        try:
            yield
        finally:
            self.ready()

    def stopping(self, fault: BaseException | None = None) -> None:
        """Notify that the service stops, with a fault if given; sends nothing afterwards."""
        self._notify(
            "STOPPING=1", _end_status(fault) if isinstance(fault, OpDbusError) else "Stopping"
        )
        self._is_stopping = True

    def send_fault(self, error: OpDbusError) -> None:
        """Send a fault as the status, which systemd keeps after the service has ended."""
        self._notify(_end_status(error))

    def renew(self) -> None:
        """Send the status if it has changed, at once or when `status_seconds` have passed."""
        self._is_stale = True
        if self._next is None:
            self._renew()

    def _renew(self) -> None:
        self._next = None
        if self._is_stopping or not self._is_stale:
            return
        self._is_stale = False
        if (status := self.describe()) != self._status:
            self._notify(status)
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(self._status_seconds, self._renew)

    def _notify(self, *assignments: str) -> None:
        """Send assignments, the last of which is the status; nothing once the service stops."""
        if self._is_stopping:
            return
        *rest, self._status = assignments
        # a newline would begin another assignment, and systemd takes a backslash as an escape
        line = " ".join(self._status.split())[:_MAX_STATUS].replace("\\", r"\\")
        self._send("\n".join([*rest, f"STATUS={line}"]))


def connect(environ: Mapping[str, str], pid: int) -> Systemd:
    """Return the connection to the systemd that started process `pid`, or one that sends nothing.

    Raises ConfigError if the watchdog's interval is not a number.
    """
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return Systemd(lambda _message: None)
    try:
        from systemd.daemon import notify  # from the extra `systemd`, which needs a compiler
    except ImportError:
        notify = partial(_notify, path)
    return Systemd(notify, _watchdog_seconds(environ, pid))


def _notify(path: str, message: str) -> None:
    """Send one message by the protocol in sd_notify(3), "Standalone implementations".

    Errors are ignored: systemd reports a timeout itself.
    """
    # a name that begins with `@` is in the abstract namespace
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(message.encode())


def take_sockets(environ: MutableMapping[str, str], pid: int) -> dict[str, socket.socket]:
    """Return the sockets that systemd passed, each with a name of its own."""
    return dict(take_socket_list(environ, pid))


def take_socket_list(
    environ: MutableMapping[str, str], pid: int
) -> list[tuple[str, socket.socket]]:
    """Return (name, socket) of those that systemd passed to `pid`; see sd_listen_fds(3).

    The variables are removed from `environ`, since children must not inherit them. Raises
    ConfigError if a descriptor is not a socket. The caller closes the sockets.
    """
    owner, count, names = (environ.pop(f"LISTEN_{key}", "") for key in ("PID", "FDS", "FDNAMES"))
    if owner != str(pid):
        return []
    try:
        descriptors = range(_FIRST_PASSED, _FIRST_PASSED + int(count))
        found = list(zip(names.split(":"), map(_socket, descriptors), strict=True))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"LISTEN_FDS={count!r} with LISTEN_FDNAMES={names!r} is not accepted: {error}; let"
            " systemd pass sockets, or unset LISTEN_FDS"
        ) from error
    return found


def leave(environ: Mapping[str, str], pid: int, error: OpDbusError) -> None:
    """Send a fault as the status if the service ends before a `Systemd` exists."""
    with suppress(ConfigError):
        connect(environ, pid).send_fault(error)


def _socket(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)  # noqa: FBT003 -- it takes no keywords
    return socket.socket(fileno=descriptor)


def _end_status(fault: OpDbusError) -> str:
    return unit.FAILED + str(fault)


def _watchdog_seconds(environ: Mapping[str, str], pid: int) -> float:
    """Return the watchdog's interval in seconds; 0.0 if it is off; see sd_watchdog(3)."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    given = environ.get("WATCHDOG_USEC", "0")
    microseconds = decimal(given)
    if microseconds is None:
        raise ConfigError(f"WATCHDOG_USEC={given!r} is not accepted: give a number of microseconds")
    return microseconds / 1e6
