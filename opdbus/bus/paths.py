"""Conversion of names to object paths and back, reversible, as sd_bus_path_encode(3) does it."""

import re
import string
from functools import lru_cache
from typing import Final

from opdbus.errors import UnknownObject

ROOT: Final = "/org/opdbus"
STATE: Final = "/org/opdbus/state"
HISTORY: Final = "/org/opdbus/history"
JOBS: Final = "/org/opdbus/job"
# the path that systemctl uses
LOG_CONTROL: Final = "/org/freedesktop/LogControl1"
# Nodes that exist whatever the state store has.
FIXED: Final = ("/", "/org", "/org/freedesktop", LOG_CONTROL, ROOT)

# Cached paths of objects, a few MiB: each new one takes 2 us.
_REMEMBERED: Final = 1 << 14

_PLAIN: Final = string.ascii_letters + string.digits
# Longer than any observed name at three characters a byte.
_LONGEST: Final = 64 << 10
# escapes of the bytes, as Latin-1 characters, that may not stand in a path
_ESCAPES: Final = {byte: f"_{byte:02x}" for byte in range(256) if chr(byte) not in _PLAIN}
_ESCAPED = re.compile(r"_([0-9a-f]{2})")
_PART = re.compile(r"(?:[A-Za-z]|_[0-9a-f]{2})(?:[A-Za-z0-9]|_[0-9a-f]{2})*|_")


def escape(name: str) -> str:
    """Escape a name into one element of an object path; the empty name becomes `_`."""
    if not name:
        return "_"
    if name.isascii() and name.isalpha():  # most plugins and kinds: half the time for a path
        return name
    escaped = name.encode().decode("latin-1").translate(_ESCAPES)
    return f"_{ord(escaped[0]):02x}{escaped[1:]}" if escaped[0].isdigit() else escaped


def unescape(element: str) -> str:
    """Return the name of an escaped element; raise ValueError if `escape` cannot have made it."""
    if not _PART.fullmatch(element):
        raise ValueError(element)
    if element == "_":
        return ""
    parts = _ESCAPED.split(element)
    data = b"".join(
        bytes([int(part, 16)]) if odd % 2 else part.encode() for odd, part in enumerate(parts)
    )
    name = data.decode()
    if escape(name) != element:
        raise ValueError(element)
    return name


@lru_cache(_REMEMBERED)
def of(plugin: str, kind: str, name: str) -> str:
    """Return the object path of a state object."""
    return f"{STATE}/{escape(plugin)}/{escape(kind)}/{escape(name)}"


def parse(path: str) -> tuple[str, str, str]:
    """Return the plugin, kind and name of an object path; raise UnknownObject."""
    # no object has a longer path, and parsing it would delay other calls
    parts = path.removeprefix(STATE + "/").split("/") if len(path) <= _LONGEST else ()
    try:
        plugin, kind, name = (unescape(part) for part in parts)
    except ValueError:
        raise UnknownObject(
            f"{path[:_LONGEST]} is not the path of a state object: they are"
            f" {STATE}/PLUGIN/KIND/NAME"
        ) from None
    return plugin, kind, name
