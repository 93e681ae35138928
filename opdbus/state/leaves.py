"""The values inside an object, each with its way from the top."""

from opdbus.state.object import Json


def leaves(value: Json) -> list[tuple[str, Json]]:
    """Return (dotted name, scalar or list of scalars) of all values inside a JSON value."""
    found: list[tuple[str, Json]] = []
    _collect(value, "", found)
    return found


def _collect(value: Json, path: str, found: list[tuple[str, Json]]) -> None:
    """Add what is inside a value; a `path` that is not empty ends in the dot before a key."""
    # the types themselves, since this runs for every field of 100,000 objects
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
