"""The state object: identity, properties and fingerprint."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, TypeAlias

# The value of a property: str, int, float, bool, None, and lists and dicts of them.
Json: TypeAlias = Any
# The plugin and the kind of an object.
KindId: TypeAlias = tuple[str, str]

# In bytes. A byte may take three in an object path; with these limits any reply has room for one
# object.
MAX_NAME: Final = {"plugin": 255, "kind": 255, "name": 1024}
DIGEST_BYTES: Final = 16
_HASH_NAME: Final = re.compile(r"~[0-9a-f]{12}(?:#\d+)?")
# The source of the state file, and the prefixes of other sources.
FILE = "file"
PUBLISHED = "publish:"
LIVE = "live:"
# The kind of the one object that holds the rest of a plugin.
SETTINGS = "settings"
# The plugin and the kind of systemd's units.
UNIT: Final = ("systemd", "unit")

# JSON has no cycles, so that the check is off.
_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=False,
    allow_nan=False,
    check_circular=False,
)


class ObjectId(NamedTuple):
    """Plugin, kind and name: an object that the state file may declare and programs may observe."""

    plugin: str
    kind: str
    name: str


class Identity(NamedTuple):
    """The identity of a state object; `source` is `file`, `publish:<name>` or `live:<observer>`."""

    source: str
    plugin: str
    kind: str
    name: str

    @property
    def object_id(self) -> ObjectId:
        """The object that this source reports."""
        return ObjectId(*self[1:])


def matches(named: Identity | ObjectId, wanted: Mapping[str, str]) -> bool:
    """Return whether an identity or object id has all wanted values, by field name."""
    return all(getattr(named, key) == value for key, value in wanted.items())


@dataclass(frozen=True, slots=True)
class StateObject:
    """A state object. Its properties hold no secrets: make it with `redact_object`."""

    identity: Identity
    properties: Mapping[str, Json]

    @property
    def plugin(self) -> str:
        """Return the plugin that the object belongs to."""
        return self.identity.plugin

    @property
    def kind(self) -> str:
        """Return its kind within the plugin."""
        return self.identity.kind

    @property
    def name(self) -> str:
        """Return its name, unique for its source, plugin and kind."""
        return self.identity.name

    def json(self) -> str:
        """Return the properties as canonical JSON."""
        return canonical(self.properties)

    def fingerprint(self) -> str:
        """Return the hash of identity and properties: 128 bits in hexadecimal."""
        return self.fingerprint_of(self.json())

    def fingerprint_of(self, content: str) -> str:
        """Return the fingerprint, given `json()`: this saves half of the time."""
        identity = ",".join(map(encode_basestring, self.identity))
        return digest(f"[{identity},{content}]".encode()).hex()


def canonical(value: Json) -> str:
    """Return a JSON value in canonical form: sorted keys, no spaces."""
    return _CANONICAL.encode(value)


def hash_name(content: str) -> str:
    """Return a name for an object without one, from its content."""
    return f"~{digest(content.encode()).hex()[:12]}"


def is_hash_name(name: str) -> bool:
    """Return whether a name was made by `hash_name`."""
    return bool(_HASH_NAME.fullmatch(name))


def digest(data: bytes, key: bytes = b"") -> bytes:
    """Return a hash of 16 bytes; collisions within one host do not occur in practice."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=key).digest()
