"""The entries of all objects in memory: by identity, by thing, and in listing order."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus import kinds
from opdbus.errors import UnknownObject
from opdbus.index.quota import Usage
from opdbus.index.store import Entry
from opdbus.state.object import FILE, LIVE, Identity, Thing
from opdbus.vocabulary import TRAIT_BYTES

Change: TypeAlias = Literal["added", "changed", "removed"]
# Publishers name as many sources as they like.
MAX_SOURCES: Final = 100
FILTER_KEYS: Final = ("plugin", "kind", "source", "name")


def thing_of(entry: Entry) -> Thing:
    """Return the thing that an entry is about."""
    return Thing(*entry.identity[1:])


class View:
    """Entries at fixed places, for search in arrays; None is at a free place."""

    def __init__(self) -> None:
        self.entries: list[Entry | None] = []
        # the values of the vocabulary that each has: a bit for each, in words of 64
        self.traits = np.zeros((64, TRAIT_BYTES // 8), np.uint64)
        # the sorts that each is of, and what is taken from its rank where no question names them
        self.kinds = np.zeros(64, np.int64)
        self.less = np.zeros(64, np.float32)
        # the place of each entry by its id
        self.places: dict[int, int] = {}
        # increases with every change
        self.version = 0
        self._free: list[int] = []

    def put(self, entry: Entry, thing: Thing) -> None:
        """Put an entry at a place, that of the entry with the same id if there is one."""
        place = self.places.get(entry.id)
        if place is None:
            if self._free:
                place = self._free.pop()
            else:
                place = len(self.entries)
                self.entries.append(None)
                if place == len(self.traits):
                    self._grow()
            self.places[entry.id] = place
        self.entries[place] = entry
        self.traits[place] = np.frombuffer(entry.traits, np.uint64)
        self.kinds[place], self.less[place] = kinds.of_thing(thing)
        self.version += 1

    def _grow(self) -> None:
        self.traits = np.append(self.traits, np.zeros_like(self.traits), axis=0)
        self.kinds = np.append(self.kinds, np.zeros_like(self.kinds))
        self.less = np.append(self.less, np.zeros_like(self.less))

    def all(self) -> list[Entry]:
        """Return all entries, in no order; may be called on another thread."""
        return [entry for entry in self.entries.copy() if entry]

    def entry(self, number: int) -> Entry | None:
        """Return the entry with an id; may be called on another thread."""
        place = self.places.get(number)
        entry = None if place is None else self.entries[place]
        return entry if entry and entry.id == number else None

    def remove(self, entry: Entry) -> None:
        """Free the place of an entry."""
        place = self.places.pop(entry.id)
        self._free.append(place)
        self.entries[place] = None
        self.traits[place] = self.kinds[place] = self.less[place] = 0
        self.version += 1


class Catalogue:
    """The entries of all objects; an entry is replaced, never changed."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        # how many entries each source has
        self.sources: Counter[str] = Counter()
        self._by_identity: dict[Identity, Entry] = {}
        self._by_thing: dict[Thing, tuple[Entry, ...]] = {}
        # every (plugin, kind) that there ever was: few
        self._sorts: set[tuple[str, str]] = set()
        self.view = View()
        # things that several sources tell of
        self._shared: set[Thing] = set()
        # increases when a thing comes or leaves
        self._comings = 0
        # things in listing order, as of so many comings
        self._ordered: tuple[int, Sequence[Thing]] = 0, ()

    def __len__(self) -> int:
        """Count the things."""
        return len(self._by_thing)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries, in no particular order."""
        return iter(self._by_identity.values())

    def put(self, entries: Iterable[Entry]) -> dict[Thing, Change]:
        """Insert or replace entries, and return how their things changed."""
        changes: dict[Thing, Change] = {}
        for entry in entries:
            thing = thing_of(entry)
            changes.setdefault(thing, "changed" if thing in self._by_thing else "added")
            others = [e for e in self._by_thing.get(thing, ()) if e.identity != entry.identity]
            # the declared entry first, then what op-dbus saw itself, then what was published last
            self._set(thing, tuple(sorted([entry, *others], key=_rank)))
            self.view.put(entry, thing)
            if before := self._by_identity.get(entry.identity):
                self.usage.count(before, -1)
            else:
                self.sources[entry.identity.source] += 1
            self.usage.count(entry, 1)
            self._by_identity[entry.identity] = entry
        return changes

    def remove(self, entries: Iterable[Entry]) -> dict[Thing, Change]:
        """Remove entries, and return how their things changed."""
        changes: dict[Thing, Change] = {}
        for entry in entries:
            thing = thing_of(entry)
            self.usage.count(self._by_identity.pop(entry.identity), -1)
            self.sources[entry.identity.source] -= 1
            left = tuple(e for e in self._by_thing[thing] if e.identity != entry.identity)
            self._set(thing, left)
            self.view.remove(entry)
            changes[thing] = "changed" if left else "removed"
        return changes

    def _set(self, thing: Thing, entries: tuple[Entry, ...]) -> None:
        """Set the entries about a thing."""
        if not entries:
            del self._by_thing[thing]
            self._comings += 1
        else:
            if thing not in self._by_thing:
                self._comings += 1
                self._sorts.add(thing[:2])
            self._by_thing[thing] = entries
        if len(entries) > 1:
            self._shared.add(thing)
        else:
            self._shared.discard(thing)

    @property
    def sorts(self) -> AbstractSet[tuple[str, str]]:
        """Every (plugin, kind) of which there was anything since the start."""
        return self._sorts

    def get(self, identity: Identity) -> Entry | None:
        """Return an entry by identity."""
        return self._by_identity.get(identity)

    def about(self, thing: Thing) -> tuple[Entry, ...]:
        """Return the entries about a thing, the declared one first; raises UnknownObject."""
        try:
            return self._by_thing[thing]
        except KeyError:
            raise UnknownObject(
                f"there is no object {'/'.join(thing)}: `op-dbus list` shows those that there are"
            ) from None

    def named(self, name: str) -> list[int]:
        """Return the places of entries of just this name; of a service also without its suffix."""
        names = (name, f"{name}.service")
        found = (Thing(*sort, name) for sort in self._sorts for name in names)
        return [self.view.places[e.id] for thing in found for e in self._by_thing.get(thing, ())]

    def shared(self) -> list[Thing]:
        """Return the things that several sources tell of."""
        return list(self._shared)

    def is_shared(self, thing: Thing) -> bool:
        """Return whether several sources tell of a thing."""
        return thing in self._shared

    def has(self, thing: Thing) -> bool:
        """Return whether a thing is known."""
        return thing in self._by_thing

    def largest_sources(self) -> list[tuple[str, int]]:
        """Return (source, entries) of each source, the largest first; at most MAX_SOURCES."""
        return [row for row in self.sources.most_common(MAX_SOURCES) if row[1]]

    def known(self) -> list[Thing]:
        """Return a copy of all things, in no order, which other threads may read."""
        return list(self._by_thing)

    def places(self, things: Iterable[Thing]) -> NDArray[np.intp]:
        """Return the places of all entries about things, without those that are gone."""
        about, place = self._by_thing.get, self.view.places
        return np.array([place[e.id] for thing in things for e in about(thing, ())], np.intp)

    def of_source(self, source: str) -> list[Entry]:
        """Return all entries of a source."""
        if not self.sources[source]:
            return []
        return [e for e in self._by_identity.values() if e.identity.source == source]

    def things(self, wanted: Mapping[str, str]) -> Sequence[Thing]:
        """Return things of which an entry has all wanted values, in listing order.

        Of 100,000 that takes half a second: call it on another thread.
        """
        order = self._in_order()
        if not wanted:
            return order
        about = self._by_thing.get
        return [t for t in order if any(matches(entry, wanted) for entry in about(t, ()))]

    def below(self, names: tuple[str, ...]) -> list[str]:
        """Return what comes after some first names, such as a plugin's, of things; in order."""
        depth = len(names)
        return sorted({thing[depth] for thing in self._by_thing if thing[:depth] == names})

    def _in_order(self) -> Sequence[Thing]:
        """Return all things by plugin, kind and name."""
        comings, order = self._ordered
        if comings != self._comings:
            # counted before the copy is made: what comes in between is put in order the next time
            comings, known = self._comings, self._by_thing.copy()
            # two sorted runs, which sorting merges in one pass
            kept = [thing for thing in order if thing in known]
            order = sorted([*kept, *sorted(known.keys() - set(kept))])
            self._ordered = comings, order
        return order


def matches(entry: Entry, wanted: Mapping[str, str]) -> bool:
    """Return whether the identity of an entry has all wanted values."""
    return all(getattr(entry.identity, key) == value for key, value in wanted.items())


def _rank(entry: Entry) -> int:
    source = entry.identity.source
    return 0 if source == FILE else 1 if source.startswith(LIVE) else 2
