"""The kernel's events of devices and modules: reasons to list again what may have changed."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opdbus.observe.core.netlink import UEVENT, open_socket, receive
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Absent, LostSource
from opdbus.platform.tasks import at_most

_UNIT: Final = "op-dbus-uevent.socket"
# The cause of what an event leads to.
CAUSE: Final = "kernel"
# What the kernel itself sends; udevd has another group.
GROUP: Final = 1
# One device has several events, such as those of its driver.
_SETTLE_SECONDS: Final = 0.05
# Without events: how often to look.
_POLL_SECONDS: Final = 60.0
# Datagrams that are read before others have their turn.
_AT_ONCE: Final = 64
_SUBSYSTEM, _PATH = b"\0SUBSYSTEM=", b"\0DEVPATH="
# Names of devices that are kept until their observer looks.
_MAX_NAMED: Final = 1_000


class Follower:
    """What one observer follows: some subsystems, such as `block` or `module`."""

    def __init__(self, subsystems: frozenset[bytes]) -> None:
        self.subsystems = subsystems
        self.news = asyncio.Event()
        # devices that had an event, by the last parts of their paths
        self.named: set[str] = set()
        # why there are no events
        self.missing = ""
        self.fault = ""
        self._allowance = Allowance()
        self._since = time.monotonic()

    async def changed(self) -> set[str]:
        """Wait until something may have changed since the last time; raises LostSource.

        Returns the names of devices that had an event. Where there are no events, something may
        have changed after a minute.
        """
        await asyncio.sleep(self._allowance.rest(time.monotonic() - self._since))
        async with at_most(_POLL_SECONDS if self.missing else None):
            await self.news.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
        self.news.clear()
        self._since = time.monotonic()
        if self.fault:
            raise LostSource(self.fault)
        named, self.named = self.named, set()
        return named

    def take(self, event: bytes) -> None:
        """Note an event, if it is of a subsystem that is followed."""
        if _field(event, _SUBSYSTEM) in self.subsystems:
            if len(self.named) < _MAX_NAMED:
                self.named.add(_field(event, _PATH).rpartition(b"/")[2].decode(errors="replace"))
            self.news.set()


class Uevents:
    """One socket for all observers that follow events: what systemd passed, or one of our own.

    Nothing of an event is believed but which device it is about: what has changed is read from /sys
    and /proc. After events were lost, everything may have changed.
    """

    def __init__(self, passed: socket.socket | None = None) -> None:
        self.passed = passed
        self._socket: socket.socket | None = None
        self._followers: set[Follower] = set()

    @contextmanager
    def follow(self, *subsystems: str) -> Iterator[Follower]:
        """Follow some subsystems: no event from now on is missed."""
        follower = Follower(frozenset(name.encode() for name in subsystems))
        try:
            if not self._followers:
                self._open()
        except Absent as error:
            follower.missing = str(error)
            yield follower
            return
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers:
                self._close()

    def _open(self) -> None:
        self._socket = self.passed or open_socket(UEVENT, GROUP, _UNIT)
        self._socket.settimeout(0.0)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _close(self) -> None:
        assert self._socket  # noqa: S101 -- it is open while it is followed
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._socket is not self.passed:
            self._socket.close()

    def _read(self) -> None:
        """Read what waits; the event loop calls again while there is more."""
        assert self._socket  # noqa: S101 -- see above
        try:
            for _ in range(_AT_ONCE):
                self._tell(receive(self._socket))
        except BlockingIOError:
            return
        except OSError as error:
            asyncio.get_running_loop().remove_reader(self._socket)
            for follower in self._followers:
                follower.fault = f"the kernel's events cannot be read: {error.strerror}"
                follower.news.set()

    def _tell(self, event: bytes | None) -> None:
        """Wake those that follow the subsystem of an event, or all if events were lost."""
        for follower in self._followers:
            if event is None:
                follower.news.set()
            else:
                follower.take(event)


def _field(event: bytes, name: bytes) -> bytes:
    return event.partition(name)[2].partition(b"\0")[0]
