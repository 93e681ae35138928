"""Volatile values of observed objects, kept in memory only."""

from collections.abc import Iterable, Mapping
from typing import Final

from opdbus.state import fields
from opdbus.state.object import Identity, Json

_NONE: Final[Mapping[str, Json]] = {}


class VolatileValues:
    """Volatile values by entry, with the entries grouped by their fields."""

    def __init__(self) -> None:
        self._values: dict[Identity, Mapping[str, Json]] = {}
        self._fields: dict[Identity, frozenset[str]] = {}
        self._groups: dict[frozenset[str], set[Identity]] = {}

    def put(self, values: Mapping[Identity, Mapping[str, Json]]) -> None:
        """Replace the values of entries."""
        self._values |= values
        for identity, moved in values.items():
            paths = frozenset(fields.paths(moved))
            if self._fields.get(identity) != paths:
                self._leave_group(identity)
                self._fields[identity] = paths
                self._groups.setdefault(paths, set()).add(identity)

    def drop(self, identities: Iterable[Identity]) -> None:
        """Remove the values of entries."""
        for identity in identities:
            self._values.pop(identity, None)
            self._leave_group(identity)

    def _leave_group(self, identity: Identity) -> None:
        paths = self._fields.pop(identity, None)
        if paths is not None:
            self._groups[paths].discard(identity)
            if not self._groups[paths]:
                del self._groups[paths]

    def get(self, identity: Identity) -> Mapping[str, Json]:
        """Return the values of an entry, empty if it has none; may be called on any thread."""
        return self._values.get(identity, _NONE)

    def entries_with(self, names: fields.Names) -> list[Identity]:
        """Return the entries that have a volatile field with one of these names."""
        groups = [group for paths, group in self._groups.items() if names.are_at(paths)]
        return [identity for group in groups for identity in group]
