"""Which objects there are, in memory: by identity, by thing, and in listing order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from opdbus.errors import UnknownObject
from opdbus.index import search
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opdbus.index.quota import Usage
    from opdbus.index.store import Entry
    from opdbus.state.object import Identity

Change: TypeAlias = Literal["added", "changed", "removed"]
FILTER_KEYS: Final = ("plugin", "kind", "source", "name")


class Thing(NamedTuple):
    """What has one object path: a file may declare it and programs may observe it."""

    plugin: str
    kind: str
    name: str


def thing_of(entry: Entry) -> Thing:
    """Give the thing that an entry is about."""
    return Thing(*entry.identity[1:])


@dataclass(frozen=True, slots=True)
class View:
    """All entries in listing order, laid out for search; made anew after each change."""

    entries: Sequence[Entry]
    things: Sequence[Thing]
    # index of each entry by its id
    places: Mapping[int, int]
    # (starter, service, suffix) by index: see search.pairs
    pairs: Sequence[tuple[int, int, str]]


class Catalogue:
    """Entries by what they are about; an entry is replaced whole, never changed."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self._by_identity: dict[Identity, Entry] = {}
        self._by_thing: dict[Thing, tuple[Entry, ...]] = {}
        self._sorted: Sequence[Entry] | None = None
        self._view: View | None = None

    def __len__(self) -> int:
        """Count the things."""
        return len(self._by_thing)

    def __iter__(self) -> Iterator[Entry]:
        """Give all entries, in no order that means anything."""
        return iter(self._by_identity.values())

    def put(self, entries: Iterable[Entry]) -> dict[Thing, Change]:
        """Insert or replace entries, and tell what that did to their things."""
        changes: dict[Thing, Change] = {}
        for entry in entries:
            thing = thing_of(entry)
            changes.setdefault(thing, "changed" if thing in self._by_thing else "added")
            others = [e for e in self._by_thing.get(thing, ()) if e.identity != entry.identity]
            # What is declared comes first, then what was observed last, whatever the clock says.
            self._by_thing[thing] = tuple(sorted([entry, *others], key=_is_observed))
            if before := self._by_identity.get(entry.identity):
                self.usage.count(before, -1)
            self.usage.count(entry, 1)
            self._by_identity[entry.identity] = entry
        self._sorted = self._view = None
        return changes

    def remove(self, entries: Iterable[Entry]) -> dict[Thing, Change]:
        """Take entries out, and tell what that did to their things."""
        changes: dict[Thing, Change] = {}
        for entry in entries:
            thing = thing_of(entry)
            self.usage.count(self._by_identity.pop(entry.identity), -1)
            left = tuple(e for e in self._by_thing[thing] if e.identity != entry.identity)
            if left:
                self._by_thing[thing] = left
            else:
                del self._by_thing[thing]
            changes[thing] = "changed" if left else "removed"
        self._sorted = self._view = None
        return changes

    def get(self, identity: Identity) -> Entry | None:
        """Give an entry by identity."""
        return self._by_identity.get(identity)

    def about(self, thing: Thing) -> tuple[Entry, ...]:
        """Give the entries about a thing, the declared one first; raises UnknownObject."""
        try:
            return self._by_thing[thing]
        except KeyError:
            raise UnknownObject(
                f"there is no object {'/'.join(thing)}: `op-dbus list` shows those that there are"
            ) from None

    def pair(self, thing: Thing) -> tuple[Entry, Entry] | None:
        """Give what is declared of a thing and what was last observed; None unless both are."""
        entries = self._by_thing.get(thing, ())
        if len(entries) > 1 and entries[0].identity.source == FILE:
            return entries[0], entries[1]
        return None

    def has(self, thing: Thing) -> bool:
        """Tell whether a thing is known."""
        return thing in self._by_thing

    def of_source(self, source: str) -> list[Entry]:
        """Give all entries of a source."""
        return [e for e in self._by_identity.values() if e.identity.source == source]

    def entries(self) -> Sequence[Entry]:
        """Give all entries in listing order: plugin, kind, name, declared before observed."""
        if self._sorted is None:
            things = sorted(self._by_thing)
            self._sorted = [entry for thing in things for entry in self._by_thing[thing]]
        return self._sorted

    def view(self) -> View:
        """Give the entries laid out for search; the same object until something changes."""
        if self._view is None:
            entries = self.entries()
            things = [thing_of(entry) for entry in entries]
            places = {entry.id: index for index, entry in enumerate(entries)}
            self._view = View(entries, things, places, search.pairs(things))
        return self._view

    def matching(self, wanted: Mapping[str, str]) -> list[Entry]:
        """Give entries whose identity has all the wanted values, in listing order."""
        if not wanted:
            return list(self.entries())
        return [entry for entry in self.entries() if matches(entry, wanted)]


def matches(entry: Entry, wanted: Mapping[str, str]) -> bool:
    """Tell whether an entry's identity has all the wanted values."""
    return all(getattr(entry.identity, key) == value for key, value in wanted.items())


def _is_observed(entry: Entry) -> bool:
    return entry.identity.source != FILE
