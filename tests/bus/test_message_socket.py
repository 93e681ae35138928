"""The socket to the bus, with the other end of it in the test's hand."""

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
from harness import marshal
from harness.bulky import in_memory, open_files
from harness.marshal import Variant
from harness.running import PATIENCE_SECONDS, work_of

from opdbus.bus.transport.frames import METHOD_CALL, SIGNAL, Header
from opdbus.bus.transport.library import Message, MessageType, encode
from opdbus.bus.transport.message_socket import Frame, MessageSocket, Written, connect

MOST = 1000


class End:
    """A transport, what it has handed over, and the other end of its socket."""

    def __init__(self) -> None:
        one, self.other = socket.socketpair()
        one.settimeout(0)
        self.other.settimeout(0)
        self.frames: list[Frame] = []
        self.lost = asyncio.Event()
        self._news = asyncio.Event()
        self.transport = MessageSocket(one, self._take, self._keeps)
        self.transport.on_lost = self.lost.set

    @staticmethod
    def _keeps(header: Header, size: int) -> bool:
        return size <= MOST or header.kind not in {METHOD_CALL, SIGNAL}

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._news.set()

    async def feed(self, data: bytes) -> None:
        """Send bytes to the transport."""
        await asyncio.get_running_loop().sock_sendall(self.other, data)

    async def has(self, count: int) -> None:
        """Wait until so many messages were handed over."""
        while len(self.frames) < count:
            self._news.clear()
            await self._news.wait()


def run(work: Callable[[End], Awaitable[None]]) -> None:
    """Do work with a transport."""

    async def both() -> None:
        end = End()
        with end.other:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await work(end)
            end.transport.close()

    asyncio.run(both())


def message(size: int, kind: MessageType = MessageType.METHOD_CALL, files: int = 0) -> bytes:
    """Give a message with a body of so many bytes."""
    made = Message(destination="a.b", path="/a", interface="a.b", member="C", message_type=kind,
                   reply_serial=1, serial=1, signature="ay", body=[bytes(size)],
                   unix_fds=[0] * files)  # fmt: skip
    return encode(made)


@pytest.mark.parametrize("piece", [1, 7, 16, 17, 1 << 16])
@work_of(run)
async def test_messages_are_whole_however_they_come(end: End, piece: int) -> None:
    """Hand over every message once, in order, whatever pieces it comes in."""
    sent = [message(size) for size in (0, 1, 50, 3, 400)]
    data = b"".join(sent)
    for start in range(0, len(data), piece):
        await end.feed(data[start : start + piece])
        await asyncio.sleep(0)
    await end.has(len(sent))
    assert [frame.data for frame in end.frames] == sent
    assert all(frame.is_whole for frame in end.frames)


@work_of(run)
async def test_a_large_call_is_not_kept(end: End) -> None:
    """Hand over the header of a call or signal past the limit, skip its body, and go on."""
    small, large = message(10), message(40 << 20)
    signal = message(MOST, MessageType.SIGNAL)
    # all of it is header
    no_body = encode(Message(destination="a.b", path="/a" * MOST, member="C", serial=1))
    sent = small + large + small + signal + small + no_body + small
    feeding = asyncio.ensure_future(end.feed(sent))
    await end.has(2)
    refused = end.frames[1]
    assert not refused.is_whole
    assert refused.total == len(large)
    assert large.startswith(refused.data)
    await end.has(7)
    await feeding
    assert [frame.is_whole for frame in end.frames] == [True, False] * 3 + [True]


@pytest.mark.parametrize("size", [5 * MOST, 300_000])
@work_of(run)
async def test_a_large_reply_is_kept(end: End, size: int) -> None:
    """Take in what is to be kept whatever its size, with its files, and what comes right after."""
    reply, small = message(size, MessageType.METHOD_RETURN, files=1), message(3)
    file = in_memory(b"its own")
    begun = socket.send_fds(end.other, [small + reply], [file.fileno()])
    await end.feed((small + reply)[begun:] + small + reply[:20])
    await end.has(3)
    assert [frame.data for frame in end.frames] == [small, reply, small]
    (own,) = end.frames[1].descriptors
    assert os.pread(own.fileno(), 9, 0) == b"its own"
    await end.feed(reply[20:])
    await end.has(4)
    assert end.frames[3].lost_files


@work_of(run)
async def test_files_stay_with_their_messages(end: End) -> None:
    """Hand each message the files that came with it, also where messages come together."""
    with_files, without = message(1, files=2), message(2)
    # nobody reads meanwhile: all of it waits in the socket
    for number in range(3):
        files = [in_memory(b"%d%d" % (number, which)) for which in range(2)]
        socket.send_fds(end.other, [with_files], [file.fileno() for file in files])
        end.other.send(without)
    await end.has(6)
    contents = [
        [os.pread(file.fileno(), 9, 0) for file in frame.descriptors] for frame in end.frames
    ]
    assert contents == [[b"00", b"01"], [], [b"10", b"11"], [], [b"20", b"21"], []]
    assert not any(os.get_inheritable(f.fileno()) for frame in end.frames
                   for f in frame.descriptors)  # fmt: skip


