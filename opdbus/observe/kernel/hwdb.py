"""Reader of udev's hardware database, hwdb.bin: names of vendors and models; see hwdb(7)."""

import struct
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

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
_WILD: Final = frozenset("*?[")


class _Node(NamedTuple):
    """A node of the trie: its prefix, children (next character, offset) and values (key, value)."""

    prefix: str
    children: list[tuple[str, int]]
    values: list[tuple[int, int]]


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
        node = self._read(offset)
        pattern = before + node.prefix
        if not _may_match(pattern, wanted):
            return
        if node.values and fnmatchcase(wanted, pattern):
            yield from node.values
        for char, child in node.children:
            yield from self._matching(child, pattern + char, wanted)

    def _read(self, offset: int) -> _Node:
        prefix, count, value_count = _NODE.unpack_from(self._content, offset)
        at = offset + self._node
        children = [
            _CHILD.unpack_from(self._content, at + number * self._child) for number in range(count)
        ]
        at += count * self._child
        values = [
            _VALUE.unpack_from(self._content, at + number * self._value)
            for number in range(min(value_count, _MAX_TEXT))
        ]
        return _Node(
            self._text(prefix) if prefix else "",
            [(chr(char), child) for char, child in children],
            values,
        )

    def _text(self, offset: int) -> str:
        text = self._content[offset : offset + _MAX_TEXT].partition(b"\0")[0]
        return text.decode(errors="replace")


def _may_match(pattern: str, wanted: str) -> bool:
    """Return whether the part of a pattern before its first wildcard matches."""
    literal = next((at for at, char in enumerate(pattern) if char in _WILD), len(pattern))
    return wanted.startswith(pattern[:literal])
