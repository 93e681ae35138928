"""Message headers, parsed without the body, and bodies, decoded and divided by our own code."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from opdbus.bus.transport.values import split

# Bytes of the fixed part of a header: byte order, type, flags, version, length of the body, serial,
# length of the header's fields (D-Bus specification, "Message Format").
FIXED: Final = 16
METHOD_CALL: Final = 1
SIGNAL: Final = 4
NO_REPLY_EXPECTED: Final = 1
NO_AUTO_START: Final = 2
MAY_INTERACT: Final = 4

_LITTLE, _BIG = b"lB"
# The fixed part of a header, and a number, by byte order.
_STARTS: Final = {order: struct.Struct(f"{order}BBBBIII") for order in "<>"}
_NUMBERS: Final = {order: struct.Struct(f"{order}I") for order in "<>"}
# Codes of the header fields that are read.
_PATH, _INTERFACE, _MEMBER, _REPLY_SERIAL = 1, 2, 3, 5
_SENDER, _SIGNATURE, _DESCRIPTORS = 7, 8, 9
_KNOWN_FIELDS: Final = range(1, 10)
# A header with more bytes or fields is not read, and its message is dropped.
MAX_HEADER: Final = 4 << 20
_MAX_FIELDS: Final = 8192
# The fields of calls of one kind from one client are the same bytes, and are parsed once.
_CACHED_HEADERS: Final = 512
_CACHED_BYTES: Final = 512
_STRINGS: Final = frozenset("sog")
_FIXED_SIZES: Final = {
    "y": 1, "b": 4, "n": 2, "q": 2, "i": 4, "u": 4, "h": 4, "x": 8, "t": 8, "d": 8,
}  # fmt: skip
_ALIGNMENTS: Final = {
    **_FIXED_SIZES, "s": 4, "o": 4, "a": 4, "g": 1, "v": 1, "(": 8, "{": 8,
}  # fmt: skip
# Codes of `struct` that differ from those of D-Bus.
_CODES: Final = {"b": "I", "n": "h", "q": "H", "u": "I", "h": "I", "x": "q", "t": "Q", "y": "B"}
# The deepest nesting that a bus allows (D-Bus specification, "Valid Signatures").
_MAX_DEPTH: Final = 64


class NoMessage(ValueError):
    """Bytes that are no message; the start of the next message is unknown."""


class Size(NamedTuple):
    """The bytes of a message's header, and of the whole message."""

    header: int
    total: int


class Header(NamedTuple):
    """The header of a message; `has_unknown` if it has fields that the specification lacks."""

    kind: int
    flags: int
    serial: int
    path: str
    interface: str
    member: str
    sender: str
    signature: str
    reply_serial: int
    descriptors: int
    has_unknown: bool = False


def measure(data: bytes | bytearray, start: int = 0) -> Size:
    """Parse the fixed part of a header, FIXED bytes from `start`; raise NoMessage."""
    _, _, _, version, body, _, fields = _fixed(data, start)
    if version != 1 or data[start] not in {_LITTLE, _BIG}:
        raise NoMessage("this is no D-Bus message")
    header = FIXED + fields + (-fields & 7)
    return Size(header, header + body)


def parse_header(data: bytes | bytearray) -> Header:
    """Parse a complete header; raise ValueError."""
    order, kind, flags, _, _, serial, size = _fixed(data, 0)
    fields = bytes(data[FIXED : FIXED + size])
    if size > MAX_HEADER:
        raise ValueError("the header of a message is too large")
    parse = _parse_fields_cached if size <= _CACHED_BYTES else _parse_fields
    try:
        return Header(kind, flags, serial, *parse(fields, order))
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the header of a message is damaged: {error}") from None


def drop_unknown_fields(data: bytes | bytearray) -> bytes:
    """Return a message without unknown header fields, as the specification wants them ignored.

    dbus-daemon removes them, dbus-broker does not, and the D-Bus library refuses the message.
    """
    order, *_, size = _fixed(data, 0)
    fields, kept = bytes(data[FIXED : FIXED + size]), bytearray()
    for code, start, end in _locate_fields(fields, order):
        if code in _KNOWN_FIELDS:
            kept += bytes(-len(kept) % 8) + fields[start:end]
    fixed = bytearray(data[:FIXED])
    struct.pack_into(f"{order}I", fixed, FIXED - 4, len(kept))
    return bytes(fixed + kept + bytes(-len(kept) % 8) + data[measure(data).header :])


def split_dict(data: bytes | bytearray, size: int) -> Iterator[bytes]:
    """Split a message whose body is one dict into messages with at least `size` bytes of it.

    Raises ValueError if the message is damaged.
    """
    begin = at = measure(data).header + 8
    order, signature = _fixed(data, 0)[0], parse_header(data).signature[1:]
    try:
        end = min(begin + _length(data, order, begin - 8), len(data))
        while at < end:
            # an entry that ends after its dict makes the part undecodable
            at = min(_skip_value(data, order, signature, at), end)
            if at - begin >= size or at == end:
                yield _part(data, order, begin, at)
                begin = at + (-at & 7)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a dict is damaged: {error}") from None


def _part(data: bytes | bytearray, order: str, begin: int, end: int) -> bytes:
    """Return a message with some entries of a dict; entries stay aligned to 8 bytes."""
    start = bytearray(data[: measure(data).header])
    struct.pack_into(f"{order}I", start, 4, end - begin + 8)
    return bytes(start) + struct.pack(f"{order}II", end - begin, 0) + data[begin:end]


