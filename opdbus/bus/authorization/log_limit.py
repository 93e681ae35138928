"""A limit of log lines about refusals, so that no user can fill the log."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

_WINDOW_SECONDS: Final = 60.0
MOST_A_USER: Final = 5
# One user may have 65,536 subordinate uids.
MOST_USERS: Final = 64


class LogLimit:
    """Admits the first refusals of each uid in a minute to the log, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._logged: Counter[int] = Counter()
        self._suppressed = 0

    def admit(self, uid: int) -> int | None:
        """Return the number of lines suppressed since the last one; None to suppress this one."""
        if self._clock() - self._since >= _WINDOW_SECONDS:
            self._since = self._clock()
            self._logged.clear()
        is_known = uid in self._logged or len(self._logged) < MOST_USERS
        if not is_known or self._logged[uid] >= MOST_A_USER:
            self._suppressed += 1
            return None
        self._logged[uid] += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
