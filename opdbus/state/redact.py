"""Redaction of secrets in new objects, before anything is hashed, stored or sent."""

import codecs
import contextlib
import hmac
import itertools
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.state.object import SETTINGS, Identity, Json, StateObject
from opdbus.state.secret_names import fold, is_naming, is_of_random, is_plural, is_secret_name
from opdbus.state.secret_patterns import KEY_MATERIAL
from opdbus.state.secret_text import (
    CLEAN,
    REDACTED,
    flags_of,
    hide_in_text,
    is_pair,
    is_secret_value,
    is_short_word,
    suspects,
)

VERSION: Final = 6

# {"name": "DB_PASSWORD", "value": "x"}: keys of the name, and keys of the value.
_NAME_KEYS: Final = frozenset(
    "name key variable env header field option param parameter setting property attribute n k id"
    " label var identifier".split()
)
_VALUE_KEYS: Final = frozenset("value values val default data content current argument v".split())

_MAX_ROUNDS: Final = 5
_MAX_KEY: Final = 100
# A list with more words is not treated as a command line.
_MAX_WORDS: Final = 200
_SEVERAL: Final = "\x01"
_NAME = re.compile(r"[\w .-]{1,100}")
# Another key may declare the values of these keys secret.
_DECLARED: Final = _VALUE_KEYS | {"stringdata"}
# A list element that is an assignment as a whole: a flag or a variable with its value.
_ASSIGNMENT = re.compile(r"\A(-[\w.-]+|[^\W\da-z]\w*)=(.*)", re.DOTALL)
# Properties of a key: its value may be or declare a secret; random words are normal in it.
_CONTAINERS: Final = frozenset({dict, list})
_TELLS: Final = 1
_OF_RANDOM: Final = 2
_MACHINES: Final = (
    *("/etc/machine-id", "/var/lib/dbus/machine-id"),
    "/proc/sys/kernel/random/boot_id",
)
_APART: Final = re.compile(r"(?:(?<=\[redacted\])|(?=\S{9}\Z))~[0-9a-f]{8}")
# A flag whose value is a command that prints a password.
_ASKING: Final = re.compile(r"(?i)--?[\w-]{0,40}(?:command|cmd|askpass)")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{2,80}")
# Control characters that text has; the fewest bytes that are taken for UTF-16.
_SPACES: Final = dict.fromkeys(map(ord, "\t\n\v\f\r\b\x1b"), " ")
_WIDE: Final = 8
_LEAST_TEXT: Final = 4
_UNPRINTABLE: Final = re.compile(r"[^ -~]+")
# Private keys in DER, as PKCS #1, #8 and #12 and SEC 1 have them: a sequence with a version; those
# of OpenSSH; files of Kerberos.
_PRIVATE: Final = re.compile(
    rb"(?s)0(?:.|\x81.|\x82..)\x02\x01[\x00\x01\x03][\x02\x04\x30]"
    rb"|openssh-key-v1\0|\x05[\x01-\x04]\0.{29}"
)


def redact_text(text: str, *, normal: bool = False) -> str:
    """Return a string with every secret replaced; JSON is redacted by its structure.

    With `normal`, words that look random stay: digests, serial numbers, public keys.
    """
    if is_short_word(text) or hash(text) in CLEAN.hashes:
        return text
    if "~" in text and REDACTED in text:
        # a redacted name keeps its digest if nothing else in it is secret
        bare = _APART.sub("", text)
        if bare != text and hide_in_text(_redact_json(bare), redact_text, normal=normal) == bare:
            return text
    # a replacement may complete another pattern, so this is repeated until nothing changes
    for _ in range(_MAX_ROUNDS):
        clean = hide_in_text(_redact_json(text), redact_text, normal=normal)
        if clean == text:
            if not normal and REDACTED not in text:
                CLEAN.add((text,))
            break
        text = clean
    return text


# Results of _look_at: most objects have the same keys.
_KEYS: Final[dict[str, tuple[str, int]]] = {}
_MAX_KEYS: Final = 4096


