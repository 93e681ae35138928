"""The queue of outgoing messages, fair to their destinations.

In plain order, a reply would wait behind hundreds for clients that flood the service. So the next
message is for the destination that was sent the fewest bytes.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.fair_queue import FairQueue


class Written(NamedTuple):
    """An encoded message, its files, and its destination, empty for a broadcast."""

    data: bytes
    descriptors: Sequence[Descriptor] = ()
    destination: str = ""


class SendQueue:
    """Messages by destination, in order for each; the first message may be partly sent."""

    def __init__(self) -> None:
        # bytes of all messages
        self.size = 0
        self._queues: dict[str, deque[Written]] = {}
        self._shares = FairQueue()
        self._begun: Written | None = None
        self._rest = memoryview(b"")

    def size_of(self, destination: str) -> int:
        """Return the queued bytes for one destination."""
        begun = len(self._rest) if self._begun and self._begun.destination == destination else 0
        return begun + sum(len(each.data) for each in self._queues.get(destination, ()))

    def enqueue(self, written: Written) -> None:
        """Add a message at the end of its destination's queue."""
        self.size += len(written.data)
        if written.destination in self._queues:
            self._queues[written.destination].append(written)
        else:
            self._queues[written.destination] = deque([written])
            self._shares.add(written.destination)

    def next(self) -> tuple[memoryview, Sequence[Descriptor]]:
        """Return the data to send now: a message and its files, or the rest of a started one."""
        if self._begun:
            # the files were sent with the first byte
            is_whole = len(self._rest) == len(self._begun.data)
            return self._rest, self._begun.descriptors if is_whole else ()
        receiver = self._shares.least_served(self._queues)
        self._begun = self._queues[receiver].popleft()
        self._rest = memoryview(self._begun.data)
        self._shares.charge(receiver, len(self._rest))
        if not self._queues[receiver]:
            del self._queues[receiver]
            self._shares.remove(receiver)
        return self._rest, self._begun.descriptors

    def sent(self, count: int) -> None:
        """Remove `count` sent bytes from the data that `next` returned."""
        self.size -= count
        self._rest = self._rest[count:]
        if not self._rest:
            self._begun = None
