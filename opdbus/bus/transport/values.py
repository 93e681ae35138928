"""Conversion of D-Bus values to plain Python values and back."""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.library import Variant, is_object_path_valid
from opdbus.errors import InvalidArgs

# Any value that D-Bus can carry, without variants.
Plain: TypeAlias = Any

# Errors of the library for values that do not fit their signature.
UNFIT: Final = (TypeError, ValueError, OverflowError, AttributeError, struct.error)
# Cached signatures: clients may send any of at most 255 characters.
_SIGNATURES: Final = 256
# The types in most variants, which contain no other variants.
_BASIC: Final[dict[type, str]] = {str: "s", float: "d", bool: "b", bytes: "ay"}


class Typed(NamedTuple):
    """A value for a variant of exactly this type."""

    signature: str
    value: Plain


@lru_cache(_SIGNATURES)
def split(signature: str) -> tuple[str, ...]:
    """Split a signature into single complete types: `sa{sv}` into `s` and `a{sv}`."""
    types, start, depth = [], 0, 0
    for index, code in enumerate(signature):
        depth += (code in "({") - (code in ")}")
        if depth == 0 and code != "a":
            types.append(signature[start : index + 1])
            start = index + 1
    return tuple(types)


def take_descriptors(
    signature: str, body: Sequence[Plain], descriptors: Sequence[Descriptor]
) -> list[Plain]:
    """Replace descriptor indexes in a message's values by descriptors; raise InvalidArgs."""
    values = list(body)
    if "h" not in signature:
        return values
    for place, kind in enumerate(split(signature)):
        if kind != "h":
            continue
        if not values[place] < len(descriptors):
            raise InvalidArgs(
                f"argument {place + 1} names the descriptor {values[place]}, counted from 0, of the"
                f" {len(descriptors)} that came with the message"
            )
        values[place] = descriptors[values[place]]
    return values


def from_wire(value: Plain) -> Plain:
    """Return a received value with variants replaced by their values."""
    if isinstance(value, Variant):
        value = value.value
        return value if type(value) in _BASIC else from_wire(value)
    if isinstance(value, list | tuple):
        return [item if type(item) in _BASIC else from_wire(item) for item in value]
    if isinstance(value, dict):
        # keys cannot be variants
        return {key: from_wire(item) for key, item in value.items()}
    return value


def to_wire(signature: str, value: Plain) -> Plain:
    """Return a value with variants where the signature has them, and structs as lists.

    dbus-next accepts structs only as lists.
    """
    if "v" not in signature and "(" not in signature:
        return value
    if signature == "v":
        return variant(value)
    if signature.startswith("a{"):
        _, item = split(signature[2:-1])
        return {key: to_wire(item, held) for key, held in value.items()}
    if signature.startswith("a"):
        # the common case, possibly thousands of items
        if "v" not in signature and "(" not in signature[2:]:
            return list(map(list, value))
        return [to_wire(signature[1:], item) for item in value]
    types = split(signature[1:-1])
    return [to_wire(s, item) for s, item in zip(types, value, strict=True)]


def variant(value: Plain) -> Variant:
    """Return a variant of the D-Bus type of a Python value; raise InvalidArgs if it has none."""
    if basic := _BASIC.get(type(value)):
        return Variant(basic, value)
    signature, value = value if isinstance(value, Typed) else (_signature_of(value), value)
    return Variant(signature, to_wire(signature, value))


def _signature_of(value: Plain) -> str:
    """Return the signature of a value whose exact type is not in _BASIC."""
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise InvalidArgs(f"the number {value} does not fit into 64 bits: give it as a string")
        return "x" if value < 1 << 63 else "t"
    if isinstance(value, dict):
        return "a{sv}"
    if isinstance(value, list | tuple):
        return "as" if value and all(isinstance(item, str) for item in value) else "av"
    if basic := next((basic for kind, basic in _BASIC.items() if isinstance(value, kind)), ""):
        return basic
    raise InvalidArgs(f"{value!r} cannot be sent over D-Bus: it has no such type")


def require_sendable(values: Sequence[tuple[str, Plain]]) -> None:
    """Raise ValueError for values that the library sends but the bus disconnects for."""
    for signature, value in values:
        if signature == "o" and not is_object_path_valid(value):
            raise ValueError(f"{value!r} is not an object path")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a string holds a NUL character")
        inner = signature[1:] if signature == "ao" else ""
        if isinstance(value, dict):
            require_sendable([("", item) for item in (*value, *value.values())])
        elif isinstance(value, list | tuple):
            require_sendable([(inner, item) for item in value])
