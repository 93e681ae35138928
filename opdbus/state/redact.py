"""Secrets are replaced where objects come in, before anything is hashed, stored or sent."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opdbus.state.object import Json

REDACTED: Final = "[redacted]"
VERSION: Final = 1

# A key is split into words; one of these words, or one of these neighbours, makes it secret.
_WORDS: Final = frozenset(
    "password passwd passphrase passcode pwd pass token secret psk credential credentials apikey"
    " privatekey secretkey authkey cookie authorization otp".split()
)
_PAIRS: Final = frozenset(
    "api key,private key,secret key,access key,auth key,signing key,encryption key,shared key,"
    "preshared key,pre shared,master key,session key,wep key,wpa key,license key,account key,"
    "set cookie,key material".split(",")
)
_ENDINGS: Final = ("password", "passwd", "passphrase", "secret", "apikey")
# ... unless the key's last word says that the value only describes the secret.
_ABOUT: Final = frozenset(
    "file files path dir directory type policy age length expiry expires expiration ttl count"
    " algorithm authentication enabled required bucket rate lifetime max min agent manager"
    " store provider url uri endpoint id name names".split()
)
_COUNTING: Final = frozenset("max min num total used".split())
_NAMING: Final = frozenset({"name", "id", "unit", "path", "address", "user", "username", "login"})

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_VALUE = r"""(?:\\"(?:.*?)\\"|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"']+)"""
_ASSIGNMENT = re.compile(
    rf"""(?P<key>[A-Za-z][\w.-]*)(?P<sep>\\?["']?\s*[=:]\s*)(?P<value>{_VALUE})"""
)
_FLAG = re.compile(rf"(?P<key>--?[A-Za-z][\w-]*)(?P<sep>\s+)(?P<value>(?!-){_VALUE})")
# scheme://user:password@host; digits and a slash after the colon are a port, not a password
_URL = re.compile(r"""(://[^\s/:@"']*:)(?!\d{1,5}(?:[/?#]|$))[^\s"'<>]*(@)""")
_URL_TOKEN = re.compile(r"(://)[^\s/:@\"']{16,}(@)")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|.*)",
    re.DOTALL,
)
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token)(\s*:\s*)[^\r\n\"']+"
)
_BEARER = re.compile(r"(?i)\b(bearer)([\s:=]+)(?:token\s+)?(?!auth|token)[^\s\"',;]{6,}")
_CURL_USER = re.compile(r"(\s(?:-u|--user)[\s=]*[^\s:]+:)\S+")
_SHORT_FLAG = re.compile(
    r"\b((?:sshpass|mysql|mysqldump|mariadb|mariadb-dump)\b[^|;&]*?\s-p\s?)\S+"
)
# Shapes that are secrets wherever they stand: crypt(3) hashes and well-known token formats.
_SHAPES = re.compile(
    r"\$(?:1|2[abxy]?|5|6|7|y|gy|argon2\w*)\$[^\s:\"']+"
    r"|\beyJ[\w-]{5,}\.[\w-]+\.?[\w-]*"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|npm_|hf_|sk-|sk_live_|rk_live_|dop_v1_)"
    r"[\w-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{30,}|\bAGE-SECRET-KEY-1\w+"
)
# Most strings hold none of these marks, and then none of the patterns above can match.
_SUSPICIOUS = re.compile(
    r"[=:$]|\s-|^-|(?i:bearer|-----BEGIN|eyJ|gh[pousr]_|pat[_-]|xox|npm_|hf_|sk[-_]|rk_|dop_)"
    r"|AKIA|ASIA|AIza|AGE-"
)


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a key of this name holds a secret, judging by whole words."""
    words = [part.lower() for part in _PART.findall(name)]
    singular = [w[:-1] if w.endswith("s") and w[:-1] in _WORDS else w for w in words]
    neighbours = {f"{a} {b.removesuffix('s')}" for a, b in itertools.pairwise(singular)}
    found = (
        not _WORDS.isdisjoint(singular)
        or not _PAIRS.isdisjoint(neighbours)
        or any(w.removesuffix("s").endswith(_ENDINGS) for w in words)
    )
    return found and words[-1] not in _ABOUT and words[0] not in _COUNTING


def redact_text(text: str) -> str:
    """Replace every part of a string that looks like a secret."""
    if not _SUSPICIOUS.search(text):
        return text
    text = _PEM.sub(REDACTED, text)
    text = _HEADER.sub(rf"\1\2{REDACTED}", text)
    text = _URL.sub(rf"\1{REDACTED}\2", text)
    text = _URL_TOKEN.sub(rf"\1{REDACTED}\2", text)
    text = _ASSIGNMENT.sub(_hide_named, text)
    text = _FLAG.sub(_hide_named, text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _CURL_USER.sub(rf"\1{REDACTED}", text)
    text = _SHORT_FLAG.sub(rf"\1{REDACTED}", text)
    return _SHAPES.sub(REDACTED, text)


def redact(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Copy properties with every secret in them replaced."""
    secret_pair = _named_pair(properties)
    return {
        redact_text(key): REDACTED
        if key == secret_pair
        else _redact_value(value, secret=is_secret_name(key))
        for key, value in properties.items()
    }


def _redact_value(value: Json, *, secret: bool) -> Json:
    if isinstance(value, str):
        return (REDACTED if value else value) if secret else redact_text(value)
    if isinstance(value, dict):
        return _hide_leaves(value) if secret else redact(value)
    if isinstance(value, list):
        return [_redact_value(v, secret=secret) for v in (value if secret else _joined(value))]
    # true, false and null tell whether there is a secret, never which
    return REDACTED if secret and not isinstance(value, bool) and value is not None else value


def _hide_leaves(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Hide everything below a secret key but what names the thing."""
    return {
        redact_text(key): _redact_value(value, secret=key.lower() not in _NAMING)
        for key, value in properties.items()
    }


def _named_pair(properties: Mapping[str, Json]) -> str | None:
    """Find the value's key in {"name": "DB_PASSWORD", "value": ...}, as container files write it."""
    for naming in ("name", "key", "variable"):
        name = properties.get(naming)
        if isinstance(name, str) and is_secret_name(name):
            return next((key for key in properties if key.lower() in {"value", "default"}), None)
    return None


def _joined(values: list[Json]) -> list[Json]:
    """Hide secrets that span elements: ["--password", "x"], and a key given line by line."""
    out: list[Json] = []
    hide_next = inside_pem = False
    for value in values:
        if not isinstance(value, str):
            hide_next = False
            out.append(value)
            continue
        if hide_next and not value.startswith("-"):
            out.append(REDACTED)
        elif inside_pem or ("PRIVATE KEY" in value and "-----BEGIN" in value):
            out.append(REDACTED)
            inside_pem = "-----END" not in value
        else:
            out.append(value)
        hide_next = value.startswith("-") and "=" not in value and is_secret_name(value)
    return out


def _hide_named(match: re.Match[str]) -> str:
    if match["value"] == REDACTED:
        return match[0]
    hidden = REDACTED if is_secret_name(match["key"]) else redact_text(match["value"])
    return match["key"] + match["sep"] + hidden