def _look_at(key: str) -> tuple[str, int]:
    """Return a key without secrets, and 0, _TELLS or _OF_RANDOM."""
    if key in _KEYS:
        return _KEYS[key]
    clean = redact_text(key)
    if is_secret_name(clean) or clean in KEY_MATERIAL or key.lower() in _DECLARED:
        found = clean, _TELLS
    else:
        found = clean, _OF_RANDOM if is_of_random(clean) else 0
    if clean == key and len(key) <= _MAX_KEY:
        if len(_KEYS) > _MAX_KEYS:
            _KEYS.clear()
        _KEYS[key] = found
    return found


def decode_bytes(data: bytes) -> str:
    """Return bytes as text, to be redacted as such; as hexadecimal digits if they are no text.

    NULs may end a text or separate its lines. Data that holds a secret somewhere is `[redacted]`.
    """
    text = _decode(data)
    if text is not None:
        if b"\0" not in data or redact_text(text) != text:
            return text
        # they may be the words of a command
        line = text.replace("\n", " ")
        return line if redact_text(line) != line else text
    # text inside of data, also as UTF-16
    readings = (data[::2], data[1::2], data)
    if _PRIVATE.match(data) or any(
        redact_text(reading) != reading
        for reading in (_UNPRINTABLE.sub("\n", part.decode("latin-1")) for part in readings)
    ):
        return REDACTED
    return data.hex()


def _decode(data: bytes) -> str | None:
    """Return the text that bytes are in UTF-8 or UTF-16; None if it cannot be printed."""
    wide = len(data) >= _WIDE and len(data) % 2 == 0
    is_little = data.startswith(codecs.BOM_UTF16_LE) or (wide and not any(data[1::2]))
    is_big = data.startswith(codecs.BOM_UTF16_BE) or (wide and not any(data[::2]))
    encoding = "utf-16-le" if is_little else "utf-16-be" if is_big else "utf-8"
    try:
        text = data.decode(encoding).removeprefix("\ufeff").rstrip("\0").replace("\0", "\n")
    except UnicodeDecodeError:
        return None
    # two letters and a NUL may be the beginning of a hardware address
    is_text = len(text) >= _LEAST_TEXT or b"\0" not in data
    return text if is_text and text.translate(_SPACES).isprintable() else None


