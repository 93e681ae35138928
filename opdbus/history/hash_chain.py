"""The hash chain of rows: each hash covers a row and the hash before; a tree covers them all.

The tree is that of RFC 6962: its root authenticates any number of rows in 32 bytes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from opdbus.state.object import Json, canonical

SALT_BYTES: Final = 16
_START: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: the number of rows ever added, the last hash, the tree's frontier.

    The frontier has the root of each full subtree, the largest first: one for each 1 bit of `seq`.
    """

    seq: int = 0
    hash: bytes = _START
    frontier: Sequence[bytes] = field(default=())

    def root(self) -> bytes:
        """Return the root over all rows (32 bytes)."""
        return root_of(self.frontier)


def grow(frontier: list[bytes], size: int, row: bytes) -> None:
    """Add the hash of a row, in place, to the frontier of a tree of `size` rows."""
    node = _sha(b"\0", row)
    while size & 1:
        node = _sha(b"\1", frontier.pop(), node)
        size >>= 1
    frontier.append(node)


def extend(frontier: list[bytes], size: int, number: int, row: bytes) -> None:
    """Add row `number` to the frontier of a tree of `size` rows; missing rows hash as empty."""
    for seq in range(size, number - 1):
        grow(frontier, seq, b"")
    grow(frontier, number - 1, row)


def root_of(frontier: Sequence[bytes]) -> bytes:
    """Return the root over all rows of a tree (32 bytes), as RFC 6962 defines it."""
    if not frontier:
        return hashlib.sha256().digest()
    *rest, root = frontier
    for node in reversed(rest):
        root = _sha(b"\1", node, root)
    return root


def row_hash(before: bytes, row: Sequence[Json]) -> bytes:
    """Return the hash of a row (32 bytes); `before` is the hash of the row before."""
    return _sha(b"\0", before, canonical(row).encode())


def values_digest(salt: bytes, fields: str) -> bytes:
    """Return the digest of a row's fields (32 bytes); the salt prevents guessing of values."""
    return _sha(salt, fields.encode())


def _sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()
