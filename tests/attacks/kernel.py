"""A kernel that is none: it answers netlink requests over a pair of sockets, as a test tells it."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

LINKS, ADDRESSES, ROUTES, SOCKETS = 18, 22, 26, 20
LINK, ADDRESS, ROUTE = 16, 20, 24
ERROR, DONE = 2, 3
INTERRUPTED = 0x10
_HEADER = struct.Struct("=IHHII")
# Before each datagram: the process that it is from, and the fault that reading it gives.
_ENVELOPE = struct.Struct("=ii")


def attribute(kind: int, value: bytes, length: int | None = None) -> bytes:
    """Give an attribute as it stands in a message, with the length that it says it has."""
    said = len(value) + 4 if length is None else length
    return struct.pack("=HH", said, kind) + value + bytes(-len(value) % 4)


def message(
    kind: int, body: bytes, number: int = 0, *, flags: int = 0, length: int | None = None
) -> bytes:
    """Give a message, with the length that it says it has."""
    said = _HEADER.size + len(body) if length is None else length
    return _HEADER.pack(said, kind, flags, number, 0) + body


def done(number: int, flags: int = 0) -> bytes:
    """Give the message that ends a list."""
    return message(DONE, bytes(4), number, flags=flags)


def link(index: int, name: str, *more: bytes) -> bytes:
    """Give the body of an Ethernet interface that is up."""
    head = struct.pack("=BxHiII", 0, 1, index, 0x11043, 0)
    return head + attribute(3, name.encode() + b"\0") + b"".join(more)


def address(index: int, last: int) -> bytes:
    """Give the body of an address in 192.0.2.0/24."""
    return struct.pack("=BBBBI", 2, 24, 0x80, 0, index) + attribute(2, bytes([192, 0, 2, last]))


def route(index: int, *destination: int) -> bytes:
    """Give the body of a route to a network of 24 bits, the default one if none is given."""
    head = struct.pack("=BBBBBBBBI", 2, 24 if destination else 0, 0, 0, 254, 3, 0, 1, 0)
    where = attribute(1, bytes(destination)) if destination else b""
    return head + where + attribute(4, struct.pack("=I", index))


def listener(port: int, group: int = 0, uid: int = 0) -> bytes:
    """Give the body of a TCP socket that listens at 127.0.0.1."""
    where = bytes([127, 0, 0, 1]) + bytes(12)
    head = struct.pack("=BBxxHxx16s16x4x8x12xI4x", 2, 10, socket.htons(port), where, uid)
    return head + attribute(21, struct.pack("=Q", group))


def sent(data: bytes, sender: int = 0, fault: int = 0) -> bytes:
    """Give a datagram of the kernel or of another process, or instead of it a fault."""
    return _ENVELOPE.pack(sender, fault) + data


# What is sent for a request, by its number.
Answer = Callable[[int], Iterable[bytes]]


def listing(kind: int, *bodies: bytes) -> Answer:
    """Make an answer with a message for each body."""
    return lambda number: [*(sent(message(kind, b, number)) for b in bodies), sent(done(number))]


class Passed(socket.socket):
    """The socket that an observer has of it: to recvfrom it is one of netlink."""

    def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, Any]:
        """Give a datagram and its sender; raises OSError."""
        data = self.recv(bufsize + _ENVELOPE.size, flags)
        if not data:
            raise ConnectionResetError
        sender, fault = _ENVELOPE.unpack_from(data)
        if fault:
            raise OSError(fault, os.strerror(fault))
        return data[_ENVELOPE.size :], (sender, 0)


class FakeKernel:
    """Answers each kind of request from a table; use as a context."""

    def __init__(self, answers: dict[int, Answer] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.passed = Passed(fileno=theirs.detach())
        self.answers = answers or {}
        self.requests: list[int] = []
        self._socket = ours
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave, also in the middle of an answer."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self.passed.close()

    def tell(self, data: bytes) -> None:
        """Send what nobody asked for."""
        self._socket.send(data)

    def _serve(self) -> None:
        try:
            while request := self._socket.recv(1 << 16):
                _, kind, _, number, _ = _HEADER.unpack_from(request)
                self.requests.append(kind)
                for datagram in self.answers.get(kind, listing(0))(number):
                    self._socket.send(datagram)
        except OSError:
            return  # nobody listens any more
