"""Conversion of the state file's plugins into state objects, by one rule for all plugins."""

from __future__ import annotations

import itertools
import marshal
import secrets
import struct
from array import array
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from opdbus.platform.slices import batches
from opdbus.state.object import (
    FILE,
    MAX_NAME,
    SETTINGS,
    Identity,
    ObjectId,
    StateObject,
    canonical,
    digest,
    hash_name,
)
from opdbus.state.redact import redact_identity, redact_name, redact_properties
from opdbus.state.secret_text import suspects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opdbus.state.object import Json

    # plugin, kind, name (None if there is none), and properties
    Raw: TypeAlias = tuple[str, str, str | None, Json]

# An element of a list is named by the first of these keys that it has. Without any, its name is a
# hash of its content, which does not change with its place in the list.
NAMING_KEYS: Final = tuple("name id unit path address key label host url mountpoint".split())

# The key that declares a kind complete; see `find_claims`.
EXCLUSIVE: Final = "exclusive"
_MARK: Final = struct.Struct("q")
# Names that are searched for secrets together.
_TOGETHER: Final = 250
# The most bytes of a character in UTF-8.
_WIDEST: Final = 4
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
    """Return the kind of the objects listed under a key: interfaces -> interface."""
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


def plural(kind: str) -> str:
    """Return the key under which objects of a kind are listed; empty if there is none."""
    keys = f"{kind}s", f"{kind[:-1]}ies", f"{kind}es", kind
    return next((key for key in keys if singular(key) == kind), "")


def flatten(plugins: Mapping[str, Mapping[str, Json]]) -> Iterator[Raw]:
    """Yield every object that the plugins declare.

    A list of dicts gives one object per element, a dict of dicts one per key, and the rest of a
    plugin becomes its one object of kind `settings`. Names may repeat or be missing.
    """
    for plugin, content in plugins.items():
        rest = {}
        for key, value in content.items():
            if key == EXCLUSIVE and isinstance(value, bool | list) and not is_table(value):
                continue
            if is_table(value):
                kind = singular(key)
                is_dict = isinstance(value, dict)
                for name, member in value.items() if is_dict else map(_name_element, value):
                    yield plugin, kind, name, member
            elif value not in ({}, []):
                rest[key] = value
        if rest:
            yield plugin, SETTINGS, plugin, rest


def find_claims(plugins: Mapping[str, Mapping[str, Json]]) -> frozenset[tuple[str, str]]:
    """Return the (plugin, kind) pairs of which the plugins declare all objects.

    `"exclusive": true` claims all tables beside it; a list of keys claims the tables of these keys.
    """
    claims = set()
    for plugin, content in plugins.items():
        keys = content.get(EXCLUSIVE)
        if keys is True:
            keys = [key for key, value in content.items() if is_table(value) or value in ({}, [])]
        if isinstance(keys, list) and not is_table(keys):
            claims |= {(plugin, singular(str(key))) for key in keys}
    return frozenset(claims)


def is_table(value: Json) -> bool:
    """Return whether a value is a non-empty list of dicts or dict of dicts, and not a setting."""
    if not isinstance(value, dict | list) or not value:
        return False
    members = value.values() if isinstance(value, dict) else value
    return all(isinstance(member, dict) for member in members)


def find_member(
    plugins: Mapping[str, Mapping[str, Json]], object_id: ObjectId
) -> tuple[str | int, ...]:
    """Return the path of a declared object below the plugins; empty if it is not found."""
    plugin, kind, name = object_id
    content = plugins.get(plugin, {})
    for key, value in content.items():
        if is_table(value) and singular(key) == kind:
            names = value if isinstance(value, dict) else (_name_element(one)[0] for one in value)
            for at, (member, found) in enumerate(zip(value, names, strict=True)):
                if found == name:
                    return plugin, key, member if isinstance(value, dict) else at
    return (plugin,) if content and (kind, name) == (SETTINGS, plugin) else ()


def find_table(plugins: Mapping[str, Mapping[str, Json]], plugin: str, kind: str) -> str:
    """Return the key of a plugin's table of a kind, or the key that such a table would have."""
    tables = (key for key, value in plugins.get(plugin, {}).items() if is_table(value) or not value)
    return next((key for key in tables if singular(key) == kind), plural(kind))


def _name_element(element: Mapping[str, Json]) -> tuple[str | None, Json]:
    """Return the name of a list's element, None if it has no naming key, and the element."""
    for key in NAMING_KEYS:
        value = element.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value), element
    return None, element


