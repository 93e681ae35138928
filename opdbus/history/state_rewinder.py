"""The former states of an object, by undoing its changes one after the other. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from opdbus.history.change import FieldChange, undone
from opdbus.history.row_filter import Row
from opdbus.state.object import Json

# Changes of the object itself; other rows are about its declaration or about history.
_CHANGES: Final = ("appeared", "changed", "gone")


class StateRewinder:
    """The states of an object by source, as they were before the undone changes."""

    def __init__(self, states: Mapping[str, dict[str, Json]]) -> None:
        self.states = dict(states)
        # the last undone change
        self.last: Row | None = None
        # paths of fields with unknown values, by source
        self._unknown: dict[str, set[tuple[str, ...]]] = {}

    def undo(self, row: Row) -> None:
        """Undo a change; rows must come in the order from the newest to the oldest."""
        if row.what not in _CHANGES:
            return
        source, self.last = row.identity.source, row
        if row.what == "appeared":
            self.states.pop(source, None)
            self._unknown.pop(source, None)
            return
        known = [field for field in row.fields if field.before is not None]
        self.states[source] = undone(self.states.get(source, {}), known)
        unknown = self._unknown.setdefault(source, set())
        unknown -= {path for path in unknown if _is_within(path, known)}
        unknown |= {tuple(path) for path, before, _ in row.fields if before is None}

    @property
    def unknown(self) -> list[str]:
        """The dotted paths of fields with unknown values."""
        return sorted({".".join(path) for paths in self._unknown.values() for path in paths})


def _is_within(path: tuple[str, ...], fields: Sequence[FieldChange]) -> bool:
    return any(path[: len(field.path)] == tuple(field.path) for field in fields)
