"""The objects of a mirrored D-Bus service, kept current by its signals, with unique names."""

import hashlib
import marshal
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, takewhile
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from opdbus.bus.transport.library import Variant
from opdbus.observe.core.report import MAX_OBJECTS, Key
from opdbus.observe.core.system_bus import Signal
from opdbus.observe.dbus.mirror_table import (
    IDENTIFYING,
    LABELS,
    MAIN,
    NAMED_BY_PATH,
    NAMING,
    NOT_MIRRORED,
)
from opdbus.state.fields import split
from opdbus.state.object import Json
from opdbus.state.publish import MAX_BYTES
from opdbus.state.redact import decode_bytes, redact_text

STANDARD: Final = "org.freedesktop.DBus."
_ADDED: Final = f"{STANDARD}ObjectManager", "InterfacesAdded", "oa{sa{sv}}"
_REMOVED: Final = f"{STANDARD}ObjectManager", "InterfacesRemoved", "oas"
_CHANGED: Final = f"{STANDARD}Properties", "PropertiesChanged", "sa{sv}as"
# The most properties of one interface.
_MAX_PROPERTIES: Final = 500
# The most bytes of all objects: signals carry only changes, so that all values are held.
_MAX_ALL_BYTES: Final = 32 << 20
_MAX_NAME: Final = 512
# The version of an interface: the kind of BlueZ's Device1 is `device`.
_VERSION: Final = re.compile("(?:_|(?<![0-9_]))[0-9]+$")
# Byte strings longer than this that are not a path are shown as a digest.
_MAX_HEX: Final = 64
# PATH_MAX of Linux.
_MAX_TEXT: Final = 4096
_MAX_FIELD: Final = 255
# Acronyms in the plural, such as IDs and UUIDs, are one word.
_PLURAL: Final = re.compile("[A-Z]+s")
_EMPTY: Final[tuple[Json, ...]] = ("", [], {}, None)


class _Reference(str):
    """The path of another object."""

    __slots__ = ()


# The value of a property, or the path or paths that it refers to.
Value: TypeAlias = Json | _Reference | list[_Reference]


@dataclass(slots=True)
class _Object:
    """One object: its values by interface, its references, and the properties last reported."""

    interfaces: dict[str, dict[str, Value]] = field(default_factory=dict)
    referred: frozenset[str] = frozenset()
    reported: Mapping[str, Json] = field(default_factory=dict)
    size: int = 0


