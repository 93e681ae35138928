"""Lookup of an object's fields by name: `ActiveState` and `active_state` are one field."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from opdbus.state.object import Identity, Json

# The quality of a match of name and field: 1 by the last words of its path, 2 exactly.
Fit: TypeAlias = Literal[1, 2]
# Values by name, for matches by the last words and for exact matches.
_Found: TypeAlias = tuple[dict[str, list[Json]], dict[str, list[Json]]]
# The dotted path of a value, the paths of the lists of objects that contain it, and the value.
Leaf: TypeAlias = tuple[str, tuple[str, ...], Json]

# The parts of an identity count as fields. A property with such a name is written with a dot in
# front: `source` is the reporter of a mount, `.source` its device.
IDENTITY: Final = ("source", "plugin", "kind", "name")

# Beyond this number the cache of places is rebuilt: an object may have any number of keys.
_MAX_PLACES: Final = 8192

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")


def split(name: str) -> tuple[str, ...]:
    """Split an identifier into words: rx_bytes, rxBytes and rx-bytes are all `rx bytes`."""
    if name.islower() and name.isascii():
        # fast path for most keys
        return (name,) if name.isalnum() else tuple(_WORD.findall(name))
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", name)))


class Members(list[Json]):
    """The values of a field that is a list, or is in one; None for an empty list."""


@dataclass(slots=True)
class _Place:
    """A place in objects: its path, the lists around it, the names that match it, and its keys."""

    path: str
    lists: tuple[str, ...]
    fits: Sequence[tuple[str, Fit]] = ()
    below: dict[str, "_Place"] = field(default_factory=dict)
    # the place of the objects in the list that is here
    members: "_Place | None" = None


class Names:
    """Names of fields: each is a full dotted path, or its last key.

    If an object has no field of exactly that name, fields whose path ends in its words count:
    `state` finds `active_state`. For a list of that name, all values in it count. A name in
    IDENTITY means only that part of the identity.
    """

    def __init__(self, names: Iterable[str]) -> None:
        wanted = {name: split(name) for name in names}
        # with the index in an identity
        self._of_identity = [
            (name, IDENTITY.index(name.lower())) for name in wanted if name.lower() in IDENTITY
        ]
        # by their last words, since an object may have any number of keys
        self._wanted: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name, words in wanted.items():
            if words and name.lower() not in IDENTITY:
                self._wanted.setdefault(words[-1], []).append((name, words))
        # lives as long as the names: keys of removed objects are not kept for ever
        self._top = _Place("", ())
        self._places = 0

    def values(self, identity: Identity, properties: Mapping[str, Json]) -> dict[str, list[Json]]:
        """Return an object's values by name, those of lists as Members."""
        exact: dict[str, list[Json]] = {name: [identity[at]] for name, at in self._of_identity}
        ending: dict[str, list[Json]] = {}
        if self._places > _MAX_PLACES:
            self._top, self._places = _Place("", ()), 0
        self._take(properties, self._top, (ending, exact))
        return ending | exact

    def are_in(self, paths: Iterable[str]) -> bool:
        """Return whether a field at one of the paths, or the identity, has one of the names."""
        return bool(self._of_identity) or self.are_at(paths)

    def are_at(self, paths: Iterable[str]) -> bool:
        """Return whether a field at one of the paths has one of the names."""
        return any(self._fits(path, ()) for path in paths)

    def _take(self, values: Mapping[str, Json], at: _Place, found: _Found) -> None:
        """Add all values in a dict that match a name."""
        for key, value in values.items():
            place = at.below.get(key) or self._below(at, key)
            # the exact type, since this runs for every field of 100,000 objects
            kind = type(value)
            if kind is dict:
                self._take(value, place, found)
            elif kind is list:
                self._take_members(value, place, found)
            elif place.fits:
                _add(value, place, found, Members if place.lists else list)

    def _take_members(self, members: Sequence[Json], place: _Place, found: _Found) -> None:
        for member in members or (None,):
            if isinstance(member, dict):
                if place.members is None:
                    place.members = _Place(place.path, (*place.lists, place.path))
                self._take(member, place.members, found)
            elif isinstance(member, list):
                self._take_members(member, place, found)
            elif place.fits:
                _add(member, place, found, Members)

    def _below(self, at: _Place, key: str) -> _Place:
        """Return the place of a key; its matches are cached, unless there are too many places."""
        path = f"{at.path}.{key}" if at.path else key
        place = _Place(path, at.lists, self._fits(path, at.lists))
        self._places += 1
        if self._places <= _MAX_PLACES:
            at.below[key] = place
        return place

    def _fits(self, path: str, lists: tuple[str, ...]) -> Sequence[tuple[str, Fit]]:
        """Return the names that match the field at a path, with the quality of each match."""
        wanted = (one for word in last_words(path, lists) for one in self._wanted.get(word, ()))
        fits = ((name, fit(words, path, lists)) for name, words in wanted)
        return tuple((name, fit) for name, fit in fits if fit)


def _add(value: Json, place: _Place, found: _Found, new: type[list[Json]]) -> None:
    for name, fit in place.fits:
        found[fit - 1].setdefault(name, new()).append(value)


def paths(properties: Mapping[str, Json]) -> set[str]:
    """Return the dotted paths of all fields and lists."""
    found: set[str] = set()
    for path, lists, _ in leaves(properties):
        found |= {path, *lists}
    return found


def leaves(
    values: Mapping[str, Json], path: str = "", lists: tuple[str, ...] = ()
) -> Iterator[Leaf]:
    """Yield every value; paths have no list positions, and an empty list counts as None."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        kind = type(value)
        if kind is dict:
            yield from leaves(value, here, lists)
        elif kind is list:
            yield from _members(value, here, lists)
        else:
            yield here, lists, value


def _members(members: Sequence[Json], path: str, lists: tuple[str, ...]) -> Iterator[Leaf]:
    if not members:
        yield path, lists, None
    for member in members:
        if isinstance(member, dict):
            yield from leaves(member, path, (*lists, path))
        elif isinstance(member, list):
            yield from _members(member, path, lists)
        else:
            yield path, lists, member


def last_words(path: str, lists: Iterable[str]) -> set[str]:
    """Return the last words of all names that match a field, as in `fit`."""
    return {words[-1] for words in map(split, (path, *lists)) if words}


def fit(wanted: tuple[str, ...], path: str, lists: Iterable[str]) -> Literal[0, 1, 2]:
    """Return how well a name fits a field or a list around it: 0 not, 1 last words, 2 exactly."""
    if not wanted:
        return 0
    if any(fit(wanted, listed, ()) == 2 for listed in lists):
        return 2
    words = split(path)
    if words[-len(wanted) :] != wanted:
        return 0
    return 2 if wanted in {words, split(path.rpartition(".")[2])} else 1


def dotted_values(value: Json) -> list[tuple[str, Json]]:
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
