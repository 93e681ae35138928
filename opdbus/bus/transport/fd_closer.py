"""Closes received files on threads, since close may block in the file system.

A user's own file system (FUSE) may never answer: then one of these threads hangs, but not the event
loop. Files in memory, which close at once, have a thread of their own.
"""

import fcntl
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

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
            for first, count in _runs(self._next_batch()):
                # one call for a run: with a busy event loop, a thread waits for the GIL after each
                # call, and must not be slower than a client that sends many files; errors of close
                # do not matter
                os.closerange(first, first + count)

    def _next_batch(self) -> list[int]:
        """Wait for a file, and return it with more that are queued."""
        numbers = [self._waiting.get()]
        with suppress(Empty):
            while len(numbers) < _BATCH:
                numbers.append(self._waiting.get_nowait())
        return numbers


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return runs of consecutive numbers as (first, length)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


IN_MEMORY: Final = FdCloser(threads=1)
ELSEWHERE: Final = FdCloser()


def closer_of(number: int) -> FdCloser:
    """Return the closer for a file, by a system call that never blocks."""
    try:
        fcntl.fcntl(number, fcntl.F_GET_SEALS)
    except OSError:
        return ELSEWHERE
    return IN_MEMORY
