"""Secrets in new objects are replaced before anything is hashed, stored or sent."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from opdbus.state.object import SETTINGS, Identity, Json, StateObject
from opdbus.state.secret_names import is_naming, is_plural, is_secret_name
from opdbus.state.secret_patterns import KEY_MATERIAL
from opdbus.state.secret_text import (
    REDACTED,
    flags_of,
    hide_in_text,
    is_key_material,
    is_secret_value,
    suspects,
)

VERSION: Final = 1

# {"name": "DB_PASSWORD", "value": "x"}: keys of the name, and keys of the value.
_NAME_KEYS: Final = frozenset(
    "name key variable env header field option param parameter setting property attribute".split()
)
_VALUE_KEYS: Final = frozenset("value values val default data content current argument".split())

_MAX_ROUNDS: Final = 5
_MAX_KEY: Final = 100
_NAME = re.compile(r"[\w .-]{1,100}")
# Under these keys there may be what another key declares secret.
_DECLARED: Final = _VALUE_KEYS | {"stringdata"}
# An element of a command line or of a list of variables that is an assignment as a whole.
_ASSIGNMENT = re.compile(r"(-[\w.-]+|[A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)


def redact_text(text: str) -> str:
    """Replace every part of a string that looks like a secret; JSON is redacted as JSON."""
    # a replacement may complete another pattern, so this is repeated until nothing changes
    for _ in range(_MAX_ROUNDS):
        clean = hide_in_text(_redact_json(text))
        if clean == text:
            break
        text = clean
    return text


def _look_at(key: str) -> tuple[str, bool]:
    """Return a key without secrets, and whether it, or another one, may say its value is one."""
    return _look_at_short(key) if len(key) <= _MAX_KEY else _look_at_short.__wrapped__(key)


@lru_cache(maxsize=4096)
def _look_at_short(key: str) -> tuple[str, bool]:
    clean = redact_text(key)
    is_telling = is_secret_name(clean) or clean in KEY_MATERIAL
    return clean, is_telling or key.lower() in _DECLARED


def redact(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Copy properties with every secret in them replaced."""
    return _redact(properties, _suspects(properties.values()))


def _suspects(values: Iterable[Json]) -> Collection[str]:
    """Return the texts inside values that need a closer look: most objects have none."""
    texts: list[str] = []
    _collect(values, texts)
    return suspects(texts)


def _collect(values: Iterable[Json], texts: list[str]) -> None:
    """Add all texts inside values that are no keys."""
    for value in values:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), texts)
        elif isinstance(value, list):
            _collect(value, texts)


def _redact(properties: Mapping[str, Json], suspected: Collection[str]) -> dict[str, Json]:
    """Copy properties without secrets, of whose texts only those that are suspected hold any.

    Another text may still be one, by its name or its place.
    """
    hidden: Collection[str] | None = None
    clean: dict[str, Json] = {}
    for raw_key, value in properties.items():
        key, is_telling = _look_at(raw_key)
        if is_telling:
            hidden = _hidden_keys(properties) if hidden is None else hidden
            is_hidden = raw_key in hidden
            clean[key] = _redact_named(key, value, suspected, is_hidden=is_hidden)
        # the type itself, since this runs for every field of 100,000 objects
        elif type(value) is str:
            clean[key] = redact_text(value) if value in suspected else value
        else:
            clean[key] = _redact_value(value, suspected)
    return clean


def _redact_named(name: str, value: Json, suspected: Collection[str], *, is_hidden: bool) -> Json:
    """Redact the value of a name that may say that it is secret; `is_hidden` by another one."""
    if is_hidden:
        return _hide(name, value, naming=False)
    if is_secret_name(name):
        return _hide(name, value, naming=not is_plural(name))
    if isinstance(value, str) and is_key_material(name, value):
        return REDACTED
    return _redact_value(value, suspected)


def redact_identity(identity: Identity) -> Identity:
    """Replace every secret in plugin, kind and name."""
    source, plugin, kind, name = identity
    return Identity(source, _look_at(plugin)[0], _look_at(kind)[0], redact_text(name))


