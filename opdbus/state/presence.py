"""Presence of an observed object by its own fields, some of which mean that it is not there."""

from collections.abc import Mapping
from typing import Final

from opdbus.state.object import Json

# States of a package of which at most the configuration is left.
REMOVED: Final = frozenset({"config-files", "not-installed"})
# Of a file or setting that was looked for: `true`.
MISSING: Final = "missing"
# Fields, and their values that mean absence.
_ABSENT: Final[Mapping[str, frozenset[str]]] = {
    MISSING: frozenset({"true"}),
    "removed": frozenset({"true"}),
    "status": REMOVED,
    "load_state": frozenset({"not-found"}),
    **dict.fromkeys(("ensure", "presence"), frozenset({"absent", "missing"})),
}


def find_absence(fields: Mapping[str, Json]) -> str:
    """Return the first field that says that an object is not there; empty if it is there."""
    return next(
        (name for name, values in _ABSENT.items() if str(fields.get(name)).lower() in values), ""
    )
