"""Places in objects at which programs put a secret: text, keys, lists, commands and more."""

import base64
import hashlib
import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from opdbus.state import redact
from opdbus.state.object import PUBLISHED, Identity
from secret_corpus.kinds import Kind, fill

SOURCE: Final = f"{PUBLISHED}corpus"
_KEY_LINE: Final = 64
# Recorded hosts.
_ROOT: Final = Path(__file__).parent.parent.parent
HOSTS: Final = (
    *sorted((_ROOT / "benchmarks/answers/data").glob("[achoq]*[eryl].json")),
    *(_ROOT / "tests/data" / name for name in ("day.json", "school.json", "value_host.json")),
)


class Planted(NamedTuple):
    """An object with a secret: the place, identity, properties, and what must be in no answer."""

    place: str
    identity: Identity
    properties: dict[str, Any]
    secrets: tuple[str, ...]


def is_held(kind: str) -> bool:
    """Return whether a kind is of the part that nobody looks at while writing rules."""
    return hashlib.sha256(kind.encode()).digest()[0] % 5 < 2


def plant(kind: Kind) -> Iterator[Planted]:
    """Yield objects with new secrets of a kind, one for each place."""
    rng = random.Random(kind.name)  # noqa: S311 -- the same values each time
    part = fill(kind.template, rng)
    text, label = part.text, kind.label
    if label:
        said, setting, slug = f"{label}: {text}", f"{label}={text}", re.sub(r"[\s']+", "_", label)
        words = ["/usr/bin/app", f"--{slug}", text, "--verbose"]
        variable = f"{slug.upper() if slug.isascii() else slug}={text}"
        mapping: dict[str, Any] = {label: text}
        listed: Any = [[label, text], ["TZ", "UTC"]]
        structured: Any = {"settings": [{"k": label, "v": text}, {"k": "TZ", "v": "UTC"}]}
        encoded = base64.b64encode(setting.encode()).decode()
    elif kind.family == "token":
        said, setting = f"since Tuesday the backup uses {text} here", f"APP_SETTING={text}"
        words = ["/usr/bin/app", "--value", text, "--verbose"]
        variable, mapping, listed = setting, {"value": text}, ["first", text, "last"]
        structured = {"settings": {"value": text}}
        encoded = base64.b64encode(f"deploy:{text}".encode()).decode()
    else:
        said, setting, variable = text, text, f"APP_RUN={text}"
        words = _words(text)
        mapping, listed, structured = {"line": text}, ["first", text, "last"], {"lines": [text]}
        encoded = base64.b64encode(text.encode()).decode()
    command = (
        f"/usr/bin/app --{words[1].lstrip('-')} {text}" if label or kind.family == "token" else text
    )
    unit = f"[Service]\nEnvironment={shlex.quote(variable)}\nUser=app"
    if kind.family == "phrase":
        unit = f"[Service]\nExecStart=/bin/sh -c {shlex.quote(text)}\nUser=app"
    cron = f"*/5 4 * * * root {command} >/dev/null 2>&1"
    values: dict[str, dict[str, Any]] = {
        "text": {"description": said},
        "key": {"enabled": {setting: True}},
        "list": {"entries": listed},
        "mapping": {"more": mapping},
        "nested JSON": {"content": json.dumps(structured, ensure_ascii=bool(len(text) % 2))},
        "base64": {"content": encoded},
        "command split": {"argv": words},
        "command whole": {"exec": command},
        "environment list": {"environment": ["TZ=UTC", variable]},
        "environment mapping": {"environment": dict([variable.split("=", 1)])},
        "unit file": {"content": unit},
        "cron": {"line": cron},
        "bytes": {
            "content": redact.decode_bytes(
                f"# {said}\n{text if label == '' else setting}\n\0".encode()
            )
        },
        "journal": {"failed": [{"at": "x", "lines": ["started", f"run[7]: {said}", "done"]}]},
    }
    yield Planted("name", _identity(setting), {"description": "kept"}, part.secrets)
    for place, properties in values.items():
        more = (encoded[8:],) if place == "base64" else ()
        yield Planted(place, _identity("object"), properties, (*part.secrets, *more))


def _identity(name: str) -> Identity:
    return Identity(SOURCE, "corpus", "item", name)


def _words(text: str) -> list[str]:
    """Split a command line; what is none is an argument."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    return (
        words
        if len(words) > 1 and re.fullmatch(r"[a-z0-9./_-]+", words[0])
        else ["app", "-c", text]
    )


def shapes() -> Iterator[tuple[str, Planted]]:
    """Yield secrets that are spread over lists and mappings, by their kinds' names."""
    rng = random.Random("shapes")  # noqa: S311 -- the same values each time
    for block in ("RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PRIVATE KEY", "PGP PRIVATE KEY BLOCK"):
        body = [fill(f"{{B{_KEY_LINE}}}", rng).text for _ in range(6)]
        body.append(fill("{B22}", rng).text)
        lines = [f"-----BEGIN {block}-----", *body, f"-----END {block}-----"]
        secrets = tuple(body)
        forms: dict[str, dict[str, Any]] = {
            "list": {"lines": lines},
            "text": {"text": "\n".join(lines)},
            "one line": {"text": " ".join(lines)},
            "escaped": {"text": "\\n".join(lines)},
            "mapping": {"lines": {str(number): line for number, line in enumerate(lines)}},
            "keys": {"lines": dict.fromkeys(lines, "")},
            "list of mappings": {"lines": [{"number": n, "text": t} for n, t in enumerate(lines)]},
            "nested JSON": {"text": json.dumps({"lines": lines})},
            "no end": {"lines": lines[:-1]},
            "base64": {"text": base64.b64encode("\n".join(lines).encode()).decode()},
        }
        for place, properties in forms.items():
            name = "lines of " + block.lower()
            yield name, Planted(place, _identity("object"), properties, secrets)
    pairs = (("name", "value"), ("key", "value"), ("k", "v"), ("Name", "Value"), ("n", "v"),
             ("id", "value"), ("variable", "content"), ("field", "data"))  # fmt: skip
    for naming, holding in pairs:
        for number, secret_name in enumerate(
            ("DB_PASSWORD", "api_key", "Kennwort", "auth_token", "smtp-password")
        ):
            secret = fill("{p}", rng).text
            pair = {naming: secret_name, holding: secret}
            forms = {
                "list": {"env": [pair, {naming: "TZ", holding: "UTC"}]},
                "alone": {"one": pair},
                "JSON": {"text": json.dumps([pair])},
                "value first": {"env": [{holding: secret, naming: secret_name}]},
            }
            for place, properties in forms.items():
                kind = f"pairs {naming}/{holding}"
                planted = Planted(f"{place} {number}", _identity("object"), properties, (secret,))
                yield kind, planted
