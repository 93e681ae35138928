"""Bounded queue in front of the model's threads; every future is settled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.batching import (
    FEW,
    LEAST,
    Backlog,
    BatchMetrics,
    Budget,
    Part,
    Rank,
    Request,
    count_rows,
)
from opdbus.engine.provider import is_about_memory
from opdbus.engine.tokenizer import Tokens
from opdbus.errors import Internal, LimitsExceeded, ProviderLost, ShuttingDown


class Caller:
    """A request in progress: the array for its vectors and the future that is awaited."""

    def __init__(self, request: Request, dimension: int) -> None:
        self.request = request
        self.vectors = np.empty((len(request.rows), dimension), np.float32)
        self.left = len(request.rows)
        self.done: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()

    def settle(self, error: Exception | None = None) -> None:
        """Resolve the future with the vectors or the error, unless it is done already."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self.vectors)
        else:
            self.done.set_exception(error)


class Callers:
    """All pending callers; call every method on the event loop, except `deliver` and `in`."""

    def __init__(self, dimension: int, limit: int) -> None:
        self._dimension = dimension
        self._limit = limit
        self._callers: dict[Request, Caller] = {}
        # number of texts whose vectors were delivered
        self.served = 0

    def __contains__(self, request: Request) -> bool:
        """Return true if the caller of a request still waits."""
        return request in self._callers

    @property
    def depth(self) -> int:
        """Number of texts that wait or run."""
        return sum(caller.left for caller in self._callers.values())

    def add(self, request: Request) -> Caller:
        """Add a caller; raises LimitsExceeded if the queue has no room for all rows."""
        others = (each for each in self._callers.values() if each.request.rank is not Rank.BULK)
        waiting, rows = sum(caller.left for caller in others), len(request.rows)
        # Bulk work limits itself, and callers must not be able to stop it.
        if request.rank is not Rank.BULK and waiting + rows > self._limit:
            raise LimitsExceeded(
                f"the queue holds {waiting} of at most {self._limit} texts, so {rows} more do not"
                " fit: ask for fewer at a time, or later"
            )
        caller = self._callers[request] = Caller(request, self._dimension)
        return caller

    def remove(self, caller: Caller) -> None:
        """Remove a caller that has an answer or was cancelled."""
        self._callers.pop(caller.request, None)

    def deliver(self, parts: Sequence[Part], vectors: NDArray[np.float32]) -> None:
        """Copy a batch's vectors to their callers' arrays; runs on the model's thread."""
        first = 0
        for part in parts:
            behind = first + len(part.rows)
            if caller := self._callers.get(part.request):
                caller.vectors[part.rows] = vectors[first:behind]
            first = behind

    def count_down(self, parts: Sequence[Part]) -> None:
        """Count delivered rows, and settle the callers that have all their vectors."""
        for part in parts:
            if caller := self._callers.get(part.request):
                self.served += len(part.rows)
                caller.left -= len(part.rows)
                if caller.left == 0:
                    caller.settle()

    def fail(self, parts: Sequence[Part], error: Exception) -> None:
        """Fail the callers of a batch; their other rows are dropped when the callers return."""
        for part in parts:
            if caller := self._callers.get(part.request):
                caller.settle(error)

    def fail_all(self, error: Exception) -> None:
        """Fail all pending callers."""
        for caller in self._callers.values():
            caller.settle(error)
        self._callers.clear()


Run: TypeAlias = Callable[[Any], NDArray[np.float32]]

log = structlog.get_logger()

# A batch takes milliseconds; one that takes this long is stuck and is not waited for.
_PATIENCE_SECONDS: Final = 1.0
# Batches are kept short for this long after a request of few texts.
_ATTENTION_SECONDS: Final = 2.0
# A text of up to this many tokens runs on one thread: several are no faster and use twice the CPU.
_SHORT: Final = 12
# Number of tokens of an empty text.
_SPECIAL: Final = 2
# Two token ids that every vocabulary has, to test the model after a failed batch.
_CANARY: Final = ((0, 1),)


