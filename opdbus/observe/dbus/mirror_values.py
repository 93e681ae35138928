"""D-Bus values as properties of mirrored objects: bytes as text, object paths as references."""

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from opdbus.bus.transport.library import Variant
from opdbus.state.fields import split
from opdbus.state.object import Json
from opdbus.state.redact import redact_text

# Byte strings longer than this that are not a path are shown as a digest.
_MAX_HEX: Final = 64
# PATH_MAX of Linux.
_MAX_TEXT: Final = 4096
_MAX_NAME: Final = 255
# Acronyms in the plural, such as IDs and UUIDs, are one word.
_PLURAL: Final = re.compile("[A-Z]+s")


class Reference(str):
    """The path of another object."""

    __slots__ = ()


# The value of a property, or the path or paths that it refers to.
Value: TypeAlias = Json | Reference | list[Reference]


def value_of(variant: Variant) -> Value:
    """Return the value of a property; raises ValueError for file descriptors."""
    signature, value = variant.signature, variant.value
    if signature == "o":
        return Reference(value)
    if signature == "ao":
        return [Reference(path) for path in value]
    if "h" in signature:
        raise ValueError("an open file")
    return _to_json(value)


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
    """Return a value with references replaced by names; a reference to "/" is empty."""
    if type(value) is Reference:
        return name_at(str(value)) if value != "/" else ""
    if type(value) is list and value and type(value[0]) is Reference:
        return [name_at(str(path)) for path in value]
    return value


@lru_cache(maxsize=4096)
def field_name(name: str) -> str:
    """Return a D-Bus property name in snake case: IdLabel becomes id_label.

    Secrets are redacted first, since they would not be recognised in lower case.
    """
    clean = redact_text(name[:_MAX_NAME])
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
    most = _MAX_TEXT if text != data else _MAX_HEX
    if len(text) <= most and b"\0" not in text:
        shown = text.decode(errors="backslashreplace")
        if text != data or (shown.isprintable() and "\\x" not in shown):
            return shown
    if len(data) <= _MAX_HEX:
        return data.hex()
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:32]}"
