"""The hash chain of rows: each hash covers a row and the hash before, and so all rows before."""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from opdbus.state.object import Json, canonical

SALT_BYTES: Final = 16
_START: Final = bytes(32)


class Head(NamedTuple):
    """The end of a chain: the number of rows ever added, and the last hash (32 bytes)."""

    seq: int = 0
    hash: bytes = _START


def row_hash(before: bytes, row: Sequence[Json]) -> bytes:
    """Return the hash of a row (32 bytes); `before` is the hash of the row before."""
    return _sha(b"\0", before, canonical(row).encode())


def values_digest(salt: bytes, fields: str) -> bytes:
    """Return the digest of a row's fields (32 bytes); the salt prevents guessing of values."""
    return _sha(salt, fields.encode())


def _sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()
