"""The state object: one named thing of a host, with its properties, source and fingerprint."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, TypeAlias

# The value of a property: str, int, float, bool, None, and lists and dicts of them.
Json: TypeAlias = Any

# In bytes; each takes up to three in a path, so that any reply has room for one object.
MAX_NAME: Final = {"plugin": 255, "kind": 255, "name": 1024}
DIGEST_BYTES: Final = 16
_HASH_NAME: Final = re.compile(r"~[0-9a-f]{12}(?:#\d+)?")
# What begins a source, unless it is the state file.
FILE = "file"
PUBLISHED = "publish:"
LIVE = "live:"
# The kind of the one object that holds the rest of a plugin.
SETTINGS = "settings"

# JSON has no circles, so none is looked for.
_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=False,
    allow_nan=False,
    check_circular=False,
)


class Identity(NamedTuple):
    """The identity of a state object; `source` is `file`, `publish:<name>` or `live:<observer>`."""

    source: str
    plugin: str
    kind: str
    name: str


class ObjectId(NamedTuple):
    """What an object path names: a file may declare it, and programs may observe it."""

    plugin: str
    kind: str
    name: str


def matches(named: Identity | ObjectId, wanted: Mapping[str, str]) -> bool:
    """Return whether an identity or a thing has all wanted values, such as of plugin and kind."""
    return all(getattr(named, key) == value for key, value in wanted.items())


@dataclass(frozen=True, slots=True)
class StateObject:
    """One state object. Its properties hold no secrets: `redact_object` makes it."""

    identity: Identity
    properties: Mapping[str, Json]

    @property
    def plugin(self) -> str:
        """The plugin that the object belongs to."""
        return self.identity.plugin

    @property
    def kind(self) -> str:
        """Its kind within the plugin."""
        return self.identity.kind

    @property
    def name(self) -> str:
        """Its name, unique for its source, plugin and kind."""
        return self.identity.name

    def json(self) -> str:
        """Return the properties as canonical JSON."""
        return canonical(self.properties)

    def fingerprint(self) -> str:
        """Return the hash (hex, 128 bits) of identity and properties."""
        return self.fingerprint_of(self.json())

    def fingerprint_of(self, content: str) -> str:
        """Return the same of its properties as canonical JSON, which takes half of the time."""
        identity = ",".join(map(encode_basestring, self.identity))
        return digest(f"[{identity},{content}]".encode()).hex()


def canonical(value: Json) -> str:
    """Write a JSON value in one canonical form: sorted keys, no spaces."""
    return _CANONICAL.encode(value)


def hash_name(content: str) -> str:
    """Make a name for an object that has none, from its content."""
    return f"~{digest(content.encode()).hex()[:12]}"


def is_hash_name(name: str) -> bool:
    """Return whether `hash_name` made a name, which then has no meaning for people."""
    return bool(_HASH_NAME.fullmatch(name))


def digest(data: bytes, key: bytes = b"") -> bytes:
    """Hash to 16 bytes, at which no two objects of one host collide in practice."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=key).digest()
