"""A bounded queue with a thread that empties it, so that a stalled receiver blocks nobody."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadQueue(Generic[T]):
    """At most `most` items, which `run` gets on a thread; `lost` counts those that had no room."""

    def __init__(self, name: str, most: int, run: Callable[[], None]) -> None:
        self._items: queue.Queue[T | None] = queue.Queue(most)
        self.lost = 0
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, unless that is done."""
        if self._thread.ident is None:
            self._thread.start()

    def put(self, item: T) -> None:
        """Queue an item, or drop and count it."""
        try:
            self._items.put_nowait(item)
        except queue.Full:
            self.lost += 1

    def get(self) -> T | None:
        """Wait for the next item; None after the last one."""
        return self._items.get()

    def close(self, seconds: float) -> None:
        """Let the thread end after the last item; wait so long for room and for its end."""
        if not self._thread.is_alive():
            return
        try:
            self._items.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)
