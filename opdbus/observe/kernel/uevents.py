"""The kernel's uevents of devices and modules, as triggers to list them again."""

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
# The cause reported for changes after an event.
CAUSE: Final = "kernel"
# The multicast group of the kernel; udevd sends to another.
GROUP: Final = 1
# One device has several events, such as those of its driver.
_SETTLE_SECONDS: Final = 0.05
# The polling interval if events are not available.
_POLL_SECONDS: Final = 60.0
# Datagrams read before other tasks of the event loop run.
_AT_ONCE: Final = 64
_SUBSYSTEM, _PATH = b"\0SUBSYSTEM=", b"\0DEVPATH="
# Names of devices kept until the observer takes them.
_MAX_NAMED: Final = 1_000


class Follower:
    """The events of some subsystems, such as `block` or `module`, for one observer."""

    def __init__(self, subsystems: frozenset[bytes]) -> None:
        self.subsystems = subsystems
        self.news = asyncio.Event()
        # by the last parts of the devices' paths
        self.named: set[str] = set()
        # the reason why there are no events
        self.missing = ""
        self.fault = ""
        self._allowance = Allowance()
        self._since = time.monotonic()

    async def wait_for_events(self) -> set[str]:
        """Return the names of devices with events since the last call; wait for one.

        Raises LostSource if the socket failed. Without events, returns after a minute.
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
        """Record an event if its subsystem is followed."""
        if _field(event, _SUBSYSTEM) in self.subsystems:
            if len(self.named) < _MAX_NAMED:
                self.named.add(_field(event, _PATH).rpartition(b"/")[2].decode(errors="replace"))
            self.news.set()


class Uevents:
    """One socket for all followers: the one that systemd passed, or one of our own.

    Events are trusted only for the device's name and subsystem; observers read the rest from /sys
    and /proc. After lost events all followers are woken.
    """

    def __init__(self, passed: socket.socket | None = None) -> None:
        self.passed = passed
        self._socket: socket.socket | None = None
        self._followers: set[Follower] = set()

    @contextmanager
    def follow(self, *subsystems: str) -> Iterator[Follower]:
        """Yield a follower of some subsystems; events count from the moment it is yielded."""
        follower = Follower(frozenset(name.encode() for name in subsystems))
        try:
            if not self._followers:
                self._socket = self.passed or open_socket(UEVENT, GROUP, _UNIT)
                self._socket.settimeout(0.0)
                asyncio.get_running_loop().add_reader(self._socket, self._read)
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
                assert self._socket  # noqa: S101 -- open while there are followers
                asyncio.get_running_loop().remove_reader(self._socket)
                if self._socket is not self.passed:
                    self._socket.close()

    def _read(self) -> None:
        """Read waiting datagrams; the event loop calls again while there are more."""
        assert self._socket  # noqa: S101 -- see above
        try:
            for _ in range(_AT_ONCE):
                event = receive(self._socket)
                for follower in self._followers:
                    # None: events were lost
                    if event is None:
                        follower.news.set()
                    else:
                        follower.take(event)
        except BlockingIOError:
            return
        except OSError as error:
            asyncio.get_running_loop().remove_reader(self._socket)
            for follower in self._followers:
                follower.fault = f"the kernel's events cannot be read: {error.strerror}"
                follower.news.set()


def _field(event: bytes, name: bytes) -> bytes:
    return event.partition(name)[2].partition(b"\0")[0]
