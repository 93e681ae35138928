"""The socket to the bus: sends and receives whole messages with their open files."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from opdbus.bus.transport import frames
from opdbus.bus.transport.descriptors import HasFileno, Received
from opdbus.bus.transport.send_queue import SendQueue, Written

# Bytes of one read of small messages: dozens of them, since hundreds would take 30 ms at a time.
# Larger messages have a buffer of their own.
_SMALL: Final = 8 << 10
# Bytes of one read of a skipped message.
_CHUNK: Final = 64 << 10
# Seconds of reading in one turn of the event loop: a flood must not stop the loop, and a client
# behind a flood must not wait for many turns.
READ_SECONDS: Final = 0.004
# Small, since the kernel sends its buffer first in, first out, not fairly.
_SEND_BUFFER: Final = 48 << 10
# Room for the most open files that Linux passes at a time.
_ANCILLARY: Final = socket.CMSG_LEN(253 * array("i").itemsize)


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

    def rest(self) -> memoryview:
        """Return the part that is not read yet."""
        return memoryview(self.data)[len(self.data) - self.left :]


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
        self._out = SendQueue()
        self._sent: asyncio.Future[None] | None = None
        # whether a writer is registered with the event loop
        self._is_writing = False
        self.is_open = True
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._loop.add_reader(self._socket, self._read)

    @property
    def waiting(self) -> int:
        """The bytes that the bus has not accepted yet."""
        return self._out.size

    def waiting_for(self, destination: str) -> int:
        """Return the unsent bytes for one destination."""
        return self._out.size_of(destination)

    def send(self, written: Written) -> None:
        """Send a message, or queue it until the bus accepts it; drop it once the bus is gone."""
        if not self.is_open:
            return
        is_first = not self._out.size
        self._out.enqueue(written)
        if is_first:
            self._write()
            if self._out.size and self.is_open:
                self._is_writing = True
                self._loop.add_writer(self._socket, self._write)

    async def flushed(self) -> None:
        """Wait until everything is sent, or the bus is gone."""
        if self._out.size:
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
        self._out = SendQueue()
        self._large = None
        self._files.clear()
        self._all_sent()
        self.on_lost()

    def _write(self) -> None:
        try:
            while self._out.size:
                data, descriptors = self._out.next()
                self._out.sent(self._send_some(data, descriptors))
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket)
        self._all_sent()

    def _send_some(self, data: memoryview, descriptors: Sequence[HasFileno]) -> int:
        if not descriptors:
            return self._socket.send(data)
        return socket.send_fds(self._socket, [data], [file.fileno() for file in descriptors])

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
        # not socket.recv_fds, which drops the flags
        if not self.is_open:
            raise BlockingIOError
        target = self._target()
        count, ancillary, flags, _ = self._socket.recvmsg_into(
            [target], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
        )
        files = [
            Received(number)
            for level, kind, numbers in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for number in _whole_numbers(numbers)
        ]
        # one read returns the files of one message; if the kernel could not pass them all, none may
        # be attributed to another message
        if flags & socket.MSG_CTRUNC:
            self._files.append(None)
        elif files:
            self._files.append(files)
        if not count:
            raise EOFError
        if self._skip:
            self._skip -= count
        elif self._large:
            self._fill(self._large, count)
        else:
            self._in += target[:count]
            self._parse()
        # a read ends at a message with files
        return count == len(target) or bool(ancillary)

    def _target(self) -> memoryview:
        """Return the buffer for the next bytes; skipped bytes are overwritten."""
        if self._skip:
            return self._chunk[: self._skip]
        return self._large.rest() if self._large else self._chunk[:_SMALL]

    def _fill(self, large: _Large, count: int) -> None:
        large.left -= count
        if not large.left:
            self._large = None
            self._deliver(large.header, large.data)

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
        if there < head:
            return 0
        try:
            header = frames.header(self._in[start : start + head])
        except ValueError:
            header = None  # without a header, there is no sender to answer
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
        self._on_frame(
            Frame(header, data, skipped_of or len(data), not skipped_of, taken, lost_files=lost)
        )


def _whole_numbers(data: bytes) -> array[int]:
    numbers = array("i")
    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return numbers
