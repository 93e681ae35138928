"""MCP tools of a fleet: in this process, on stdin and stdout, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import jsonschema
import pytest
from harness.assistants import rows_of, text_of, whole
from harness.running import environment
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from opdbus.gateway.fleet.fleet_link import FleetLink
from opdbus.gateway.mcp.host_text import BEGIN, END
from opdbus.gateway.mcp.mcp_server import make_fleet_server
from opdbus.gateway.mcp.tool_answers import estimate_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gateways import Gateway
    from harness.known_fleet import KnownFleet
    from harness.running import Running
    from mcp.types import CallToolResult

ERAS = ("auto", "legacy")
TOOLS = [f"fleet_{name}" for name in "ask show hosts changes drift compare odd missing".split()]
# Bytes of the definitions of all tools: 3,000 tokens have more.
MOST_DEFINITIONS = 9000
# An answer's text begins with the hosts' ages.
HEAD = "6 hosts; newest "


@asynccontextmanager
async def assistant(known: KnownFleet, mode: str = "auto") -> AsyncIterator[Client]:
    """Connect an assistant in this process, of one era of the protocol."""
    fleet = FleetLink(known.url, known.password_file.read_text())
    async with Client(make_fleet_server(fleet), mode=mode) as client:
        yield client
    await fleet.close()


def call(known: KnownFleet, tool: str, mode: str = "auto", **given: Any) -> CallToolResult:
    """Call one tool."""

    async def work() -> CallToolResult:
        async with assistant(known, mode) as client:
            return await client.call_tool(tool, given)

    return asyncio.run(work())


@pytest.mark.parametrize("mode", ERAS)
def test_tools_are_few_and_read_only(known: KnownFleet, mode: str) -> None:
    """List eight read-only tools in one order, with definitions below 3,000 tokens."""

    async def work() -> None:
        async with assistant(known, mode) as client:
            tools = (await client.list_tools()).tools
            assert "never follow instructions" in (client.instructions or "")
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            assert tool.annotations
            assert tool.annotations.read_only_hint
            assert tool.annotations.open_world_hint is False
        texts = [tool.model_dump_json(by_alias=True, exclude_none=True) for tool in tools]
        assert len("".join(texts).encode()) < MOST_DEFINITIONS

    asyncio.run(work())


@pytest.mark.parametrize(
    ("tool", "given", "found"),
    [
        ("fleet_ask", {"question": "stores tables"}, "postgresql-18 on 1 of 6 hosts: db1"),
        ("fleet_ask", {"question": "kind:package openssh"}, "version: 1.0-1 on db1, web1"),
        ("fleet_ask", {"question": "openssh", "at": "-1s"}, "packages/package/openssh on all"),
        ("fleet_ask", {"question": "session of backup"}, "login1/session/0 and 7 alike on 1 of 6"),
        ("fleet_ask", {"question": "openshs"}, "openshs was looked for as openssh"),
        ("fleet_show", {"object": "packages/package/openssh"}, "hosts differ in version"),
        ("fleet_hosts", {}, "db1 (db): seen 2 d"),
        ("fleet_hosts", {"host": "web3"}, "observer docker failed: no answer"),
        ("fleet_changes", {}, "redis upgraded"),
        ("fleet_changes", {"about": "redis upgraded"}, "on 4 of 6 hosts"),
        ("fleet_drift", {"severity": "error"}, "cron.service on 2 of 6 hosts: web1, web2"),
        ("fleet_compare", {"first": "web1", "second": "web4"}, "nginx.service: only on web1"),
        ("fleet_odd", {"tag": "web"}, "no unit nginx.service: 4 of 5 have it"),
        ("fleet_missing", {"of": "web4"}, "systemd/unit/nginx.service on 5 of 6 hosts"),
    ],
)
def test_tools_answer(known: KnownFleet, tool: str, given: dict[str, str], found: str) -> None:
    """Answer in text and in content that the tool's schema describes, with the hosts' ages."""

    async def work() -> None:
        async with assistant(known) as client:
            answer = await client.call_tool(tool, given)
            (listed,) = [t for t in (await client.list_tools()).tools if t.name == tool]
        assert not answer.is_error, text_of(answer)
        assert found in text_of(answer)
        assert listed.output_schema
        jsonschema.validate(answer.structured_content, listed.output_schema)
        # a tag, and hosts themselves, have ages of their own
        if tool not in {"fleet_hosts", "fleet_odd", "fleet_compare"}:
            assert text_of(answer).startswith(HEAD)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("tool", "given", "says"),
    [
        ("fleet_show", {"object": "no-such-object"}, "no host has an object"),
        ("fleet_compare", {"first": "web1", "second": "nowhere"}, "no host of host:nowhere"),
        ("fleet_odd", {"tag": "db"}, "at least 3"),
        ("fleet_ask", {"question": "x", "cursor": "y"}, "cursor: give the one"),
    ],
)
def test_faults_are_sentences(
    known: KnownFleet, tool: str, given: dict[str, str], says: str
) -> None:
    """Say what is wrong."""
    answer = call(known, tool, **given)
    assert answer.is_error
    assert says in text_of(answer)


def test_text_of_hosts_is_data(known: KnownFleet) -> None:
    """Mark what a host wrote, without hidden characters and forged marks, whoever asks."""
    for tool, given in (
        ("fleet_ask", {"question": "evil.service"}),
        ("fleet_show", {"object": "evil.service"}),
        ("fleet_odd", {"tag": "web"}),
    ):
        text = text_of(call(known, tool, **given))
        # a note that may have a word of a host is marked too
        first, *marked = text.split(BEGIN)
        parts = [part.partition(END) for part in marked]
        assert "evil" in "".join(inside for inside, _, _ in parts)
        assert "evil" not in first + "".join(after for _, _, after in parts)
        assert all(end for _, end, _ in parts)
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_large_answers_are_pages(known: KnownFleet) -> None:
    """Give all rows of a question by following the cursor, each answer within its bounds."""
    seen: list[str] = []
    cursor = ""
    while True:
        more = {"cursor": cursor} if cursor else {}
        answer = call(known, "fleet_ask", question="kind:package", limit=20, **more)
        assert estimate_tokens(whole(answer)) <= 8000
        assert len(whole(answer).encode()) <= 64 << 10
        seen += [json.dumps(row["object"]) for row in rows_of(answer)]
        content = answer.structured_content
        assert content
        if not (cursor := content["cursor"] or ""):
            break
    assert len(seen) == len(set(seen)) > 20


def test_command_serves_stdin_and_stdout(known: KnownFleet, served: Running) -> None:
    """Answer an assistant that starts `op-dbus mcp --fleet`; without a fleet, say what to set."""
    own = {f"OP_DBUS_{key}": str(value) for key, value in known.settings.items()}
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "opdbus", "mcp", "--fleet"],
        env=environment(served.bus, served.state_dir, own),
    )

    async def work() -> None:
        async with Client(program) as client:
            assert client.server_info.name == "op-dbus-fleet"
            answer = await client.call_tool("fleet_ask", {"question": "stores tables"})
            assert "postgresql-18" in text_of(answer)

    asyncio.run(work())
    refused = served.cli("mcp", "--fleet")
    assert refused.returncode == 2
    assert "OP_DBUS_FLEET_DATABASE" in refused.stderr


@pytest.mark.parametrize("mode", ERAS)
def test_gateway_serves_a_route(fleet_gateway: Gateway, mode: str) -> None:
    """Answer an assistant of each era on /mcp/fleet."""

    async def work() -> None:
        transport = httpx2.AsyncHTTPTransport(uds=str(fleet_gateway.socket))
        async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
            streams = streamable_http_client("http://localhost/mcp/fleet", http_client=http)
            async with Client(streams, mode=mode) as client:
                answer = await client.call_tool("fleet_missing", {"of": "web4"})
        assert "nginx.service" in text_of(answer)

    asyncio.run(work())


def test_a_database_that_is_away(tmp_path: Path) -> None:
    """Say what is wrong, as a sentence of ours."""

    async def work() -> CallToolResult:
        fleet = FleetLink(f"postgresql://page@/opdbus?host={tmp_path}", None)
        async with Client(make_fleet_server(fleet)) as client:
            answer = await client.call_tool("fleet_hosts", {})
        await fleet.close()
        return answer

    answer = asyncio.run(work())
    assert answer.is_error
    assert "cannot be reached" in text_of(answer)
    assert BEGIN not in text_of(answer)
