"""The fields of an object, found by name: `ActiveState` and `active_state` are one field."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from opdbus.state.object import Identity, Json

# How well a field has a name: by the words that it ends in, or exactly.
Fit: TypeAlias = Literal[1, 2]
# The values of each name, by the words that their paths end in, and exactly.
_Found: TypeAlias = tuple[dict[str, list[Json]], dict[str, list[Json]]]
# The dotted path of a value, those of the lists of objects that it is in, and the value itself.
Leaf: TypeAlias = tuple[str, tuple[str, ...], Json]

# What an object's identity says counts as fields of it; a field of its own that is called so is
# named with a dot before it: `source` is who tells of a mount, `.source` its device.
IDENTITY: Final = ("source", "plugin", "kind", "name")

# Of more places the names are found out again: an object may have any number of keys.
_MAX_PLACES: Final = 8192

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")


def split(name: str) -> tuple[str, ...]:
    """Split an identifier into words: rx_bytes, rxBytes and rx-bytes are all `rx bytes`."""
    if name.islower() and name.isascii():
        # most keys, and all the rest takes ten times as long
        return (name,) if name.isalnum() else tuple(_WORD.findall(name))
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", name)))


class Members(list[Json]):
    """The values of a field that is a list, or is in one; None for an empty list."""


@dataclass(slots=True)
class _Place:
    """A place in objects: its path, the lists of objects that it is in, and the names it has."""

    path: str
    lists: tuple[str, ...]
    fits: Sequence[tuple[str, Fit]] = ()
    below: dict[str, "_Place"] = field(default_factory=dict)
    # of the objects in the list that is here
    members: "_Place | None" = None


class Names:
    """Names of fields: each is a full dotted path, or its last key.

    Where an object has no field of exactly that name, the fields whose path ends in its words
    count: `state` finds `active_state`. Of a list that has the name, all that is in it counts.
    A name of IDENTITY means that alone.
    """

    def __init__(self, names: Iterable[str]) -> None:
        wanted = {name: split(name) for name in names}
        # with the place of each in an identity
        self._of_identity = [
            (name, IDENTITY.index(name.lower())) for name in wanted if name.lower() in IDENTITY
        ]
        self._wanted = {name: wanted[name] for name in wanted if name.lower() not in IDENTITY}
        # kept as long as the names only: the keys of objects that are gone are not remembered
        self._top = _Place("", ())
        self._places = 0

    def values(self, identity: Identity, properties: Mapping[str, Json]) -> dict[str, list[Json]]:
        """Return the values that an object has under each name, members of lists as Members."""
        exact: dict[str, list[Json]] = {name: [identity[at]] for name, at in self._of_identity}
        ending: dict[str, list[Json]] = {}
        if self._places > _MAX_PLACES:
            self._top, self._places = _Place("", ()), 0
        self._take(properties, self._top, (ending, exact))
        return ending | exact

    def are_in(self, paths: Iterable[str]) -> bool:
        """Return whether one of the fields at some paths has one of the names."""
        return bool(self._of_identity) or self.are_at(paths)

    def are_at(self, paths: Iterable[str]) -> bool:
        """Return the same without what an identity says."""
        return any(self._fits(path, ()) for path in paths)

    def _take(self, values: Mapping[str, Json], at: _Place, found: _Found) -> None:
        """Add all values in a dict that have a name."""
        for key, value in values.items():
            place = at.below.get(key) or self._below(at, key)
            # the type itself, since this runs for every field of 100,000 objects
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
        """Return the place of a key; its names are found out once, unless there are too many."""
        path = f"{at.path}.{key}" if at.path else key
        place = _Place(path, at.lists, self._fits(path, at.lists))
        self._places += 1
        if self._places <= _MAX_PLACES:
            at.below[key] = place
        return place

    def _fits(self, path: str, lists: tuple[str, ...]) -> Sequence[tuple[str, Fit]]:
        """Return which names the field at a path has, and how well."""
        fits = ((name, fit(wanted, path, lists)) for name, wanted in self._wanted.items())
        return tuple((name, fit) for name, fit in fits if fit)


def _add(value: Json, place: _Place, found: _Found, new: type[list[Json]]) -> None:
    for name, fit in place.fits:
        found[fit - 1].setdefault(name, new()).append(value)


def leaves(properties: Mapping[str, Json], path: str = "") -> Iterator[Leaf]:
    """Yield every value; positions in lists are no part of paths, and an empty list is None."""
    return _leaves(properties, path, ())


def paths(properties: Mapping[str, Json]) -> set[str]:
    """Return the dotted paths of all fields and lists."""
    found: set[str] = set()
    for path, lists, _ in leaves(properties):
        found |= {path, *lists}
    return found


def _leaves(values: Mapping[str, Json], path: str, lists: tuple[str, ...]) -> Iterator[Leaf]:
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        kind = type(value)
        if kind is dict:
            yield from _leaves(value, here, lists)
        elif kind is list:
            yield from _members(value, here, lists)
        else:
            yield here, lists, value


def _members(members: Sequence[Json], path: str, lists: tuple[str, ...]) -> Iterator[Leaf]:
    if not members:
        yield path, lists, None
    for member in members:
        if isinstance(member, dict):
            yield from _leaves(member, path, (*lists, path))
        elif isinstance(member, list):
            yield from _members(member, path, lists)
        else:
            yield path, lists, member


def last_words(path: str, lists: Iterable[str]) -> set[str]:
    """Return the last words of all names that a field has, as `fit` tells."""
    return {words[-1] for words in map(split, (path, *lists)) if words}


def fit(wanted: tuple[str, ...], path: str, lists: Iterable[str]) -> Literal[0, 1, 2]:
    """Return how well a field has a name; what is in a list of that name has it, too."""
    if not wanted:
        return 0
    if any(fit(wanted, listed, ()) == 2 for listed in lists):
        return 2
    words = split(path)
    if words[-len(wanted) :] != wanted:
        return 0
    return 2 if wanted in {words, split(path.rpartition(".")[2])} else 1