class Scheduler:
    """Bounded queue of a model, with one thread for each lane.

    A lane runs ids (n, length) to vectors (n, dimension), beside other lanes: on another core or
    another device. A text that comes alone and is not short runs on `solo`, if given. With
    `whole_texts`, which cuts a text that is too long, lanes run lists of texts of any length, and
    the budget counts texts. `lost` waits for the model to stop working.
    """

    def __init__(
        self,
        lanes: Sequence[Run],
        *,
        solo: Run | None = None,
        whole_texts: Callable[[str], str] | None = None,
        dimension: int,
        budget: Budget,
        limit: int,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._patience = patience
        self._dimension = dimension
        self._budget = budget
        self._backlog = Backlog()
        self.batches = BatchMetrics()
        self._callers = Callers(dimension, limit)
        self._wake = threading.Condition()
        self._stopping = False
        # Reason why the model stopped working. It is no exception, which would keep frames alive.
        self.fault = ""
        self._lost = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(target=self._live, args=(run,), name=f"model-{number}", daemon=True)
            for number, run in enumerate(lanes)
        ]
        self._left = len(self._threads)
        self._running = 0
        self._solo = solo
        self._whole_texts = whole_texts
        # time of the last request of few texts, whose caller waits for each millisecond
        self._few_at = float("-inf")
        # Lanes that run alone or wait to. No other lane starts meanwhile, or they might wait
        # forever.
        self._exclusive = 0

    async def __aenter__(self) -> Self:
        """Start the model's threads."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Refuse queued rows, let running batches finish unless stuck, and settle all callers."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        try:
            # the batches' own deliveries were queued on the loop before this is set
            await asyncio.wait([self._ended], timeout=self._patience)
            if self._ended.done():
                # The threads have only to return. Later steps may rely on their end.
                self.join()
        finally:
            self._callers.fail_all(ShuttingDown())

    def join(self) -> None:
        """Block until the model's threads have ended, also those with a long batch."""
        for thread in self._threads:
            thread.join()

    @property
    def depth(self) -> int:
        """Number of texts that wait or run."""
        return self._callers.depth

    @property
    def texts(self) -> int:
        """Number of texts whose vectors were delivered."""
        return self._callers.served

    async def lost(self) -> None:
        """Wait until the model has stopped working; `fault` has the reason."""
        await self._lost.wait()

    @property
    def budget(self) -> int:
        """Current token limit of a batch."""
        return self._budget.tokens

    @property
    def lanes(self) -> int:
        """Number of batches that may run at once."""
        return len(self._threads)

    async def embed(self, rows: Tokens, priority: Rank = Rank.FEW) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of tokenized texts, float32 of length 1.

        Requests of many texts run after those of few, whatever their priority. Cancelling removes
        the queued rows. Raises LimitsExceeded at once if the queue has no room for all rows (except
        for bulk work), ProviderLost if the model stops working, ShuttingDown.
        """
        if self._stopping or self._loop is None:
            raise ShuttingDown
        if self.fault:
            raise ProviderLost(self.fault)
        if not len(rows):
            return np.empty((0, self._dimension), np.float32)
        rank = max(priority, Rank.FEW if len(rows) <= FEW else Rank.MANY)
        caller = self._callers.add(Request(rows, rank, is_mixed=bool(self._whole_texts)))
        if rank < Rank.MANY:
            self._few_at = time.monotonic()
        with self._wake:
            self._backlog.add(caller.request)
            self._wake.notify(len(rows))
        try:
            return await caller.done
        finally:
            self._callers.remove(caller)
            if caller.left:
                with self._wake:
                    self._backlog.drop(caller.request)
            # it refers to the exception, which refers to this frame
            del caller

    # the following methods run on the model's threads

    def _live(self, run: Run) -> None:
        """Run batches, then notify the loop if this is the last thread; the body of each thread."""
        try:
            self._work(run)
        finally:
            with self._wake:
                self._left -= 1
                is_last = self._left == 0
            if is_last:
                self._on_loop(self._end)

    def _work(self, run: Run) -> None:
        """Run batches until stopped."""
        while True:
            with self._wake:
                self._wake.wait_for(self._has_news)
                if self._stopping or self.fault:
                    return
                parts = self._next_batch()
                self._running += 1
                is_alone = self._running == 1 and count_rows(parts) == 1 and not self._backlog
            is_solo = is_alone and parts[0].length > _SHORT
            chosen = self._solo if self._solo and is_solo else run
            vectors: NDArray[np.float32] | None = None
            try:
                vectors = self._attempt(chosen, parts)
            except Exception as error:  # noqa: BLE001 -- one failed batch must not end the thread
                self._cope(chosen, parts, error)
            finally:
                with self._wake:
                    self._running -= 1
                    self._wake.notify_all()
            # Deliver only now: a caller that asks again at once must find that nothing else runs.
            if vectors is not None:
                self._deliver(parts, vectors)

    def _next_batch(self) -> list[Part]:
        """Take rows to run; a short backlog is divided among the idle lanes."""
        budget, idle = self._budget, len(self._threads) - self._running
        share = -(-self._backlog.tokens // max(1, idle))
        if self._whole_texts:
            share = max(share, LEAST)
        is_watched = time.monotonic() - self._few_at < _ATTENTION_SECONDS
        sizes = (budget.tokens,) if is_watched else (budget.relaxed, budget.tokens)
        if not budget.whole:
            return self._backlog.next_batch(min(sizes[0], share), budget.rows)
        fitting = [size for size in sizes if size <= share]
        return self._backlog.next_batch(1, budget.rows, fitting or [1])

    def _has_news(self) -> bool:
        is_free = self._backlog and not self._exclusive
        return bool(self._stopping or self.fault or is_free)

    def _attempt(self, run: Run, parts: Sequence[Part]) -> NDArray[np.float32]:
        inputs: Any
        if self._whole_texts:
            inputs = [text for part in parts for text in self._texts(part, self._whole_texts)]
            tokens = sum(part.tokens for part in parts)
        else:
            stacks = [part.request.rows.stacked(part.rows) for part in parts]
            inputs = stacks[0] if len(stacks) == 1 else np.concatenate(stacks)
            tokens = inputs.size
        began = time.perf_counter()
        vectors = run(inputs)
        seconds = time.perf_counter() - began
        self._require_vectors(vectors, len(inputs))
        with self._wake:
            self._budget.ran(tokens, seconds)
            self.batches.add(parts, tokens, began, seconds)
        return vectors

    def _texts(self, part: Part, cut: Callable[[str], str]) -> Iterator[str]:
        """Yield the texts of rows, cut as the rows are; an empty one for special tokens alone."""
        rows = part.request.rows
        for number in part.rows.tolist():
            is_empty = rows.lengths[number] <= _SPECIAL
            text = "" if is_empty else rows.texts[number]
            yield cut(text) if rows.truncated[number] else text

    def _require_vectors(self, vectors: NDArray[np.float32], rows: int) -> None:
        """Raise ValueError for the wrong shape or non-finite numbers."""
        if vectors.shape != (rows, self._dimension):
            raise ValueError(f"its output has the shape {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("its output holds numbers that are not finite")

    def _cope(self, run: Run, parts: Sequence[Part], error: Exception) -> None:
        """Retry a failed batch split or alone, fail its callers, or give up the model."""
        is_short_of_memory = is_about_memory(error)
        if is_short_of_memory and count_rows(parts) > 1:
            self._split(parts)
            return
        if is_short_of_memory:
            try:
                self._deliver(parts, self._alone(run, parts))
            except Exception as again:  # noqa: BLE001 -- runtimes raise bare exceptions
                error = again
            else:
                return
        if self._is_alive(run):
            fault = Internal(f"the model failed on a batch of {count_rows(parts)}: {error}")
            self._on_loop(self._callers.fail, parts, fault)
        else:
            self._give_up(error)

    def _split(self, parts: Sequence[Part]) -> None:
        tokens = count_rows(parts) * parts[0].length
        with self._wake:
            self._budget.out_of_memory(tokens)
            # Rows cancelled before now are not run again; those cancelled from now on are dropped
            # later.
            self._backlog.put_back([part for part in parts if part.request in self._callers])
            budget = self._budget.tokens
        log.warning("out of memory", batch_tokens=tokens, next_batch_tokens=budget)

    def _alone(self, run: Run, parts: Sequence[Part]) -> NDArray[np.float32]:
        """Run a batch while no other lane runs: other lanes may use the memory that it needs."""
        with self._wake:
            self._exclusive += 1
            self._running -= 1
            self._wake.notify_all()
            self._wake.wait_for(lambda: not self._running)
            self._running += 1
        try:
            return self._attempt(run, parts)
        finally:
            with self._wake:
                self._exclusive -= 1

    def _give_up(self, error: Exception) -> None:
        with self._wake:
            self.fault = self.fault or f"the provider stopped working: {error}"
            self._wake.notify_all()
        self._on_loop(self._lose, ProviderLost(self.fault))

    def _is_alive(self, run: Run) -> bool:
        """Return true if the model still runs two tokens, so that the batch was at fault."""
        try:
            self._require_vectors(run(np.array(_CANARY, np.int64)), 1)
        except Exception:  # noqa: BLE001 -- runtimes raise bare exceptions
            return False
        return True

    def _deliver(self, parts: Sequence[Part], vectors: NDArray[np.float32]) -> None:
        # copied on this thread, since the event loop is busier
        self._callers.deliver(parts, vectors)
        self._on_loop(self._callers.count_down, parts)

    def _on_loop(self, work: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None  # noqa: S101 -- set before the threads start
        # a batch that outlasted `patience` may outlast the loop
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *arguments)

    # the following methods run on the event loop

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _lose(self, error: ProviderLost) -> None:
        self._lost.set()
        self._callers.fail_all(error)
