"""Requests that would make other clients wait: hostile names, fields and keys of all routes.

Routes and tools are asked by their own descriptions, so that a new one is among them.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from harness.assistants import publish
from harness.beating_gateway import BeatingGateway
from harness.running import Running

# Seconds of the processor that one request may take of the event loop, which all clients share.
MOST_SECONDS = 1.0
MOST_CHARACTERS = 9000
NAMES = [f"n{n}" for n in range(100_000)]
# Many keys, and many values, as JSON.
KEYS = json.dumps(dict.fromkeys(NAMES, 1))
MANY = json.dumps(NAMES)
FEW = json.dumps(NAMES[:2000])
# Texts of arguments: of many conditions, and of many digits.
TEXTS = (",".join(f"f{n}=1" for n in range(MOST_CHARACTERS // 8)), "9" * MOST_CHARACTERS)
MEDIA = {"Content-Type": "application/json"}
MCP = {**MEDIA, "Accept": "application/json, text/event-stream"}


class Asked(NamedTuple):
    """A request: its method, path, and the rest for the client."""

    method: str
    path: str
    rest: dict[str, Any]


@pytest.fixture(scope="module")
def beating(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatingGateway]:
    """Run a gateway that tells how long its loop computes, on a host with large values."""
    deep: Any = "x"
    for _ in range(12):
        deep = {"a": deep}
    publish(
        served,
        ("hostile", "list", "l", {"list": [*range(20_000)]}),
        ("hostile", "keys", "k", dict.fromkeys(NAMES[:6000], "x")),
        ("hostile", "text", "t", {"text": "\u200b \x1b[" * 20_000, "deep": deep}),
    )
    served.vectorized()
    with BeatingGateway(served, tmp_path_factory.mktemp("beating")) as running:
        yield running


def requests_of(described: dict[str, Any]) -> Iterator[Asked]:
    """Yield hostile requests to each route of an OpenAPI description, by its own parameters."""
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            placed = {each["name"]: TEXTS[0] for each in parameters if each["in"] == "path"}
            target = path.format(**placed)
            queried = [each for each in parameters if each["in"] == "query"]
            needed = {each["name"]: "x" for each in queried if each.get("required")}
            for each in queried:
                is_text = '"string"' in json.dumps(each["schema"])
                text = TEXTS[0] if is_text else TEXTS[1]
                yield Asked(method, target, {"params": {**needed, each["name"]: text}})
            if queried:
                many = [(queried[-1]["name"], name) for name in NAMES[:1500]]
                yield Asked(method, target, {"params": [*needed.items(), *many]})
                others = dict.fromkeys(NAMES[:2000], "")
                yield Asked(method, target, {"params": {**needed, **others}})
            for body in bodies_of(described, operation):
                yield Asked(method, target, {"content": body, "headers": MEDIA})


def bodies_of(described: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    """Yield bodies with many unknown keys, and with many values in each known one."""
    if "requestBody" not in operation:
        return
    media, content = next(iter(operation["requestBody"]["content"].items()))
    yield KEYS
    if '"array"' in json.dumps(content["schema"]):
        yield f"[{KEYS}]"
    if media != "application/json":
        yield "{}\n" * 50_000
    properties, required = resolve(described, content["schema"])
    for name, inner in properties.items():
        rest = "".join(f'"{key}": "x", ' for key in required if key != name)
        is_one = "array" not in json.dumps(inner) and "object" not in json.dumps(inner)
        yield f'{{{rest}"{name}": {FEW if is_one else MANY}}}'
        if inner.get("type") == "object":
            yield f'{{{rest}"{name}": {KEYS}}}'
        for part in resolve(described, inner)[0]:
            yield f'{{{rest}"{name}": {{"{part}": {FEW}}}}}'


def resolve(described: dict[str, Any], schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the properties of the object that a schema is, or refers to, and the required ones."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return resolve(described, described["components"]["schemas"][name])
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if (found := resolve(described, each))[0]:
            return found
    return schema.get("properties", {}), schema.get("required", [])


def calls_of(tools: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield hostile arguments of each MCP tool, by its own schema, as JSON."""
    for tool in tools:
        schema = tool["inputSchema"]
        required = "".join(f'"{name}": "hostile/keys/k", ' for name in schema.get("required", ()))
        yield tool["name"], json.dumps(dict.fromkeys(NAMES[:60_000], 1))
        yield tool["name"], f"{{{required.removesuffix(', ')}}}"
        for name, inner in schema["properties"].items():
            rest = required.replace(f'"{name}": "hostile/keys/k", ', "")
            for value in (
                [FEW, json.dumps(TEXTS[0])] if inner["type"] != "integer" else [FEW, "9" * 4000]
            ):
                yield tool["name"], f'{{{rest}"{name}": {value}}}'
            if inner["type"] == "array":
                unknown = json.dumps(NAMES[: inner["maxItems"]])
                yield tool["name"], f'{{"kind": "list", "{name}": ["list", "text"]}}'
                yield tool["name"], f'{{"where": "list=no", "{name}": {unknown}}}'


def test_no_route_makes_others_wait(beating: BeatingGateway) -> None:
    """Keep the event loop free, whatever is sent to any route in any of its parameters."""
    with beating.http() as http:
        described = http.get("/openapi.json").json()
        for asked in requests_of(described):
            if asked.path.endswith("/stream"):
                continue
            answer = http.request(asked.method, asked.path, **asked.rest)
            said = (asked.method, asked.path, str(asked.rest)[:200], answer.text[:200])
            assert answer.status_code < 500 or answer.status_code in {501, 503}, said
            assert beating.longest < MOST_SECONDS, said


@pytest.mark.parametrize("path", ["/mcp", "/mcp/fleet"])
def test_no_tool_makes_others_wait(beating: BeatingGateway, path: str) -> None:
    """Keep the event loop free, whatever a tool of MCP is asked."""
    with beating.http() as http:

        def post(method: str, params: str = "{}") -> httpx.Response:
            body = f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'
            return http.post(path, content=body, headers=MCP)

        client = {"name": "t", "version": "1"}
        began = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        http.headers["Mcp-Session-Id"] = post("initialize", json.dumps(began)).headers[
            "mcp-session-id"
        ]
        listed = post("tools/list").text
        tools = json.loads(listed[listed.index("{") :])["result"]["tools"]
        assert len(tools) == 8
        for tool, given in calls_of(tools):
            answer = post("tools/call", f'{{"name": "{tool}", "arguments": {given}}}')
            said = (tool, given[:200], answer.text[:200])
            assert answer.status_code in {200, 400, 413}, said
            assert beating.longest < MOST_SECONDS, said