class MirroredObjects:
    """The objects of one service below a path, as state objects with names and properties.

    `apply`, `add` and `put` return the path of the object that they change, or "".
    """

    def __init__(self, service: str, plugin: str, top: str) -> None:
        self._names = _Names(service, plugin, top)
        self.top = top
        self._objects: dict[str, _Object] = {}
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
        return len(self._objects)

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
        what = signal.interface, signal.member, signal.signature
        if what == _ADDED:
            return self.add(*signal.body)
        if what == _REMOVED:
            return self._remove(*signal.body)
        if what == _CHANGED:
            return self._change(signal.path, *signal.body)
        if what[:2] == _CHANGED[:2] and not signal.body:
            self.leave_out("signals that are too large")
            return self._drop(signal.path)
        if what[:2] in {_ADDED[:2], _REMOVED[:2], _CHANGED[:2]}:
            self.leave_out("signals that cannot be read")
        return ""

    def add(self, path: str, interfaces: Mapping[str, Mapping[str, Variant]]) -> str:
        """Add an object, or interfaces of an object."""
        names = [name for name in interfaces if not name.startswith(STANDARD)]
        if not names:
            return ""
        if path not in self._objects:
            if path != self.top and not path.startswith(self.top.rstrip("/") + "/"):
                self.leave_out(f"objects that are not below {self.top}")
                return ""
            if len(self._objects) >= MAX_OBJECTS:
                self.is_full = True
                return ""
            self._objects[path] = _Object()
        for name in names:
            self.put(path, name, interfaces[name])
        return path

    def put(
        self, path: str, interface: str, values: Mapping[str, Variant], *, is_all: bool = True
    ) -> str:
        """Replace (`is_all`) or update the properties of an interface of a held object."""
        held = self._objects.get(path)
        if held is None:
            return ""
        before = held.interfaces.get(interface, {})
        new: dict[str, Value] = {}
        for name, variant in islice(values.items(), _MAX_PROPERTIES):
            with suppress(ValueError):
                new[name] = _to_value(variant)
        replaced = before if is_all else before.keys() & new.keys()
        more = sum(map(_size, new.values())) - sum(_size(before[name]) for name in replaced)
        held.interfaces[interface] = new if is_all else {**before, **new}
        held.size += more
        self._size += more
        if held.size > MAX_BYTES or self._size > _MAX_ALL_BYTES:
            self.leave_out("objects that are too large")
            return self._drop(path)
        self._update_references(path, held)
        return path

    def render_changes(self, path: str) -> Iterator[tuple[Key, Mapping[str, Json] | None]]:
        """Yield the changes since the last report; None as properties if the object is gone."""
        before, held = self._names.keys.get(path), self._objects.get(path)
        key = self._names.give(path, held.interfaces if held else {})
        if before and before != key:
            yield before, None
        yield from self._render(path, is_new=before != key)
        if before != key:
            for other in tuple(self._referring.get(path, ())):
                yield from self._render(other)

    def render_all(self) -> Iterator[tuple[Key, Mapping[str, Json]]]:
        """Yield all objects; they count as reported."""
        # in this order, an object comes after those above it, which its name may name
        paths = sorted(self._objects, key=lambda path: (len(path), path))
        for path in paths:
            self._names.give(path, self._objects[path].interfaces)
        for path in paths:
            yield from self._render(path, is_new=True)

    def _remove(self, path: str, interfaces: list[str]) -> str:
        held = self._objects.get(path)
        if held is None:
            return ""
        for name in interfaces:
            size = sum(map(_size, held.interfaces.pop(name, {}).values()))
            held.size -= size
            self._size -= size
        self._update_references(path, held)
        return path if held.interfaces else self._drop(path)

    def _drop(self, path: str) -> str:
        if held := self._objects.pop(path, None):
            self._size -= held.size
            held.interfaces = {}
            self._update_references(path, held)
        return path

    def _change(
        self, path: str, interface: str, values: Mapping[str, Variant], invalidated: list[str]
    ) -> str:
        held = self._objects.get(path)
        if held is None or interface.startswith(STANDARD):
            return ""
        is_held = interface in held.interfaces
        if invalidated or not is_held:
            self.stale[path, interface] = None
        return self.put(path, interface, values, is_all=False) if values and is_held else ""

    def _update_references(self, path: str, held: _Object) -> None:
        """Update the references of an object: it changes when an object it refers to is renamed."""
        values = (values.values() for values in held.interfaces.values())
        found = frozenset(_references(chain.from_iterable(values)))
        for gone in held.referred - found:
            self._referring[gone].discard(path)
            if not self._referring[gone]:
                del self._referring[gone]
        for new in found - held.referred:
            self._referring.setdefault(new, set()).add(path)
        held.referred = found

    def _render(
        self, path: str, *, is_new: bool = False
    ) -> Iterator[tuple[Key, Mapping[str, Json]]]:
        """Yield the object if it is new or its properties differ from the last report.

        Empty properties are left out; those of the main interface come first.
        """
        key = self._names.keys.get(path)
        if key is None:
            return
        held = self._objects[path]
        main = self._names.main(held.interfaces)
        found: dict[str, Json] = {"object_path": path}
        for interface in (main, *sorted(held.interfaces.keys() - {main})):
            for name, value in held.interfaces[interface].items():
                shown = _field_name(name)
                if shown in found:
                    short, of_main = self._names.short(interface), self._names.short(main)
                    shown = f"{_field_name(short.removeprefix(f'{of_main}.'))}_{shown}"
                found[shown] = _resolve(value, self._names.at)
        properties = {name: value for name, value in found.items() if value not in _EMPTY}
        if is_new or properties != held.reported:
            held.reported = properties
            yield key, properties


