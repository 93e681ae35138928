"""Which texts run together: equal lengths under a token budget. Pure, no clocks, no threads."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import Final, NamedTuple

from opdbus.engine.tokenizer import Tokens

# After this many batches for the best rank, one is for another rank, so that none ever starves.
_BEST_RUN: Final = 8


class Rank(IntEnum):
    """Who goes first: a few texts, those of a caller with many calls, many texts, and bulk work."""

    FEW = 0
    BUSY_CALLER = 1
    MANY = 2
    BULK = 3


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The texts of one call."""

    rows: Sequence[Tokens]
    rank: Rank = Rank.FEW


class Member(NamedTuple):
    """One waiting row; `order` grows with every row that is added."""

    order: int
    request: Request
    row: int


class Backlog:
    """Rows that wait, by rank and length.

    The oldest row of the best rank decides the length of a batch; rows of that length, of any rank,
    fill it up to the budget. Lengths are never mixed, so nothing is ever padded.
    """

    def __init__(self) -> None:
        self._queues: dict[tuple[Rank, int], deque[Member]] = {}
        # of all rows that wait
        self.tokens = 0
        self._order = count()
        self._best_run = 0

    def __len__(self) -> int:
        """Count the rows that wait."""
        return sum(map(len, self._queues.values()))

    def add(self, request: Request) -> None:
        """Queue every row of a request."""
        for number, row in enumerate(request.rows):
            queue = self._queues.setdefault((request.rank, len(row)), deque())
            queue.append(Member(next(self._order), request, number))
            self.tokens += len(row)

    def drop(self, request: Request) -> None:
        """Remove the rows of a request that was cancelled."""
        for key in {(request.rank, len(row)) for row in request.rows} & self._queues.keys():
            kept = deque(member for member in self._queues[key] if member.request is not request)
            self.tokens -= key[1] * (len(self._queues[key]) - len(kept))
            self._put_back(key, kept)

    def put_back(self, members: Sequence[Member]) -> None:
        """Return rows to the places in their queues that they were taken from."""
        for member in reversed(members):
            key = (member.request.rank, len(member.request.rows[member.row]))
            self._queues.setdefault(key, deque()).appendleft(member)
            self.tokens += key[1]

    def next_batch(
        self, budget: int, most_rows: int = 1 << 30, whole: Sequence[int] = ()
    ) -> list[Member]:
        """Take the next rows to run: at most `budget` tokens of one length, at least one row.

        With `whole`, which are budgets, the largest first, a batch has exactly the rows that one of
        them has room for, or one row: so that only few shapes come for each length. Gives an empty
        list when nothing waits.
        """
        lead = self._lead()
        if lead is None:
            return []
        best, length = lead
        waiting = self._waiting(length)
        rooms = (max(1, min(tokens // length, most_rows)) for tokens in whole or (budget,))
        room = next((rows for rows in rooms if rows <= waiting or not whole), 1)
        members: list[Member] = []
        for rank in sorted(Rank, key=lambda rank: (rank != best, rank)):
            members += self._take((rank, length), room - len(members))
        return members

    def _waiting(self, length: int) -> int:
        """Count the rows of a length that wait, of any rank."""
        return sum(len(self._queues.get((rank, length), ())) for rank in Rank)

    def _lead(self) -> tuple[Rank, int] | None:
        """Choose the rank and length of the next batch by its oldest row."""
        heads = {key: queue[0].order for key, queue in self._queues.items()}
        if not heads:
            return None
        best = min(rank for rank, _ in heads)
        others = {key: order for key, order in heads.items() if key[0] != best}
        if others and self._best_run >= _BEST_RUN:
            self._best_run = 0
            return min(others, key=others.__getitem__)
        # counted also while no other rank waits, so that bulk work that is added then goes next
        self._best_run = 0 if best is Rank.BULK else self._best_run + 1
        return min(heads.keys() - others.keys(), key=heads.__getitem__)

    def _take(self, key: tuple[Rank, int], room: int) -> list[Member]:
        queue = self._queues.get(key, deque())
        taken = [queue.popleft() for _ in range(min(room, len(queue)))]
        self.tokens -= key[1] * len(taken)
        self._put_back(key, queue)
        return taken

    def _put_back(self, key: tuple[Rank, int], queue: deque[Member]) -> None:
        if queue:
            self._queues[key] = queue
        else:
            self._queues.pop(key, None)


def plan(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split indexes of texts into chunks of one length each, at most `budget` tokens a chunk.

    Long texts are first, so that the slowest batch is not at the end.
    """
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    return [
        members[start : start + size]
        for length, members in sorted(by_length.items(), reverse=True)
        for size in (max(1, budget // length),)
        for start in range(0, len(members), size)
    ]
