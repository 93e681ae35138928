"""Fair scheduling: one call works at a time, and next is whoever has had the least of that time.

A loop that is busy with one caller's many calls is late for all others. So users share it, and each
user's connections share that: a caller with one call never waits for the hundred of another, but
for the one of them that has its turn; and one with a hundred is not put off by others with one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.bus.transport.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType
    from typing import Self

# A call that takes longer waits for something else than the loop: others go on meanwhile.
LEASE_SECONDS: Final = 0.1
# A user who waits for more answers than this has no need of haste for each.
_CROWD: Final = 4


class Turn:
    """A call's turn: waited for at its beginning, given up at the latest when the call ends."""

    def __init__(self, turns: FairScheduler, uid: int, sender: str) -> None:
        self.uid = uid
        self.sender = sender
        self._turns = turns
        self._expiry: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Wait for it."""
        self._turns.come(self)
        try:
            await self.come_up()
        except BaseException:
            self._turns.leave(self)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Let the next one work."""
        self.give_up()
        self._turns.leave(self)

    @property
    def is_crowded(self) -> bool:
        """Whether its user waits for many other answers, too."""
        return self._turns.calls(self.uid) > _CROWD

    async def come_up(self) -> None:
        """Wait for a turn, again after one was given up."""
        await self._turns.wait(self)
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self._turns.lease_seconds, self.give_up)

    def give_up(self) -> None:
        """Let the next one work already; the call goes on beside it."""
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
            self._turns.next_after(self)


class _Place(NamedTuple):
    """A turn that is waited for, and what tells that it has come up."""

    turn: Turn
    ready: asyncio.Future[None]


class FairScheduler:
    """Whose turn it is, and who waits."""

    def __init__(
        self,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._holder: Turn | None = None
        self._since = 0.0
        self._waiting: dict[int, dict[str, deque[_Place]]] = {}
        self._calls: Counter[Hashable] = Counter()
        self._users = FairQueue()
        self._senders: dict[int, FairQueue] = {}

    def take(self, uid: int, sender: str) -> Turn:
        """Give a turn to be entered."""
        return Turn(self, uid, sender)

    def calls(self, whose: Hashable) -> int:
        """Count the calls of a user or of a connection that are not answered yet."""
        return self._calls[whose]

    def come(self, turn: Turn) -> None:
        """Count a call that has come."""
        self._calls.update((turn.uid, turn.sender))
        self._users.come(turn.uid)
        self._senders.setdefault(turn.uid, FairQueue()).come(turn.sender)

    def leave(self, turn: Turn) -> None:
        """Count a call that is answered."""
        self._calls.subtract((turn.uid, turn.sender))
        if not self._calls[turn.sender]:
            del self._calls[turn.sender]
            self._senders[turn.uid].leave(turn.sender)
        if not self._calls[turn.uid]:
            del self._calls[turn.uid], self._senders[turn.uid]
            self._users.leave(turn.uid)

    async def wait(self, turn: Turn) -> None:
        """Wait until nobody has a turn who comes before."""
        if self._holder is None:
            self._begin(turn)
            return
        place = _Place(turn, asyncio.get_running_loop().create_future())
        senders = self._waiting.setdefault(turn.uid, {})
        senders.setdefault(turn.sender, deque()).append(place)
        try:
            await place.ready
        except asyncio.CancelledError:
            self._drop(place)
            # it may have come up meanwhile
            self.next_after(turn)
            raise

    def next_after(self, turn: Turn) -> None:
        """Give the turn that this one had, if it had one, to the next.

        Not at once: between two turns the loop must see who else has come.
        """
        if self._holder is turn:
            asyncio.get_running_loop().call_soon(self._end, turn)

    def _begin(self, turn: Turn | None) -> None:
        self._holder, self._since = turn, self._clock()

    def _end(self, turn: Turn) -> None:
        if self._holder is turn:
            had = self._clock() - self._since
            self._users.charge(turn.uid, had)
            if senders := self._senders.get(turn.uid):
                senders.charge(turn.sender, had)
            self._begin(self._chosen())

    def _chosen(self) -> Turn | None:
        """Take the next turn: of the user, then of the connection that has had the least."""
        while self._waiting:
            uid = self._users.least(self._waiting)
            senders = self._waiting[uid]
            place = senders[self._senders[uid].least(senders)][0]
            self._drop(place)
            # one whose call was cancelled just now gives it up
            if not place.ready.done():
                place.ready.set_result(None)
                return place.turn
        return None

    def _drop(self, place: _Place) -> None:
        """Take a place out of the queues, unless that is done."""
        uid, sender = place.turn.uid, place.turn.sender
        senders = self._waiting.get(uid, {})
        if place not in senders.get(sender, ()):
            return
        senders[sender].remove(place)
        if not senders[sender]:
            del senders[sender]
        if not senders:
            del self._waiting[uid]
