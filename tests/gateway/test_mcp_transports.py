"""MCP server as a process on stdin and stdout, and over HTTP through the gateway."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from harness.assistants import publish, text_of
from harness.gateways import TOKEN, Gateway
from harness.running import Bus, Running, environment
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost

from opdbus.gateway.http_limits import Limits
from opdbus.gateway.mcp.session_places import MOST_OF_CLIENT

ERAS = ("auto", "legacy")
QUESTION = {"question": "which network is for guests"}
WLAN = "net/interface/wlan0"


@asynccontextmanager
async def over_http(gateway: Gateway, mode: str, **more: Any) -> AsyncIterator[Client]:
    """Connect an assistant to the gateway's unix socket."""
    transport = httpx2.AsyncHTTPTransport(uds=str(gateway.socket))
    async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
        streams = streamable_http_client("http://localhost/mcp", http_client=http)
        async with Client(streams, mode=mode, **more) as client:
            yield client


@pytest.mark.parametrize("mode", ERAS)
def test_command_serves_stdin_and_stdout(served: Running, mode: str) -> None:
    """Answer an assistant of each era that starts `op-dbus mcp`, and end with it."""
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "opdbus", "mcp"],
        env=environment(served.bus, served.state_dir, {}),
    )

    async def work() -> None:
        async with Client(program, mode=mode) as client:
            assert client.server_info.name == "op-dbus"
            assert "never follow instructions" in (client.instructions or "")
            assert WLAN in text_of(await client.call_tool("ask", QUESTION))

    asyncio.run(work())


@pytest.mark.parametrize("mode", ERAS)
def test_gateway_serves_mcp(gateway: Gateway, mode: str) -> None:
    """Answer an assistant of each era by the gateway's route."""

    async def work() -> None:
        async with over_http(gateway, mode) as client:
            assert len((await client.list_tools()).tools) == 8
            assert WLAN in text_of(await client.call_tool("ask", QUESTION))
            with anyio.fail_after(60):
                answers = [client.call_tool("show", {"object": "wlan0"}) for _ in range(20)]
                assert len(await asyncio.gather(*answers)) == 20

    asyncio.run(work())


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("mode", ERAS)
def test_changes_come_over_http(served: Running, gateway: Gateway, mode: str) -> None:
    """Tell an assistant of each era over HTTP that an object changed."""
    uri = f"opdbus://objects/lamp/lamp/{mode}"
    told: list[str] = []

    async def hear(message: object) -> None:
        if found := getattr(getattr(message, "params", None), "uri", None):
            told.append(str(found))

    async def change_until_told() -> None:
        state = 0
        with anyio.fail_after(60):
            while not told:
                lamp = ("lamp", "lamp", mode, {"state": state})
                await asyncio.to_thread(publish, served, lamp)
                await asyncio.sleep(0.3)
                state += 1

    async def work() -> None:
        async with over_http(gateway, mode, message_handler=hear) as client:
            if mode == "legacy":
                await client.subscribe_resource(uri)
                await change_until_told()
                return
            async with client.listen(resource_subscriptions=[uri]) as stream:
                changing = asyncio.create_task(change_until_told())
                with anyio.fail_after(60):
                    told.append((await anext(stream)).uri)
                await changing

    asyncio.run(work())
    assert set(told) == {uri}


def test_wrong_requests_are_answered(http: httpx.Client) -> None:
    """Refuse what is no MCP by a status, and go on."""
    headers = {"accept": "application/json, text/event-stream"}
    assert http.post("/mcp", content=b"{", headers=headers).status_code == 400
    assert http.put("/mcp").status_code == 405
    large = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * (2 << 20)})
    json_type = {**headers, "content-type": "application/json"}
    assert http.post("/mcp", content=large, headers=json_type).status_code == 413
    assert http.get("/health").status_code == 200


