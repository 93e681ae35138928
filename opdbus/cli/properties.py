"""What op-dbus says of itself, whole also where the daemon is another version and says less."""

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
# What a daemon of this version has, empty.
EMPTY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(_TEXTS.split(), ""),
    **dict.fromkeys(_NUMBERS.split(), 0),
    **{name: [] for name in _LISTS.split()},
    "Proof": {},
}


class Properties(dict[str, Any]):
    """Values by name; one that the daemon does not tell is empty."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 -- of any type
        """Give the empty value; raises KeyError for what no daemon has."""
        return copy(EMPTY[name])


def untold(values: Mapping[str, Any]) -> str:
    """Say what the daemon does not tell; empty where it tells all."""
    names = ", ".join(sorted(EMPTY.keys() - values.keys()))
    return names and f"{names}: not told by this daemon, another version: restart it"
