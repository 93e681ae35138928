"""Names to object paths and back: reversible, as sd_bus_path_encode(3) does it."""

import re
import string
from functools import lru_cache
from typing import Final

from opdbus.errors import UnknownObject

ROOT: Final = "/org/opdbus"
STATE: Final = "/org/opdbus/state"
HISTORY: Final = "/org/opdbus/history"
JOBS: Final = "/org/opdbus/job"
# where systemctl looks for it
LOG_CONTROL: Final = "/org/freedesktop/LogControl1"
# The nodes that are there whatever is in memory.
FIXED: Final = ("/", "/org", "/org/freedesktop", LOG_CONTROL, ROOT)

# Paths of things, a few MiB of them: a long list of new ones stops the loop for 2 us each.
_REMEMBERED: Final = 1 << 14

_PLAIN: Final = string.ascii_letters + string.digits
# More than the longest name that an observer reports takes, three characters a byte.
_LONGEST: Final = 64 << 10
# each byte, read as Latin-1, that is not itself in a path
_ESCAPES: Final = {byte: f"_{byte:02x}" for byte in range(256) if chr(byte) not in _PLAIN}
_ESCAPED = re.compile(r"_([0-9a-f]{2})")
_PART = re.compile(r"(?:[A-Za-z]|_[0-9a-f]{2})(?:[A-Za-z0-9]|_[0-9a-f]{2})*|_")


def escape(name: str) -> str:
    """Escape a name into one element of an object path; the empty name is `_`."""
    if not name:
        return "_"
    if name.isascii() and name.isalpha():  # most plugins and kinds: a path takes half the time
        return name
    escaped = name.encode().decode("latin-1").translate(_ESCAPES)
    return f"_{ord(escaped[0]):02x}{escaped[1:]}" if escaped[0].isdigit() else escaped


def unescape(element: str) -> str:
    """Give the name that `escape` made an element of; raises ValueError if it made none."""
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
    """Give the object path of a thing."""
    return f"{STATE}/{escape(plugin)}/{escape(kind)}/{escape(name)}"


def parse(path: str) -> tuple[str, str, str]:
    """Give plugin, kind and name of an object path; raises UnknownObject."""
    # a longer one is of nothing, and reading it would hold up all others
    parts = path.removeprefix(STATE + "/").split("/") if len(path) <= _LONGEST else ()
    try:
        plugin, kind, name = (unescape(part) for part in parts)
    except ValueError:
        raise UnknownObject(
            f"{path[:_LONGEST]} is not the path of a state object: they are"
            f" {STATE}/PLUGIN/KIND/NAME"
        ) from None
    return plugin, kind, name
