"""Things that may have changed, and wait to be looked at."""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from opdbus.drift.table import Sort
from opdbus.state.object import Thing

# Things that are looked at at a time: some milliseconds' work.
AT_A_TIME: Final = 100


class Waiting:
    """Things in the order in which they came; `news` is set when some come."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        # each with the only sorts of them that are to be looked at, if not all
        self._parts: deque[tuple[Iterator[Thing], Collection[Sort] | None]] = deque()

    @property
    def is_more(self) -> bool:
        """Whether something may wait."""
        return bool(self._parts)

    def add(self, things: Iterable[Thing], sorts: Collection[Sort] | None = None) -> None:
        """Have things looked at, or those of some sorts; those of an iterator are not kept."""
        kept = things if isinstance(things, Iterator) else iter(tuple(things))
        self._parts.append((kept, sorts))
        self.news.set()

    def take(self) -> list[Thing]:
        """Return some things; those that are not to be looked at cost next to nothing."""
        found: dict[Thing, None] = {}
        while self._parts and len(found) < AT_A_TIME:
            things, sorts = self._parts[0]
            part = list(islice(things, AT_A_TIME))
            if not part:
                self._parts.popleft()
            if sorts is not None:
                found |= dict.fromkeys(thing for thing in part if thing[:2] in sorts)
                break
            found |= dict.fromkeys(part)
        return list(found)
