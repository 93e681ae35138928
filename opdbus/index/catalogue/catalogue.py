"""In-memory table of all entries, found by identity, object id, name, source and kind."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, repeat
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import UnknownObject
from opdbus.index.catalogue.entry_view import NOTHING, EntryRefs, EntryView
from opdbus.index.catalogue.text_table import TextTable
from opdbus.index.database.quota import Usage
from opdbus.index.database.store import Entry
from opdbus.state.object import FILE, LIVE, UNIT, Identity, KindId, ObjectId, matches

ChangeKind: TypeAlias = Literal["added", "changed", "removed"]
# Publishers may use any number of source names.
MAX_SOURCES: Final = 100
# Endings between a program's name and `.service` in the names of its units.
_SERVICE_SUFFIXES: Final = ("", "-server", "-daemon", "d", *map(str, range(1, 100)))
FILTER_KEYS: Final = ("plugin", "kind", "source", "name")


def representative(entries: Sequence[Entry]) -> Entry:
    """Return the entry that represents an object: the first observed one, else the first."""
    return next((one for one in entries if one.identity.source != FILE), entries[0])


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
        self.view = EntryView()
        # entries of each object by (plugin, kind) and name, the declared one first
        self._objects: dict[KindId, dict[str, tuple[Entry, ...]]] = {}
        # increases whenever an object appears or disappears
        self._membership_version = 0
        # `_membership_version` when listed last, and all objects in order
        self._listed: tuple[int, Sequence[ObjectId]] = 0, ()
        # `view.version` when they were looked for last, and the entries of shared objects
        self._shared = 0, NOTHING

    def __len__(self) -> int:
        """Return the number of objects, not of entries."""
        return sum(map(len, self._objects.copy().values()))

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries, in no particular order."""
        return filter(None, self.view.entries.copy())

    def put(self, entries: Iterable[Entry]) -> dict[ObjectId, ChangeKind]:
        """Insert or replace entries, and return the change of each object.

        Of several changes of an object, the first counts.
        """
        changes: dict[ObjectId, ChangeKind] = {}
        stored, replaced = [*entries], list[Entry]()
        new_sources, shared = list[str](), list[tuple[Entry, ...]]()
        for entry in stored:
            source, plugin, kind, name = entry.identity
            of_kind = self._objects.get((plugin, kind))
            if of_kind is None:
                of_kind = self._objects[plugin, kind] = {}
            before = of_kind.get(name, ())
            changes.setdefault(ObjectId(plugin, kind, name), "changed" if before else "added")
            # of several published entries, the one that was put last comes first
            others = [one for one in before if one.id != entry.id]
            of_kind[name] = now = tuple(sorted((entry, *others), key=_rank)) if others else (entry,)
            if len(others) == len(before):
                new_sources.append(source)
            else:
                replaced += (one for one in before if one.id == entry.id)
            if others:
                shared.append(now)
        if stored:
            self.sources.update(new_sources)
            self.view.put(stored, self.texts.hold([entry.text_digest for entry in stored]))
            self.view.group(shared)
            self.texts.release([entry.text_digest for entry in replaced])
            self.usage.count(stored, 1)
            self.usage.count(replaced, -1)
            self._membership_version += "added" in changes.values()
        return changes

    def remove(self, entries: Iterable[Entry]) -> dict[ObjectId, ChangeKind]:
        """Remove entries, and return the change of each object."""
        changes: dict[ObjectId, ChangeKind] = {}
        for entry in entries:
            object_id = entry.identity.object_id
            left = tuple(one for one in self.entries(object_id) if one.id != entry.id)
            self.usage.count([entry], -1)
            source = entry.identity.source
            self.sources[source] -= 1
            if not self.sources[source]:
                del self.sources[source]
            of_kind = self._objects[object_id[:2]]
            if left:
                of_kind[object_id.name] = left
            else:
                del of_kind[object_id.name]
                self._membership_version += 1
            if not of_kind:
                del self._objects[object_id[:2]]
            self.texts.release([entry.text_digest])
            self.view.remove(entry.id)
            self.view.group([left])
            changes[object_id] = "changed" if left else "removed"
        return changes

    @property
    def kinds(self) -> AbstractSet[KindId]:
        """Every (plugin, kind) that has at least one object."""
        return self._objects.copy().keys()

    def get(self, identity: Identity) -> Entry | None:
        """Return the entry with an identity, None if there is none."""
        entries = self.entries(identity.object_id)
        return next((one for one in entries if one.identity.source == identity.source), None)

    def existing(self, identities: Iterable[Identity]) -> dict[Identity, Entry]:
        """Return the existing entries among `identities`, by identity."""
        return {identity: entry for identity in identities if (entry := self.get(identity))}

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
        return any(entry.identity.source != FILE for entry in self.entries(object_id))

    def entries(self, object_id: ObjectId) -> tuple[Entry, ...]:
        """Return the entries of an object, the declared one first; none if it is unknown.

        May be called on any thread.
        """
        of_kind = self._objects.get(object_id[:2])
        return of_kind.get(object_id[2], ()) if of_kind else ()

    def named(self, name: str) -> list[int]:
        """Return the places of entries with exactly this name, and of the service it means.

        The service is NAME.service, or else the first that exists of NAME-server, NAME-daemon,
        NAMEd and NAME1 to NAME99: redis-server for `redis`, apache2 for `apache`.
        """
        services = (ObjectId(*UNIT, f"{name}{ending}.service") for ending in _SERVICE_SUFFIXES)
        service = next(filter(self.has, services), None)
        return [*self._named(name), *(self.refs_of([service]).places.tolist() if service else ())]

    def _named(self, name: str) -> list[int]:
        named = (of_kind.get(name, ()) for of_kind in self._objects.copy().values())
        return sorted(self._refs_of(entry for entries in named for entry in entries).places)

    def shared(self) -> EntryRefs:
        """Return all entries of the objects that several sources report."""
        view = self.view
        if self._shared[0] != view.version:
            places = np.flatnonzero(view.ids)
            of_object = view.firsts[places]
            places = places[np.bincount(of_object)[of_object] > 1]
            self._shared = view.version, EntryRefs(places, view.ids[places])
        return self._shared[1]

    def is_shared(self, object_id: ObjectId) -> bool:
        """Return whether several sources report an object."""
        return len(self.entries(object_id)) > 1

    def has(self, object_id: ObjectId) -> bool:
        """Return whether an object has an entry."""
        return bool(self.entries(object_id))

    def largest_sources(self) -> list[tuple[str, int]]:
        """Return (source, number of entries), the largest first; at most MAX_SOURCES."""
        return [row for row in self.sources.most_common(MAX_SOURCES) if row[1]]

    def all_object_ids(self) -> list[ObjectId]:
        """Return all object ids in a new list, in no order; may be called on any thread."""
        return [*self.of_kinds(self.kinds)]

    def names_containing(self, part: str) -> list[ObjectId]:
        """Return the objects whose names contain `part`, ignoring case, in no order."""
        wanted = part.lower()
        return [
            ObjectId(*kind, name)
            for kind, of_kind in self._objects.copy().items()
            for name in [*of_kind]
            if wanted in name.lower()
        ]

    def of_kinds(self, kinds: Iterable[KindId]) -> Iterator[ObjectId]:
        """Yield the objects of (plugin, kind) pairs, in no order; those removed may be missing."""
        for kind in kinds:
            yield from _object_ids(kind, [*self._objects.get(kind, ())])

    def object_ids_of(self, source: str) -> Iterator[ObjectId]:
        """Yield the objects of a source, in no order."""
        return (entry.identity.object_id for entry in self.of_source(source))

    def refs_of(self, object_ids: Iterable[ObjectId]) -> EntryRefs:
        """Return all entries of objects; objects that are gone have none."""
        return self._refs_of(entry for each in object_ids for entry in self.entries(each))

    def _refs_of(self, entries: Iterable[Entry]) -> EntryRefs:
        return self.view.refs_of(entry.id for entry in entries)

    def of_source(self, source: str, present: AbstractSet[Identity] = frozenset()) -> list[Entry]:
        """Return the entries of a source whose identities are not in `present`."""
        if not self.sources[source]:
            return []
        places = self.view.of_source_kinds(lambda source_kind: source_kind[0] == source)
        entries = filter(None, map(self.view.at, places.tolist()))
        return [entry for entry in entries if entry.identity not in present]

    def object_ids(
        self, wanted: Mapping[str, str], within: EntryRefs | None = None
    ) -> Sequence[ObjectId]:
        """Return the objects that have an entry with all wanted values, in listing order.

        Keys of `wanted` are FILTER_KEYS. `within` restricts the entries. Takes a tenth of a second
        for 100,000 objects: call it on a worker thread.
        """
        if within is not None or not wanted.keys() <= {"plugin", "kind"}:
            met, names = self.among(wanted, within), defaultdict[KindId, set[str]](set)
            for place, number in np.stack(met, axis=1).tolist() if met else ():
                # another entry may have taken the place meanwhile
                if (entry := self.view.at(place)) and entry.id == number:
                    _, plugin, kind, name = entry.identity
                    names[plugin, kind].add(name)
            return _in_order(names)
        version = self._membership_version
        if not wanted and self._listed[0] == version:
            return self._listed[1]
        kinds = [kind for kind in self.kinds if matches(ObjectId(*kind, ""), wanted)]
        found = _in_order({kind: [*self._objects.get(kind, ())] for kind in kinds})
        if not wanted:
            self._listed = version, found
        return found

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
        met = np.array(named, np.intp)
        return met if within is None else met[np.isin(met, within)]

    def children(self, names: tuple[str, ...]) -> list[str]:
        """Return the path components below `names`, sorted.

        Those are plugins below (), kinds below (plugin,) and object names below (plugin, kind).
        """
        depth = len(names)
        if depth == len(ObjectId._fields) - 1:
            plugin, kind = names
            return sorted(self._objects.get((plugin, kind), ()))
        return sorted({kind[depth] for kind in self.kinds if kind[:depth] == names})


def _rank(entry: Entry) -> int:
    source = entry.identity.source
    return 0 if source == FILE else 1 if source.startswith(LIVE) else 2


def _in_order(names: Mapping[KindId, Iterable[str]]) -> list[ObjectId]:
    """Return the objects with these names by kind, in listing order."""
    ordered = (_object_ids(kind, sorted(names[kind])) for kind in sorted(names))
    return [*chain.from_iterable(ordered)]


def _object_ids(kind_id: KindId, names: Iterable[str]) -> Iterator[ObjectId]:
    plugin, kind = kind_id
    return map(ObjectId, repeat(plugin), repeat(kind), names)
