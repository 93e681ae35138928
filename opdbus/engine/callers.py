"""Pending callers of a model, each with a future for its vectors or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Part, Rank, Request
from opdbus.errors import LimitsExceeded


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
        # Bulk work limits itself, and callers must not be able to stop it.
        if request.rank is not Rank.BULK:
            self._require_room(len(request.rows))
        caller = self._callers[request] = Caller(request, self._dimension)
        return caller

    def _require_room(self, rows: int) -> None:
        others = (each for each in self._callers.values() if each.request.rank is not Rank.BULK)
        waiting = sum(caller.left for caller in others)
        if waiting + rows > self._limit:
            raise LimitsExceeded(
                f"the queue holds {waiting} of at most {self._limit} texts, so {rows} more do not"
                " fit: ask for fewer at a time, or later"
            )

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
