"""Which texts run together: equal lengths under a token budget. Pure, no clocks, no threads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.engine.tokenizer import Tokens

# After this many batches for people, one for bulk work, so that bulk work never starves.
_INTERACTIVE_RUN: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Texts that were asked for together."""

    rows: Sequence[Tokens]
    bulk: bool = False


class Member(NamedTuple):
    """One waiting row; `order` grows with every row that is added."""

    order: int
    request: Request
    row: int


class Backlog:
    """Rows that wait, by length, those of interactive requests ahead of bulk ones.

    The oldest row of the better class leads a batch; rows of the same length, of either class,
    ride along while the budget lasts. Lengths are never mixed, so nothing is ever padded.
    """

    def __init__(self) -> None:
        self._queues: dict[tuple[bool, int], deque[Member]] = {}
        # of all rows that wait
        self.tokens = 0
        self._order = count()
        self._since_bulk = 0

    def __len__(self) -> int:
        """Count the rows that wait."""
        return sum(map(len, self._queues.values()))

    def add(self, request: Request) -> None:
        """Queue every row of a request."""
        for number, row in enumerate(request.rows):
            queue = self._queues.setdefault((request.bulk, len(row)), deque())
            queue.append(Member(next(self._order), request, number))
            self.tokens += len(row)

    def drop(self, request: Request) -> None:
        """Take out the rows of a caller who left."""
        for key in {(request.bulk, len(row)) for row in request.rows} & self._queues.keys():
            kept = deque(member for member in self._queues[key] if member.request is not request)
            self.tokens -= key[1] * (len(self._queues[key]) - len(kept))
            self._put_back(key, kept)

    def put_back(self, members: Sequence[Member]) -> None:
        """Queue rows again that were taken, where they were."""
        for member in reversed(members):
            key = (member.request.bulk, len(member.request.rows[member.row]))
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
        bulk, length = lead
        waiting = self._waiting(length)
        rooms = (max(1, min(tokens // length, most_rows)) for tokens in whole or (budget,))
        room = next((rows for rows in rooms if rows <= waiting or not whole), 1)
        members = self._take((bulk, length), room)
        return members + self._take((not bulk, length), room - len(members))

    def _waiting(self, length: int) -> int:
        """Count the rows of a length that wait, of either class."""
        return sum(len(self._queues.get((bulk, length), ())) for bulk in (False, True))

    def _lead(self) -> tuple[bool, int] | None:
        """Choose the class and length of the next batch by its oldest row."""
        heads = {key: queue[0].order for key, queue in self._queues.items()}
        classes = {bulk for bulk, _ in heads}
        if not classes:
            return None
        bulk = len(classes) == 1 and True in classes
        if len(classes) > 1 and self._since_bulk >= _INTERACTIVE_RUN:
            bulk = True
        self._since_bulk = 0 if bulk else self._since_bulk + 1
        return min((key for key in heads if key[0] == bulk), key=heads.__getitem__)

    def _take(self, key: tuple[bool, int], room: int) -> list[Member]:
        queue = self._queues.get(key, deque())
        taken = [queue.popleft() for _ in range(min(room, len(queue)))]
        self.tokens -= key[1] * len(taken)
        self._put_back(key, queue)
        return taken

    def _put_back(self, key: tuple[bool, int], queue: deque[Member]) -> None:
        if queue:
            self._queues[key] = queue
        else:
            self._queues.pop(key, None)


def plan(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split indexes of texts into chunks of one length each, at most `budget` tokens a chunk.

    Long texts come first, so that the slowest batch shows at the start, not at the end.
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
