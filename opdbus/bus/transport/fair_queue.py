"""Start-time fair queueing: the least served of several is served next."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class FairQueue:
    """How much service each of several has had; one that is new starts level with the others."""

    def __init__(self) -> None:
        self._served: dict[Hashable, float] = {}
        self._now = 0.0

    def add(self, key: Hashable) -> None:
        """Let a new one take part, with as much service as the one served last has had."""
        self._served.setdefault(key, self._now)

    def remove(self, key: Hashable) -> None:
        """Forget one."""
        self._served.pop(key, None)

    def charge(self, key: Hashable, amount: float) -> None:
        """Add to the service that one has had; does nothing if it is removed already."""
        if key in self._served:
            self._served[key] += amount

    def least_served(self, keys: Iterable[_Key]) -> _Key:
        """Choose which of these is served now."""
        chosen = min(keys, key=self._served.__getitem__)
        self._now = max(self._now, self._served[chosen])
        return chosen
