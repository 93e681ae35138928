"""Validation of objects that programs publish, and their conversion to state objects."""

import marshal
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from opdbus.errors import InvalidArgs
from opdbus.state.object import MAX_NAME, PUBLISHED, Identity, Json, ObjectId, StateObject
from opdbus.state.redact import decode_bytes, redact_object, redact_text
from opdbus.state.secret_names import is_secret_name

# Plugin, kind, name and properties.
Published: TypeAlias = tuple[str, str, str, Mapping[str, Json]]

# Property that names those by which an object is described in its text, and the most of them.
DESCRIBED_BY: Final = "described_by"
MAX_DESCRIBED_BY: Final = 16
MAX_SHOWN: Final = 64
MAX_BYTES: Final = 256 << 10
# The most bytes of JSON for a byte of marshal's format: a control character is `\u0001`.
_MOST_BYTES: Final = 6
# The quotient that bounds the JSON size from below, for lists of small numbers.
_LEAST_SHARE: Final = 3
# Half of the nesting that D-Bus allows.
MAX_DEPTH: Final = 32
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def source(name: str) -> str:
    """Return the source of objects that are published under a name; raises InvalidArgs."""
    if not _SOURCE.fullmatch(name):
        raise InvalidArgs(
            f"{name!r} cannot name a source: use 1 to 64 letters, digits, dots, dashes and"
            " underscores, a letter or digit first"
        )
    return PUBLISHED + name


def describe(objects: Sequence[Published], keys: Sequence[Json]) -> list[Published]:
    """Return objects with the names of the properties that describe them; raises InvalidArgs.

    An object that names some itself keeps these.
    """
    if len(keys) > MAX_DESCRIBED_BY or not all(isinstance(key, str) and key for key in keys):
        raise InvalidArgs(f"describe takes up to {MAX_DESCRIBED_BY} names of properties")
    known = {name for *_, properties in objects for name in properties}
    for key in keys:
        if not any(f"{key}.".startswith(f"{name}.") for name in known):
            raise InvalidArgs(f"describe names {key[:MAX_SHOWN]!r}, which no object has")
        if is_secret_name(key.rpartition(".")[2]):
            raise InvalidArgs(f"describe names {key[:MAX_SHOWN]!r}, whose values are hidden")
    return [
        (plugin, kind, name, {DESCRIBED_BY: [*keys], **properties})
        for plugin, kind, name, properties in objects
    ]


def make_object(
    publisher: str, plugin: str, kind: str, name: str, properties: Mapping[str, Json]
) -> StateObject:
    """Return the state object of a published object; raises InvalidArgs."""
    object_id = ObjectId(plugin, kind, name)
    for (what, most), value in zip(MAX_NAME.items(), object_id, strict=True):
        if not value:
            raise InvalidArgs(
                f"the {what} of the object '{_shorten(object_id)}' is empty: give one"
            )
        if len(value.encode()) > most:
            raise InvalidArgs(f"the {what} of {_shorten(object_id)} must have at most {most} bytes")
    item = redact_object(Identity(publisher, *object_id), _json(dict(properties), object_id, 1))
    # a bound on the size suffices for most objects; the exact size takes longer
    about = len(marshal.dumps(dict(item.properties), 2))
    if _MOST_BYTES * about > MAX_BYTES:
        size = about // _LEAST_SHARE
        if size <= MAX_BYTES:
            size = len(item.json().encode())
        if size > MAX_BYTES:
            raise InvalidArgs(
                f"{_shorten(object_id)} has {size} bytes of properties, or more:"
                f" {MAX_BYTES} at most"
            )
    return item


def _shorten(object_id: ObjectId) -> str:
    """Return an object's name for an error message: shortened and without secrets."""
    return "/".join(redact_text(part)[:MAX_SHOWN] for part in object_id)


def _json(value: Json, object_id: ObjectId, depth: int) -> Json:
    """Convert a D-Bus value to JSON.

    Bytes become text, or hexadecimal digits if they are none; numbers that are not finite become
    strings as in protobuf's JSON mapping.
    """
    if isinstance(value, str):
        # surrogates, from file names that are not UTF-8, cannot be stored or sent
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, dict | list | tuple) and depth > MAX_DEPTH:
        raise InvalidArgs(
            f"{_shorten(object_id)} has properties nested deeper than {MAX_DEPTH} levels"
        )
    if isinstance(value, dict):
        return {
            _json(str(key), object_id, depth): _json(item, object_id, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_json(item, object_id, depth + 1) for item in value]
    if isinstance(value, bytes):
        return decode_bytes(value)
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return value
