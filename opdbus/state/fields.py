"""The fields of an object, found by name: `ActiveState` and `active_state` are one field."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from opdbus.state.object import Identity, Json

# How well a field has a name: not at all, by the words that it ends in, or exactly.
Fit: TypeAlias = Literal[0, 1, 2]

# What an object's identity says counts as fields of it.
IDENTITY: Final = ("source", "plugin", "kind", "name")

# Of more paths the fits are found out again: an object may have any number of keys.
_MAX_PATHS: Final = 8192

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")


def split(name: str) -> tuple[str, ...]:
    """Split an identifier into words: rx_bytes, rxBytes and rx-bytes are all `rx bytes`."""
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", name)))


class Name:
    """A name of fields: a full dotted path, or its last key.

    Where an object has no field of exactly that name, the fields whose path ends in its words
    count: `state` finds `active_state`.
    """

    def __init__(self, name: str) -> None:
        self._of_identity = name.lower() if name.lower() in IDENTITY else ""
        # kept as long as the name only: the keys of objects that are gone are not remembered
        self._fits = _Fits(name)

    def values(self, identity: Identity, properties: Mapping[str, Json]) -> list[Json]:
        """Return the values that an object has under this name, members of lists one by one."""
        found = _Found([getattr(identity, self._of_identity)] if self._of_identity else [])
        found.add(properties, "", self._fits)
        return found.exact or found.ending

    def is_in(self, paths: Iterable[str]) -> bool:
        """Return whether one of the fields at some paths has this name."""
        return bool(self._of_identity) or any(self._fits[path] for path in paths)


def paths(properties: Mapping[str, Json]) -> set[str]:
    """Return the dotted paths of all fields and lists; positions in lists are no part of them."""
    asked = _Paths()
    _Found([]).add(properties, "", asked)
    return asked.seen


class _Fits(dict[str, Fit]):
    """How well the field at each dotted path has a name, found out once for each path."""

    def __init__(self, name: str) -> None:
        self._wanted = split(name)

    def __missing__(self, path: str) -> Fit:
        if len(self) > _MAX_PATHS:
            self.clear()
        wanted, words = self._wanted, split(path)
        fit: Fit = 0
        if wanted and words[-len(wanted) :] == wanted:
            fit = 2 if wanted in {words, split(path.rpartition(".")[2])} else 1
        self[path] = fit
        return fit


class _Every(dict[str, Fit]):
    """Takes whatever is in a list that has the name for values of that name."""

    def __missing__(self, _path: str) -> Fit:
        return 2


class _Paths(dict[str, Fit]):
    """Takes note of every path that it is asked for."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __missing__(self, path: str) -> Fit:
        self.seen.add(path)
        return 0


class _Found:
    """The values that an object has under a name, by how well their fields have it."""

    __slots__ = ("ending", "exact")

    def __init__(self, exact: list[Json]) -> None:
        self.exact = exact
        self.ending: list[Json] = []

    def add(self, values: Mapping[str, Json], path: str, fits: Mapping[str, Fit]) -> None:
        """Add the values of fields below a path."""
        for key, value in values.items():
            here = f"{path}.{key}" if path else key
            # the type itself, since this runs for every field of 100,000 objects
            kind = type(value)
            if kind is dict:
                self.add(value, here, fits)
            elif kind is list:
                self._add_members(value, here, fits)
            elif fit := fits[here]:
                (self.exact if fit == 2 else self.ending).append(value)

    def _add_members(self, members: Sequence[Json], path: str, fits: Mapping[str, Fit]) -> None:
        fit = fits[path]
        into = self.exact if fit == 2 else self.ending if fit else []
        if not members:
            into.append(None)
        for member in members:
            if isinstance(member, dict):
                self.add(member, path, _Every() if fit == 2 else fits)
            elif isinstance(member, list):
                self._add_members(member, path, fits)
            else:
                into.append(member)
