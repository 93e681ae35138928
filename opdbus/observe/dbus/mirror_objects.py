"""The objects of a mirrored D-Bus service, kept current by its signals."""

import marshal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Final

from opdbus.bus.transport.library import Variant
from opdbus.observe.core.batch import Key
from opdbus.observe.core.report import MAX_OBJECTS
from opdbus.observe.core.system_bus import Signal
from opdbus.observe.dbus.mirror_names import MirrorNames
from opdbus.observe.dbus.mirror_values import Value, field_name, references, resolved, value_of
from opdbus.state.object import Json
from opdbus.state.publish import MAX_BYTES

_STANDARD: Final = "org.freedesktop.DBus."
_ADDED: Final = f"{_STANDARD}ObjectManager", "InterfacesAdded", "oa{sa{sv}}"
_REMOVED: Final = f"{_STANDARD}ObjectManager", "InterfacesRemoved", "oas"
_CHANGED: Final = f"{_STANDARD}Properties", "PropertiesChanged", "sa{sv}as"
# The most properties of one interface.
_MAX_PROPERTIES: Final = 500
# The most bytes of all objects: signals carry only changes, so that all values are held.
_MAX_ALL_BYTES: Final = 32 << 20
_EMPTY: Final[tuple[Json, ...]] = ("", [], {}, None)


class _Thing:
    """One object: its values by interface, its references, and the properties last reported."""

    __slots__ = ("interfaces", "referred", "shown", "size")

    def __init__(self) -> None:
        self.interfaces: dict[str, dict[str, Value]] = {}
        self.referred: frozenset[str] = frozenset()
        self.shown: Mapping[str, Json] = {}
        self.size = 0


