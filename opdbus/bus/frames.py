"""Messages as bytes: where each ends, and whose it is, before anything of it is decoded."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

# Of every message: byte order, type, flags, version, length of the body, serial, length of the
# header's fields (D-Bus specification, "Message Format").
FIXED: Final = 16
METHOD_CALL: Final = 1
METHOD_RETURN: Final = 2
ERROR: Final = 3
SIGNAL: Final = 4
NO_REPLY_EXPECTED: Final = 1
MAY_INTERACT: Final = 4

_PATH, _INTERFACE, _MEMBER, _SENDER, _SIGNATURE, _DESCRIPTORS = 1, 2, 3, 7, 8, 9
_LITTLE: Final = ord("l")
_ALIGNMENTS: Final = {"s": 4, "o": 4, "u": 4, "g": 1}


class Size(NamedTuple):
    """What a message is, and its bytes in all."""

    kind: int
    total: int


class Header(NamedTuple):
    """All that is said of a message before its body."""

    kind: int
    flags: int
    serial: int
    path: str
    interface: str
    member: str
    sender: str
    signature: str
    descriptors: int


def measure(data: bytes | bytearray, start: int = 0) -> Size:
    """Read the fixed part of a header, FIXED bytes from `start`; raises ValueError."""
    order, kind, _, version, body, _, fields = _fixed(data, start)
    if version != 1 or order not in "<>":
        raise ValueError("this is no D-Bus message")
    return Size(kind, FIXED + fields + (-fields & 7) + body)


def header(data: bytes | bytearray) -> Header:
    """Read the header of a message that is there at least as far as its body; raises ValueError."""
    order, kind, flags, _, _, serial, size = _fixed(data, 0)
    try:
        fields = _fields(data, order, FIXED + size)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the header of a message is damaged: {error}") from None
    return Header(
        kind=kind,
        flags=flags,
        serial=serial,
        path=str(fields.get(_PATH, "")),
        interface=str(fields.get(_INTERFACE, "")),
        member=str(fields.get(_MEMBER, "")),
        sender=str(fields.get(_SENDER, "")),
        signature=str(fields.get(_SIGNATURE, "")),
        descriptors=int(fields.get(_DESCRIPTORS, 0)),
    )


def header_size(data: bytes | bytearray, start: int = 0) -> int:
    """Give the bytes of a header, from the fixed part on."""
    fields = _fixed(data, start)[-1]
    return FIXED + fields + (-fields & 7)


def _fixed(data: bytes | bytearray, start: int) -> tuple[str, int, int, int, int, int, int]:
    order = "<" if data[start] == _LITTLE else ">"
    _, kind, flags, version, body, serial, fields = struct.unpack_from(
        f"{order}BBBBIII", data, start
    )
    return order, kind, flags, version, body, serial, fields


def _fields(data: bytes | bytearray, order: str, end: int) -> dict[int, str | int]:
    """Read the fields, an `a(yv)` of which each value is s, o, g or u."""
    found: dict[int, str | int] = {}
    at = FIXED
    while at < end:
        at += -at & 7
        code, kind = data[at], chr(data[at + 2])
        at += 4
        at += -at & (_ALIGNMENTS[kind] - 1)
        if kind == "u":
            found[code] = struct.unpack_from(f"{order}I", data, at)[0]
            at += 4
            continue
        size = data[at] if kind == "g" else struct.unpack_from(f"{order}I", data, at)[0]
        at += 1 if kind == "g" else 4
        found[code] = data[at : at + size].decode()
        at += size + 1
    return found
