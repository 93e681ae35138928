"""The pairs of declared and observed objects, kept up to date."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from opdbus.drift import rule_table
from opdbus.drift.rule_table import Row
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.database.store import Entry
from opdbus.state.object import FILE, PUBLISHED, Json, KindId, ObjectId

# An observed kind, and the text by which declared and observed names match.
Key: TypeAlias = tuple[KindId, str]
K = TypeVar("K")

# The most objects whose sides are cached: more than are compared in a batch.
_MOST: Final = 4096


class Sides(NamedTuple):
    """The entries that declare and that observe an object."""

    declared: Entry | None
    observed: tuple[Entry, ...]


class _Keys(NamedTuple):
    further: Sequence[Key] = ()
    owners: Sequence[Key] = ()
    related: Sequence[ObjectId] = ()


class Pairs:
    """An index of keys that differ from names; plain names are looked up in the catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        # declared objects by the keys of their observed objects, and observed ones by further keys
        self._wanted: dict[Key, set[ObjectId]] = {}
        self._met: dict[Key, set[ObjectId]] = {}
        # the parts of the object of a key
        self._parts: dict[Key, set[ObjectId]] = {}
        # by observed object: its further keys, the keys of its owners, and related objects
        self._keys: dict[ObjectId, _Keys] = {}
        # the names in fields of declared objects of rows with `each`
        self._named: dict[ObjectId, Sequence[str]] = {}
        # the kinds that the file claims to declare completely
        self.claims: frozenset[KindId] = frozenset()
        # observed kinds that are paired with declared ones, and kinds that belong to such
        self.active: set[KindId] = set()
        # published objects of active kinds
        self._published: dict[KindId, set[ObjectId]] = {}
        # declared objects that are observed under another name
        self.renamed: set[ObjectId] = set()
        # cached sides as of a version of the catalogue: a comparison reads each several times
        self._version = -1
        self._sides: dict[ObjectId, Sides] = {}

    def row(self, declared: ObjectId) -> Row:
        """Return the row of the rule table for a declared object, whose kind may be claimed."""
        kind_id, row = declared[:2], rule_table.of_declared(declared[:2])
        is_claimed = kind_id in self.claims and row.covers(declared.kind, declared.name)
        return rule_table.of_claimed(kind_id) if is_claimed else row

    def sides(self, object_id: ObjectId) -> Sides:
        """Return the entries under an object's own name."""
        version = self._catalogue.view.version
        if version != self._version or len(self._sides) > _MOST:
            self._version = version
            self._sides.clear()
        if known := self._sides.get(object_id):
            return known
        entries = self._catalogue.entries(object_id)
        is_declared = bool(entries) and entries[0].identity.source == FILE
        sides = Sides(entries[0], entries[1:]) if is_declared else Sides(None, entries)
        self._sides[object_id] = sides
        return sides

    def joined(self, object_id: ObjectId) -> Sides:
        """Return the entries of an object, including those under its other name."""
        own = self.sides(object_id)
        if own.declared is None:
            for other in sorted(self.declared(object_id)):
                if is_one(other) and object_id in self.observed(other):
                    return Sides(self.sides(other).declared, own.observed)
        elif not own.observed and is_one(object_id):
            for other in self.observed(object_id):
                return Sides(own.declared, self.sides(other).observed)
        return own

    def is_published(self, kind_id: KindId) -> bool:
        """Return whether publishers report objects of an active kind."""
        return bool(self._published.get(kind_id))

    def declare(self, object_id: ObjectId, fields: Sequence[str] = ()) -> set[KindId]:
        """Register a declared object; return the kinds to activate.

        `fields` are given if they name its observed objects.
        """
        if self._named.get(object_id, ()) != fields:
            self.undeclare(object_id)
            self._named[object_id] = fields
        kind_ids = self.declare_each(object_id[:2], [object_id])
        self.note(object_id)
        return kind_ids

    def note(self, object_id: ObjectId) -> None:
        """Update whether a declared object is observed under another name."""
        sides = self.sides(object_id)
        if sides.declared and not sides.observed and is_one(object_id) and self.observed(object_id):
            self.renamed.add(object_id)
        else:
            self.renamed.discard(object_id)

    def declare_each(self, kind_id: KindId, object_ids: Iterable[ObjectId]) -> set[KindId]:
        """Register declared objects of a kind with their known fields: see `declare`."""
        row = rule_table.of_declared(kind_id)
        for object_id in object_ids:
            for key in self._keys_of(object_id):
                if key != (kind_id, object_id.name):
                    self._wanted.setdefault(key, set()).add(object_id)
        return {kind_id, row.observed, *(one.kind for one in row.joined)} - self.active

    def undeclare(self, object_id: ObjectId) -> None:
        """Drop a declared object."""
        for key in self._keys_of(object_id):
            _discard(self._wanted, key, object_id)
        self._named.pop(object_id, None)
        self.renamed.discard(object_id)

    def observe(self, object_id: ObjectId, properties: Mapping[str, Json] | None) -> bool:
        """Register an observed object of an active kind; `properties` is None if it is gone.

        Return whether its other names changed, so that related objects must be compared again.
        """
        before = keys = self._keys.pop(object_id, _Keys())
        for key in keys.further:
            _discard(self._met, key, object_id)
        for key in keys.owners:
            _discard(self._parts, key, object_id)
        is_published = False
        if properties is not None:
            observed = self.sides(object_id).observed
            is_published = any(e.identity.source.startswith(PUBLISHED) for e in observed)
            related = [
                properties.get(field) for field in rule_table.of_observed(object_id[:2]).related
            ]
            keys = _Keys(
                tuple(_further(object_id, properties)),
                tuple(_owners(object_id, properties)),
                tuple(object_id._replace(name=name) for name in related if isinstance(name, str)),
            )
            if any(keys):
                self._keys[object_id] = keys
            for key in keys.further:
                self._met.setdefault(key, set()).add(object_id)
            for key in keys.owners:
                self._parts.setdefault(key, set()).add(object_id)
        if is_published:
            self._published.setdefault(object_id[:2], set()).add(object_id)
        else:
            _discard(self._published, object_id[:2], object_id)
        return (
            bool(rule_table.of_observed(object_id[:2]).related) and before.further != keys.further
        )

    def observed(self, object_id: ObjectId) -> list[ObjectId]:
        """Return the observed objects of a declared one, or else the object of the same name."""
        found: dict[ObjectId, None] = {}
        for key in self._keys_of(object_id):
            plain = ObjectId(*key[0], key[1])
            if self.sides(plain).observed:
                found[plain] = None
            met = sorted(self._met.get(key, ()))
            found |= dict.fromkeys(other for other in met if self.sides(other).observed)
        return list(found) or ([object_id] if self.sides(object_id).observed else [])

    def declared(self, object_id: ObjectId) -> set[ObjectId]:
        """Return the declared objects of an observed one or of its owner."""
        row = rule_table.of_observed(object_id[:2])
        keys = self._keys.get(object_id, _Keys())
        plain = (object_id[:2], row.observed_key(object_id.name))
        found: set[ObjectId] = set()
        for key in (plain, (object_id[:2], object_id.name), *keys.further, *keys.owners):
            found |= self._wanted.get(key, set())
            same = ObjectId(*key[0], key[1])
            if same == object_id or rule_table.of_declared(key[0]).observed == key[0]:
                found |= {same} if self.sides(same).declared else set()
        return found

    def about(self, object_id: ObjectId) -> set[ObjectId]:
        """Return a declared object, its observed objects, and those of its keys that are gone."""
        plain = (ObjectId(*kind_id, name) for kind_id, name in self._keys_of(object_id))
        return {object_id, *plain, *self.observed(object_id)}

    def parts(self, object_id: ObjectId) -> set[ObjectId]:
        """Return the objects that belong to an observed one."""
        return self._parts.get((object_id[:2], object_id.name), set())

    def other_names(self, object_id: ObjectId) -> dict[str, str]:
        """Return the names of related objects of the same kind, by their other names."""
        related = {*self._keys.get(object_id, _Keys()).related, *self.parts(object_id)}
        each = [one for one in related if one[:2] == object_id[:2]]
        return {key[1]: one.name for one in each for key in self._keys.get(one, _Keys()).further}

    def _keys_of(self, object_id: ObjectId) -> list[Key]:
        return _keys(object_id, self._named.get(object_id) or (object_id.name,))


