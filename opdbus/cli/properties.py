"""The daemon's properties, completed if a daemon of another version lacks some."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Final

_TEXTS: Final = (
    "StateFile StateFileError LastError Level Model ModelRevision State RequestedProvider Provider"
    " Device Precision Version"
)
_NUMBERS: Final = (
    "Generation Count Vectorized Pending FirstStage Drifted Dimension MaxTokens QueueDepth Texts"
    " Latency Memory Truncated"
)
_LISTS: Final = "DriftAwaits Sources Observers Fallbacks Accuracy Jobs"
# The properties that a daemon of this version has, with empty values.
EMPTY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(_TEXTS.split(), ""),
    **dict.fromkeys(_NUMBERS.split(), 0),
    **{name: [] for name in _LISTS.split()},
    "Proof": {},
}


class Properties(dict[str, Any]):
    """Values by name; a property that the daemon lacks is empty."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 -- of any type
        """Return the empty value; raises KeyError for an unknown property."""
        return copy(EMPTY[name])


def untold(values: Mapping[str, Any]) -> str:
    """Return a message with the properties that the daemon lacks; empty if it has all."""
    names = ", ".join(sorted(EMPTY.keys() - values.keys()))
    return names and f"{names}: not told by this daemon, another version: restart it"
