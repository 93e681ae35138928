"""Reader of udev's hardware database, hwdb.bin: names of vendors and models; see hwdb(7)."""

import re
import struct
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import read_at_most
from opdbus.observe.core.skipped import Skipped

# In order of precedence, as in systemd: only the first file that exists is read.
PLACES: Final = tuple(
    Path(folder, "hwdb.bin")
    for folder in "/etc/systemd/hwdb /etc/udev /usr/lib/systemd/hwdb /usr/lib/udev".split()
)
# The file of 2026 has 13 MiB.
_MAX_BYTES: Final = 64 << 20
_SIGNATURE: Final = b"KSLPHHRH"
# The header has the sizes of nodes, children and values, and the offset of the root.
_HEADER: Final = struct.Struct("<8s16xQQQQQ")
_NODE: Final = struct.Struct("<QB7xQ")
_CHILD: Final = struct.Struct("<B7xQ")
_VALUE: Final = struct.Struct("<QQ")
_MAX_TEXT: Final = 512
# Nodes visited in one lookup: a corrupt database may contain cycles.
_MAX_STEPS: Final = 50_000
_WILD: Final = re.compile(r"[*?\[]")


class Database:
    """A hardware database in memory. Corrupt parts yield no results."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._steps = 0
        self._root = 0
        if content[: len(_SIGNATURE)] == _SIGNATURE and len(content) >= _HEADER.size:
            _, _, self._node, self._child, self._value, self._root = _HEADER.unpack_from(content)

    @classmethod
    def read(cls, places: tuple[Path, ...] = PLACES, skipped: Skipped | None = None) -> "Database":
        """Read the first file that exists; return an empty database if there is none."""
        for path in places:
            try:
                content, is_cut = read_at_most(path, _MAX_BYTES)
            except OSError:
                continue
            found = cls(b"" if is_cut else content)
            if not found._root and skipped:
                skipped.file(path)
            return found
        return cls(b"")

    def find(self, modalias: str) -> Mapping[str, str]:
        """Return the properties of a device, such as ID_VENDOR_FROM_DATABASE."""
        if not self._root:
            return {}
        self._steps = 0
        found: dict[str, str] = {}
        try:
            for key, value in self._matching(self._root, "", modalias):
                # keys begin with a space
                found[self._text(key)[1:]] = self._text(value)
        except (struct.error, IndexError, OverflowError, RecursionError):
            return {}
        return found

    def _matching(self, offset: int, before: str, wanted: str) -> Iterator[tuple[int, int]]:
        """Yield the values of matching patterns below a node; `before` is the pattern above it."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise IndexError
        prefix, child_count, value_count = _NODE.unpack_from(self._content, offset)
        pattern = before + (self._text(prefix) if prefix else "")
        # only if the part before the first wildcard matches
        if not wanted.startswith(_WILD.split(pattern, maxsplit=1)[0]):
            return
        children = offset + self._node
        values = children + child_count * self._child
        if value_count and fnmatchcase(wanted, pattern):
            for number in range(min(value_count, _MAX_TEXT)):
                yield _VALUE.unpack_from(self._content, values + number * self._value)
        for number in range(child_count):
            char, child = _CHILD.unpack_from(self._content, children + number * self._child)
            yield from self._matching(child, pattern + chr(char), wanted)

    def _text(self, offset: int) -> str:
        text = self._content[offset : offset + _MAX_TEXT].partition(b"\0")[0]
        return text.decode(errors="replace")
