"""The socket to the bus: sends and receives whole messages, and the open files with them."""

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

# Read at a time of small messages: dozens of them, since hundreds would take 30 ms at a stretch.
# Larger messages have memory of their own.
_SMALL: Final = 8 << 10
# Read at a time of a message that is skipped.
_CHUNK: Final = 64 << 10
# Spent on reading in one turn of the event loop: a flood must not stop the loop, and a client
# behind a flood must not wait for many turns.
READ_SECONDS: Final = 0.004
# Little, since what the kernel holds for a busy bus is sent first in, first out.
_SEND_BUFFER: Final = 48 << 10
# Room for as many open files as Linux passes at a time.
_ANCILLARY: Final = socket.CMSG_LEN(253 * array("i").itemsize)


class Frame(NamedTuple):
    """A received message: whole, or only its header where it was to be skipped.

    `lost_files` where the kernel could not pass open files that belong to it.
    """

    header: frames.Header
    data: bytes | bytearray
    total: int
    is_whole: bool
    descriptors: Sequence[Received]
    lost_files: bool = False


class _Large:
    """A message larger than what is read at a time, and how much of it is missing."""

    def __init__(self, header: frames.Header, begun: bytearray, total: int) -> None:
        self.header = header
        self.data = bytearray(total)
        self.data[: len(begun)] = begun
        self.left = total - len(begun)

    def rest(self) -> memoryview:
        """Give the part that is not read yet."""
        return memoryview(self.data)[len(self.data) - self.left :]


class MessageSocket:
    """A connected and authenticated socket, on which the event loop reads and writes.

    `on_frame` gets each message; `on_lost` is called once, when the connection ends. Messages that
    the bus does not accept at once are queued without bound: a sender looks at `waiting`. `wants`
    decides by a message's header and size whether it is read or skipped. In each turn of the event
    loop it reads for `turn` seconds.
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
        # those of each message that brings files, in order; None where some of them were lost
        self._files: deque[list[Received] | None] = deque()
        self._out = SendQueue()
        self._sent: asyncio.Future[None] | None = None
        # whether the loop says when the bus accepts more
        self._is_writing = False
        self.is_open = True
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._loop.add_reader(self._socket, self._read)

    @property
    def waiting(self) -> int:
        """The bytes that the bus has not accepted yet."""
        return self._out.size

    def waiting_for(self, destination: str) -> int:
        """Give those of them that are for one receiver."""
        return self._out.size_of(destination)

    def send(self, written: Written) -> None:
        """Send a message, or queue it until the bus accepts it; nothing once the bus is gone."""
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
        """Wait until all is sent, or the bus is gone."""
        if self._out.size:
            self._sent = self._sent or self._loop.create_future()
            await asyncio.shield(self._sent)

    def close(self) -> None:
        """Disconnect; what is queued is dropped."""
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
        """Read for a few milliseconds."""
        try:
            end = self._loop.time() + self._turn
            while self._receive() and self._loop.time() < end:
                pass
        except BlockingIOError:
            return
        except (OSError, EOFError, frames.NoMessage):
            # NoMessage: where the next message begins is unknown
            self.close()

    def _receive(self) -> bool:
        """Read once, and return whether more may be there: the loop says so if it comes later."""
        # not socket.recv_fds, which forgets the flags
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
        # one read brings the files of one message; where the kernel could not pass them all, none
        # of them may be taken for those of another message
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
        # one read ends where files begin
        return count == len(target) or bool(ancillary)

    def _target(self) -> memoryview:
        """Give the memory for the next bytes; those that are skipped are overwritten."""
        if self._skip:
            return self._chunk[: self._skip]
        return self._large.rest() if self._large else self._chunk[:_SMALL]

    def _fill(self, large: _Large, count: int) -> None:
        large.left -= count
        if not large.left:
            self._large = None
            self._deliver(large.header, large.data)

    def _parse(self) -> None:
        """Deliver every message that is whole, and the headers of those that are skipped."""
        start = 0
        try:
            while self.is_open and (taken := self._parse_one(start)):
                start += taken
        finally:
            del self._in[:start]

    def _parse_one(self, start: int) -> int:
        """Deliver the next message if enough of it is there; give how many bytes are used up."""
        there = len(self._in) - start
        if there < frames.FIXED:
            return 0
        head, total = frames.measure(self._in, start)
        if there < head:
            return 0
        try:
            header = frames.header(self._in[start : start + head])
        except ValueError:
            header = None  # there is no sender to answer
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
        """Deliver a message, or the header of one of so many bytes that is skipped."""
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
