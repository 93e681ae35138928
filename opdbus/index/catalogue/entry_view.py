"""Columns of entries at stable places, for search with array operations."""

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_columns import Columns, SourceKind
from opdbus.index.catalogue.hash_table import HashTable
from opdbus.index.catalogue.name_array import NameArray
from opdbus.index.catalogue.text_table import NO_TEXT, TextTable
from opdbus.index.database.store import Entry
from opdbus.language import kinds
from opdbus.language.vocabulary import TRAIT_BYTES
from opdbus.state.object import Identity, ObjectId

_FIRST_SIZE: Final = 64
_NO_SOURCE_KIND: Final[SourceKind] = ("", "", "")
# The columns by name: dtype, and values at each place (0 for a one-dimensional column).
_COLUMNS: Final[Mapping[str, tuple[type[np.generic], int]]] = {
    "ids": (np.int64, 0),
    # index into `source_kinds`, and number in the TextTable
    "source_kind_ids": (np.int32, 0),
    "texts": (np.int32, 0),
    # vocabulary.Traits as a bit set in 64-bit words
    "traits": (np.uint64, TRAIT_BYTES // 8),
    # kinds as a bit set, and the score penalty where the query names none of them
    "kind_masks": (np.int64, 0),
    "penalties": (np.float32, 0),
    "owners": (np.uint32, 0),
    "fingerprints": (np.uint64, 2),
    "times": (np.uint32, 0),
    "sizes": (np.uint32, 0),
    "transient": (np.bool_, 0),
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
    """Columns of all entries by place; a free place has the id 0.

    `Entry` values are built on request. One thread changes the columns; others may read meanwhile.
    """

    ids: NDArray[np.int64]
    source_kind_ids: NDArray[np.int32]
    texts: NDArray[np.int32]
    traits: NDArray[np.uint64]
    kind_masks: NDArray[np.int64]
    penalties: NDArray[np.float32]
    owners: NDArray[np.uint32]
    fingerprints: NDArray[np.uint64]
    times: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    transient: NDArray[np.bool_]

    def __init__(self, digests: TextTable) -> None:
        self._digests = digests
        # number of places, with free ones
        self.end = 0
        self.names = NameArray()
        for name, (kind, width) in _COLUMNS.items():
            setattr(self, name, np.zeros((_FIRST_SIZE, width) if width else _FIRST_SIZE, kind))
        # increases with every change
        self.version = 0
        self.places = EntryPlaces()
        self.entries = Entries(self)
        self._free: list[int] = []
        # ids of (source, plugin, kind); 0 stands for a free place, and a free id has
        # _NO_SOURCE_KIND
        self._source_kind_ids: dict[SourceKind, int] = {}
        self.source_kinds: list[SourceKind] = [_NO_SOURCE_KIND]
        # entries by number, and the free numbers
        self._counts = [0]
        self._free_numbers: list[int] = []

    def add(
        self, columns: Columns, at: NDArray[np.intp], texts: NDArray[np.int32]
    ) -> NDArray[np.intp]:
        """Add the new entries `at` of columns with their text numbers; return their places."""
        places = self._room(len(at))
        sizes = np.frombuffer(columns.sizes_of_names, np.uint32)
        self.names.add(columns.names, sizes, at, places)
        source_kinds, of_columns = (
            [*columns.source_kinds],
            np.frombuffer(columns.source_kind_ids, np.int32)[at],
        )
        numbers = np.zeros(len(source_kinds), np.int32)
        counts = np.bincount(of_columns, minlength=len(source_kinds)).tolist()
        for one in filter(counts.__getitem__, range(len(source_kinds))):
            numbers[one] = self._source_kind_id(source_kinds[one], counts[one])
        self.source_kind_ids[places] = numbers[of_columns]
        self.texts[places] = texts
        for name, column in columns.arrays().items():
            getattr(self, name)[places] = column[at]
        self.version += 1
        self.places.add_each(self.ids[places], places)
        return places

    def _room(self, count: int) -> NDArray[np.intp]:
        """Return `count` places for new entries, free ones first."""
        free = [self._free.pop() for _ in range(min(count, len(self._free)))]
        end = self.end + count - len(free)
        if end > len(self.ids):
            self._reserve(end + max(_FIRST_SIZE, self.end // 4 or end // 16))
        new = range(self.end, end)
        self.end = end
        return np.array([*free, *new], np.intp)

    def put(self, entry: Entry, text: int, place: int | None) -> int:
        """Write an entry with its text number to `place`, or to a new place; return the place."""
        if place is None:
            (place,) = self._room(1).tolist()
            self.places.add(entry.id, place)
            self.names.put(place, entry.identity.name)
            self.source_kind_ids[place] = self._source_kind_id(entry.identity[:3], 1)
        _, plugin, kind, name = entry.identity
        self.texts[place] = text
        self.kind_masks[place], self.penalties[place] = kinds.of_object(
            ObjectId(plugin, kind, name)
        )
        self.owners[place], self.times[place] = entry.owner, entry.updated_at
        self.sizes[place], self.transient[place] = entry.size, entry.transient
        self.fingerprints[place] = np.frombuffer(bytes.fromhex(entry.fingerprint), np.uint64)
        self.traits[place] = np.frombuffer(entry.traits, np.uint64)
        self.ids[place] = entry.id
        self.version += 1
        return place

    def remove(self, number: int) -> None:
        """Free the place of the entry with an id."""
        place = self.places.remove(number)
        self._free.append(place)
        source_kind_id = self.source_kind_ids.item(place)
        for name in _COLUMNS:
            getattr(self, name)[place] = 0
        # after the id, so that concurrent readers find the id gone before the names
        self._release_source_kind(source_kind_id)
        self.texts[place] = NO_TEXT
        self.version += 1

    def _reserve(self, size: int) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            more = np.zeros((max(0, size - len(column)), *column.shape[1:]), column.dtype)
            setattr(self, name, np.append(column, more, axis=0))

    def _source_kind_id(self, source_kind: SourceKind, more: int) -> int:
        """Return the number of a (source, plugin, kind), and count `more` entries with it."""
        number = self._source_kind_ids.get(source_kind)
        if number is None and self._free_numbers:
            number = self._source_kind_ids[source_kind] = self._free_numbers.pop()
            self.source_kinds[number] = source_kind
        elif number is None:
            number = self._source_kind_ids[source_kind] = len(self.source_kinds)
            self.source_kinds.append(source_kind)
            self._counts.append(0)
        self._counts[number] += more
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
        # `item` is faster than indexing, and this runs for every entry of a state file
        number, kind_id = self.ids.item(place), self.source_kind_ids.item(place)
        name = self.names[place]
        if not number:
            return None
        source, plugin, kind = self.source_kinds[kind_id]
        entry = Entry(
            number,
            Identity(source, plugin, kind, name),
            self.owners.item(place),
            self.fingerprints[place].tobytes().hex(),
            self._digests.digest(self.texts.item(place)),
            self.times.item(place),
            self.transient.item(place),
            self.sizes.item(place),
            self.traits[place].tobytes(),
        )
        # another entry may have taken the place during the read
        return entry if self.ids.item(place) == number else None

    def is_about(self, place: int, object_id: ObjectId) -> bool:
        """Return whether the entry at a place belongs to an object."""
        _, plugin, kind = self.source_kinds[self.source_kind_ids.item(place)]
        return self.names[place] == object_id.name and (plugin, kind) == object_id[:2]

    def source(self, place: int) -> str:
        """Return the source of the entry at a place."""
        return self.source_kinds[self.source_kind_ids.item(place)][0]

    def entry(self, number: int) -> Entry | None:
        """Return the entry with an id, None if there is none; may be called on any thread."""
        place = self.places.get(number)
        entry = None if place is None else self.at(place)
        return entry if entry and entry.id == number else None

    def used_places(self) -> NDArray[np.intp]:
        """Return the places of all entries."""
        return np.flatnonzero(self.ids[: self.end])

    def existing(self, found: EntryRefs) -> NDArray[np.intp]:
        """Return the places of the references whose entries still exist."""
        is_there: NDArray[np.bool_] = self.ids[found.places] == found.ids
        return found.places[is_there]

    def object_ids(self, places: NDArray[np.intp]) -> list[ObjectId]:
        """Return the object ids of the entries at places."""
        source_kinds = map(self.source_kinds.__getitem__, self.source_kind_ids[places].tolist())
        named = zip(source_kinds, self.names.of(places.tolist()), strict=True)
        return [ObjectId(plugin, kind, name) for (_, plugin, kind), name in named]

    def refs_of(self, ids: Collection[int]) -> EntryRefs:
        """Return references to the existing entries with these ids."""
        wanted = np.fromiter(ids, np.int64, len(ids))
        places = self.places.find_each(wanted)
        return EntryRefs(places[places >= 0].astype(np.intp), wanted[places >= 0])

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


class EntryPlaces:
    """Map from entry ids to places."""

    def __init__(self) -> None:
        self._table = HashTable()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._table)

    def __contains__(self, number: int) -> bool:
        """Return whether there is an entry with an id."""
        return bool(self._table.find(number))

    def __getitem__(self, number: int) -> int:
        """Return the place of the entry with an id; raises IndexError if there is none."""
        return self._table.find(number)[0]

    def get(self, number: int) -> int | None:
        """Return the place of the entry with an id, None if there is none."""
        return next(iter(self._table.find(number)), None)

    def find_each(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the places of entries by id, -1 where there is none."""
        return self._table.find_each(ids.astype(np.uint64))

    def add(self, number: int, place: int) -> None:
        """Add an id that is not in the map."""
        self._table.add(number, place)

    def add_each(self, ids: NDArray[np.int64], places: NDArray[np.intp]) -> None:
        """Add ids that are not in the map."""
        self._table.add_each(ids.astype(np.uint64), places)

    def remove(self, number: int) -> int:
        """Remove an id, and return its place; raises IndexError if it is not in the map."""
        place = self[number]
        self._table.remove(place)
        return place


class Entries:
    """Sequence of the entries by place, built on access; a free place has None."""

    def __init__(self, view: EntryView) -> None:
        self._view = view

    def __len__(self) -> int:
        """Return the number of places, with free ones."""
        return self._view.end

    def __getitem__(self, place: int) -> Entry | None:
        """Return the entry at a place, None if it is free."""
        return self._view.at(place)
