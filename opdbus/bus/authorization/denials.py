"""Who was refused what, for the log; a flood of refusals cannot fill it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_WINDOW_SECONDS: Final = 60.0
MOST_A_USER: Final = 5
# A user may have 65,536 uids under it.
MOST_USERS: Final = 64


class Denials:
    """Lets the first refusals of each uid in a minute be told, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._seen: Counter[int] = Counter()
        self._untold = 0

    def tell(self, uid: int) -> int | None:
        """Give how many refusals were not told since the last that was; None: nor is this one."""
        if self._clock() - self._since >= _WINDOW_SECONDS:
            self._since = self._clock()
            self._seen.clear()
        is_told = uid in self._seen or len(self._seen) < MOST_USERS
        if not is_told or self._seen[uid] >= MOST_A_USER:
            self._untold += 1
            return None
        self._seen[uid] += 1
        untold, self._untold = self._untold, 0
        return untold
