"""In-memory table of all entries, found by identity, object id, name, source and kind."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import UnknownObject
from opdbus.index.catalogue.entry_columns import Columns
from opdbus.index.catalogue.entry_view import EntryRefs, EntryView
from opdbus.index.catalogue.hash_table import HashTable
from opdbus.index.catalogue.shared_objects import SharedObjects, SharedRows
from opdbus.index.catalogue.text_table import TextTable
from opdbus.index.database.identity_set import IdentityHashSet
from opdbus.index.database.quota import Quota, Usage
from opdbus.index.database.store import Entry
from opdbus.platform.lean_imports import distinct
from opdbus.platform.slices import slices
from opdbus.state.object import FILE, LIVE, PUBLISHED, UNIT, Identity, ObjectId, matches

ChangeKind: TypeAlias = Literal["added", "changed", "removed"]
# Publishers may use any number of source names.
MAX_SOURCES: Final = 100
# Object ids built at a time by lazy iteration.
_MADE: Final = 128
# Endings between a program's name and `.service` in the names of its units.
_SERVICE_SUFFIXES: Final = ("", "-server", "-daemon", "d", *map(str, range(1, 100)))
FILTER_KEYS: Final = ("plugin", "kind", "source", "name")


def representative(entries: Sequence[Entry]) -> Entry:
    """Return the entry that represents an object: the first observed one, else the first."""
    return next((one for one in entries if one.identity.source != FILE), entries[0])


class ListingOrder:
    """Cached listing order of all objects, sorted anew only after objects were added or removed."""

    def __init__(self, known: Callable[[], Sequence[ObjectId]]) -> None:
        self._known = known
        # `Catalogue._membership_version` when sorted, and the sorted objects
        self._ordered: tuple[int, Sequence[ObjectId]] = 0, ()

    def all(self, version: int) -> Sequence[ObjectId]:
        """Return all objects in order, sorted anew if `version` differs from the last call."""
        done, order = self._ordered
        if done != version:
            known = {*self._known()}
            # two sorted runs, which Timsort merges in one pass
            kept = [object_id for object_id in order if object_id in known]
            order = sorted([*kept, *sorted(known - set(kept))])
            self._ordered = version, order
        return order


class Catalogue:
    """In-memory table of all entries; an entry is replaced, never modified.

    A place is the index of an entry in the columns of `view`. One thread changes the catalogue;
    others may read meanwhile.
    """

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        # number of entries by source
        self.sources: Counter[str] = Counter()
        self.texts = TextTable()
        self.view = EntryView(self.texts)
        # places of entries by the hash of their object id
        self._by_object_id = HashTable()
        # places of entries by the hash of their name
        self._by_name = HashTable()
        self._shared = SharedObjects(self.view)
        # increases whenever an object appears or disappears
        self._membership_version = 0
        self._listing = ListingOrder(self.all_object_ids)

    def __len__(self) -> int:
        """Return the number of objects, not of entries."""
        return self.texts.object_ids

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries, in no particular order."""
        return filter(None, map(self.view.at, self.view.used_places().tolist()))

    def load(self, columns: Columns) -> None:
        """Add all entries at startup, when the catalogue is empty."""
        others = columns.entries(np.flatnonzero(~self._add(columns, columns.is_alone())).tolist())
        self.put(sorted(others, key=lambda entry: entry.updated_at))

    def _add(self, columns: Columns, is_alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Add entries of unknown objects that have one entry; return a mask of those added."""
        keys = np.frombuffer(columns.keys, np.int64).astype(np.uint64)
        is_new: NDArray[np.bool_] = is_alone & (self._by_object_id.find_each(keys) < 0)
        new = np.flatnonzero(is_new)
        texts = self.texts.add_many(columns.digest_rows()[new])
        places = self.view.add(columns, new, texts)
        self._by_object_id.add_each(keys[new], places)
        names = np.frombuffer(columns.name_keys, np.int64).astype(np.uint64)
        self._by_name.add_each(names[new], places)
        self._count(places)
        return is_new

    def _count(self, places: NDArray[np.intp]) -> None:
        """Count the entries of new objects in `sources` and `usage`."""
        view = self.view
        self._membership_version += 1
        counts = np.bincount(view.source_kind_ids[places]).tolist()
        for number in filter(counts.__getitem__, range(len(counts))):
            self.sources[view.source_kinds[number][0]] += counts[number]
        self._use(places, 1)

    def _use(self, places: NDArray[np.intp], sign: Literal[1, -1]) -> None:
        """Add the published entries at `places` to the usage of their owners, or subtract them."""
        view = self.view
        is_published = np.array(
            [source_kind[0].startswith(PUBLISHED) for source_kind in view.source_kinds]
        )
        published = places[is_published[view.source_kind_ids[places]]]
        owners, sizes = view.owners[published], view.sizes[published]
        for owner in distinct(owners).tolist():
            mine = owners == owner
            self.usage.add(owner, Quota(sign * int(mine.sum()), sign * int(sizes[mine].sum())))
            counts = np.bincount(view.source_kind_ids[published[mine]]).tolist()
            for number in filter(counts.__getitem__, range(len(counts))):
                self.usage.count_source_kind(
                    owner, view.source_kinds[number], sign * counts[number]
                )

    def put(self, entries: Iterable[Entry]) -> dict[ObjectId, ChangeKind]:
        """Insert or replace entries, and return the change of each object.

        Of several changes of an object, the first counts.
        """
        changes: dict[ObjectId, ChangeKind] = {}
        for entry in entries:
            object_id = entry.identity.object_id
            before = self._at(object_id)
            changes.setdefault(object_id, "changed" if before else "added")
            own = self.view.places.get(entry.id)
            if own is not None and (known := self.view.at(own)):
                self.usage.count(known, -1)
            else:
                self.sources[entry.identity.source] += 1
            self.usage.count(entry, 1)
            self._put(object_id, entry, before, own)
        return changes

    def _put(
        self, object_id: ObjectId, entry: Entry, before: tuple[int, ...], own: int | None
    ) -> None:
        others = [place for place in before if place != own]
        left = [self._digest(place) for place in others]
        self.texts.change(object_id, [*map(self._digest, before)], [entry.text_digest, *left])
        place = self.view.put(entry, self.texts.find(entry.text_digest), own)
        if own is None:
            self._by_object_id.add(hash(object_id), place)
            self._by_name.add(hash(object_id.name), place)
        if not before:
            self._membership_version += 1
        # declared entries first, then observed, then published ones
        self._shared.put(object_id, sorted([place, *others], key=self._rank))

    def remove(self, entries: Iterable[Entry]) -> dict[ObjectId, ChangeKind]:
        """Remove entries, and return the change of each object."""
        changes: dict[ObjectId, ChangeKind] = {}
        for entry in entries:
            object_id, own = entry.identity.object_id, self.view.places[entry.id]
            before = self._at(object_id)
            left = [place for place in before if place != own]
            self.usage.count(entry, -1)
            source = entry.identity.source
            self.sources[source] -= 1
            if not self.sources[source]:
                del self.sources[source]
            self.texts.change(object_id, [*map(self._digest, before)], [*map(self._digest, left)])
            self._by_object_id.remove(own)
            self._by_name.remove(own)
            self.view.remove(entry.id)
            self._membership_version += not left
            self._shared.put(object_id, left)
            changes[object_id] = "changed" if left else "removed"
        return changes

    def _at(self, object_id: ObjectId) -> tuple[int, ...]:
        """Return the places of the entries of an object, the declared one first."""
        if places := self._shared.get(object_id):
            return places
        found = self._by_object_id.find(hash(object_id))
        return tuple([place for place in found if self.view.is_about(place, object_id)])

    def _digest(self, place: int) -> bytes:
        return self.texts.digest(int(self.view.texts[place]))

    def _rank(self, place: int) -> int:
        source = self.view.source(place)
        return 0 if source == FILE else 1 if source.startswith(LIVE) else 2

    @property
    def kinds(self) -> AbstractSet[tuple[str, str]]:
        """Every (plugin, kind) that has at least one object."""
        return {(plugin, kind) for _, plugin, kind in self.view.source_kinds.copy() if plugin}

    def get(self, identity: Identity) -> Entry | None:
        """Return the entry with an identity, None if there is none."""
        places = self._at(identity.object_id)
        own = [place for place in places if self.view.source(place) == identity.source]
        return self.view.at(own[0]) if own else None

    def existing(self, identities: Iterable[Identity]) -> dict[Identity, Entry]:
        """Return the existing entries among `identities`, by identity."""
        asked = [*identities]
        # look up all hashes at once: where there are very many identities, most are new
        keys = np.fromiter((hash(one[1:]) for one in asked), np.int64, len(asked))
        there = np.flatnonzero(self._by_object_id.find_each(keys.astype(np.uint64)) >= 0)
        asked = [asked[at] for at in there.tolist()]
        places = self.places([identity.object_id for identity in asked])
        found: dict[Identity, Entry] = {}
        for identity, place in zip(asked, places, strict=True):
            entry = self.view.at(place) if place >= 0 else None
            if entry and entry.identity != identity:
                # another source reports the object, too
                entry = self.get(identity)
            if entry:
                found[identity] = entry
        return found

    def require_entries(self, object_id: ObjectId) -> tuple[Entry, ...]:
        """Return the entries of an object, the declared one first; raises UnknownObject."""
        if entries := self.entries(object_id):
            return entries
        raise UnknownObject(
            f"there is no object {'/'.join(object_id)}: `op-dbus list` shows those that there are"
        )

    def representative_of(self, object_id: ObjectId) -> Entry:
        """Return the entry that represents an object: an observed one before the declared one.

        Raises UnknownObject.
        """
        return representative(self.require_entries(object_id))

    def is_observed(self, object_id: ObjectId) -> bool:
        """Return whether a source other than the state file reports an object."""
        return any(self.view.source(place) != FILE for place in self._at(object_id))

    def entries(self, object_id: ObjectId) -> tuple[Entry, ...]:
        """Return the entries of an object, the declared one first; none if it is unknown."""
        return tuple(filter(None, map(self.view.at, self._at(object_id))))

    def named(self, name: str) -> list[int]:
        """Return the places of entries with exactly this name, and of the service it means.

        The service is NAME.service, or else the first that exists of NAME-server, NAME-daemon,
        NAMEd and NAME1 to NAME99: redis-server for `redis`, apache2 for `apache`.
        """
        services = [ObjectId(*UNIT, f"{name}{ending}.service") for ending in _SERVICE_SUFFIXES]
        known = np.flatnonzero(np.array(self.places(services)) >= 0)
        return [*self._named(name), *(self._at(services[known[0]]) if len(known) else ())]

    def _named(self, name: str) -> list[int]:
        found = self._by_name.find(hash(name))
        return sorted(place for place in found if self.view.names[place] == name)

    def shared(self) -> SharedRows:
        """Return the objects that several sources report, and their entries."""
        return self._shared.all()

    def is_shared(self, object_id: ObjectId) -> bool:
        """Return whether several sources report an object."""
        return object_id in self._shared

    def has(self, object_id: ObjectId) -> bool:
        """Return whether an object has an entry."""
        return bool(self._at(object_id))

    def largest_sources(self) -> list[tuple[str, int]]:
        """Return (source, number of entries), the largest first; at most MAX_SOURCES."""
        return [row for row in self.sources.most_common(MAX_SOURCES) if row[1]]

    def places(self, object_ids: Sequence[ObjectId]) -> list[int]:
        """Return one place of each object, -1 for unknown ones; faster than one by one."""
        keys = np.fromiter(map(hash, object_ids), np.int64, len(object_ids)).astype(np.uint64)
        places = self._by_object_id.find_each(keys)
        is_there = np.flatnonzero(places >= 0)
        found: list[int] = places.tolist()
        others = self.view.object_ids(places[is_there].astype(np.intp))
        for at, other in zip(is_there.tolist(), others, strict=True):
            if other != object_ids[at]:
                # hash collision
                found[at] = next(iter(self._at(object_ids[at])), -1)
        return found

    def all_object_ids(self) -> list[ObjectId]:
        """Return all object ids in a new list, in no order; may be called on any thread."""
        return self._object_ids(self.view.used_places())

    def names_containing(self, part: str) -> list[ObjectId]:
        """Return the objects whose names contain `part`, ignoring case, in no order.

        Return all objects if `part` is empty or not ASCII.
        """
        if not part or not part.isascii():
            return self.all_object_ids()
        places = self.view.names.holding(part.lower().encode())
        return self._object_ids(places[self.view.ids[places] > 0])

    def of_kinds(self, kinds: Collection[tuple[str, str]]) -> Iterator[ObjectId]:
        """Yield the objects of (plugin, kind) pairs, in no order; one may come twice."""
        return self._each(self.view.of_source_kinds(lambda source_kind: source_kind[1:] in kinds))

    def object_ids_of(self, source: str) -> Iterator[ObjectId]:
        """Yield the objects of a source, in no order."""
        return self._each(self.view.of_source_kinds(lambda source_kind: source_kind[0] == source))

    def _each(self, places: NDArray[np.intp]) -> Iterator[ObjectId]:
        """Yield the object ids at places, built as the iteration proceeds.

        Entries removed meanwhile are left out. If another entry took such a place, its object is
        yielded.
        """
        for part in slices(places, _MADE):
            yield from self.view.object_ids(part[self.view.ids[part] > 0])

    def _object_ids(self, places: NDArray[np.intp]) -> list[ObjectId]:
        object_ids = self.view.object_ids(places)
        return [*dict.fromkeys(object_ids)] if self._shared else object_ids

    def refs_of(self, object_ids: Iterable[ObjectId]) -> EntryRefs:
        """Return all entries of objects; objects that are gone have none."""
        places = np.array(
            [place for object_id in object_ids for place in self._at(object_id)], np.intp
        )
        return EntryRefs(places, self.view.ids[places])

    def of_source(self, source: str, present: IdentityHashSet | None = None) -> list[Entry]:
        """Return the entries of a source whose identities are not in `present`."""
        if not self.sources[source]:
            return []
        places = self.view.of_source_kinds(lambda source_kind: source_kind[0] == source)
        if present:
            places = places[present.lacks(self._by_object_id.keys(places))]
        return [*filter(None, map(self.view.at, places.tolist()))]

    def object_ids(
        self, wanted: Mapping[str, str], within: EntryRefs | None = None
    ) -> Sequence[ObjectId]:
        """Return the objects that have an entry with all wanted values, in listing order.

        Keys of `wanted` are FILTER_KEYS. `within` restricts the entries. Takes half a second for
        100,000 objects: call it on a worker thread.
        """
        met = self.among(wanted, within)
        return (
            self._listing.all(self._membership_version)
            if met is None
            else in_order(self.view, met.places)
        )

    def among(self, wanted: Mapping[str, str], within: EntryRefs | None) -> EntryRefs | None:
        """Return the entries `within` that have all wanted values, in the order of their places.

        Return None for all entries: no value is wanted and `within` is None.
        """
        places = None if within is None else np.sort(self.view.existing(within), kind="stable")
        if wanted:
            places = self._meeting(wanted, places)
        return None if places is None else EntryRefs(places, self.view.ids[places])

    def _meeting(
        self, wanted: Mapping[str, str], within: NDArray[np.intp] | None
    ) -> NDArray[np.intp]:
        """Return the places of the entries, all or `within`, that have all wanted values."""
        if "name" not in wanted:
            return self.view.of_source_kinds(
                lambda source_kind: matches(Identity(*source_kind, ""), wanted), within
            )
        entries = ((place, self.view.at(place)) for place in self._named(wanted["name"]))
        named = [place for place, entry in entries if entry and matches(entry.identity, wanted)]
        met = np.array(sorted(named), np.intp)
        return met if within is None else met[np.isin(met, within)]

    def children(self, names: tuple[str, ...]) -> list[str]:
        """Return the path components below `names`, sorted.

        Those are plugins below (), kinds below (plugin,) and object names below (plugin, kind).
        """
        depth = len(names)
        places = self.view.of_source_kinds(lambda source_kind: source_kind[1:][:depth] == names)
        if depth == len(ObjectId._fields) - 1:
            return sorted({*self.view.names.of(places.tolist())})
        numbers = distinct(self.view.source_kind_ids[places]).tolist()
        return sorted({self.view.source_kinds[number][1 + depth] for number in numbers if number})


def in_order(view: EntryView, places: NDArray[np.intp]) -> list[ObjectId]:
    """Return the distinct object ids of the entries at places, in listing order."""
    source_kinds, ids = view.source_kinds, view.source_kind_ids[places]
    numbers: dict[tuple[str, str], list[int]] = {}
    for number in distinct(ids).tolist():
        numbers.setdefault(source_kinds[number][1:], []).append(number)
    found: list[ObjectId] = []
    for kind in sorted(numbers):
        names = {*view.names.of(places[np.isin(ids, numbers[kind])].tolist())}
        found += [ObjectId(*kind, name) for name in sorted(names)]
    return found
