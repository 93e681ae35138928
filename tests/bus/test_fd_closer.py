"""Files that others sent are closed elsewhere, where closing may take as long as it likes."""

import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.running import PATIENCE_SECONDS

from opdbus.bus.transport.descriptors import ELSEWHERE, IN_MEMORY, FdCloser, closer_of

# the kernel stops waiting earlier: once the receiver is closed
LINGER_SECONDS = 60


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what the threads do: nothing tells of it."""
    pause = select.poll()
    for _ in range(int(PATIENCE_SECONDS * 1000)):
        if is_so():
            return
        pause.poll(1)
    raise AssertionError


def is_open(number: int) -> bool:
    """Tell whether a number is an open file's."""
    return os.path.lexists(f"/proc/self/fd/{number}")


@contextmanager
def slow_to_close() -> Iterator[int]:
    """Give a file that the kernel takes seconds to close: a socket with data that nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with receiver:
            linger = struct.pack("ii", 1, LINGER_SECONDS)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sender.settimeout(0)
            with suppress(BlockingIOError):
                while True:
                    sender.send(bytes(1 << 20))
            sender.settimeout(None)
            yield sender.detach()


def test_one_that_hangs_holds_up_nobody() -> None:
    """Return at once, and close others meanwhile."""
    closer = FdCloser(threads=2)
    with slow_to_close() as slow:
        closer.close(slow)
        quick = [os.memfd_create("quick") for _ in range(200)]
        for number in quick[::2] + quick[1::2]:
            closer.close(number)
        until(lambda: not any(map(is_open, quick)))
        until(lambda: not closer.waiting)


def test_those_that_cannot_be_closed_are_counted() -> None:
    """Count the files that wait where every thread hangs, so that no more are taken."""
    closer = FdCloser(threads=1)
    with slow_to_close() as slow:
        closer.close(slow)
        until(lambda: not closer.waiting)
        number = os.memfd_create("behind")
        closer.close(number)
        assert closer.waiting == 1
        assert is_open(number)
    until(lambda: not is_open(number))


def test_files_in_memory_wait_for_no_file_system() -> None:
    """Tell memfds, sealable or not, from all that could take its time."""
    reader, writer = os.pipe()
    one, other = socket.socketpair()
    with Path(__file__).open("rb") as file, one, other:
        elsewhere = [file.fileno(), reader, writer, one.fileno()]
        assert [closer_of(number) for number in elsewhere] == [ELSEWHERE] * 4
    for flags in (0, os.MFD_ALLOW_SEALING):
        number = os.memfd_create("texts", flags)
        assert closer_of(number) is IN_MEMORY
        os.close(number)
    os.close(reader)
    os.close(writer)
