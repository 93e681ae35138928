"""What lives only as long as somebody's connection, and whose connection that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opdbus.state.object import Identity


class Holders:
    """Who holds what; of what nobody holds, nothing is known."""

    def __init__(self) -> None:
        self._holder: dict[Identity, str] = {}
        self._held: dict[str, set[Identity]] = {}

    def held(self, holder: str) -> frozenset[Identity]:
        """Give what a holder holds."""
        return frozenset(self._held.get(holder, ()))

    def hold(self, identities: Iterable[Identity], holder: str) -> None:
        """Have one holder hold these, and nobody else."""
        for identity in identities:
            self.drop([identity])
            self._holder[identity] = holder
            self._held.setdefault(holder, set()).add(identity)

    def drop(self, identities: Iterable[Identity]) -> None:
        """Have nobody hold these any more."""
        for identity in identities:
            holder = self._holder.pop(identity, None)
            if holder is None:
                continue
            self._held[holder].discard(identity)
            if not self._held[holder]:
                del self._held[holder]
