"""Flat list of an object's values with their dotted names."""

from opdbus.state.object import Json


def leaves(value: Json) -> list[tuple[str, Json]]:
    """Return (dotted name, scalar or list of scalars) of all values inside a JSON value."""
    found: list[tuple[str, Json]] = []
    _collect(value, "", found)
    return found


def _collect(value: Json, path: str, found: list[tuple[str, Json]]) -> None:
    """Add the values inside a value; a non-empty `path` ends in the dot before the next key."""
    # the exact types, since this runs for every field of 100,000 objects
    kind = type(value)
    if kind is dict:
        for key, child in value.items():
            if type(child) is str:
                found.append((path + key, child))
            else:
                _collect(child, f"{path}{key}.", found)
    elif kind is list and any(isinstance(child, dict | list) for child in value):
        for index, child in enumerate(value):
            _collect(child, f"{path}{index}.", found)
    else:
        found.append((path[:-1], value))
