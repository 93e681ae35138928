"""Values of D-Bus as properties of mirrored objects: bytes as text, paths as references."""

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from opdbus.bus.transport.library import Variant
from opdbus.state.fields import split
from opdbus.state.object import Json
from opdbus.state.redact import redact_text

# Of bytes that are no path: more are shown as a digest.
_MAX_HEX: Final = 64
# As long as a path can be (PATH_MAX of Linux).
_MAX_TEXT: Final = 4096
_MAX_NAME: Final = 255
# IDs and UUIDs: an abbreviation, and more of them.
_PLURAL: Final = re.compile("[A-Z]+s")


class Reference(str):
    """The path of another object."""

    __slots__ = ()


# What a property may be: a value, or what it refers to.
Value: TypeAlias = Json | Reference | list[Reference]


def value_of(variant: Variant) -> Value:
    """Return the value of a property; raises ValueError for one that means nothing elsewhere."""
    signature, value = variant.signature, variant.value
    if signature == "o":
        return Reference(value)
    if signature == "ao":
        return [Reference(path) for path in value]
    if "h" in signature:
        raise ValueError("an open file")
    return _plain(value)


def references(values: Iterable[Value]) -> set[str]:
    """Return the paths that values refer to."""
    found: set[str] = set()
    for value in values:
        if type(value) is Reference:
            found.add(value)
        elif type(value) is list and value and type(value[0]) is Reference:
            found.update(value)
    return found


def resolved(value: Value, name_at: Callable[[str], str]) -> Json:
    """Return a value in which references are the names of what they refer to; "/" is nothing."""
    if type(value) is Reference:
        return name_at(str(value)) if value != "/" else ""
    if type(value) is list and value and type(value[0]) is Reference:
        return [name_at(str(path)) for path in value]
    return value


@lru_cache(maxsize=4096)
def field_name(name: str) -> str:
    """Return a name of a service as our fields are named: IdLabel is id_label.

    A secret in it is replaced before: in other letters nobody would know it.
    """
    clean = redact_text(name[:_MAX_NAME])
    if clean != name or not name.replace(".", "_").isidentifier():
        return clean or "?"
    return name.lower() if _PLURAL.fullmatch(name) else "_".join(split(name)) or name


def _plain(value: Any) -> Json:  # noqa: ANN401 -- whatever D-Bus carries
    if isinstance(value, Variant):
        return _plain(value.value)
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _text(data: bytes) -> str:
    """Return bytes as text where they are a path or a short text, long ones as a digest."""
    text = data.removesuffix(b"\0")
    most = _MAX_TEXT if text != data else _MAX_HEX
    if len(text) <= most and b"\0" not in text:
        shown = text.decode(errors="backslashreplace")
        if text != data or (shown.isprintable() and "\\x" not in shown):
            return shown
    if len(data) <= _MAX_HEX:
        return data.hex()
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:32]}"
