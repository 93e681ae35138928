"""Values to the bytes of D-Bus messages and back, sound or not: nothing here is checked."""

import struct
from typing import Any, NamedTuple

FIXED = {"y": "B", "b": "I", "n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d"}
FIXED |= {"h": "I"}
ALIGNED = {"n": 2, "q": 2, "s": 4, "o": 4, "a": 4, "g": 1, "v": 1, "(": 8, "{": 8, "y": 1}
ALIGNED |= dict.fromkeys("biuh", 4) | dict.fromkeys("xtd", 8)
CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
NO_REPLY, NO_START, INTERACTIVE = 1, 2, 4
PATH, INTERFACE, MEMBER, ERROR_NAME, REPLY_SERIAL, DESTINATION, SENDER, SIGNATURE, UNIX_FDS = range(
    1, 10
)
TYPES = {PATH: "o", REPLY_SERIAL: "u", SIGNATURE: "g", UNIX_FDS: "u"}


class Variant(NamedTuple):
    """A value that says what type it has."""

    signature: str
    value: Any


class Message(NamedTuple):
    """A message that came in; `fields` are those of its header, by number."""

    kind: int
    flags: int
    serial: int
    fields: dict[int, Any]
    data: bytes

    @property
    def signature(self) -> str:
        """The types of the body."""
        return str(self.fields.get(SIGNATURE, ""))

    @property
    def error(self) -> str:
        """The name of the error that this is, or nothing."""
        return str(self.fields.get(ERROR_NAME, ""))

    def body(self) -> list[Any]:
        """Give the values."""
        return Reader(self.data).all(self.signature)


def split(signature: str) -> list[str]:
    """Split a signature into single complete types."""
    types, start, depth = [], 0, 0
    for index, code in enumerate(signature):
        depth += (code in "({") - (code in ")}")
        if depth == 0 and code != "a":
            types.append(signature[start : index + 1])
            start = index + 1
    return types


def encode(signature: str, values: Any) -> bytes:
    """Give values as a message's body, little-endian."""
    out = bytearray()
    for kind, value in zip(split(signature), values, strict=True):
        _put(out, kind, value)
    return bytes(out)


def message(
    fields: dict[int, Any], body: bytes, serial: int, *, kind: int = CALL, flags: int = 0
) -> bytes:
    """Give a whole message; fields of the header by number."""
    head = [(number, Variant(TYPES.get(number, "s"), v)) for number, v in fields.items()]
    out = bytearray(struct.pack("<cBBBII", b"l", kind, flags, 1, len(body), serial))
    _put(out, "a(yv)", head)
    _pad(out, 8)
    return bytes(out) + body


def call_fields(
    path: str, interface: str, member: str, signature: str, descriptors: int = 0
) -> dict[int, Any]:
    """Give the header's fields of a call to the daemon; what is empty is left out."""
    fields = {
        PATH: path,
        DESTINATION: "org.opdbus",
        INTERFACE: interface,
        MEMBER: member,
        SIGNATURE: signature,
        UNIX_FDS: descriptors,
    }
    return {number: value for number, value in fields.items() if value}


def decode(data: bytes) -> Message:
    """Read a whole message."""
    kind, flags, _, length, serial = struct.unpack_from("<BBBII", data, 1)
    reader = Reader(data, 12)
    fields = {number: variant.value for number, variant in reader.value("a(yv)")}
    return Message(kind, flags, serial, fields, data[len(data) - length :])


def size_of(head: bytes) -> int:
    """Give the length of the message that begins with these 16 bytes."""
    body, _, fields = struct.unpack_from("<III", head, 4)
    return int(16 + (fields + 7 & ~7) + body)


def _pad(out: bytearray, alignment: int) -> None:
    out += bytes(-len(out) % alignment)


def _put(out: bytearray, kind: str, value: Any) -> None:
    _pad(out, ALIGNED[kind[0]])
    if kind in FIXED:
        out += struct.pack("<" + FIXED[kind], value)
    elif kind in "so":
        data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        out += struct.pack("<I", len(data)) + data + b"\0"
    elif kind == "g":
        out += bytes([len(value)]) + value.encode() + b"\0"
    elif kind == "v":
        _put(out, "g", value.signature)
        _put(out, value.signature, value.value)
    elif kind[0] == "a":
        _put_array(out, kind[1:], value)
    else:
        for inner, item in zip(split(kind[1:-1]), value, strict=True):
            _put(out, inner, item)


def _put_array(out: bytearray, kind: str, value: Any) -> None:
    at = len(out)
    out += bytes(4)
    _pad(out, ALIGNED[kind[0]])
    start = len(out)
    if kind == "y" or isinstance(value, bytes):
        # arrays of a million things are given as the bytes of these
        out += bytes(value)
    else:
        for item in value.items() if isinstance(value, dict) else value:
            _put(out, kind, item)
    struct.pack_into("<I", out, at, len(out) - start)


class Reader:
    """Reads values one after the other."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self._at = offset

    def all(self, signature: str) -> list[Any]:
        """Give the values of these types."""
        return [self.value(kind) for kind in split(signature)]

    def value(self, kind: str) -> Any:
        """Give the next value; a variant stays one."""
        self._at += -self._at % ALIGNED[kind[0]]
        if kind in FIXED:
            return self._fixed("<" + FIXED[kind])
        if kind in "sog":
            return self._text(self._fixed("<B" if kind == "g" else "<I"))
        if kind == "v":
            return self._variant()
        return self._array(kind[1:]) if kind[0] == "a" else tuple(self.all(kind[1:-1]))

    def _fixed(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _text(self, length: int) -> str:
        self._at += length + 1
        return self._data[self._at - length - 1 : self._at - 1].decode()

    def _variant(self) -> Variant:
        signature = self.value("g")
        return Variant(signature, self.value(signature))

    def _array(self, kind: str) -> Any:
        length = self._fixed("<I")
        self._at += -self._at % ALIGNED[kind[0]]
        end = self._at + length
        if kind == "y":
            self._at = end
            return self._data[end - length : end]
        items = []
        while self._at < end:
            items.append(self.value(kind))
        return dict(items) if kind[0] == "{" else items
