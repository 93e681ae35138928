"""Start-time fair queueing: the key with the least service is served next."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class FairQueue:
    """The service that each key has had; a new key starts level with the others."""

    def __init__(self) -> None:
        self._served: dict[Hashable, float] = {}
        self._now = 0.0

    def add(self, key: Hashable) -> None:
        """Add a key with as much service as the one served last had at that time."""
        self._served.setdefault(key, self._now)

    def remove(self, key: Hashable) -> None:
        """Remove a key."""
        self._served.pop(key, None)

    def charge(self, key: Hashable, amount: float) -> None:
        """Add to the service of a key; has no effect on a removed one."""
        if key in self._served:
            self._served[key] += amount

    def least_served(self, keys: Iterable[_Key]) -> _Key:
        """Return the key that is served now."""
        chosen = min(keys, key=self._served.__getitem__)
        self._now = max(self._now, self._served[chosen])
        return chosen
