"""Pacing of reads: new changes are read at once, frequent ones at growing intervals."""

import time
from collections.abc import Callable, Iterable
from typing import Final

# Rest of a name after it was read; doubled each time while it keeps changing, up to the most.
_FIRST_SECONDS: Final = 0.1
_MOST_SECONDS: Final = 1.0
# The share of time for work, and the work that may be done at once without a rest.
_SHARE: Final = 0.05
_AT_ONCE_SECONDS: Final = 0.25


class Pace:
    """Queue of names to read, each when it is due; changes until then are merged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        # by name: the end of its rest, and the length of it
        self._rests: dict[str, tuple[float, float]] = {}

    def queue(self, name: str, wait: float = 0.0) -> None:
        """Queue a name to be read after `wait` seconds and its rest since the last reading."""
        until, _ = self._rests.get(name, (0.0, 0.0))
        at = max(until, self._clock() + wait)
        self._due[name] = min(at, self._due.get(name, at))

    @property
    def next_at(self) -> float:
        """The time when the first name is due, by the clock; infinite if there is none."""
        return min(self._due.values(), default=float("inf"))

    def take(self) -> set[str]:
        """Return and remove the names that are due; they rest from now on."""
        now = self._clock()
        names = {name for name, at in self._due.items() if at <= now}
        self._rests = {
            name: rest for name, rest in self._rests.items() if rest[0] > now - _MOST_SECONDS
        }
        for name in names:
            del self._due[name]
            _, last = self._rests.get(name, (0.0, 0.0))
            rest = min(2 * last, _MOST_SECONDS) or _FIRST_SECONDS
            self._rests[name] = now + rest, rest
        return names


class Seldom:
    """Rate limit that passes each name once in a number of seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}

    def due(self, names: Iterable[str]) -> set[str]:
        """Return the names that were not let through lately."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        found = {name for name in names if name not in self._until}
        self._until |= dict.fromkeys(found, now + self._seconds)
        return found


class Allowance:
    """A twentieth of the time for work; a little may be done at once after a quiet time.

    No rest takes longer than `most` seconds, so that no change is seen later.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most: float = _MOST_SECONDS
    ) -> None:
        self._clock = clock
        self._most = most
        self._at = clock()
        # seconds of work that rests have not made up for
        self._owed = 0.0

    def rest(self, worked: float) -> float:
        """Return the seconds of rest after `worked` seconds of work."""
        now = self._clock()
        self._owed = max(0.0, self._owed - _SHARE * (now - self._at)) + worked
        self._at = now
        return min(max(0.0, self._owed - _AT_ONCE_SECONDS) / _SHARE, self._most)
