"""Drift: declared fields that were observed with another value."""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import Final

from opdbus.state.object import Json

# A signal names at most so many fields, with so many characters of each name.
MAX_FIELDS: Final = 64
MAX_FIELD: Final = 200


def drifted_fields(declared: Mapping[str, Json], observed: Mapping[str, Json]) -> list[str]:
    """Return the dotted names of declared fields that were observed with another value.

    The first MAX_FIELDS in order, names longer than MAX_FIELD cut. A field of one side only is not
    drift: files declare less than hosts show, and programs publish less than files declare.
    """
    # by path, not by dotted name: {"a.b": 1} and {"a": {"b": 1}} are two fields
    seen = dict(_walk(observed, ()))
    differing = (
        ".".join(path)
        for path, value in _walk(declared, ())
        if path in seen and not _same(value, seen[path])
    )
    return [_shown(name) for name in nsmallest(MAX_FIELDS, differing)]


def leaves(value: Json) -> Iterator[tuple[str, Json]]:
    """Yield (dotted name, scalar or list of scalars) of all values inside a JSON value."""
    return ((".".join(path), leaf) for path, leaf in _walk(value, ()))


def _shown(name: str) -> str:
    return name if len(name) <= MAX_FIELD else f"{name[: MAX_FIELD - 3]}..."


def _walk(value: Json, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _walk(child, (*path, key))
    elif isinstance(value, list) and any(isinstance(child, dict | list) for child in value):
        for index, child in enumerate(value):
            yield from _walk(child, (*path, str(index)))
    else:
        yield path, value


def _same(declared: Json, observed: Json) -> bool:
    """Compare as people do: 1 and "1" and true and "True" are the same setting, in lists too."""
    if isinstance(declared, list) and isinstance(observed, list):
        return len(declared) == len(observed) and all(map(_same, declared, observed))
    if declared == observed:
        return True
    return str(declared).strip().lower() == str(observed).strip().lower()
