"""The seam between answers and drift: declared objects, and the observed ones that they are."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from opdbus.index.database.store import Content, Entry
from opdbus.state.object import FILE, Json, ObjectId


class Declaration(NamedTuple):
    """What is declared of an observed object, by fields with dots.

    `differing` has the declared and the observed value where these are not the same, `unobserved`
    the declared value where nobody observes such a field.
    """

    differing: Mapping[str, tuple[Json, Json]]
    unobserved: Mapping[str, Json]


NOTHING_DECLARED: Final = Declaration({}, {})
# What begins the text of what is declared absent, and was looked for in vain.
ABSENT_AS_DECLARED: Final = "declared absent, and not there"
# Below this, the fields of an observed object have what is declared of it.
DECLARED: Final = "declared"


class Declarations(Protocol):
    """Tells which observed objects declared ones are, and in what they differ."""

    def observed(self, object_id: ObjectId) -> Sequence[ObjectId]:
        """Return what a declared object meets: itself, the same by another name, or its parts."""

    def one(self, object_id: ObjectId) -> ObjectId:
        """Return the observed object that a declared one is; another one as it is."""

    def renamed(self) -> AbstractSet[ObjectId]:
        """Return the declared objects that are observed under another name."""

    def is_missing(self, object_id: ObjectId) -> bool:
        """Return whether a declared object was looked for and is not there."""

    def absence(self, object_id: ObjectId, declared: Mapping[str, Json]) -> str:
        """Say that an object is declared absent, and whether it was looked for; empty if not."""

    def declares(self, object_id: ObjectId) -> Entry | None:
        """Return the entry that declares an observed object."""

    async def read(self, object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, Declaration]:
        """Return what is declared of declared objects that are observed; without those gone."""


def marked(declarations: Declarations, entry: Entry, content: Content, text: str) -> str:
    """Return a text about the object of an entry, which says so where it is only declared."""
    if entry.identity.source != FILE or not text:
        return text
    if absence := absence_of(declarations, entry, content):
        return f"{absence}: {text}"
    is_missing = declarations.is_missing(ObjectId(*entry.identity[1:]))
    return f"declared, missing: {text}" if is_missing else f"declared {text}"


def absence_of(declarations: Declarations, entry: Entry, content: Content) -> str:
    """Say that the object of an entry is only declared, and that as absent; empty if it is not."""
    if entry.identity.source != FILE:
        return ""
    return declarations.absence(ObjectId(*entry.identity[1:]), json.loads(content.properties))


class Unpaired:
    """Declarations of a memory whose drift nobody follows: every object is one of its own."""

    def observed(self, _object_id: ObjectId) -> Sequence[ObjectId]:
        """Return nothing."""
        return ()

    def one(self, object_id: ObjectId) -> ObjectId:
        """Return the object itself."""
        return object_id

    def renamed(self) -> AbstractSet[ObjectId]:
        """Return nothing."""
        return frozenset()

    def is_missing(self, _object_id: ObjectId) -> bool:
        """Return that nobody looked for it."""
        return False

    def absence(self, _object_id: ObjectId, _declared: Mapping[str, Json]) -> str:
        """Say nothing."""
        return ""

    def declares(self, _object_id: ObjectId) -> Entry | None:
        """Return nothing."""
        return None

    async def read(self, _object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, Declaration]:
        """Return nothing."""
        return {}