class Reader:
    """Converter of declared objects to StateObjects; skips those unchanged since the last call.

    The memory of the last call holds 8 bytes per object: a hash under a random key that is never
    written to disk, so that it reveals no secret.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        # sorted
        self._seen = array("q")

    def read(
        self, plugins: Mapping[str, Mapping[str, Json]]
    ) -> tuple[set[Identity], list[StateObject]]:
        """Return the identities of all objects, and the objects that are new or changed."""
        present, changed = self.stream(plugins)
        return present, list(changed)

    def stream(
        self, plugins: Mapping[str, Mapping[str, Json]], *, are_known: bool = False
    ) -> tuple[set[Identity], Iterator[StateObject]]:
        """Return the same, but the objects one by one; they count as read after the last one.

        Redaction of 100,000 objects takes seconds. With `are_known`, all objects count as read at
        once.
        """
        groups: dict[Identity, list[Json]] = {}
        for some in batches(flatten(plugins), _TOGETHER):
            suspected = suspects([name for _, _, name, _ in some if name])
            for plugin, kind, name, properties in some:
                clean = redact_name(name) if name and name in suspected else name
                groups.setdefault(_identity(plugin, kind, clean, properties), []).append(properties)
        marked = [
            (self._mark(identity, properties), identity, properties)
            for identity, properties in _distinct(groups)
        ]
        seen = array("q", sorted(mark for mark, _, _ in marked))
        if are_known:
            self._seen = seen

        def changed() -> Iterator[StateObject]:
            for mark, identity, properties in marked:
                at = bisect_left(self._seen, mark)
                if at == len(self._seen) or self._seen[at] != mark:
                    yield StateObject(identity, redact_properties(identity, properties))
            self._seen = seen

        return {identity for _, identity, _ in marked}, changed()

    def _mark(self, identity: Identity, properties: Json) -> int:
        """Return a 64-bit keyed hash of an object's identity and properties."""
        (mark,) = _MARK.unpack_from(digest(_dump((*identity, properties)), self._key))
        return int(mark)

    def forget(self) -> None:
        """Treat every object as changed at the next call."""
        self._seen = array("q")

    def state_for_recall(self) -> tuple[bytes, bytes]:
        """Return the key and the hashes, for `recall` in another process."""
        return self._key, self._seen.tobytes()

    def recall(self, key: bytes, seen: bytes) -> None:
        """Restore the key and hashes of another reader."""
        self._key, self._seen = key, array("q", seen)


def _dump(value: Json) -> bytes:
    # version 2: the output of newer versions depends on reference counts
    return marshal.dumps(value, 2)


def _identity(plugin: str, kind: str, name: str | None, properties: Json) -> Identity:
    """Return the identity of an object; its name, if any, must be free of secrets."""
    identity = Identity(*_clean_kind(plugin, kind), _cut(name or "", MAX_NAME["name"]))
    if name is not None:
        return identity
    return identity._replace(name=hash_name(canonical(redact_properties(identity, properties))))


def _distinct(groups: Mapping[Identity, list[Json]]) -> Iterator[tuple[Identity, Json]]:
    """Yield objects with distinct names: repeated ones get ordinals in order of their content."""
    for identity, group in groups.items():
        free: Iterator[Identity] = iter([identity])
        if len(group) > 1:
            group.sort(key=lambda each: (canonical(redact_properties(identity, each)), _dump(each)))
            names = (identity._replace(name=f"{identity.name}#{n}") for n in itertools.count(2))
            free = itertools.chain(free, (name for name in names if name not in groups))
        for properties in group:
            yield next(free), properties


@lru_cache(maxsize=64)
def _clean_kind(plugin: str, kind: str) -> tuple[str, str, str]:
    """Return the source, plugin and kind of declared objects, redacted and bounded."""
    return bound(redact_identity(Identity(FILE, plugin, kind, "")))[:3]


def bound(identity: Identity) -> Identity:
    """Cut names that are too long for an object path; a hash keeps cut names distinct."""
    named = zip(identity[1:], MAX_NAME.values(), strict=True)
    return Identity(identity.source, *(_cut(part, most) for part, most in named))


def _cut(part: str, most: int) -> str:
    if len(part) * _WIDEST <= most:
        return part
    data = part.encode()
    if len(data) <= most:
        return part
    mark = f"~{digest(data).hex()[:16]}"
    return data[: most - len(mark)].decode(errors="ignore") + mark