class _Names:
    """Names of the objects of one service, each made of the object and its place alone."""

    def __init__(self, service: str, plugin: str, top: str) -> None:
        self._service = service
        self._plugin = plugin
        # objects there are the service itself
        self._tops = (top, f"/{service.replace('.', '/')}")
        # kind and name of each mirrored object, by its path, and the reverse
        self.keys: dict[str, Key] = {}
        self._holders: dict[Key, str] = {}

    def at(self, path: str) -> str:
        """Return the name of the object at a path; the path if it has no name."""
        key = self.keys.get(path)
        return key.name if key else path

    def give(self, path: str, interfaces: Mapping[str, Mapping[str, Value]]) -> Key | None:
        """Name an object and return its key; without interfaces, free the name and return None."""
        if before := self.keys.pop(path, None):
            self._holders.pop(before, None)
        if not interfaces:
            return None
        main = self.main(interfaces)
        kind = _VERSION.sub("", _field_name(self.short(main)))
        if (self._plugin, kind) in NOT_MIRRORED:
            return None
        name = self._name(path, interfaces[main], by_path=(self._plugin, kind) in NAMED_BY_PATH)
        # two at different places have one name only if the service gives both one address
        key = next(k for n in (name, path) if (k := Key(kind, n)) not in self._holders or n == path)
        self.keys[path], self._holders[key] = key, path
        return key

    def _name(self, path: str, values: Mapping[str, Value], *, by_path: bool) -> str:
        """Return the value that names an object, with what tells it from others with this value.

        That is an identifier or the object's place: the end of its path and of those above it.
        """
        above = PurePosixPath(path).parents
        inside = list(takewhile(lambda p: str(p) in self.keys and not self._is_top(p), above))
        ends = [parent.name for parent in reversed(inside)]
        place = "/".join([*ends, PurePosixPath(path).name or self._plugin])
        named = {
            key: value
            for key in (*NAMING, *IDENTIFYING)
            if type(value := values.get(key)) is str and 0 < len(value) <= _MAX_NAME
        }
        by = next(filter(NAMING.__contains__, named), "")
        if by_path or not by:
            return place
        name = PurePosixPath(named[by]).stem if named[by].startswith("/") else named[by]
        other = next((named[key] for key in IDENTIFYING if key in named), "")
        if by in LABELS:
            other = other or place
        elif by == "Address":
            other = "/".join(ends)
        elif by != "Id":
            other = ""
        return f"{name} ({other})" if other not in {"", name} else name

    def _is_top(self, path: PurePosixPath) -> bool:
        return any(PurePosixPath(top).is_relative_to(path) for top in self._tops)

    def main(self, interfaces: Iterable[str]) -> str:
        """Return the interface that determines an object's kind."""

        def rank(interface: str) -> tuple[int, bool, int, str]:
            short = self.short(interface)
            main = MAIN.index(short) if short in MAIN else len(MAIN)
            is_foreign = not interface.startswith(self._service)
            return main, is_foreign, short.count("."), interface

        return min(interfaces, key=rank)

    def short(self, interface: str) -> str:
        """Return the name of an interface without that of the service."""
        own = interface.removeprefix(self._service + ".")
        return own if own != interface else interface.rpartition(".")[2]


def _size(value: Value) -> int:
    """Return the approximate size of a value in bytes."""
    # marshal rejects subclasses of str, such as _Reference
    return sum(map(len, found)) if (found := _references([value])) else len(marshal.dumps(value))


def _to_value(variant: Variant) -> Value:
    """Return the value of a property; raises ValueError for file descriptors."""
    signature, value = variant.signature, variant.value
    if signature == "o":
        return _Reference(value)
    if signature == "ao":
        return [_Reference(path) for path in value]
    if "h" in signature:
        raise ValueError("an open file")
    return _to_json(value)


def _references(values: Iterable[Value]) -> set[str]:
    """Return the paths that values refer to."""
    found: set[str] = set()
    for value in values:
        if type(value) is _Reference:
            found.add(value)
        elif type(value) is list and value and type(value[0]) is _Reference:
            found.update(value)
    return found


def _resolve(value: Value, name_at: Callable[[str], str]) -> Json:
    """Return a value with references replaced by names; a reference to "/" is empty."""
    if type(value) is _Reference:
        return name_at(str(value)) if value != "/" else ""
    if type(value) is list and value and type(value[0]) is _Reference:
        return [name_at(str(path)) for path in value]
    return value


@lru_cache(maxsize=4096)
def _field_name(name: str) -> str:
    """Return a D-Bus property name in snake case: IdLabel becomes id_label.

    Secrets are redacted first, since they would not be recognised in lower case.
    """
    clean = redact_text(name[:_MAX_FIELD])
    if clean != name or not name.replace(".", "_").isidentifier():
        return clean or "?"
    return name.lower() if _PLURAL.fullmatch(name) else "_".join(split(name)) or name


def _to_json(value: Any) -> Json:  # noqa: ANN401 -- whatever D-Bus carries
    if isinstance(value, Variant):
        return _to_json(value.value)
    if isinstance(value, bytes):
        return _decode_bytes(value)
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    return value


def _decode_bytes(data: bytes) -> str:
    """Return bytes as text if they are a path or short text; else in hexadecimal or as a digest."""
    text = data.removesuffix(b"\0")
    if text != data and b"\0" not in text and len(text) <= _MAX_TEXT:
        return text.decode(errors="backslashreplace")
    if len(data) <= _MAX_HEX:
        return decode_bytes(data)
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:32]}"
