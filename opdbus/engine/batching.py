"""Batches of texts of equal length under a token budget that follows measurement; no threads."""

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.tokenizer import Tokens
from opdbus.platform.lean_imports import distinct
from opdbus.platform.metrics import Histogram

# Target duration of a batch: short enough for the next text to wait for, long enough for a good
# rate.
TARGET_SECONDS: Final = 0.012
LEAST: Final = 32
_FIRST_BUDGET: Final = 256
# The budget grows one step only if the measurement exceeds that step by this factor.
_GROWTH_MARGIN: Final = 1.2
# While no request of few texts is recent, a batch may have this many times the target's tokens, and
# at least LEAST_RELAXED: larger batches save another 10%.
_RELAXED: Final = 4
LEAST_RELAXED: Final = 512
# Weight of a new measurement in the running mean of the rate.
_RATE_WEIGHT: Final = 0.2
# Growth of a limit set by a memory shortage, applied after each full batch.
_RECOVERY: Final = 1.02


class Budget:
    """Token limit of a batch, adjusted by measurement while serving; not thread-safe.

    `fixed` is a setting that replaces the measurement; only a lack of memory goes below it. `rows`
    is the largest number of rows in a batch that the provider supports. `whole` is for a provider
    to which every new shape is costly: its batches are full or of one row.
    """

    def __init__(
        self, most: int, *, fixed: int | None = None, rows: int = 1 << 16, whole: bool = False
    ) -> None:
        self.rows = rows
        self.whole = whole
        self._most = fixed or most
        self._is_fixed = fixed is not None
        self._wanted = self._most if fixed else min(_FIRST_BUDGET, most)
        self._room = float(self._most)
        self._rate = 0.0

    @property
    def tokens(self) -> int:
        """Token limit of the next batch; at least one row runs whatever its length."""
        return max(1, min(self._wanted, int(self._room)))

    @property
    def relaxed(self) -> int:
        """Token limit of the next batch while no request of few texts is recent."""
        most = max(LEAST_RELAXED, self._wanted * _RELAXED)
        wanted = self._wanted if self._is_fixed else min(self._most, most)
        return max(1, min(wanted, int(self._room)))

    def ran(self, tokens: int, seconds: float) -> None:
        """Adjust the limit to the duration of a batch that succeeded."""
        if self._room < self._most and tokens > 0.5 * self._room:
            self._room = min(self._most, self._room * _RECOVERY + 1)
        # small batches consist mostly of fixed costs
        if self._is_fixed or 2 * tokens < self.tokens or seconds <= 0:
            return
        rate = tokens / seconds
        self._rate += (rate - self._rate) * (_RATE_WEIGHT if self._rate else 1.0)
        self._wanted = max(LEAST, min(self._most, self._step(int(self._rate * TARGET_SECONDS))))

    def _step(self, tokens: int) -> int:
        """Round down to a power of 2 or 1.5 times one, and grow only past a margin.

        A budget that followed each measurement would make batches of many shapes.
        """
        power = 1 << max(0, tokens.bit_length() - 1)
        half_more = power * 3 // 2
        step, below = (half_more, power) if tokens >= half_more else (power, power * 3 // 4)
        return below if self._wanted < step and tokens < step * _GROWTH_MARGIN else step

    def out_of_memory(self, tokens: int) -> None:
        """Halve the limit after a batch that did not fit into memory."""
        self._room = max(1.0, min(self._room, tokens) / 2)


class UsedRate:
    """Tokens per second of a lane while more rows wait, averaged over the last `seconds` of that.

    Not thread-safe.
    """

    def __init__(self, seconds: float) -> None:
        self._window = seconds
        self._tokens = 0.0
        self._seconds = 0.0
        self._left = seconds

    @property
    def rate(self) -> float:
        """The rate; 0 until `seconds` are measured."""
        return 0.0 if self._left > 0 else self._tokens / self._seconds

    def ran(self, tokens: int, seconds: float) -> None:
        """Count a batch, with the time that the lane spent around it."""
        kept = math.exp(-seconds / self._window)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds
        self._left -= seconds


# Requests of at most this many texts come from people, who wait for the answer.
FEW: Final = 16
# After this many batches of the best rank, one batch is of another rank, so that none starves.
_BEST_RUN: Final = 8


class Rank(IntEnum):
    """Priority of a request: few texts, few texts of a busy caller, many texts, bulk work."""

    FEW = 0
    BUSY_CALLER = 1
    MANY = 2
    BULK = 3


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The tokenized texts of one call, their priority, and when they were queued.

    With `is_mixed`, texts of all lengths share batches, and each counts as one token.
    """

    rows: Tokens
    rank: Rank = Rank.FEW
    queued_at: float = field(default_factory=time.perf_counter)
    is_mixed: bool = False

    @property
    def lengths(self) -> NDArray[np.intp]:
        """The length of each text as batches count it."""
        return np.ones_like(self.rows.lengths) if self.is_mixed else self.rows.lengths


class Part(NamedTuple):
    """Queued rows of one request that have one length, in order."""

    request: Request
    rows: NDArray[np.intp]
    length: int
    # position among all parts ever added
    order: int

    @property
    def tokens(self) -> int:
        """Number of tokens of these rows."""
        return int(self.request.rows.lengths.take(self.rows).sum())

    @property
    def key(self) -> tuple[Rank, int]:
        """The queue of these rows: rank and length."""
        return self.request.rank, self.length


class BatchMetrics:
    """Counters of the batches that ran; not thread-safe."""

    def __init__(self) -> None:
        self.texts_a_batch = Histogram([1 << power for power in range(11)])
        self.tokens_a_batch = Histogram([1 << power for power in range(5, 17)])
        # of each text before its batch, and of each batch
        self.queue_seconds, self.run_seconds = Histogram(), Histogram()
        # number of tokens of texts, and of others that were computed beside them
        self.tokens = self.padding = 0

    def add(self, parts: Sequence[Part], computed: int, began: float, seconds: float) -> None:
        """Count a batch that computed so many tokens; `began` is of `time.perf_counter`."""
        texts = tokens = 0
        for part in parts:
            count = len(part.rows)
            texts += count
            tokens += part.tokens
            self.queue_seconds.add(began - part.request.queued_at, count)
        self.tokens += tokens
        self.padding += computed - tokens
        self.texts_a_batch.add(texts)
        self.tokens_a_batch.add(computed)
        self.run_seconds.add(seconds)


class Backlog:
    """Queued rows by rank and length.

    The oldest request of the best rank decides the length of a batch, its longest rows first; rows
    of that length, of any rank, fill it up to the budget. A batch has one length, so nothing is
    padded, and equal shapes follow one another, which some runtimes run faster.
    """

    def __init__(self) -> None:
        self._queues: dict[tuple[Rank, int], deque[Part]] = {}
        # heap by rank: order and length of each queue's first part; may hold outdated pairs
        self._heads: dict[Rank, list[tuple[int, int]]] = {rank: [] for rank in Rank}
        # number of queued rows by length, all ranks together
        self._waiting: Counter[int] = Counter()
        # tokens of all queued rows
        self.tokens = 0
        self._order = 0
        self._best_run = 0

    def __len__(self) -> int:
        """Count the queued rows."""
        return self._waiting.total()

    def __bool__(self) -> bool:
        """Return true if any row is queued."""
        return bool(self._queues)

    def add(self, request: Request) -> None:
        """Queue every row of a request."""
        for rows, length in reversed([*same_lengths(request.lengths)]):
            part = Part(request, rows, length, self._order)
            queue = self._queues.get(part.key, deque())
            queue.append(part)
            self._keep(part.key, queue)
            self._count(part, 1)
            self._order += 1

    def drop(self, request: Request) -> None:
        """Remove the rows of a request that was cancelled."""
        lengths = distinct(request.lengths).tolist()
        for key in {(request.rank, length) for length in lengths} & self._queues.keys():
            kept: deque[Part] = deque()
            for part in self._queues[key]:
                if part.request is request:
                    self._count(part, -1)
                else:
                    kept.append(part)
            self._keep(key, kept)

    def put_back(self, parts: Sequence[Part]) -> None:
        """Put rows back at the front of the queues that they were taken from."""
        for part in reversed(parts):
            queue = self._queues.get(part.key, deque())
            queue.appendleft(part)
            self._keep(part.key, queue)
            self._count(part, 1)

    def next_batch(
        self, budget: int, most_rows: int = 1 << 30, whole: Sequence[int] = ()
    ) -> list[Part]:
        """Take the next rows to run: at most `budget` tokens of one length, at least one row.

        `whole` lists budgets, the largest first. With it, a batch has exactly the rows that fit one
        of these budgets, or one row, so that each length has few batch shapes. Return an empty list
        if nothing is queued.
        """
        lead = self._lead()
        if lead is None:
            return []
        best, length = lead
        waiting = self._waiting[length]
        rooms = (max(1, min(tokens // length, most_rows)) for tokens in whole or (budget,))
        room = next((rows for rows in rooms if rows <= waiting or not whole), 1)
        parts: list[Part] = []
        for rank in sorted(Rank, key=lambda rank: (rank != best, rank)):
            parts += self._take((rank, length), room - count_rows(parts))
        return parts

    def _lead(self) -> tuple[Rank, int] | None:
        """Choose the rank and length of the next batch by its oldest part."""
        heads = {rank: head for rank in Rank if (head := self._head(rank))}
        if not heads:
            return None
        best = min(heads)
        others = heads.keys() - {best}
        if others and self._best_run >= _BEST_RUN:
            self._best_run = 0
            best = min(others, key=heads.__getitem__)
        else:
            # Count batches also while no other rank waits: bulk work that is added later then goes
            # next.
            self._best_run = 0 if best is Rank.BULK else self._best_run + 1
        return best, heads[best][1]

    def _head(self, rank: Rank) -> tuple[int, int] | None:
        """Return the order and the length of a rank's oldest part, None if it has none."""
        heads = self._heads[rank]
        while heads:
            order, length = heads[0]
            queue = self._queues.get((rank, length))
            if queue and queue[0].order == order:
                return order, length
            # the row was taken or dropped
            heapq.heappop(heads)
        return None

    def _take(self, key: tuple[Rank, int], room: int) -> list[Part]:
        taken: list[Part] = []
        if not room or key not in self._queues:
            return taken
        queue = self._queues[key]
        while room and queue:
            part = queue.popleft()
            if len(part.rows) > room:
                queue.appendleft(part._replace(rows=part.rows[room:]))
                part = part._replace(rows=part.rows[:room])
            taken.append(part)
            room -= len(part.rows)
            self._count(part, -1)
        self._keep(key, queue)
        return taken

    def _count(self, part: Part, sign: int) -> None:
        rows = sign * len(part.rows)
        self._waiting[part.length] += rows
        self.tokens += rows * part.length

    def _keep(self, key: tuple[Rank, int], queue: deque[Part]) -> None:
        if queue:
            self._queues[key] = queue
            heapq.heappush(self._heads[key[0]], (queue[0].order, key[1]))
        else:
            self._queues.pop(key, None)


def count_rows(parts: Sequence[Part]) -> int:
    """Count the rows of all parts."""
    return sum(len(part.rows) for part in parts)


def same_lengths(lengths: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], int]]:
    """Yield the indexes of the texts of each length, and that length, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths.take(order)
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    for start, end in pairwise([0, *bounds.tolist(), len(order)]):
        if start < end:
            yield order[start:end], int(ordered[start])
