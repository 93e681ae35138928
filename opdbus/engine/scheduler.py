"""One bounded queue in front of one model thread; every future is settled, whatever happens."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from opdbus.engine.batching import Backlog, Request
from opdbus.errors import Internal, LimitsExceeded, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from opdbus.engine.batching import Member
    from opdbus.engine.tokenizer import Tokens

    Run = Callable[[NDArray[np.int64]], NDArray[np.float32]]


# A running batch takes milliseconds; one that takes this long is stuck and is not waited for.
_PATIENCE_SECONDS: Final = 1.0


class _Job:
    """A request on its way: where its rows' vectors go, and the future that waits for them."""

    def __init__(self, request: Request, dimension: int, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.vectors = np.empty((len(request.rows), dimension), np.float32)
        self.left = len(request.rows)
        self.done: asyncio.Future[NDArray[np.float32]] = loop.create_future()

    def settle(self, error: Exception | None = None) -> None:
        """Give the caller the vectors or the error, unless the caller has left."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self.vectors)
        else:
            self.done.set_exception(error)


class Scheduler:
    """Runs `run` (a model: ids (n, length) to vectors (n, dimension)) on a thread of its own."""

    def __init__(
        self,
        run: Run,
        *,
        dimension: int,
        budget: int,
        limit: int,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._run = run
        self._patience = patience
        self._dimension = dimension
        self.budget = budget
        self._limit = limit
        self._backlog = Backlog()
        self._jobs: dict[Request, _Job] = {}
        self._wake = threading.Condition()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._live, name="model", daemon=True)

    async def __aenter__(self) -> Self:
        """Start the model thread."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Refuse what waits, let the running batch finish unless it is stuck, settle the rest."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        try:
            # no thread waits for this one: there may be none to be had
            await asyncio.wait([self._ended], timeout=self._patience)
            if self._ended.done():
                # it has only to return: what follows may count on its end
                self._thread.join()
        finally:
            for job in list(self._jobs.values()):
                job.settle(ShuttingDown())
            self._jobs.clear()

    @property
    def depth(self) -> int:
        """Count the texts that wait or run."""
        return sum(job.left for job in self._jobs.values())

    async def embed(self, rows: Sequence[Tokens], *, bulk: bool = False) -> NDArray[np.float32]:
        """Give the vectors (rows, dimension) of tokenized texts, float32 of length 1.

        A caller who is cancelled takes the rows that wait out of the queue. Raises
        LimitsExceeded at once if the queue has no room for all of them (bulk has), ShuttingDown.
        """
        if self._stopping or self._loop is None:
            raise ShuttingDown
        if not rows:
            return np.empty((0, self._dimension), np.float32)
        waiting = sum(job.left for job in self._jobs.values() if not job.request.bulk)
        # our own bulk work comes one batch at a time: callers must not be able to stop it
        if not bulk and waiting + len(rows) > self._limit:
            raise LimitsExceeded(
                f"the queue holds {waiting} of at most {self._limit} texts, so {len(rows)} more"
                " do not fit: ask for fewer at a time, or later"
            )
        job = _Job(Request(rows, bulk=bulk), self._dimension, self._loop)
        self._jobs[job.request] = job
        with self._wake:
            self._backlog.add(job.request)
            self._wake.notify()
        try:
            return await job.done
        finally:
            self._leave(job)

    def _leave(self, job: _Job) -> None:
        self._jobs.pop(job.request, None)
        if job.left:
            with self._wake:
                self._backlog.drop(job.request)

    def _live(self) -> None:
        """Work, and tell the loop when that is over; the body of the model thread."""
        assert self._loop is not None  # noqa: S101 -- set before the thread starts
        try:
            self._work()
        finally:
            # a batch that outlived our patience may outlive the loop
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def _work(self) -> None:
        """Run batches until told to stop."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or len(self._backlog))
                if self._stopping:
                    return
                members = self._backlog.next_batch(self.budget)
            outcome = self._attempt(members)
            assert self._loop is not None  # noqa: S101 -- set before the thread starts
            # a batch that outlived our patience may outlive the loop
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver, members, outcome)

    def _attempt(self, members: Sequence[Member]) -> NDArray[np.float32] | Exception:
        ids = np.stack([member.request.rows[member.row].ids for member in members])
        try:
            vectors = self._run(ids)
            self._require_vectors(vectors, len(members))
        except Exception as error:  # noqa: BLE001 -- one failed batch must not end the thread
            return error
        return vectors

    def _require_vectors(self, vectors: NDArray[np.float32], rows: int) -> None:
        """Refuse what a provider that went wrong after its proof may give."""
        if vectors.shape != (rows, self._dimension):
            raise ValueError(f"its output has the shape {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("its output holds numbers that are not finite")

    def _deliver(self, members: Sequence[Member], outcome: NDArray[np.float32] | Exception) -> None:
        """Hand a batch's vectors to their jobs; runs on the event loop."""
        for index, member in enumerate(members):
            job = self._jobs.get(member.request)
            if job is None:
                continue
            job.left -= 1
            if isinstance(outcome, Exception):
                fault = Internal(f"the model failed on a batch of {len(members)}: {outcome}")
                job.settle(fault)
            else:
                job.vectors[member.row] = outcome[index]
                if job.left == 0:
                    job.settle()
