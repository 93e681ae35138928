"""Objects that live only as long as the D-Bus connection of their publisher."""

from collections.abc import Iterable

from opdbus.state.object import Identity


class TransientObjects:
    """The connection that each transient object lives by; kept objects are not in here."""

    def __init__(self) -> None:
        self._holder: dict[Identity, str] = {}
        self._held: dict[str, set[Identity]] = {}

    def held_by(self, holder: str) -> frozenset[Identity]:
        """Return the objects that live as long as a connection."""
        return frozenset(self._held.get(holder, ()))

    def add(self, identities: Iterable[Identity], holder: str) -> None:
        """Let objects live as long as a connection, and no longer as long as another one."""
        for identity in identities:
            self.discard([identity])
            self._holder[identity] = holder
            self._held.setdefault(holder, set()).add(identity)

    def discard(self, identities: Iterable[Identity]) -> None:
        """Forget objects that were removed, or that are kept from now on."""
        for identity in identities:
            holder = self._holder.pop(identity, None)
            if holder is None:
                continue
            self._held[holder].discard(identity)
            if not self._held[holder]:
                del self._held[holder]
