"""One generic rule turns any plugin's part of the state file into state objects."""

from __future__ import annotations

import marshal
import secrets
from typing import TYPE_CHECKING, Final

from opdbus.state.object import FILE, MAX_NAME, SETTINGS, Identity, digest
from opdbus.state.redact import redact_identity, redact_object

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, MutableMapping

    from opdbus.state.object import Json, StateObject

__all__ = ["NAMING_KEYS", "SETTINGS", "Reader", "flatten", "singular"]

# An element of a list is named by the first of these that it has.
NAMING_KEYS: Final = ("name", "id", "unit", "path", "address")

_IRREGULAR: Final = {
    "aliases": "alias",
    "indices": "index",
    "matrices": "matrix",
    "vertices": "vertex",
    "caches": "cache",
    "causes": "cause",
    "clauses": "clause",
    "series": "series",
    "status": "status",
    "dns": "dns",
}


def singular(word: str) -> str:
    """Give the kind of the things listed under a key: interfaces -> interface."""
    lower = word.lower()
    if lower in _IRREGULAR:
        return _IRREGULAR[lower]
    if lower.endswith("ies") and len(word) > len("ties"):
        return word[:-3] + "y"
    if lower.endswith(("sses", "xes", "ches", "shes", "zzes", "uses")):
        return word[:-2]
    if lower.endswith("s") and not lower.endswith(("ss", "us", "is")) and len(word) > 1:
        return word[:-1]
    return word


def flatten(plugins: Mapping[str, Mapping[str, Json]]) -> Iterator[tuple[Identity, Json]]:
    """Yield the identity and raw properties of every object that the plugins declare.

    A list of dicts gives an object per element, a dict of dicts one per key, and whatever is
    left of a plugin becomes its one object of kind `settings`. Identities may repeat.
    """
    for plugin, content in plugins.items():
        rest = {}
        for key, value in content.items():
            if _is_table(value):
                yield from _table(plugin, singular(key), value)
            elif value not in ({}, []):
                rest[key] = value
        if rest:
            yield Identity(FILE, plugin, SETTINGS, plugin), rest


def _is_table(value: Json) -> bool:
    """Tell a list of dicts, or a dict of dicts, from a mere setting."""
    if not isinstance(value, dict | list) or not value:
        return False
    members = value.values() if isinstance(value, dict) else value
    return all(isinstance(member, dict) for member in members)


def _table(plugin: str, kind: str, table: Json) -> Iterator[tuple[Identity, Json]]:
    if isinstance(table, dict):
        for name, properties in table.items():
            yield Identity(FILE, plugin, kind, name), properties
        return
    for index, properties in enumerate(table):
        yield Identity(FILE, plugin, kind, _name(properties, index)), properties


def _name(properties: Mapping[str, Json], index: int) -> str:
    for key in NAMING_KEYS:
        value = properties.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return str(index)


class Reader:
    """Makes StateObjects of raw ones, skipping those that have not changed since the last call.

    What was read is remembered as a hash under a random key that never leaves this process, so
    the memory holds no secret; 10,000 unchanged objects cost a tenth of what new ones do.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._seen: dict[Identity, bytes] = {}

    def read(
        self, plugins: Mapping[str, Mapping[str, Json]]
    ) -> tuple[set[Identity], list[StateObject]]:
        """Give the identities of all objects, and those objects that are new or changed."""
        seen: dict[Identity, bytes] = {}
        ordinals: dict[Identity, int] = {}
        changed = []
        for raw_identity, properties in flatten(plugins):
            # What was an identity before holds no secret: redacting it changes nothing.
            known = raw_identity in self._seen
            named = raw_identity if known else _bounded(redact_identity(raw_identity))
            identity = _unique(named, seen, ordinals)
            # Newer formats of marshal depend on who else refers to a value.
            hashed = digest(marshal.dumps(properties, 2), self._key)
            if self._seen.get(identity) != hashed:
                changed.append(redact_object(identity, properties))
            seen[identity] = hashed
        self._seen = seen
        return set(seen), changed

    def forget(self) -> None:
        """Take every object as changed at the next call."""
        self._seen = {}


def _bounded(identity: Identity) -> Identity:
    """Cut names that are longer than a path may hold; a hash keeps what was cut apart."""
    named = zip(identity[1:], MAX_NAME.values(), strict=True)
    return Identity(identity.source, *(_cut(part, most) for part, most in named))


def _cut(part: str, most: int) -> str:
    data = part.encode()
    if len(data) <= most:
        return part
    mark = f"~{digest(data).hex()[:16]}"
    return data[: most - len(mark)].decode(errors="ignore") + mark


def _unique(
    identity: Identity, taken: Container[Identity], ordinals: MutableMapping[Identity, int]
) -> Identity:
    """Tell two things of one name apart: the second gets its ordinal.

    `ordinals` holds the next one of each name: all before it are taken and need no look again.
    """
    unique = identity
    while unique in taken:
        ordinal = ordinals.get(identity, 2)
        ordinals[identity] = ordinal + 1
        unique = identity._replace(name=f"{identity.name}#{ordinal}")
    return unique
