"""The state object: one named thing of a host, with its properties, source and fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a property can hold: str, int, float, bool, None, list and dict of them.
Json: TypeAlias = Any

# In bytes, of which a path has up to three for each: an answer about one object fits any reply.
MAX_NAME: Final = {"plugin": 255, "kind": 255, "name": 1024}
_HASH_NAME: Final = re.compile(r"~[0-9a-f]{12}(?:#\d+)?")
FILE = "file"
# The kind of the one object that holds what is left of a plugin.
SETTINGS = "settings"


class Identity(NamedTuple):
    """What tells one state object from all others."""

    source: str
    plugin: str
    kind: str
    name: str


class Thing(NamedTuple):
    """What has one object path: a file may declare it and programs may observe it."""

    plugin: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class StateObject:
    """One state object; its properties hold no secrets, since only `redact` lets them in."""

    identity: Identity
    properties: Mapping[str, Json]

    @property
    def plugin(self) -> str:
        """The plugin that the object belongs to."""
        return self.identity.plugin

    @property
    def kind(self) -> str:
        """The kind of thing it is within its plugin."""
        return self.identity.kind

    @property
    def name(self) -> str:
        """Its name, unique within source, plugin and kind."""
        return self.identity.name

    @property
    def source(self) -> str:
        """Where it was read: `file`, `publish:<name>` or `live:<observer>`."""
        return self.identity.source

    def json(self) -> str:
        """Give the properties as canonical JSON: sorted keys, no spaces."""
        return canonical(self.properties)

    def fingerprint(self) -> str:
        """Give the hash (hex, 128 bits) of identity and properties."""
        return digest(canonical([*self.identity, self.properties]).encode()).hex()


def canonical(value: Json) -> str:
    """Write a JSON value in its one canonical form."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def hash_name(content: str) -> str:
    """Make a name for what has none of its own."""
    return f"~{digest(content.encode()).hex()[:12]}"


def is_hash_name(name: str) -> bool:
    """Return whether `hash_name` may have made a name, which then says nothing to people."""
    return bool(_HASH_NAME.fullmatch(name))


def digest(data: bytes, key: bytes = b"") -> bytes:
    """Hash to 16 bytes: enough that no two objects of one host ever collide."""
    return hashlib.blake2b(data, digest_size=16, key=key).digest()
