"""Open files that are sent with messages: each has one owner, and is closed with it."""

import fcntl
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol, Self

# If all hang, files queue up, and no more are accepted.
_THREADS: Final = 4
_BATCH: Final = 64


class FdCloser:
    """Closes files by number, on daemon threads that start with the first file."""

    def __init__(self, threads: int = _THREADS) -> None:
        # the only queue whose `put` may be called from a destructor
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"closer-{number}", daemon=True)
            for number in range(threads)
        ]
        self._start = threading.Lock()

    def close(self, number: int) -> None:
        """Close a file soon; the caller must not use its number afterwards."""
        self._waiting.put(number)
        if self._start.acquire(blocking=False):
            for thread in self._threads:
                thread.start()

    @property
    def waiting(self) -> int:
        """The number of files that no thread has begun to close."""
        return self._waiting.qsize()

    def _work(self) -> None:
        while True:
            numbers = [self._waiting.get()]
            with suppress(Empty):
                while len(numbers) < _BATCH:
                    numbers.append(self._waiting.get_nowait())
            # one call for a run of numbers: with a busy event loop, a thread waits for the GIL
            # after each call, and must not be slower than a client that sends many files; errors
            # of close do not matter
            runs: list[range] = []
            for number in sorted(numbers):
                if runs and number == runs[-1].stop:
                    runs[-1] = range(runs[-1].start, number + 1)
                else:
                    runs.append(range(number, number + 1))
            for run in runs:
                os.closerange(run.start, run.stop)


IN_MEMORY: Final = FdCloser(threads=1)
ELSEWHERE: Final = FdCloser()


def closer_of(number: int) -> FdCloser:
    """Return the closer for a file, by a system call that never blocks."""
    try:
        fcntl.fcntl(number, fcntl.F_GET_SEALS)
    except OSError:
        return ELSEWHERE
    return IN_MEMORY


class HasFileno(Protocol):
    """An open file of any kind."""

    def fileno(self) -> int:
        """Return its number in this process."""


class Descriptor:
    """An open file, closed by `close` or with its last reference.

    Threads rely on the latter: while one reads, the number must not be reused for another file.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def copy_of(cls, file: HasFileno | int) -> Self:
        """Duplicate an open file, not inheritable; raise ValueError if it is not open."""
        number = file if isinstance(file, int) else file.fileno()
        try:
            return cls(os.dup(number))
        except (OSError, OverflowError) as error:
            raise ValueError(f"{number} is not an open file: {error}") from None

    def fileno(self) -> int:
        """Return its number; raise ValueError if it is closed."""
        if self._number < 0:
            raise ValueError("this file is closed")
        return self._number

    def close(self) -> None:
        """Close the file, if it is open."""
        number, self._number = self._number, -1
        if number >= 0:
            self._close_number(number)

    def _close_number(self, number: int) -> None:
        os.close(number)

    def __del__(self) -> None:
        self.close()


class Received(Descriptor):
    """An open file of any kind from a client: a thread closes it, since that may block."""

    __slots__ = ()

    def _close_number(self, number: int) -> None:
        closer_of(number).close(number)
