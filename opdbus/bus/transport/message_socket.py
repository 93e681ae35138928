"""The socket to the bus: connects, authenticates, and exchanges whole messages with their files."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from opdbus.bus.transport import frames
from opdbus.bus.transport.descriptors import Descriptor, Received
from opdbus.bus.transport.library import (
    BusType,
    InvalidAddressError,
    get_bus_address,
    parse_address,
)
from opdbus.errors import BusError

_LINE: Final = 1 << 10

# Bytes of one read of small messages: dozens of them, since hundreds would take 30 ms at a time.
# Larger messages have a buffer of their own.
_SMALL: Final = 8 << 10
# Bytes of one read of a skipped message.
_CHUNK: Final = 64 << 10
# Seconds of reading in one turn of the event loop: a flood must not stop the loop, and a client
# behind a flood must not wait for many turns.
READ_SECONDS: Final = 0.004
# Room for the most open files that Linux passes at a time.
_ANCILLARY: Final = socket.CMSG_LEN(253 * array("i").itemsize)


def transports(address: str) -> list[tuple[str, dict[str, str]]]:
    """Parse an address, or that of the system or session bus; raise BusError."""
    try:
        if address == "system":
            address = get_bus_address(BusType.SYSTEM)
        elif address == "session":
            try:
                address = get_bus_address(BusType.SESSION)
            except (InvalidAddressError, KeyError):
                raise BusError(
                    "there is no session bus here, as DBUS_SESSION_BUS_ADDRESS is not set; use the"
                    " system bus, or give the address of another one"
                ) from None
        return parse_address(address)
    except (InvalidAddressError, ValueError, KeyError, TypeError) as error:
        raise BusError(f"{address} is not the address of a message bus: {error}") from None


async def connect(transports: Sequence[tuple[str, dict[str, str]]]) -> socket.socket:
    """Connect to the first address that answers, and authenticate; raise OSError."""
    fault: OSError = ConnectionError("the address names no Unix socket")
    for kind, options in transports:
        address = options.get("path") or "\0" + options.get("abstract", "")
        if kind != "unix" or address == "\0":
            continue
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(plain, address)
            await _authenticate(plain)
        except OSError as error:
            plain.close()
            fault = error
        except BaseException:
            plain.close()
            raise
        else:
            return plain
    raise fault


async def _authenticate(plain: socket.socket) -> None:
    """Authenticate by the uid that the kernel confirms (SASL EXTERNAL), and enable files."""
    loop = asyncio.get_running_loop()
    uid = str(os.getuid()).encode().hex()
    for line, accepted in (
        (f"\0AUTH EXTERNAL {uid}", b"OK"),
        ("NEGOTIATE_UNIX_FD", b"AGREE_UNIX_FD"),
    ):
        await loop.sock_sendall(plain, f"{line}\r\n".encode())
        answer = await _line(plain)
        if not answer.startswith(accepted):
            raise PermissionError(errno.EACCES, f"the bus answered {answer.decode('latin-1')!r}")
    await loop.sock_sendall(plain, b"BEGIN\r\n")


async def _line(plain: socket.socket) -> bytes:
    """Read one line; the bus sends nothing after it before the next command."""
    line = b""
    while not line.endswith(b"\r\n"):
        data = await asyncio.get_running_loop().sock_recv(plain, _LINE)
        if not data or len(line) > _LINE:
            raise ConnectionError("the bus closed the connection during authentication")
        line += data
    return line[:-2]


class Written(NamedTuple):
    """An encoded message, its files, and its destination, empty for a broadcast."""

    data: bytes
    descriptors: Sequence[Descriptor] = ()
    destination: str = ""


class Frame(NamedTuple):
    """A received message, or only the header of a skipped one.

    `lost_files` is True if the kernel could not pass open files that belong to it.
    """

    header: frames.Header
    data: bytes | bytearray
    total: int
    is_whole: bool
    descriptors: Sequence[Received]
    lost_files: bool = False


class _Large:
    """A message larger than one read, and the number of its missing bytes."""

    def __init__(self, header: frames.Header, begun: bytearray, total: int) -> None:
        self.header = header
        self.data = bytearray(total)
        self.data[: len(begun)] = begun
        self.left = total - len(begun)


class MessageSocket:
    """A connected and authenticated socket, which the event loop reads and writes.

    `on_frame` gets each message; `on_lost` is called once, when the connection ends. Messages that
    the bus does not accept at once are queued without a limit: senders must check `waiting`.
    `wants` decides by a message's header and size whether to read or skip it. In each turn of the
    event loop, it reads for `turn` seconds.
    """

    def __init__(
        self,
        connected: socket.socket,
        on_frame: Callable[[Frame], None],
        wants: Callable[[frames.Header, int], bool],
        turn: float = READ_SECONDS,
    ) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._on_frame = on_frame
        self._wants = wants
        self._turn = turn
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._in = bytearray()
        self._large: _Large | None = None
        self._skip = 0
        # files of each message that has any, in order; None if some of them were lost
        self._files: deque[list[Received] | None] = deque()
        # messages to send, the sent bytes of the first one, and the unsent bytes of all
        self._out: deque[Written] = deque()
        self._begun = 0
        self.waiting = 0
        self._sent: asyncio.Future[None] | None = None
        # whether a writer is registered with the event loop
        self._is_writing = False
        self.is_open = True
        self._loop.add_reader(self._socket, self._read)

    def waiting_for(self, destination: str) -> int:
        """Return the unsent bytes for one destination."""
        size = sum(len(each.data) for each in self._out if each.destination == destination)
        is_begun = self._begun and self._out[0].destination == destination
        return size - self._begun if is_begun else size

    def send(self, written: Written) -> None:
        """Send a message, or queue it until the bus accepts it; drop it once the bus is gone."""
        if not self.is_open:
            return
        self._out.append(written)
        self.waiting += len(written.data)
        if len(self._out) == 1:
            self._write()
            if self._out and self.is_open:
                self._is_writing = True
                self._loop.add_writer(self._socket, self._write)

    async def wait_flushed(self) -> None:
        """Wait until everything is sent, or the bus is gone."""
        if self._out:
            self._sent = self._sent or self._loop.create_future()
            await asyncio.shield(self._sent)

    def close(self) -> None:
        """Disconnect, and drop queued messages."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._out.clear()
        self._begun = self.waiting = 0
        self._large = None
        self._files.clear()
        self._all_sent()
        self.on_lost()

    def _write(self) -> None:
        try:
            while self._out:
                first = self._out[0]
                rest = memoryview(first.data)[self._begun :]
                if first.descriptors and not self._begun:
                    # the files are sent with the first byte
                    numbers = [file.fileno() for file in first.descriptors]
                    count = socket.send_fds(self._socket, [rest], numbers)
                else:
                    count = self._socket.send(rest)
                self.waiting -= count
                self._begun += count
                if self._begun == len(first.data):
                    self._out.popleft()
                    self._begun = 0
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket)
        self._all_sent()

    def _all_sent(self) -> None:
        if self._sent and not self._sent.done():
            self._sent.set_result(None)
        self._sent = None

    def _read(self) -> None:
        """Read for at most `turn` seconds."""
        try:
            end = self._loop.time() + self._turn
            while self._receive() and self._loop.time() < end:
                pass
        except BlockingIOError:
            return
        except (OSError, EOFError, frames.NoMessage):
            # after NoMessage, the start of the next message is unknown
            self.close()

    def _receive(self) -> bool:
        """Read once; return whether more data may be available."""
        if not self.is_open:
            raise BlockingIOError
        large = self._large
        if self._skip:
            target = self._chunk[: self._skip]
        elif large:
            target = memoryview(large.data)[len(large.data) - large.left :]
        else:
            target = self._chunk[:_SMALL]
        # not socket.recv_fds, which drops the flags
        count, ancillary, flags, _ = self._socket.recvmsg_into(
            [target], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
        )
        self._take_files(ancillary, flags)
        if not count:
            raise EOFError
        if self._skip:
            self._skip -= count
        elif large:
            large.left -= count
            if not large.left:
                self._large = None
                self._deliver(large.header, large.data)
        else:
            self._in += target[:count]
            self._parse()
        # a read ends at a message with files
        return count == len(target) or bool(ancillary)

    def _take_files(self, ancillary: Sequence[tuple[int, int, bytes]], flags: int) -> None:
        """Keep the files of one read, which are those of one message.

        If the kernel could not pass them all, none may be attributed to another message.
        """
        numbers = array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        files = list(map(Received, numbers))
        if flags & socket.MSG_CTRUNC:
            self._files.append(None)
        elif files:
            self._files.append(files)

    def _parse(self) -> None:
        """Deliver every complete message, and the headers of skipped ones."""
        start = 0
        try:
            while self.is_open and (taken := self._parse_one(start)):
                start += taken
        finally:
            del self._in[:start]

    def _parse_one(self, start: int) -> int:
        """Deliver the next message if enough of it was read; return the consumed bytes."""
        there = len(self._in) - start
        if there < frames.FIXED:
            return 0
        head, total = frames.measure(self._in, start)
        header = None
        if head <= frames.MAX_HEADER:
            if there < head:
                return 0
            # without a header, there is no sender to answer
            with suppress(ValueError):
                header = frames.parse_header(self._in[start : start + head])
        if header is None or not self._wants(header, total):
            self._skip = max(0, total - there)
            if header:
                self._deliver(header, bytes(self._in[start : start + head]), skipped_of=total)
            return min(there, total)
        if there >= total:
            self._deliver(header, bytes(self._in[start : start + total]))
            return total
        if total <= _SMALL:
            return 0
        self._large = _Large(header, self._in[start:], total)
        return there

    def _deliver(self, header: frames.Header, data: bytes | bytearray, skipped_of: int = 0) -> None:
        """Deliver a message, or the header of a skipped one of `skipped_of` bytes."""
        files = self._files.popleft() if header.descriptors and self._files else []
        lost = len(files or ()) != header.descriptors
        taken = [] if lost else files or []
        total = skipped_of or len(data)
        if header.has_unknown:
            data = frames.drop_unknown_fields(data)
        self._on_frame(Frame(header, data, total, not skipped_of, taken, lost_files=lost))
