"""The values inside an object, each with its way from the top."""

from collections.abc import Iterator

from opdbus.state.object import Json


def leaves(value: Json) -> Iterator[tuple[str, Json]]:
    """Yield (dotted name, scalar or list of scalars) of all values inside a JSON value."""
    return ((".".join(path), leaf) for path, leaf in _walk(value, ()))


def _walk(value: Json, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _walk(child, (*path, key))
    elif isinstance(value, list) and any(isinstance(child, dict | list) for child in value):
        for index, child in enumerate(value):
            yield from _walk(child, (*path, str(index)))
    else:
        yield path, value