class MirroredObjects:
    """The objects of one service below a path, as state objects with names and properties.

    `apply`, `add` and `put` return the path of the object that they change, or "". `news` yields
    the changes to report for a path.
    """

    def __init__(self, service: str, plugin: str, top: str) -> None:
        self._names = MirrorNames(service, plugin)
        self.top = top
        self._object_ids: dict[str, _Thing] = {}
        # paths of the objects that refer to a path
        self._referring: dict[str, set[str]] = {}
        self._size = 0
        # there may be more objects than are held
        self.is_full = False
        self._left_out: Counter[str] = Counter()
        # (path, interface) pairs whose properties changed without their values
        self.stale: dict[tuple[str, str], None] = {}

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._object_ids)

    @property
    def left_out(self) -> str:
        """Return a sentence on objects and signals that were left out; empty if there are none."""
        found = [f"{what} ({count:,})" for what, count in self._left_out.items()]
        found += [f"objects beyond {MAX_OBJECTS:,}"] if self.is_full else []
        return f"left out: {', '.join(found)}" if found else ""

    def leave_out(self, what: str) -> None:
        """Count an object or signal that is left out; `what` is its kind, in the plural."""
        self._left_out[what] += 1

    def apply(self, signal: Signal) -> str:
        """Apply a signal to the objects."""
        sort = signal.interface, signal.member, signal.signature
        if sort == _ADDED:
            return self.add(*signal.body)
        if sort == _REMOVED:
            return self._remove(*signal.body)
        if sort == _CHANGED:
            return self._change(signal.path, *signal.body)
        if sort[:2] == _CHANGED[:2] and not signal.body:
            self.leave_out("signals that are too large")
            return self._drop(signal.path)
        if sort[:2] in {_ADDED[:2], _REMOVED[:2], _CHANGED[:2]}:
            self.leave_out("signals that cannot be read")
        return ""

    def add(self, path: str, interfaces: Mapping[str, Mapping[str, Variant]]) -> str:
        """Add an object, or interfaces of an object."""
        names = [name for name in interfaces if not name.startswith(_STANDARD)]
        if not names or not self._is_taken(path):
            return ""
        self._object_ids.setdefault(path, _Thing())
        for name in names:
            self.put(path, name, interfaces[name])
        return path

    def put(
        self, path: str, interface: str, values: Mapping[str, Variant], *, is_all: bool = True
    ) -> str:
        """Replace (`is_all`) or update the properties of an interface of a held object."""
        object_id = self._object_ids.get(path)
        if object_id is None:
            return ""
        before = object_id.interfaces.get(interface, {})
        new = dict(_read(values))
        replaced = before if is_all else before.keys() & new.keys()
        more = sum(map(_size, new.values())) - sum(_size(before[name]) for name in replaced)
        object_id.interfaces[interface] = new if is_all else {**before, **new}
        object_id.size += more
        self._size += more
        if object_id.size > MAX_BYTES or self._size > _MAX_ALL_BYTES:
            self.leave_out("objects that are too large")
            return self._drop(path)
        self._refer(path, object_id)
        return path

    def news(self, path: str) -> Iterator[tuple[Key, Mapping[str, Json] | None]]:
        """Yield the changes since the last report; None as properties if the object is gone."""
        before, key = self._names.key_at(path), self._named(path)
        if before and before != key:
            yield before, None
        yield from self._rendered(path, is_new=before != key)
        if before != key:
            for other in tuple(self._referring.get(path, ())):
                yield from self._rendered(other)

    def listed(self) -> Iterator[tuple[Key, Mapping[str, Json]]]:
        """Yield all objects; they count as reported."""
        # in this order, the lower-numbered of two objects with one name always gets the plain name
        paths = sorted(self._object_ids, key=lambda path: (len(path), path))
        for path in paths:
            self._named(path)
        for path in paths:
            yield from self._rendered(path, is_new=True)

    def _is_taken(self, path: str) -> bool:
        if path in self._object_ids:
            return True
        if path != self.top and not path.startswith(self.top.rstrip("/") + "/"):
            self.leave_out(f"objects that are not below {self.top}")
        elif len(self._object_ids) >= MAX_OBJECTS:
            self.is_full = True
        else:
            return True
        return False

    def _remove(self, path: str, interfaces: list[str]) -> str:
        object_id = self._object_ids.get(path)
        if object_id is None:
            return ""
        for name in interfaces:
            size = sum(map(_size, object_id.interfaces.pop(name, {}).values()))
            object_id.size -= size
            self._size -= size
        self._refer(path, object_id)
        return path if object_id.interfaces else self._drop(path)

    def _drop(self, path: str) -> str:
        if object_id := self._object_ids.pop(path, None):
            self._size -= object_id.size
            object_id.interfaces = {}
            self._refer(path, object_id)
        return path

    def _change(
        self, path: str, interface: str, values: Mapping[str, Variant], invalidated: list[str]
    ) -> str:
        object_id = self._object_ids.get(path)
        if object_id is None or interface.startswith(_STANDARD):
            return ""
        is_known = interface in object_id.interfaces
        if invalidated or not is_known:
            self.stale[path, interface] = None
        return self.put(path, interface, values, is_all=False) if values and is_known else ""

    def _refer(self, path: str, object_id: _Thing) -> None:
        """Update the references of an object: it changes when an object it refers to is renamed."""
        held = (values.values() for values in object_id.interfaces.values())
        found = frozenset(references(chain.from_iterable(held)))
        for gone in object_id.referred - found:
            self._referring[gone].discard(path)
            if not self._referring[gone]:
                del self._referring[gone]
        for new in found - object_id.referred:
            self._referring.setdefault(new, set()).add(path)
        object_id.referred = found

    def _named(self, path: str) -> Key | None:
        object_id = self._object_ids.get(path)
        return self._names.give(path, object_id.interfaces if object_id else {})

    def _rendered(
        self, path: str, *, is_new: bool = False
    ) -> Iterator[tuple[Key, Mapping[str, Json]]]:
        """Yield the object if it is new or its properties differ from the last report."""
        key = self._names.key_at(path)
        if key is None:
            return
        object_id = self._object_ids[path]
        properties = self._properties(path, object_id)
        if is_new or properties != object_id.shown:
            object_id.shown = properties
            yield key, properties

    def _properties(self, path: str, object_id: _Thing) -> dict[str, Json]:
        """Return all properties but empty ones; those of the main interface come first."""
        main = self._names.main(object_id.interfaces)
        found: dict[str, Json] = {"object_path": path}
        for interface in (main, *sorted(object_id.interfaces.keys() - {main})):
            for name, value in object_id.interfaces[interface].items():
                field = field_name(name)
                if field in found:
                    field = f"{field_name(self._names.own(interface, main))}_{field}"
                found[field] = resolved(value, self._names.at)
        return {field: value for field, value in found.items() if value not in _EMPTY}


def _read(values: Mapping[str, Variant]) -> Iterator[tuple[str, Value]]:
    for name, variant in islice(values.items(), _MAX_PROPERTIES):
        with suppress(ValueError):
            yield name, value_of(variant)


def _size(value: Value) -> int:
    """Return the approximate size of a value in bytes."""
    # marshal rejects subclasses of str, such as Reference
    return sum(map(len, found)) if (found := references([value])) else len(marshal.dumps(value))
