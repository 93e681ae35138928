"""Entries at stable places, with columns for search with array operations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.database.quota import SourceKind
from opdbus.index.database.store import Entry
from opdbus.language import kinds
from opdbus.language.vocabulary import TRAIT_BYTES
from opdbus.state.object import ObjectId

_FIRST_SIZE: Final = 64
_NO_PLACE: Final = -1
_NO_SOURCE_KIND: Final[SourceKind] = ("", "", "")
# The columns by name: dtype, and values at each place (0 for a one-dimensional column).
_COLUMNS: Final[Mapping[str, tuple[type[np.generic], int]]] = {
    "ids": (np.int64, 0),
    # index into `source_kinds`, and number in the TextTable
    "source_kind_ids": (np.int32, 0),
    "texts": (np.int32, 0),
    # place of the first entry of the same object
    "firsts": (np.int32, 0),
    # vocabulary.Traits as a bit set in 64-bit words
    "traits": (np.uint64, TRAIT_BYTES // 8),
    # kinds as a bit set, and the score penalty where the query names none of them
    "kind_masks": (np.int64, 0),
    "penalties": (np.float32, 0),
}


class EntryRefs(NamedTuple):
    """References to entries by place and id; a place may since belong to another entry."""

    places: NDArray[np.intp]
    ids: NDArray[np.int64]

    def and_also(self, more: "EntryRefs") -> "EntryRefs":
        """Return these references followed by `more`."""
        return EntryRefs(np.append(self.places, more.places), np.append(self.ids, more.ids))


NOTHING: Final = EntryRefs(np.empty(0, np.intp), np.empty(0, np.int64))


class EntryView:
    """All entries by place, and columns of some of their values; a free place has the id 0.

    One thread changes them; others may read meanwhile.
    """

    ids: NDArray[np.int64]
    source_kind_ids: NDArray[np.int32]
    texts: NDArray[np.int32]
    firsts: NDArray[np.int32]
    traits: NDArray[np.uint64]
    kind_masks: NDArray[np.int64]
    penalties: NDArray[np.float32]

    def __init__(self) -> None:
        # None at a free place
        self.entries: list[Entry | None] = []
        # places by the id of the entry
        self.places: dict[int, int] = {}
        for name, (kind, width) in _COLUMNS.items():
            setattr(self, name, np.zeros((_FIRST_SIZE, width) if width else _FIRST_SIZE, kind))
        # increases with every change
        self.version = 0
        self._free: list[int] = []
        # ids of (source, plugin, kind); 0 stands for a free place, and a free id has
        # _NO_SOURCE_KIND
        self._source_kind_ids: dict[SourceKind, int] = {}
        self.source_kinds: list[SourceKind] = [_NO_SOURCE_KIND]
        # entries by number, and the free numbers
        self._counts = [0]
        self._free_numbers: list[int] = []

    @property
    def end(self) -> int:
        """The number of places, with free ones."""
        return len(self.entries)

    def put(self, entries: Sequence[Entry], texts: NDArray[np.intp]) -> None:
        """Write entries with their text numbers, each to the place of its id or to a new one."""
        self._reserve(self.end + len(entries))
        at = list[int]()
        for entry in entries:
            place = self.places.get(entry.id)
            if place is None:
                place = self._add(entry)
            self.entries[place] = entry
            at.append(place)
        places = np.array(at, np.intp)
        traits = np.frombuffer(b"".join([entry.traits for entry in entries]), np.uint64)
        masks, penalties = zip(*[kinds.of_object(entry.identity) for entry in entries], strict=True)
        self.texts[places], self.firsts[places] = texts, places
        self.traits[places] = traits.reshape(len(entries), -1)
        self.kind_masks[places], self.penalties[places] = masks, penalties
        self.ids[places] = [entry.id for entry in entries]
        self.version += 1

    def _add(self, entry: Entry) -> int:
        """Return the place of a new entry."""
        if not self._free:
            self._free.append(self.end)
            self.entries.append(None)
        place = self.places[entry.id] = self._free.pop()
        source_kind = entry.identity[:3]
        number = self._source_kind_ids.get(source_kind)
        if number is None:
            number = self._new_source_kind(source_kind)
        self._counts[number] += 1
        self.source_kind_ids[place] = number
        return place

    def group(self, objects: Iterable[Sequence[Entry]]) -> None:
        """Set the first entry of objects, given by all of their entries."""
        places = [[self.places[entry.id] for entry in entries] for entries in objects]
        self.firsts[[place for each in places for place in each]] = [
            each[0] for each in places for _ in each
        ]

    def remove(self, number: int) -> None:
        """Free the place of the entry with an id."""
        place = self.places.pop(number)
        source_kind_id = self.source_kind_ids.item(place)
        for name in _COLUMNS:
            getattr(self, name)[place] = 0
        self.entries[place] = None
        # last, so that concurrent readers find the id gone before the kind
        self._release_source_kind(source_kind_id)
        self._free.append(place)
        self.version += 1

    def _reserve(self, size: int) -> None:
        """Make room for so many places in all columns."""
        if size > len(self.ids):
            for name in _COLUMNS:
                column = getattr(self, name)
                more = max(size - len(column), len(column) // 4)
                rows = np.zeros((more, *column.shape[1:]), column.dtype)
                setattr(self, name, np.append(column, rows, axis=0))

    def _new_source_kind(self, source_kind: SourceKind) -> int:
        """Return the number of a new (source, plugin, kind)."""
        if not self._free_numbers:
            self._free_numbers.append(len(self.source_kinds))
            self.source_kinds.append(_NO_SOURCE_KIND)
            self._counts.append(0)
        number = self._source_kind_ids[source_kind] = self._free_numbers.pop()
        self.source_kinds[number] = source_kind
        return number

    def _release_source_kind(self, number: int) -> None:
        """Count one entry less with a number, and free the number if none is left."""
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._source_kind_ids[self.source_kinds[number]]
            self.source_kinds[number] = _NO_SOURCE_KIND
            self._free_numbers.append(number)

    def at(self, place: int) -> Entry | None:
        """Return the entry at a place, None if it is free; may be called on any thread."""
        return self.entries[place]

    def entry(self, number: int) -> Entry | None:
        """Return the entry with an id, None if there is none; may be called on any thread."""
        place = self.places.get(number)
        entry = None if place is None else self.entries[place]
        # another entry may have taken the place since
        return entry if entry and entry.id == number else None

    def existing(self, found: EntryRefs) -> NDArray[np.intp]:
        """Return the places of the references whose entries still exist."""
        is_there: NDArray[np.bool_] = self.ids[found.places] == found.ids
        return found.places[is_there]

    def object_ids(self, places: NDArray[np.intp]) -> list[ObjectId]:
        """Return the object ids of the entries at places, without free ones."""
        entries = map(self.entries.__getitem__, places.tolist())
        return [entry.identity.object_id for entry in entries if entry]

    def find_each(self, ids: Iterable[int]) -> NDArray[np.intp]:
        """Return the places of entries by id, -1 where there is none."""
        return np.array([self.places.get(number, _NO_PLACE) for number in ids], np.intp)

    def refs_of(self, ids: Iterable[int]) -> EntryRefs:
        """Return references to the existing entries with these ids."""
        wanted = [*ids]
        places, found = self.find_each(wanted), np.array(wanted, np.int64)
        return EntryRefs(places[places >= 0], found[places >= 0])

    def count_objects(self, places: NDArray[np.intp]) -> int:
        """Return the number of objects that have an entry at one of the places."""
        is_first = np.zeros(len(self.ids), np.bool_)
        is_first[self.firsts[places[self.ids[places] > 0]]] = True
        return int(np.count_nonzero(is_first))

    def of_source_kinds(
        self, is_wanted: Callable[[SourceKind], bool], within: NDArray[np.intp] | None = None
    ) -> NDArray[np.intp]:
        """Return the places, all or `within`, whose (source, plugin, kind) meets a predicate."""
        # copy the numbers first: each of them is then defined in `source_kinds`
        numbers = (
            self.source_kind_ids[: self.end].copy()
            if within is None
            else self.source_kind_ids[within]
        )
        wanted = [s is not _NO_SOURCE_KIND and is_wanted(s) for s in self.source_kinds.copy()]
        is_met = np.array(wanted)[numbers]
        return np.flatnonzero(is_met) if within is None else within[is_met]
