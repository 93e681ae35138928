"""Objects that live only as long as the D-Bus connection of their publisher."""

from collections.abc import Iterable

from opdbus.state.object import Identity


class TransientObjects:
    """Map between transient objects and the D-Bus connections that hold them."""

    def __init__(self) -> None:
        self._holder: dict[Identity, str] = {}
        self._held: dict[str, set[Identity]] = {}

    def held_by(self, holder: str) -> frozenset[Identity]:
        """Return the objects that a connection holds."""
        return frozenset(self._held.get(holder, ()))

    def add(self, identities: Iterable[Identity], holder: str) -> None:
        """Assign objects to a connection, in place of the one that held them."""
        for identity in identities:
            self.discard([identity])
            self._holder[identity] = holder
            self._held.setdefault(holder, set()).add(identity)

    def discard(self, identities: Iterable[Identity]) -> None:
        """Forget objects that were removed or became permanent."""
        for identity in identities:
            holder = self._holder.pop(identity, None)
            if holder is None:
                continue
            self._held[holder].discard(identity)
            if not self._held[holder]:
                del self._held[holder]
