"""The queue of objects that may have changed and are to be compared."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from opdbus.state.object import ObjectId

# Objects in a batch: some milliseconds of work.
AT_A_TIME: Final = 100


class WorkQueue:
    """Objects in order of arrival; `news` is set when some are added."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._parts: deque[Iterator[ObjectId]] = deque()

    @property
    def is_more(self) -> bool:
        """True if objects may be queued."""
        return bool(self._parts)

    def add(self, object_ids: Iterable[ObjectId]) -> None:
        """Queue objects; an iterator is consumed lazily, without a copy."""
        self._parts.append(
            object_ids if isinstance(object_ids, Iterator) else iter(tuple(object_ids))
        )
        self.news.set()

    def take(self) -> list[ObjectId]:
        """Return about AT_A_TIME queued objects, each once."""
        found: dict[ObjectId, None] = {}
        while self._parts and len(found) < AT_A_TIME:
            part = dict.fromkeys(islice(self._parts[0], AT_A_TIME))
            if not part:
                self._parts.popleft()
            found |= part
        return list(found)
