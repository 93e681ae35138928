"""Turns: one call works at a time, and next is one of whoever has the fewest calls to be answered.

A loop that is busy with one caller's many calls is late for all others; so a caller with one call
never waits for the hundred of another, but for the one of them that has its turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import TracebackType
    from typing import Self

# A call that takes longer waits for something else than the loop: others go on meanwhile.
LEASE_SECONDS: Final = 0.1
# A user who waits for more answers than this has no need of haste for each.
_CROWD: Final = 4


class Turn:
    """A call's turn: waited for at its beginning, given up at the latest when the call ends."""

    def __init__(self, turns: Turns, uid: int, sender: str) -> None:
        self.uid = uid
        self.sender = sender
        self._turns = turns
        self._expiry: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Wait for it."""
        self._turns.count(self, 1)
        try:
            await self.come_up()
        except BaseException:
            self._turns.count(self, -1)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Let the next one work."""
        self._turns.count(self, -1)
        self.give_up()

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


class Turns:
    """Whose turn it is, and who waits."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        self.lease_seconds = lease_seconds
        self._holder: Turn | None = None
        self._waiting: dict[int, dict[str, deque[tuple[Turn, asyncio.Future[None]]]]] = {}
        self._calls: Counter[Hashable] = Counter()

    def take(self, uid: int, sender: str) -> Turn:
        """Give a turn to be entered."""
        return Turn(self, uid, sender)

    def calls(self, whose: Hashable) -> int:
        """Count the calls of a user or of a connection that are not answered yet."""
        return self._calls[whose]

    def count(self, turn: Turn, more: int) -> None:
        """Count a call that has come, or with -1 one that is answered."""
        for whose in (turn.uid, turn.sender):
            self._calls[whose] += more
            if not self._calls[whose]:
                del self._calls[whose]

    async def wait(self, turn: Turn) -> None:
        """Wait until nobody has a turn who comes before."""
        if self._holder is None:
            self._holder = turn
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        senders = self._waiting.setdefault(turn.uid, {})
        senders.setdefault(turn.sender, deque()).append((turn, ready))
        try:
            await ready
        except asyncio.CancelledError:
            # else its place, of which the future is done now, is passed over when it comes up
            self.next_after(turn)
            raise

    def next_after(self, turn: Turn) -> None:
        """Give the turn that this one had, if it had one, to the next.

        Not at once: between two turns the loop must see who else has come.
        """
        if self._holder is turn:
            asyncio.get_running_loop().call_soon(self._end, turn)

    def _end(self, turn: Turn) -> None:
        if self._holder is turn:
            self._holder = self._chosen()

    def _chosen(self) -> Turn | None:
        """Take the next turn: of the user, then of the connection with the fewest calls."""
        while self._waiting:
            senders = self._waiting[min(self._waiting, key=self.calls)]
            queue = senders[min(senders, key=self.calls)]
            turn, ready = queue.popleft()
            if not queue:
                del senders[turn.sender]
            if not senders:
                del self._waiting[turn.uid]
            if not ready.done():
                ready.set_result(None)
                return turn
        return None
