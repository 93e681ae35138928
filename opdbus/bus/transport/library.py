"""The D-Bus library: dbus-fast, or dbus-next if only that is installed."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("dbus_fast"):
    from dbus_fast import BusType, Message, MessageFlag, MessageType, Variant
    from dbus_fast._private.address import get_bus_address, parse_address
    from dbus_fast._private.unmarshaller import Unmarshaller
    from dbus_fast.errors import InvalidAddressError
    from dbus_fast.validators import is_object_path_valid
else:
    from dbus_next import BusType, Message, MessageFlag, MessageType, Variant
    from dbus_next._private.address import get_bus_address, parse_address
    from dbus_next._private.unmarshaller import Unmarshaller
    from dbus_next.errors import InvalidAddressError
    from dbus_next.validators import is_object_path_valid

__all__ = [
    "BusType",
    "InvalidAddressError",
    "Message",
    "MessageFlag",
    "MessageType",
    "Variant",
    "decode",
    "encode",
    "get_bus_address",
    "is_object_path_valid",
    "parse_address",
]


def decode(data: bytes | bytearray) -> Message:
    """Decode one whole message; raise the library's errors if it is damaged."""
    reader = Unmarshaller(io.BytesIO(data))  # type: ignore[arg-type]
    reader.unmarshall()
    if reader.message is None:
        raise ValueError("the message is incomplete")
    return reader.message


def encode(message: Message) -> bytes:
    """Encode a message; raise TypeError, ValueError or similar if a value does not fit."""
    return bytes(message._marshall(True))  # noqa: FBT003 -- the library has no public name
