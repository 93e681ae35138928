"""Fair scheduling: one call runs at a time, next the user and connection with the least time.

A loop that is busy with many calls of one client would delay all others. So users share its time
equally, and each user's connections share that user's time: a client with one call waits for at
most one of another client's hundred calls.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple, Self, TypeVar

_Key = TypeVar("_Key", bound=Hashable)

# A longer call waits for something other than the loop: others run meanwhile.
LEASE_SECONDS: Final = 0.025
# A user with more pending calls does not need each answer at once.
_FEW_CALLS: Final = 4


class Turn:
    """A call's turn, as a context: acquired at its beginning, released at its end or before."""

    def __init__(self, scheduler: FairScheduler, uid: int, sender: str) -> None:
        self.uid = uid
        self.sender = sender
        self._scheduler = scheduler
        self._is_acquired = False

    async def __aenter__(self) -> Self:
        """Wait for the turn."""
        self._scheduler.add(self)
        try:
            await self.acquire()
        except BaseException:
            self._scheduler.remove(self)
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End the turn, and stop counting the call."""
        self.release()
        self._scheduler.remove(self)

    @property
    def is_one_of_many(self) -> bool:
        """True if the user has many calls running."""
        return self._scheduler.users.count[self.uid] > _FEW_CALLS

    async def acquire(self) -> None:
        """Wait for the turn, also again after `release`."""
        await self._scheduler.acquire(self)
        self._is_acquired = True

    def release(self) -> None:
        """End the turn before the call ends; the call continues beside the next one."""
        if self._is_acquired:
            self._is_acquired = False
            self._scheduler.release(self)


class _Waiter(NamedTuple):
    """A pending turn, and the future that its acquisition settles."""

    turn: Turn
    ready: asyncio.Future[None]


class FairQueue:
    """Start-time fair queueing: the service that each key has had, while it has entries.

    The key with the least service is served next. A new key starts level with the others.
    """

    def __init__(self) -> None:
        # the number of entries of each key
        self.count: Counter[Hashable] = Counter()
        self._served: dict[Hashable, float] = {}
        self._now = 0.0

    def add(self, key: Hashable) -> None:
        """Add an entry; a new key has as much service as the one served last had at that time."""
        self.count[key] += 1
        self._served.setdefault(key, self._now)

    def remove(self, key: Hashable) -> None:
        """Remove an entry, and its key with the last one."""
        self.count[key] -= 1
        if not self.count[key]:
            del self.count[key], self._served[key]

    def charge(self, key: Hashable, amount: float) -> None:
        """Add to the service of a key; has no effect on a removed one."""
        if key in self._served:
            self._served[key] += amount

    def find_least_served(self, keys: Iterable[_Key]) -> _Key:
        """Return the key that is served now."""
        chosen = min(keys, key=self._served.__getitem__)
        self._now = max(self._now, self._served[chosen])
        return chosen


class FairScheduler:
    """The running call, and the waiting ones."""

    def __init__(
        self,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.lease_seconds = lease_seconds
        self.users = FairQueue()
        self._senders: dict[int, FairQueue] = {}
        self._clock = clock
        self._holder: Turn | None = None
        self._since = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._waiting: dict[int, dict[str, deque[_Waiter]]] = {}

    def turn(self, uid: int, sender: str) -> Turn:
        """Return a turn, which is a context to be entered."""
        return Turn(self, uid, sender)

    def add(self, turn: Turn) -> None:
        """Count a call that begins."""
        self.users.add(turn.uid)
        self._senders.setdefault(turn.uid, FairQueue()).add(turn.sender)

    def remove(self, turn: Turn) -> None:
        """Stop counting a call that has ended."""
        self.users.remove(turn.uid)
        self._senders[turn.uid].remove(turn.sender)
        if not self.users.count[turn.uid]:
            del self._senders[turn.uid]

    async def acquire(self, turn: Turn) -> None:
        """Wait until the turn comes."""
        if self._holder is None:
            self._begin(turn)
            return
        waiter = _Waiter(turn, asyncio.get_running_loop().create_future())
        senders = self._waiting.setdefault(turn.uid, {})
        senders.setdefault(turn.sender, deque()).append(waiter)
        try:
            await waiter.ready
        except asyncio.CancelledError:
            self._drop(waiter)
            # the turn may have been acquired meanwhile
            self.release(turn)
            raise

    def release(self, turn: Turn) -> None:
        """End the turn, if this one is running.

        The next one starts later: between two turns, the loop reads the calls that have arrived.
        """
        if self._holder is turn:
            asyncio.get_running_loop().call_soon(self._end, turn)

    def _begin(self, turn: Turn) -> None:
        self._holder, self._since = turn, self._clock()
        # a turn that exceeds its lease is released
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self.lease_seconds, turn.release)

    def _end(self, turn: Turn) -> None:
        """Charge a turn to its user and connection, and begin the next one."""
        if self._holder is not turn:
            return
        if self._expiry:
            self._expiry.cancel()
        seconds = self._clock() - self._since
        self.users.charge(turn.uid, seconds)
        if senders := self._senders.get(turn.uid):
            senders.charge(turn.sender, seconds)
        self._holder = None
        while self._waiting and self._holder is None:
            uid = self.users.find_least_served(self._waiting)
            queues = self._waiting[uid]
            waiter = queues[self._senders[uid].find_least_served(queues)][0]
            self._drop(waiter)
            # skip a call that was cancelled just now
            if not waiter.ready.done():
                waiter.ready.set_result(None)
                self._begin(waiter.turn)

    def _drop(self, waiter: _Waiter) -> None:
        """Remove a waiter from the queues, if it is queued."""
        uid, sender = waiter.turn.uid, waiter.turn.sender
        senders = self._waiting.get(uid, {})
        if waiter not in senders.get(sender, ()):
            return
        senders[sender].remove(waiter)
        if not senders[sender]:
            del senders[sender]
        if not senders:
            del self._waiting[uid]