def redact_object(identity: Identity, properties: Mapping[str, Json]) -> StateObject:
    """Make the state object of what has secrets in its identity, too."""
    return StateObject(redact_identity(identity), redact_properties(identity, properties))


def redact_properties(identity: Identity, properties: Mapping[str, Json]) -> dict[str, Json]:
    """Copy an object's properties without secrets: all in a list or table of a secret name is."""
    single = identity.kind == SETTINGS
    if is_secret_name(identity.plugin if single else identity.kind):
        return _hide_leaves(properties, naming=not single)
    return redact(properties)


def _redact_value(value: Json, suspected: Collection[str]) -> Json:
    if isinstance(value, str):
        return redact_text(value) if value in suspected else value
    if isinstance(value, dict):
        return _redact(value, suspected)
    return _redact_list(value, suspected) if isinstance(value, list) else value


def _redact_list(values: list[Json], suspected: Collection[str]) -> list[Json]:
    """Hide secrets across elements: ["--password", "x"], or a private key line by line."""
    flags = flags_of(value for value in values if isinstance(value, str))
    out: list[Json] = []
    hide_next = inside_key = False
    for value in values:
        if not isinstance(value, str):
            out.append(_redact_value(value, suspected))
            hide_next = False
        elif inside_key or (hide_next and not value.startswith("-")):
            out.append(REDACTED)
            hide_next = False
        else:
            out.append(_redact_element(value, flags, suspected))
            hide_next = value in flags or _is_secret_flag(value)
            inside_key = "PRIVATE KEY" in value and "BEGIN" in value
        if inside_key and isinstance(value, str):
            inside_key = not ("PRIVATE KEY" in value and "END" in value)
    return out


def _redact_element(value: str, flags: tuple[str, ...], suspected: Collection[str]) -> str:
    """Redact one word of a command line, or one VARIABLE=value whose value may have spaces."""
    for flag in flags:
        if value.startswith(flag) and value != flag and (len(flag) == 2 or flag[-1] == ":"):
            return flag + REDACTED
    whole = _ASSIGNMENT.fullmatch(value)
    if whole and is_secret_name(whole[1]) and is_secret_value(whole[1], whole[2]):
        return f"{whole[1]}={REDACTED}"
    return redact_text(value) if value in suspected else value


def _is_secret_flag(value: str) -> bool:
    return value.startswith("-") and "=" not in value and is_secret_name(value)


def _hide(name: str, value: Json, *, naming: bool = True) -> Json:
    """Replace the value of a secret name; true, false and null are not secret."""
    if isinstance(value, dict):
        return _hide_leaves(value, naming=naming)
    if isinstance(value, list):
        return [_hide("", element) for element in value]
    if value is None or isinstance(value, bool) or not is_secret_value(name, str(value)):
        return value
    return REDACTED


def _hide_leaves(properties: Mapping[str, Json], *, naming: bool) -> dict[str, Json]:
    """Hide everything below a secret name; if `naming`, keep what only names the secret."""
    clean: dict[str, Json] = {}
    for raw_key, value in properties.items():
        key, _ = _look_at(raw_key)
        stays = naming and is_naming(key) and not isinstance(value, dict)
        clean[key] = _redact_value(value, _suspects([value])) if stays else _hide("", value)
    return clean


def _hidden_keys(properties: Mapping[str, Json]) -> set[str]:
    """Return the keys whose values another key declares secret."""
    is_any = not _VALUE_KEYS.isdisjoint(map(str.lower, properties))
    values = [key for key in properties if key.lower() in _VALUE_KEYS] if is_any else []
    is_named = values and any(
        key.lower() in _NAME_KEYS and isinstance(value, str) and _is_named_secret(value)
        for key, value in properties.items()
    )
    hidden = set(values if is_named else ())
    return hidden | {"data", "stringData"} if properties.get("kind") == "Secret" else hidden


def _is_named_secret(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and is_secret_name(name)


def _redact_json(text: str) -> str:
    """Redact a string that is JSON, by its structure."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
        clean = _redact_value(value, _suspects([value]))
        # an escape may be half a surrogate pair, which can only be written as an escape
        return text if clean == value else json.dumps(clean, ensure_ascii="\\u" in text)
    except (ValueError, RecursionError):
        return text
