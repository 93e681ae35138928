"""Interface by which search reads drift's pairs of declared and observed objects."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from opdbus.index.database.store import Content, Entry
from opdbus.state.object import FILE, Json, ObjectId


class Declaration(NamedTuple):
    """Declared fields of an observed object that differ or are not observed, by dotted path.

    `differing` maps a path to its (declared, observed) values; `unobserved` maps the path of a
    field that no source observes to its declared value.
    """

    differing: Mapping[str, tuple[Json, Json]]
    unobserved: Mapping[str, Json]


NOTHING_DECLARED: Final = Declaration({}, {})
# Prefix of the text of an object that is declared absent and was not found on the host.
ABSENT_AS_DECLARED: Final = "declared absent, and not there"
# Key under which the fields of an observed object hold its declared values.
DECLARED: Final = "declared"


class Declarations(Protocol):
    """Pairs of declared and observed objects, and their differences."""

    def observed(self, object_id: ObjectId) -> Sequence[ObjectId]:
        """Return the observed objects of a declared one: itself, an alias, or its parts."""

    def one(self, object_id: ObjectId) -> ObjectId:
        """Return the observed object of a declared one; return any other object itself."""

    def renamed(self) -> AbstractSet[ObjectId]:
        """Return the declared objects that are observed under another name."""

    def is_missing(self, object_id: ObjectId) -> bool:
        """Return whether a declared object was searched for on the host and is missing."""

    def absence(self, object_id: ObjectId, declared: Mapping[str, Json]) -> str:
        """Return a phrase for an object declared absent, "" if it is not declared absent.

        The phrase is ABSENT_AS_DECLARED if an observer searched for the object.
        """

    def declares(self, object_id: ObjectId) -> Entry | None:
        """Return the entry that declares an observed object, None if none does."""

    async def read(self, object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, Declaration]:
        """Return the declarations of those `object_ids` that are declared and observed."""


def mark_declared(declarations: Declarations, entry: Entry, content: Content, text: str) -> str:
    """Return the text of an entry, prefixed with `declared` if the state file reports it.

    The prefix also states that the object is missing, or declared absent.
    """
    if entry.identity.source != FILE or not text:
        return text
    if absence := absence_of(declarations, entry, content):
        return f"{absence}: {text}"
    is_missing = declarations.is_missing(entry.identity.object_id)
    return f"declared, missing: {text}" if is_missing else f"declared {text}"


def absence_of(declarations: Declarations, entry: Entry, content: Content) -> str:
    """Return the phrase for a state file's entry declared absent, else ""."""
    if entry.identity.source != FILE:
        return ""
    return declarations.absence(entry.identity.object_id, json.loads(content.properties))


class NoPairing:
    """Declarations without drift tracking: no declared object has an observed counterpart."""

    def observed(self, _object_id: ObjectId) -> Sequence[ObjectId]:
        """Return no objects."""
        return ()

    def one(self, object_id: ObjectId) -> ObjectId:
        """Return the object itself."""
        return object_id

    def renamed(self) -> AbstractSet[ObjectId]:
        """Return no objects."""
        return frozenset()

    def is_missing(self, _object_id: ObjectId) -> bool:
        """Return False, since no object was searched for."""
        return False

    def absence(self, _object_id: ObjectId, _declared: Mapping[str, Json]) -> str:
        """Return ""."""
        return ""

    def declares(self, _object_id: ObjectId) -> Entry | None:
        """Return None."""
        return None

    async def read(self, _object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, Declaration]:
        """Return no declarations."""
        return {}