def redact(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Return a copy of properties with every secret replaced."""
    return _redact(properties, _suspects(properties.values()))


# Texts that need a closer look; True for lines of a private key.
_Suspects: TypeAlias = Mapping[str, bool]


def _suspects(values: Iterable[Json]) -> _Suspects:
    """Return the texts inside values that need a closer look; most objects have none."""
    texts: list[str] = []
    _collect(values, texts)
    found = suspects(texts)
    if not found:
        return {}
    suspected = dict.fromkeys(found, False)
    if any("PRIVATE KEY" in text for text in found):
        # lines of a private key may be texts of their own
        is_inside = False
        for text in texts:
            if "PRIVATE KEY" in text and ("BEGIN" in text or "END" in text):
                is_inside = text.rfind("BEGIN") > text.rfind("END")
            elif is_inside and _KEY_LINE.fullmatch(text):
                suspected[text] = True
    return suspected


def _collect(values: Iterable[Json], texts: list[str]) -> None:
    """Add all texts inside values to `texts`, and the line of each list; keys are left out."""
    for value in values:
        # the exact type, since this runs for every value of 100,000 objects
        if type(value) is str:
            texts.append(value)
        elif type(value) is dict:
            _collect(value.values(), texts)
        elif type(value) is list:
            _collect(value, texts)
            if line := _line_of([element for element in value if type(element) is str]):
                texts.append(line)


def _redact(
    properties: Mapping[str, Json], suspected: _Suspects, *, normal: bool = False
) -> dict[str, Json]:
    """Return a copy of properties without secrets; only `suspected` texts are searched for them.

    Other texts may still be secret because of their key or place.
    """
    hidden: Collection[str] | None = None
    clean: dict[str, Json] = {}
    for raw_key, value in properties.items():
        key, says = _KEYS[raw_key] if raw_key in _KEYS else _look_at(raw_key)
        is_plain = type(value) not in _CONTAINERS and value not in suspected
        if is_plain and says != _TELLS:
            clean[key] = value
        elif says == _TELLS:
            hidden = _hidden_keys(properties) if hidden is None else hidden
            if raw_key in hidden:
                clean[key] = _hide(key, value, naming=False)
            elif is_secret_name(key):
                clean[key] = _hide(key, value, naming=not is_plural(key))
            elif (
                isinstance(value, str)
                and key in KEY_MATERIAL
                and KEY_MATERIAL[key].fullmatch(value)
            ):
                clean[key] = REDACTED  # such as {"auth": "dXNlcjpwYXNz"}
            else:
                clean[key] = _redact_value(value, suspected, normal=normal)
        else:
            clean[key] = _redact_value(value, suspected, normal=normal or says == _OF_RANDOM)
    return clean


def redact_identity(identity: Identity) -> Identity:
    """Return an identity with every secret in plugin, kind and name replaced."""
    source, *parts = identity
    return Identity(source, *map(redact_name, parts))


def redact_name(name: str) -> str:
    """Return a name with its secrets replaced; names that differ only in secrets stay different.

    A redacted name ends with 32 bits of a digest. Its key is the machine's, so that the digest does
    not help to guess the secret elsewhere.
    """
    clean = redact_text(name)
    if clean == name:
        return name
    made = hmac.digest(machine_key(), name.encode(errors="replace"), "sha256")
    return f"{clean}~{made[:4].hex()}"


@lru_cache(maxsize=1)
def machine_key(paths: tuple[str, ...] = _MACHINES) -> bytes:
    """Return a key derived from the machine's id; the id cannot be derived from it: machine-id(5).

    Without a machine id the boot's id is used: names with digests then change at each boot.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if machine := Path(path).read_bytes().strip():
                return hmac.digest(machine, b"op-dbus: names without secrets", "sha256")
    return secrets.token_bytes(32)


def redact_object(identity: Identity, properties: Mapping[str, Json]) -> StateObject:
    """Return a state object without secrets in identity and properties."""
    suspected = _suspects([*identity[1:], *properties.values()])
    is_suspect = not suspected.keys().isdisjoint(identity)
    clean = redact_identity(identity) if is_suspect else identity
    return StateObject(clean, redact_properties(identity, properties, suspected))


def redact_properties(
    identity: Identity, properties: Mapping[str, Json], suspected: _Suspects | None = None
) -> dict[str, Json]:
    """Return an object's properties without secrets; all values of a secret kind are hidden."""
    single = identity.kind == SETTINGS
    if is_secret_name(identity.plugin if single else identity.kind):
        return _hide_leaves(properties, naming=not single)
    return redact(properties) if suspected is None else _redact(properties, suspected)


def _redact_value(value: Json, suspected: _Suspects, *, normal: bool = False) -> Json:
    if isinstance(value, str):
        if value not in suspected:
            return value
        return REDACTED if suspected[value] else redact_text(value, normal=normal)
    if isinstance(value, dict):
        return _redact(value, suspected, normal=normal)
    return _redact_list(value, suspected, normal=normal) if isinstance(value, list) else value


def _redact_list(values: list[Json], suspected: _Suspects, *, normal: bool) -> list[Json]:
    """Redact secrets across elements: ["--password", "x"], or a private key line by line."""
    words = [value for value in values if isinstance(value, str)]
    if len(words) < 2 and suspected.keys().isdisjoint(words):
        return [_redact_value(value, suspected, normal=normal) for value in values]
    flags, hidden = flags_of(words), _redact_line(words, suspected, normal=normal)
    out: list[Json] = []
    hide_next = inside_key = False
    place = -1
    for value in values:
        if not isinstance(value, str):
            out.append(_redact_value(value, suspected, normal=normal))
            hide_next = False
            continue
        place += 1
        if inside_key or (hide_next and not value.startswith("-") and is_secret_value("", value)):
            out.append(REDACTED)
            hide_next = False
        elif place and _ASKING.fullmatch(words[place - 1]):
            whole = redact_text(f"{words[place - 1]} {value}", normal=normal)
            out.append(whole.removeprefix(f"{words[place - 1]} "))
            hide_next = False
        elif place in hidden:
            out.append(hidden[place])
            hide_next = False
        else:
            out.append(_redact_element(value, flags, suspected, normal=normal))
            is_flag = value.startswith("-") and "=" not in value
            is_before = value in flags or f"{value}~" in flags
            hide_next = is_before or (is_flag and is_secret_name(value))
            inside_key = "PRIVATE KEY" in value and "BEGIN" in value
        if inside_key:
            inside_key = not ("PRIVATE KEY" in value and "END" in value)
    return out


def _line_of(words: Sequence[str]) -> str:
    """Return a list as a command line; empty for one word, and for too many.

    Elements with several words are redacted by themselves: a sign stands for each.
    """
    if not 1 < len(words) <= _MAX_WORDS:
        return ""
    line = " ".join(words)
    if line.split() == words:
        return line
    return " ".join([word if word.split() == [word] else _SEVERAL for word in words])


def _redact_line(words: Sequence[str], suspected: _Suspects, *, normal: bool) -> Mapping[int, str]:
    """Return replacements by index for words that their neighbours show to be secret."""
    if len(words) == 2 and is_pair(*words):
        return {1: REDACTED}
    whole = _line_of(words)
    if whole not in suspected:
        return {}
    line = whole.split(" ")
    clean = redact_text(whole, normal=normal).split(" ")
    if clean == line:
        return {}
    if len(clean) == len(line):
        return {
            place: word if line[place] == words[place] else REDACTED
            for place, word in enumerate(clean)
            if REDACTED in word and word != line[place]
        }
    # several words were replaced by one: hide all words that differ
    same = sum(1 for _ in itertools.takewhile(bool, map(str.__eq__, clean, line)))
    after = map(str.__eq__, reversed(clean[same:]), reversed(line[same:]))
    end = len(line) - sum(1 for _ in itertools.takewhile(bool, after))
    return dict.fromkeys(range(same, end), REDACTED)


def _redact_element(
    value: str, flags: tuple[str, ...], suspected: _Suspects, *, normal: bool
) -> Json:
    """Redact one word of a command line, or a VARIABLE=value whose value may have spaces."""
    for flag in flags:
        start = flag.rstrip("_")
        if value.startswith(start) and value != start and (len(start) == 2 or start[-1] == ":"):
            return start + REDACTED
    whole = _ASSIGNMENT.fullmatch(value)
    if whole and is_secret_name(whole[1]) and is_secret_value(whole[1], whole[2]):
        return f"{whole[1]}={REDACTED}"
    return _redact_value(value, suspected, normal=normal)


def _hide(name: str, value: Json, *, naming: bool = True) -> Json:
    """Return the redacted value of a secret name; true, false and null are not secret."""
    if isinstance(value, dict):
        return _hide_leaves(value, naming=naming)
    if isinstance(value, list):
        return [_hide("", element) for element in value]
    if value is None or isinstance(value, bool) or not is_secret_value(name, str(value)):
        return value
    return REDACTED


def _hide_leaves(properties: Mapping[str, Json], *, naming: bool) -> dict[str, Json]:
    """Redact all values below a secret name; with `naming`, keep what only names the secret."""
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
        key.lower() in _NAME_KEYS
        and isinstance(value, str)
        and _NAME.fullmatch(fold(value))
        and is_secret_name(value)
        for key, value in properties.items()
    )
    hidden = set(values if is_named else ())
    return hidden | {"data", "stringData"} if properties.get("kind") == "Secret" else hidden


def _redact_json(text: str) -> str:
    """Return a string of JSON redacted by its structure; other strings unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
        clean = _redact_value(value, _suspects([value]))
        # half a surrogate pair can only be written as an escape
        return text if clean == value else json.dumps(clean, ensure_ascii="\\u" in text)
    except (ValueError, RecursionError):
        return text
