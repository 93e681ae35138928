"""Answers about connections: each asked for once, however many wait, and kept until forgotten."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class AsyncCache(Generic[T]):
    """Answers by connection and question; one that failed is asked for again.

    `lasts` tells whether an answer is good for later calls too.
    """

    def __init__(self, lasts: Callable[[T], bool] = lambda _: True) -> None:
        self._lasts = lasts
        self._asked: dict[str, dict[str, asyncio.Task[T]]] = {}

    async def get(self, sender: str, question: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Give the answer that is known or on its way, else ask."""
        asked = self._asked.setdefault(sender, {})
        if question not in asked:
            task = asked[question] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._settle(sender, question, done))
        if asked[question].done():
            return asked[question].result()
        # a caller that stops waiting does not stop the question for the others
        return await asyncio.shield(asked[question])

    def is_asked(self, sender: str) -> bool:
        """Whether something about a connection is known or being asked."""
        return bool(self._asked.get(sender))

    def forget(self, sender: str) -> None:
        """Drop what is known of a connection that is gone, and what is being asked."""
        for task in self._asked.pop(sender, {}).values():
            task.cancel()

    def clear(self) -> None:
        """Drop every answer; calls that wait for one still get it."""
        self._asked.clear()

    def _settle(self, sender: str, question: str, task: asyncio.Task[T]) -> None:
        failed = task.cancelled() or task.exception() is not None
        asked = self._asked.get(sender, {})
        # what was forgotten meanwhile may have been asked again
        if asked.get(question) is task and (failed or not self._lasts(task.result())):
            del asked[question]
            if not asked:
                del self._asked[sender]
