"""Others' open files, closed on threads: that may wait for whoever serves their file system.

A user's own file system (FUSE) can answer never; then a thread waits for it, and not the daemon.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

# All may hang at once; what then waits is counted, and no more files are taken.
_THREADS: Final = 4


class Closer:
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
            number = self._waiting.get()
            # a file system may say that what was written before is lost; it is closed all the same
            with suppress(OSError):
                os.close(number)


CLOSER: Final = Closer()
