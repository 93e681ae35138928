"""Things that may have changed, and wait to be looked at."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from opdbus.state.object import ObjectId

# Things that are looked at at a time: some milliseconds' work.
AT_A_TIME: Final = 100


class WorkQueue:
    """Things in the order in which they came; `news` is set when some come."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._parts: deque[Iterator[ObjectId]] = deque()

    @property
    def is_more(self) -> bool:
        """Whether something may wait."""
        return bool(self._parts)

    def add(self, object_ids: Iterable[ObjectId]) -> None:
        """Have things looked at; those of an iterator are not kept."""
        self._parts.append(
            object_ids if isinstance(object_ids, Iterator) else iter(tuple(object_ids))
        )
        self.news.set()

    def take(self) -> list[ObjectId]:
        """Return some of the things, each once."""
        found: dict[ObjectId, None] = {}
        while self._parts and len(found) < AT_A_TIME:
            part = dict.fromkeys(islice(self._parts[0], AT_A_TIME))
            if not part:
                self._parts.popleft()
            found |= part
        return list(found)
