"""Requests that would make other clients wait: hostile names, fields and keys of all routes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from harness.assistants import publish
from harness.beating_gateway import BeatingGateway
from harness.running import Running

# Seconds that one request may take of the event loop, which all clients share.
MOST_SECONDS = 1.0
MOST_CHARACTERS = 9000
NAMES = [f"name{n}" for n in range(300_000)]
# Bodies that fit any route: many keys, and lists of many values, as text.
KEYS = json.dumps(dict.fromkeys(NAMES, 1))
MANY = json.dumps(NAMES)
NESTED = "[" * 900 + "]" * 900
# Texts of arguments: long, of many conditions, words, dots, digits or signs.
TEXTS = (
    ",".join(f"f{n}=1" for n in range(MOST_CHARACTERS // 7)),
    " ".join(f"w{n}" for n in range(MOST_CHARACTERS // 6)),
    "9" * MOST_CHARACTERS,
    "a." * (MOST_CHARACTERS // 2),
    "(" * MOST_CHARACTERS,
    "\u00e9\u202e \x1b[" * (MOST_CHARACTERS // 16),
)
ALLOWED = {200, 400, 404, 413, 421, 424, 429, 431, 501, 503}
MCP = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}


class Asked(NamedTuple):
    """A request: its method, path, and the rest for the client."""

    method: str
    path: str
    rest: dict[str, Any]


@pytest.fixture(scope="module")
def beating(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatingGateway]:
    """Run a gateway that tells how long each turn of its loop takes."""
    publish(served, *(("hostile", "list", f"l{n}", {"list": [*range(100_000)]}) for n in range(2)))
    publish(served, ("hostile", "keys", "k", dict.fromkeys(NAMES[:20_000], "x")))
    served.vectorized()
    with BeatingGateway(served, tmp_path_factory.mktemp("beating")) as running:
        yield running


def hostile_requests(described: dict[str, Any]) -> Iterator[Asked]:
    """Yield hostile requests to each route of an OpenAPI description, by its own parameters."""
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            placed = {each["name"]: "x" for each in parameters if each["in"] == "path"}
            target = path.format(**placed)
            queried = [each for each in parameters if each["in"] == "query"]
            needed = {each["name"]: "x" for each in queried if each.get("required")}
            if queried:
                yield Asked(method, target, {"params": {**needed, **dict.fromkeys(NAMES[:1500], "")}})
            for each in queried:
                texts = [*TEXTS] if "string" in json.dumps(each["schema"]) else [TEXTS[2]]
                for text in texts:
                    yield Asked(method, target, {"params": {**needed, each["name"]: text}})
                many = [(each["name"], name) for name in NAMES[:1200]]
                yield Asked(method, target, {"params": [*needed.items(), *many]})
            for name, text in ((name, text) for name in placed for text in TEXTS[:1]):
                yield Asked(method, path.format(**{**placed, name: text}), {})
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]
                for body in hostile_bodies(described, next(iter(content.values()))["schema"]):
                    yield Asked(method, target, {"content": body})


def hostile_bodies(described: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """Yield bodies with unknown keys, and with many values in each known one."""
    yield KEYS
    yield MANY
    yield f"[{KEYS}]"
    yield NESTED
    found = resolve(described, schema)
    for name, inner in found.get("properties", {}).items():
        needed = {key: "x" for key in found.get("required", ()) if key != name}
        rest = json.dumps(needed)[1:-1]
        for value in (KEYS, MANY, f"[{KEYS}]", json.dumps(NAMES[:1200]), NESTED):
            yield f'{{{rest}{", " if rest else ""}"{name}": {value}}}'
        for part in resolve(described, inner).get("properties", {}):
            yield f'{{{rest}{", " if rest else ""}"{name}": {{"{part}": {MANY}}}}}'


def resolve(described: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a schema refers to, or is one of."""
    if "$ref" in schema:
        return resolve(described, described["components"]["schemas"][schema["$ref"].split("/")[-1]])
    for way in ("anyOf", "oneOf"):
        for each in schema.get(way, ()):
            if found := resolve(described, each):
                return found
    return schema if "properties" in schema else {}
