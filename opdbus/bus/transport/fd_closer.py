"""Others' open files, closed on threads: that may wait for whoever serves their file system.

A user's own file system (FUSE) can answer never; then a thread waits for it, and not the daemon,
nor whoever sends files in memory: those have threads of their own.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

# All may hang at once; what then waits is counted, and no more files are taken.
_THREADS: Final = 4
_BATCH: Final = 64


class FdCloser:
    """Closes files by number, on daemon threads that are started when there is a first one."""

    def __init__(self, threads: int = _THREADS) -> None:
        # of all queues the one that may be put to from a destructor
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"closer-{number}", daemon=True)
            for number in range(threads)
        ]
        self._start = threading.Lock()

    def close(self, number: int) -> None:
        """Close a file soon; from now on its number is not the caller's."""
        self._waiting.put(number)
        if self._start.acquire(blocking=False):
            for thread in self._threads:
                thread.start()

    @property
    def waiting(self) -> int:
        """Count the files that no thread has begun to close."""
        return self._waiting.qsize()

    def _work(self) -> None:
        while True:
            for first, count in _runs(self._taken()):
                # in one go: a thread gets Python's lock back late where the loop is busy, and who
                # sends files in numbers must not be faster; what closing has to say is no matter
                os.closerange(first, first + count)

    def _taken(self) -> list[int]:
        """Wait for a file, and take those that wait with it."""
        numbers = [self._waiting.get()]
        with suppress(Empty):
            while len(numbers) < _BATCH:
                numbers.append(self._waiting.get_nowait())
        return numbers


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Give runs of successive numbers, each by its first and how many there are."""
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
    """Give who is to close a file; asks nobody who could keep us waiting."""
    try:
        fcntl.fcntl(number, fcntl.F_GET_SEALS)
    except OSError:
        return ELSEWHERE
    return IN_MEMORY
