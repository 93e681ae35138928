"""All properties of an interface, of which only those are encoded that have changed."""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final
from weakref import WeakKeyDictionary

from opdbus.bus.service.contract import InterfaceInfo
from opdbus.bus.service.node import BusInterface
from opdbus.bus.transport.messages import entry
from opdbus.bus.transport.values import Entries, Plain, Typed

# Numbers end their entries; the library encodes in this order of bytes.
_NUMBERS: Final = {"u": Struct("<I"), "t": Struct("<Q"), "d": Struct("<d")}


class AllProperties:
    """Encodes the properties of one interface again and again, as entries of a dict."""

    def __init__(self, info: InterfaceInfo) -> None:
        self._info = info
        self._values: Mapping[str, Plain] = {}
        self._entries: dict[str, bytes] = {}
        self._data = b""

    def encoded(self, values: Mapping[str, Plain]) -> bytes:
        """Encode all of them; raises what the library raises where one does not fit.

        A list or dict among the values must never change any more.
        """
        if values != self._values:
            self._entries |= {
                name: self._entry(name, value)
                for name, value in values.items()
                if name not in self._values or value != self._values[name]
            }
            # a copy: an interface may change its own
            self._values = dict(values)
            self._data = joined(self._entries[name] for name in values)
        return self._data

    def _entry(self, name: str, value: Plain) -> bytes:
        signature = self._info.properties[name].signature
        if name in self._entries and (number := _NUMBERS.get(signature)):
            return self._entries[name][: -number.size] + number.pack(value)
        return entry(name, Typed(signature, value))


# As long as each interface is there: all that ask for its properties get the same bytes.
_OF_INTERFACES: Final[WeakKeyDictionary[BusInterface, AllProperties]] = WeakKeyDictionary()


async def of_all(interfaces: Iterable[BusInterface]) -> Entries:
    """Give all properties of some interfaces."""
    parts = []
    for interface in interfaces:
        values = await interface.properties()
        if interface not in _OF_INTERFACES:
            _OF_INTERFACES[interface] = AllProperties(interface.info)
        parts.append(_OF_INTERFACES[interface].encoded(values))
    return Entries(joined(parts))


def joined(entries: Iterable[bytes]) -> bytes:
    """Join entries of a dict, each of which begins at 8 bytes."""
    data = bytearray()
    for each in entries:
        data += bytes(-len(data) % 8) + each
    return bytes(data)
