"""Start-time fair queueing: the next one served is the one that has been served least."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

_Key = TypeVar("_Key", bound=Hashable)


class FairQueue:
    """How much each of several has had since they came."""

    def __init__(self) -> None:
        self._had: dict[Hashable, float] = {}
        self._now = 0.0

    def come(self, who: Hashable) -> None:
        """Let someone take part, with as much as those had who were served last."""
        self._had.setdefault(who, self._now)

    def leave(self, who: Hashable) -> None:
        """Forget someone."""
        self._had.pop(who, None)

    def charge(self, who: Hashable, amount: float) -> None:
        """Count what someone has had, who may have left."""
        if who in self._had:
            self._had[who] += amount

    def least(self, those: Iterable[_Key]) -> _Key:
        """Choose who is served now."""
        chosen = min(those, key=self._had.__getitem__)
        self._now = max(self._now, self._had[chosen])
        return chosen