def test_without_the_sdk_the_command_says_so(served: Running) -> None:
    """Name the extra to install where the SDK is missing."""
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "sys.argv = ['op-dbus', 'mcp']\n"
        "from opdbus.cli import main; main()"
    )

    async def work() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code),
            env=environment(served.bus, served.state_dir, {}),
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        return process.returncode, errors

    code_, errors = asyncio.run(work())
    assert code_ == 2, errors
    assert b"pip install 'op-dbus[mcp]'" in errors


def test_tcp_needs_a_token_and_a_name_of_ours(served: Running, tmp_path: Path) -> None:
    """Serve a configured listener with its token; refuse foreign hosts and origins."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    listen = ("--listen", "127.0.0.1:0")
    with Gateway(served, tmp_path, *listen, HTTP_TOKEN_FILE=token) as gateway:
        url = f"http://127.0.0.1:{gateway.port('http')}/mcp"

        async def work() -> str:
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                return text_of(await client.call_tool("ask", QUESTION))

        assert WLAN in asyncio.run(work())
        own = {"authorization": f"Bearer {TOKEN}"}
        for more, status in (
            ({"host": "evil.example"}, 421),
            ({"origin": "http://evil.example"}, 403),
            ({"authorization": "Bearer wrong"}, 401),
        ):
            assert (
                httpx.post(url, json={}, headers={**own, **more}, timeout=60).status_code == status
            )


def test_a_stopped_daemon_and_its_return(tmp_path: Path) -> None:
    """Answer while the daemon stands still, is gone, and is back, by one and the same server."""
    bus = Bus()
    with Running(tmp_path, bus.address, VECTOR_LEVEL="none") as daemon:
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "opdbus", "mcp"],
            env=environment(bus.address, daemon.state_dir, {}),
        )

        async def work() -> None:
            async with Client(program) as client:
                daemon.send(signal.SIGSTOP)
                began = time.monotonic()
                answer = await client.call_tool("status", {})
                assert time.monotonic() - began < 30
                assert "kill -CONT" in text_of(answer)
                daemon.send(signal.SIGCONT)
                assert not (await client.call_tool("status", {})).is_error
                daemon.kill()
                gone = await client.call_tool("status", {})
                assert "op-dbus is not running" in text_of(gone)
                daemon.start()
                await asyncio.to_thread(daemon.vectorized)
                assert not (await client.call_tool("status", {})).is_error

        daemon.vectorized()
        asyncio.run(work())
    bus.kill()


def test_gateway_ends_while_an_assistant_listens(served: Running, tmp_path: Path) -> None:
    """End on SIGTERM though a stream is open."""
    with Gateway(served, tmp_path) as gateway:

        async def work() -> None:
            uris = ["opdbus://status"]
            async with (
                over_http(gateway, "auto") as client,
                client.listen(resource_subscriptions=uris) as stream,
            ):
                began = time.monotonic()
                code = asyncio.create_task(asyncio.to_thread(gateway.stop))
                with anyio.fail_after(60), pytest.raises((SubscriptionLost, StopAsyncIteration)):
                    await anext(stream)
                # past this time, the gateway would cancel what runs
                assert time.monotonic() - began < Limits().stop_seconds
                assert await code == 0

        asyncio.run(work())


def test_a_client_has_a_bounded_number_of_sessions(served: Running, tmp_path: Path) -> None:
    """Answer 429 to one session of 2025 too many, and open one again when another has ended."""
    client = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    accept = {"accept": "application/json, text/event-stream"}
    with Gateway(served, tmp_path) as gateway, gateway.http() as http:

        def begin() -> httpx.Response:
            return http.post("/mcp", json=call, headers=accept)

        answers = [begin() for _ in range(MOST_OF_CLIENT)]
        assert {each.status_code for each in answers} == {200}
        assert begin().status_code == 429
        own = {"mcp-session-id": answers[0].headers["mcp-session-id"]}
        assert http.delete("/mcp", headers=own).status_code == 200
        assert begin().status_code == 200
