"""All properties of an interface in encoded form; only changed ones are encoded again."""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final
from weakref import WeakKeyDictionary

from opdbus.bus.service.contract import InterfaceInfo
from opdbus.bus.service.node import BusInterface
from opdbus.bus.transport.messages import entry
from opdbus.bus.transport.values import Entries, Plain, Typed

# Numbers are at the end of their entries, in the byte order of the D-Bus library.
_NUMBERS: Final = {"u": Struct("<I"), "t": Struct("<Q"), "d": Struct("<d")}


class AllProperties:
    """Cached encoding of one interface's properties as dict entries."""

    def __init__(self, info: InterfaceInfo) -> None:
        self._info = info
        self._values: Mapping[str, Plain] = {}
        self._entries: dict[str, bytes] = {}
        self._data = b""

    def encoded(self, values: Mapping[str, Plain]) -> bytes:
        """Return the encoded entries; raise the library's errors for a value that does not fit.

        Lists and dicts among the values must never change.
        """
        if values != self._values:
            self._entries |= {
                name: self._entry(name, value)
                for name, value in values.items()
                if name not in self._values or value != self._values[name]
            }
            # a copy: an interface may change its mapping
            self._values = dict(values)
            self._data = joined(self._entries[name] for name in values)
        return self._data

    def _entry(self, name: str, value: Plain) -> bytes:
        signature = self._info.properties[name].signature
        if name in self._entries and (number := _NUMBERS.get(signature)):
            return self._entries[name][: -number.size] + number.pack(value)
        return entry(name, Typed(signature, value))


# By interface, for its lifetime: all callers get the same bytes.
_OF_INTERFACES: Final[WeakKeyDictionary[BusInterface, AllProperties]] = WeakKeyDictionary()


async def of_all(interfaces: Iterable[BusInterface]) -> Entries:
    """Return all properties of some interfaces."""
    parts = []
    for interface in interfaces:
        values = await interface.properties()
        if interface not in _OF_INTERFACES:
            _OF_INTERFACES[interface] = AllProperties(interface.info)
        parts.append(_OF_INTERFACES[interface].encoded(values))
    return Entries(joined(parts))


def joined(entries: Iterable[bytes]) -> bytes:
    """Join dict entries, each of which is aligned to 8 bytes."""
    data = bytearray()
    for each in entries:
        data += bytes(-len(data) % 8) + each
    return bytes(data)