def test_files_that_are_lost_are_nobodys() -> None:
    """Give no message another's file where the kernel could not give us all of them."""

    async def work(end: End) -> None:
        for number in range(3):
            files = [in_memory(b"%d%d" % (number, which)) for which in range(2)]
            socket.send_fds(end.other, [message(1, files=2)], [file.fileno() for file in files])
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        # numbers need not follow one another: other tests may have left files open
        free = [in_memory(b"") for _ in range(3)]
        room = free[-1].fileno() + 1
        for file in free:
            file.close()
        # the first message's files, and one of the second's
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, before[1]))
        try:
            end.transport._read()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await end.has(3)
        contents = [[os.pread(f.fileno(), 9, 0) for f in frame.descriptors] for frame in end.frames]
        whole = [[b"00", b"01"], [b"10", b"11"], [b"20", b"21"]]
        assert all(files in ([], expected) for files, expected in zip(contents, whole, strict=True))
        lost.append([frame.lost_files for frame in end.frames][:2] == [False, True])
        assert lost[-1] == (contents[:2] == [whole[0], []])

    lost: list[bool] = []
    # a thread of another test may close files meanwhile, and so make room
    while len(lost) < 5 and not any(lost):
        run(work)
    assert any(lost)


@work_of(run)
async def test_a_header_that_cannot_be_read_costs_its_message(end: End) -> None:
    """Pass over a message whose header is damaged, and go on with the next."""
    sent = [message(3), message(5)]
    damaged = bytearray(message(4))
    damaged[16 + 2] = ord("?")
    await end.feed(sent[0] + bytes(damaged) + sent[1])
    await end.has(2)
    assert [frame.data for frame in end.frames] == sent
    assert end.transport.is_open


@pytest.mark.parametrize("fields", [[bytes(5 << 20)], [b""] * 100_000])
@work_of(run)
async def test_a_header_without_an_end_is_passed_over(end: End, fields: list[bytes]) -> None:
    """Pass over a message with a header of megabytes or of countless fields, and go on."""
    unknown = [(99, Variant("ay", field)) for field in fields]
    array = marshal.encode("a(yv)", [[(1, Variant("o", "/a")), *unknown]])
    large = b"l\1\0\1" + struct.pack("<III", 0, 1, len(array) - 8) + array[8:]
    await end.feed(large + bytes(-len(large) % 8) + message(3))
    await end.has(1)
    assert [frame.data for frame in end.frames] == [message(3)]


@work_of(run)
async def test_what_is_not_taken_waits_in_order(end: End) -> None:
    """Keep what a full socket does not take, count it, and send it once there is room."""
    sent = [bytes([number]) * 100_000 for number in range(40)]
    for data in sent:
        end.transport.send(Written(data))
    assert end.transport.waiting > 1_000_000
    loop, received = asyncio.get_running_loop(), b""
    while len(received) < 4_000_000:
        received += await loop.sock_recv(end.other, 1 << 20)
    assert received == b"".join(sent)
    await end.transport.wait_flushed()
    assert end.transport.waiting == 0


@work_of(run)
async def test_a_file_waits_with_its_message(end: End) -> None:
    """Send a file with the first byte of its message that is really sent, and close our copy."""
    before = open_files(settled=True)
    end.transport.send(Written(bytes(4 << 20)))
    for number in range(3):
        end.transport.send(Written(b"message", [in_memory(b"%d" % number)]))
    assert open_files(settled=True) == before + 3
    size, files = 0, []
    while size < (4 << 20) + 3 * len(b"message"):
        await asyncio.sleep(0)
        try:
            data, more, *_ = socket.recv_fds(end.other, 1 << 20, 4)
        except BlockingIOError:
            continue
        size, files = size + len(data), files + more
    assert [os.pread(file, 9, 0) for file in files] == [b"0", b"1", b"2"]
    for file in files:
        os.close(file)
    await end.transport.wait_flushed()
    assert open_files(settled=True) == before


@pytest.mark.parametrize("how", ["closed", "not a message"])
@work_of(run)
async def test_the_end_is_told_once(end: End, how: str) -> None:
    """Tell that the bus is gone, when it closes or sends what is no message, and send no more."""
    end.transport.send(Written(bytes(4 << 20)))
    waiting = asyncio.ensure_future(end.transport.wait_flushed())
    await asyncio.sleep(0)
    if how == "closed":
        end.other.close()
    else:
        await end.feed(b"HTTP/1.1 400 Bad Request\r\n")
    await end.lost.wait()
    await waiting
    assert not end.transport.is_open
    end.transport.send(Written(b"nobody"))
    assert end.transport.waiting == 0


async def test_a_client_that_is_refused_learns_the_answer() -> None:
    """Raise OSError with the bus's own words where it does not accept us."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"REJECTED EXTERNAL\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()
    path = f"/tmp/op-dbus-test-{os.getpid()}"  # noqa: S108 -- a socket's path must be short
    async with await asyncio.start_unix_server(refuse, path):
        with pytest.raises(PermissionError, match="REJECTED EXTERNAL"):
            await connect([("tcp", {"host": "x"}), ("unix", {"path": path})])
        await gone.wait()
    os.unlink(path)  # noqa: PTH108 -- and what Path does no more than this