def decode_body(data: bytes | bytearray) -> list[Any]:
    """Decode the values of a message, without variants; raise ValueError.

    The D-Bus library holds the GIL for up to 0.2 s a MiB; during this function other threads run.
    """
    order, at, values = _fixed(data, 0)[0], measure(data).header, []
    try:
        for kind in split(parse_header(data).signature):
            value, at = _decode_value(data, order, kind, at)
            values.append(value)
    except (IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"a value is damaged: {error}") from None
    return values


def _decode_value(
    data: bytes | bytearray, order: str, kind: str, at: int, depth: int = 0
) -> tuple[Any, int]:
    """Decode one value of a complete type; return it and the offset after it."""
    code = kind[0]
    if code in _STRINGS:
        start, size = _string(data, order, code, at)
        return data[start : start + size].decode(), start + size + 1
    if depth > _MAX_DEPTH:
        raise IndexError("it is nested too deep")
    if code == "v":
        kind, at = _signature(data, at)
        (kind,) = split(kind)
        return _decode_value(data, order, kind, at, depth + 1)
    at = _align(at, kind)
    if code in _FIXED_SIZES:
        (value,) = struct.unpack_from(order + _CODES.get(code, code), data, at)
        return bool(value) if code == "b" else value, at + _FIXED_SIZES[code]
    if code == "a":
        return _decode_array(data, order, kind[1:], at, depth + 1)
    values = []
    for item in split(kind[1:-1]):
        value, at = _decode_value(data, order, item, at, depth + 1)
        values.append(value)
    return values, at


def _decode_array(
    data: bytes | bytearray, order: str, kind: str, at: int, depth: int
) -> tuple[Any, int]:
    """Decode an array, which starts with its size; return the items and the offset after it."""
    end = _length(data, order, at)
    at = _align(at + 4, kind)
    end += at
    if end > len(data):
        raise IndexError("an array is longer than its message")
    if kind == "y":
        return bytes(data[at:end]), end
    item = f"({kind[1:-1]})" if kind[0] == "{" else kind
    items = []
    while at < end:
        value, at = _decode_value(data, order, item, at, depth)
        items.append(value)
        if len(items) > len(data):
            raise IndexError("items without a size")
    return dict(items) if kind[0] == "{" else items, end


def _fixed(data: bytes | bytearray, start: int) -> tuple[str, int, int, int, int, int, int]:
    order = "<" if data[start] == _LITTLE else ">"
    _, kind, flags, version, body, serial, fields = _STARTS[order].unpack_from(data, start)
    return order, kind, flags, version, body, serial, fields


def _parse_fields(data: bytes, order: str) -> tuple[Any, ...]:
    """Return the values of a Header after its serial from its fields."""
    found: dict[int, Any] = {}
    has_unknown = False
    for code, start, _ in _locate_fields(data, order):
        if code not in _KNOWN_FIELDS:
            has_unknown = True
            continue
        kind, at = _signature(data, start + 1)
        if kind in _STRINGS:
            at, size = _string(data, order, kind, at)
            found[code] = data[at : at + size].decode()
        elif kind == "u":
            found[code] = _length(data, order, _align(at, kind))
    strings = (str(found.get(code, "")) for code in (_PATH, _INTERFACE, _MEMBER, _SENDER))
    numbers = (int(found.get(code, 0)) for code in (_REPLY_SERIAL, _DESCRIPTORS))
    return *strings, str(found.get(_SIGNATURE, "")), *numbers, has_unknown


_parse_fields_cached = lru_cache(_CACHED_HEADERS)(_parse_fields)


def _locate_fields(data: bytes, order: str) -> Iterator[tuple[int, int, int]]:
    """Yield the code, start and end of each header field in an `a(yv)` without its size."""
    at = count = 0
    while at < len(data):
        at += -at & 7
        start = at
        kind, at = _signature(data, at + 1)
        at = _skip_value(data, order, kind, at)
        yield data[start], start, at
        count += 1
        if count > _MAX_FIELDS:
            raise IndexError("it has too many fields")


def _signature(data: bytes | bytearray, at: int) -> tuple[str, int]:
    """Return the signature at an offset, and the offset after it."""
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("ascii"), end + 1


def _string(data: bytes | bytearray, order: str, kind: str, at: int) -> tuple[int, int]:
    """Return the offset and size of a string's text, which a zero byte follows."""
    if kind == "g":
        return at + 1, data[at]
    at += -at & 3
    return at + 4, _length(data, order, at)


def _align(at: int, kind: str) -> int:
    return at + (-at & (_ALIGNMENTS[kind[0]] - 1))


def _skip_value(
    data: bytes | bytearray, order: str, signature: str, at: int, depth: int = 0
) -> int:
    """Return the offset after one value of a complete type."""
    if depth > _MAX_DEPTH:
        raise IndexError("it is nested too deep")
    kind, at = signature[0], _align(at, signature)
    if kind in _FIXED_SIZES:
        return at + _FIXED_SIZES[kind]
    if kind in _STRINGS:
        start, size = _string(data, order, kind, at)
        return start + size + 1
    if kind == "a":
        # the size does not include the padding before the first element
        return _align(at + 4, signature[1:]) + _length(data, order, at)
    if kind == "v":
        inner, at = _signature(data, at)
        return _skip_value(data, order, inner, at, depth + 1)
    for member in split(signature[1:-1]):
        at = _skip_value(data, order, member, at, depth + 1)
    return at


def _length(data: bytes | bytearray, order: str, at: int) -> int:
    found: int = _NUMBERS[order].unpack_from(data, at)[0]
    return found
