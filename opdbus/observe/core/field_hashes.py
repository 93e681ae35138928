"""Hashes of an object's fields, to detect changes without keeping the values."""

import marshal
import secrets
from collections.abc import Mapping
from typing import Final

from opdbus.errors import InvalidArgs
from opdbus.state import publish
from opdbus.state.object import Json, digest

# Of an object before its secrets are replaced, which takes long: no less than what may be stored.
_MAX_BYTES: Final = 4 * publish.MAX_BYTES


class FieldHashes:
    """Makes hashes under a key that never leaves this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def of(self, properties: Mapping[str, Json]) -> dict[str, bytes]:
        """Hash each field; raises InvalidArgs for what would be too large anyway."""
        # newer formats of marshal depend on what else refers to a value
        plain = {name: marshal.dumps(value, 2) for name, value in properties.items()}
        if sum(map(len, plain.values())) > _MAX_BYTES:
            raise InvalidArgs(f"it has more than {publish.MAX_BYTES} bytes of properties")
        return {name: digest(data, self._key) for name, data in plain.items()}


def differing(some: Mapping[str, bytes], others: Mapping[str, bytes]) -> frozenset[str]:
    """Return the names of the fields that are not the same in both."""
    if some == others:  # most are, and this is much faster
        return frozenset()
    return frozenset(name for name, _ in some.items() ^ others.items())