def is_one(declared: ObjectId) -> bool:
    """Return whether a declared object is paired with one whole object, not with parts of it."""
    row = rule_table.of_declared(declared[:2])
    return not row.parts and not row.each


def means(declared: ObjectId, observed: ObjectId) -> bool:
    """Return whether a declared object is a differently named observed one, by names alone."""
    names = (observed.name, rule_table.of_observed(observed[:2]).observed_key(observed.name))
    keys = {*((observed[:2], name) for name in names), *_owners(observed, {})}
    return declared != observed and not keys.isdisjoint(_keys(declared, (declared.name,)))


def _keys(object_id: ObjectId, names: Iterable[str]) -> list[Key]:
    """Return the keys by which a declared object with some names finds observed objects."""
    row = rule_table.of_declared(object_id[:2])
    keys = row.parts or [row.declared_key(object_id.kind, name) for name in names]
    return [(row.observed, key) for key in keys]


def _further(object_id: ObjectId, properties: Mapping[str, Json]) -> Iterator[Key]:
    row = rule_table.of_observed(object_id[:2])
    if (key := row.observed_key(object_id.name)) != object_id.name:
        yield row.observed, key
    aliases = properties.get(row.aliases) if row.aliases else ()
    for name in aliases if isinstance(aliases, list) else ():
        yield row.observed, str(name)


def _owners(object_id: ObjectId, properties: Mapping[str, Json]) -> Iterator[Key]:
    joined = rule_table.JOINED.get(object_id[:2])
    if joined and (match := joined.pattern.fullmatch(object_id.name)):
        yield joined.row.observed, match[1]
    row = rule_table.of_observed(object_id[:2])
    if row.members and isinstance(owner := properties.get(row.members.owner_field), str):
        yield row.observed, owner


def _discard(index: dict[K, set[ObjectId]], key: K, object_id: ObjectId) -> None:
    if held := index.get(key):
        held.discard(object_id)
        if not held:
            del index[key]
