"""The callers of a model: each waits until all its vectors are there, or an error is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Part, Rank, Request
from opdbus.errors import LimitsExceeded


class Caller:
    """A request on its way: where its rows' vectors go, and the future that waits for them."""

    def __init__(self, request: Request, dimension: int) -> None:
        self.request = request
        self.vectors = np.empty((len(request.rows), dimension), np.float32)
        self.left = len(request.rows)
        self.done: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()

    def settle(self, error: Exception | None = None) -> None:
        """Give the caller the vectors or the error, unless the caller has left."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self.vectors)
        else:
            self.done.set_exception(error)


class Callers:
    """All callers; every method is for the event loop, but for `deliver` and `in`."""

    def __init__(self, dimension: int, limit: int) -> None:
        self._dimension = dimension
        self._limit = limit
        self._callers: dict[Request, Caller] = {}
        # texts that got their vectors
        self.served = 0

    def __contains__(self, request: Request) -> bool:
        """Return whether the caller of a request still waits."""
        return request in self._callers

    @property
    def depth(self) -> int:
        """Count the texts that wait or run."""
        return sum(caller.left for caller in self._callers.values())

    def add(self, request: Request) -> Caller:
        """Take a caller; raises LimitsExceeded where there is no room for all rows."""
        # bulk work limits itself, and callers must not be able to stop it
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
        """Forget a caller, which has an answer or has left."""
        self._callers.pop(caller.request, None)

    def deliver(self, parts: Sequence[Part], vectors: NDArray[np.float32]) -> None:
        """Write a batch's vectors to where they are waited for; on the model's thread."""
        first = 0
        for part in parts:
            behind = first + len(part.rows)
            if caller := self._callers.get(part.request):
                caller.vectors[part.rows] = vectors[first:behind]
            first = behind

    def count_down(self, parts: Sequence[Part]) -> None:
        """Settle the callers all of whose vectors were delivered."""
        for part in parts:
            if caller := self._callers.get(part.request):
                self.served += len(part.rows)
                caller.left -= len(part.rows)
                if caller.left == 0:
                    caller.settle()

    def fail(self, parts: Sequence[Part], error: Exception) -> None:
        """Fail the callers of a batch; their other rows are taken out as they leave."""
        for part in parts:
            if caller := self._callers.get(part.request):
                caller.settle(error)

    def fail_all(self, error: Exception) -> None:
        """Fail all callers that still wait."""
        for caller in self._callers.values():
            caller.settle(error)
        self._callers.clear()
