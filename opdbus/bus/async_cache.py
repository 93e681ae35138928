"""A cache of asynchronous answers about connections, each requested once for all that wait."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class AsyncCache(Generic[T]):
    """Answers by connection and question; a failed one is requested again.

    `lasts` returns whether an answer is valid for later calls, too.
    """

    def __init__(self, lasts: Callable[[T], bool] = lambda _: True) -> None:
        self._lasts = lasts
        self._asked: dict[str, dict[str, asyncio.Task[T]]] = {}

    async def get(self, sender: str, question: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the cached or pending answer, or request it by `ask`."""
        asked = self._asked.setdefault(sender, {})
        if question not in asked:
            task = asked[question] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._settle(sender, question, done))
        if asked[question].done():
            return asked[question].result()
        # a cancelled caller must not cancel the request of the others
        return await asyncio.shield(asked[question])

    def is_asked(self, sender: str) -> bool:
        """Return whether an answer about a connection is cached or pending."""
        return bool(self._asked.get(sender))

    def forget(self, sender: str) -> None:
        """Drop the answers about a closed connection, and cancel pending requests."""
        for task in self._asked.pop(sender, {}).values():
            task.cancel()

    def clear(self) -> None:
        """Drop every answer; callers that wait for one still get it."""
        self._asked.clear()

    def _settle(self, sender: str, question: str, task: asyncio.Task[T]) -> None:
        failed = task.cancelled() or task.exception() is not None
        asked = self._asked.get(sender, {})
        # after `forget`, the entry may belong to a new request
        if asked.get(question) is task and (failed or not self._lasts(task.result())):
            del asked[question]
            if not asked:
                del self._asked[sender]
