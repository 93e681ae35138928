"""Closes received files on threads, since closing may block for as long as a file system likes.

A user's own file system (FUSE) may never answer. Then one of these threads hangs, and the event
loop does not; files in memory, which close at once, have a thread of their own.
"""

import fcntl
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

# All may hang at once; then files queue up, and no more are accepted.
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
        """Close a file soon; the caller must not use its number any more."""
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
            for first, count in _runs(self._next_batch()):
                # in one call: a thread waits for Python's lock where the loop is busy, and must not
                # be slower than a client that sends many files; errors of closing do not matter
                os.closerange(first, first + count)

    def _next_batch(self) -> list[int]:
        """Wait for a file, and take the next ones with it."""
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
    """Give the threads that are to close a file, by a question that never blocks."""
    try:
        fcntl.fcntl(number, fcntl.F_GET_SEALS)
    except OSError:
        return ELSEWHERE
    return IN_MEMORY
