"""Netlink sockets: lists from the kernel, and notice of changes; see netlink(7)."""

import asyncio
import errno
import fcntl
import os
import secrets
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Self

from opdbus.observe.core.report import Absent, LostSource

ROUTE, DIAG, UEVENT = 0, 4, 15
# Interfaces; IPv4 and IPv6 addresses, routes and settings of interfaces: as in
# op-dbus-route.socket.
ROUTE_GROUPS: Final = 25167185
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_REQUEST_DUMP: Final = 0x1 | 0x300
# NLMSG_ERROR and NLMSG_DONE, the last messages of a list.
_LAST: Final = (2, 3)
# The size of the error number in them.
_NUMBER_BYTES: Final = 4
# NLM_F_DUMP_INTR: the list changed while it was made.
_INTERRUPTED: Final = 0x10
# NLA_TYPE_MASK: the other bits of an attribute's type are flags of its coding.
_ATTRIBUTE_TYPE: Final = 0x3FFF
# A dump comes in pieces of at most 32 KiB.
_MAX_BYTES: Final = 64 << 10
# The most of one list: a router may have a million routes.
MAX_MESSAGES: Final = 50_000
ANSWER_SECONDS: Final = 10.0
# SIOCGIFNAME; see netdevice(7). The name comes before the index.
_NAME_OF_INTERFACE: Final = 0x8910
_NAME_BYTES: Final = 16
_INTERFACE: Final = struct.Struct("=16xI20x")
# The longest text that the kernel sends is the 255 characters of an interface's alias.
_MAX_TEXT: Final = 256
# Datagrams read in one turn of the event loop, and the most turns: more than a buffer holds.
_AT_ONCE: Final = 64
_TURNS: Final = 256


class Message(NamedTuple):
    """A message of the kernel: its type, flags and number, and its body after the header."""

    type: int
    flags: int
    number: int
    body: bytes


def messages(data: bytes) -> Iterator[Message]:
    """Yield the messages of a datagram, up to the first that is cut off."""
    for (_, kind, flags, number, _), body in records(data, _HEADER):
        yield Message(kind, flags, number, body)


def attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Return the attributes from some byte on, by type, up to the first that is cut off."""
    return {kind & _ATTRIBUTE_TYPE: value for (_, kind), value in records(data[start:], _ATTRIBUTE)}


def values_of(kind: int, data: bytes) -> list[bytes]:
    """Return the attributes of one type, which may come several times."""
    return [value for (_, one), value in records(data, _ATTRIBUTE) if one & _ATTRIBUTE_TYPE == kind]


def records(data: bytes, header: struct.Struct) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yield the header and content of records that begin with their length.

    Each begins at a multiple of 4 bytes. Ends at the first that is cut off.
    """
    start = 0
    while start + header.size <= len(data):
        length, *others = header.unpack_from(data, start)
        if length < header.size or start + length > len(data):
            return
        yield (length, *others), data[start + header.size : start + length]
        start += (length + 3) & ~3


def number(value: bytes | None) -> int:
    """Return a number in the host's order of bytes; 0 where there is none."""
    return int.from_bytes(value[:8], sys.byteorder) if value else 0


def text(value: bytes | None) -> str:
    """Return a text that ends at its first zero byte; empty where there is none."""
    return (value or b"")[:_MAX_TEXT].partition(b"\0")[0].decode(errors="replace")


class ListRefused(LostSource):
    """The kernel cannot give this list."""


class Channel:
    """A netlink socket: one that systemd passed, which stays open, or one of our own.

    Only datagrams of the kernel itself are read. Raises Absent where there is no such socket.
    """

    def __init__(
        self,
        passed: socket.socket | None,
        protocol: int,
        groups: int,
        unit: str,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._socket = passed or open_socket(protocol, groups, unit)
        self._seconds = seconds
        self._is_ours = passed is None
        self._socket.settimeout(0.0)
        self._number = secrets.randbits(31)
        # whether something may have changed since a dump began
        self.is_stale = False

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it, unless it was passed."""
        if self._is_ours:
            self._socket.close()

    async def dump(self, kind: int, body: bytes) -> list[Message]:
        """Return the kernel's list for a request, MAX_MESSAGES at most; raises LostSource."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        header = (_HEADER.size + len(body), kind, _REQUEST_DUMP, self._number, 0)
        try:
            async with asyncio.timeout(self._seconds):
                # the rest of a list that another process asked for, or that was given up
                await self._drain()
                self._socket.send(_HEADER.pack(*header) + body)
                return await self._answers()
        except TimeoutError:
            raise LostSource(f"the kernel gave no list within {self._seconds:g} s") from None

    def interface(self, index: int) -> str:
        """Return the name of an interface; empty for 0, the index if the interface is gone."""
        if not index:
            return ""
        try:
            answer = fcntl.ioctl(self._socket, _NAME_OF_INTERFACE, _INTERFACE.pack(index))
        except OSError:
            return str(index)
        return text(answer[:_NAME_BYTES])

    async def wait_for_change(self) -> None:
        """Wait until the kernel reports a change, or may have lost a report."""
        while not self.is_stale:
            await self._until_readable()
            await self._drain()
        self.is_stale = False

    async def _answers(self) -> list[Message]:
        """Collect the answers to the last request; other messages are news."""
        found: list[Message] = []
        while True:
            await self._until_readable()
            with suppress(BlockingIOError):
                for message in messages(self._receive()):
                    is_other = message.number != self._number
                    self.is_stale |= is_other or message.flags & _INTERRUPTED != 0
                    if is_other:
                        continue
                    if message.type in _LAST:
                        _require_success(message.body)
                        return found
                    if len(found) < MAX_MESSAGES:
                        found.append(message)
            # a long list must not block the event loop
            await asyncio.sleep(0)

    async def _drain(self) -> None:
        """Read all waiting datagrams: any message means that something has changed."""
        with suppress(BlockingIOError):
            for _ in range(_TURNS):
                for _ in range(_AT_ONCE):
                    # reading may itself find that messages were lost
                    is_news = bool(self._receive())
                    self.is_stale |= is_news
                await asyncio.sleep(0)

    async def _until_readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._socket)

    def _receive(self) -> bytes:
        """Return a datagram of the kernel, nothing for another's; raises BlockingIOError."""
        data = receive(self._socket)
        self.is_stale |= data is None
        return data or b""


def receive(opened: socket.socket) -> bytes | None:
    """Return a datagram of the kernel, nothing for another's, None where some were lost.

    Raises BlockingIOError where none waits.
    """
    try:
        data, (sender, _) = opened.recvfrom(_MAX_BYTES)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        return None
    return data if sender == 0 else b""


def open_socket(protocol: int, groups: int, unit: str) -> socket.socket:
    """Open a socket of our own; raises Absent where that is not allowed, naming the unit."""
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        raise Absent(
            f"systemd passed no socket, and none can be opened ({error.strerror}):"
            f" `systemctl restart {unit}`"
        ) from None
    opened.bind((0, groups))
    return opened


def _require_success(body: bytes) -> None:
    """Raise Refused if the number that ends an answer is that of an error, or is missing."""
    if len(body) < _NUMBER_BYTES:
        raise ListRefused("the kernel ended a list without saying how")
    code = int.from_bytes(body[:_NUMBER_BYTES], sys.byteorder, signed=True)
    if code < 0:
        raise ListRefused(f"the kernel refused a list: {os.strerror(-code)}")
