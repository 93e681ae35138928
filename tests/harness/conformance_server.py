"""A server with the fixtures of the conformance tests behind our route, subscriptions and guard.

python -m harness.conformance_server PORT
"""

import asyncio
import base64
import json
import socket
import sys
from functools import partial
from typing import Any

import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)
from starlette.applications import Starlette
from starlette.routing import Route

from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.guard import Access, Guard
from opdbus.gateway.http_limits import Limits
from opdbus.gateway.http_metrics import Counters
from opdbus.gateway.mcp.mcp_route import McpEndpoint
from opdbus.gateway.mcp.mcp_server import serve_addresses
from opdbus.gateway.mcp.resource_updates import ResourceUpdates

# One red pixel, and a sound without samples.
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
_IMAGE = ImageContent(type="image", data=base64.b64encode(_PNG).decode(), mime_type="image/png")
_WAV = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0D\xac\0\0\x88X\x01\0\x02\0\x10\0data\0\0\0\0"
_FRESH = CacheHint(ttl_ms=60_000, scope="public")
_CACHED = (
    *("tools/list", "prompts/list", "resources/list", "resources/templates/list"),
    *("resources/read", "server/discover"),
)


def make_fixtures(link: DaemonLink) -> MCPServer[Any]:
    """Return a server with what the scenarios ask for, of the parts that op-dbus uses."""
    updates = ResourceUpdates(link)
    hints = dict.fromkeys(_CACHED, _FRESH)
    server: MCPServer[Any] = MCPServer(
        "fixtures", subscriptions=updates, cache_hints=hints, log_level="ERROR"
    )
    serve_addresses(server, updates)
    _add_tools(server)
    _add_resources(server)
    _add_prompts(server)
    return server


def _embedded(uri: str, text: str, kind: str = "text/plain") -> EmbeddedResource:
    inner = TextResourceContents(uri=uri, text=text, mime_type=kind)
    return EmbeddedResource(type="resource", resource=inner)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _add_tools(server: MCPServer[Any]) -> None:
    @server.tool(description="Returns a text")
    def test_simple_text() -> TextContent:
        return _text("This is a simple text response for testing.")

    @server.tool(description="Returns an image")
    def test_image_content() -> ImageContent:
        return _IMAGE

    @server.tool(description="Returns a sound")
    def test_audio_content() -> AudioContent:
        data = base64.b64encode(_WAV).decode()
        return AudioContent(type="audio", data=data, mime_type="audio/wav")

    @server.tool(description="Returns a resource")
    def test_embedded_resource() -> EmbeddedResource:
        return _embedded("test://embedded-resource", "This is an embedded resource content.")

    @server.tool(description="Returns a text, an image and a resource")
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        mixed = json.dumps({"test": "data", "value": 123})
        resource = _embedded("test://mixed-content-resource", mixed, "application/json")
        return [_text("Multiple content types test:"), _IMAGE, resource]

    @server.tool(description="Fails")
    def test_error_handling() -> TextContent:
        raise ValueError("This tool intentionally returns an error for testing")

    @server.tool(description="Reports its progress")
    async def test_tool_with_progress(ctx: Context) -> TextContent:
        for progress in (0, 50, 100):
            await ctx.report_progress(progress, 100)
            await asyncio.sleep(0.05)
        return _text("done")


def _add_resources(server: MCPServer[Any]) -> None:
    @server.resource("test://static-text", description="A text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", description="An image", mime_type="image/png")
    def static_binary() -> bytes:
        return _PNG

    @server.resource("test://watched-resource", description="Changes", mime_type="text/plain")
    def watched_resource() -> str:
        return "watched"

    @server.resource("test://template/{id}/data", description="Data", mime_type="application/json")
    def template(id: str) -> str:  # noqa: A002 -- the scenario's name
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _add_prompts(server: MCPServer[Any]) -> None:
    @server.prompt(description="A text")
    def test_simple_prompt() -> str:
        return "This is a simple prompt for testing."

    @server.prompt(description="A text with arguments")
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt(description="A resource")
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803 -- the scenario's name
        resource = _embedded(resourceUri, "Embedded resource content for testing.")
        asked = _text("Please process the embedded resource above.")
        return [UserMessage(content=resource), UserMessage(content=asked)]

    @server.prompt(description="An image")
    def test_prompt_with_image() -> list[UserMessage]:
        asked = _text("Please analyze the image above.")
        return [UserMessage(content=_IMAGE), UserMessage(content=asked)]

    @server.completion()
    async def complete(*_: object) -> Completion:
        return Completion(values=["paris", "park", "party"])


async def serve(port: int) -> None:
    """Serve until killed; the bus is one that there is not."""
    link = DaemonLink("unix:path=/nonexistent")
    endpoint = McpEndpoint(partial(make_fixtures, link), link.is_ending)
    app = Starlette(routes=[Route("/mcp", endpoint=endpoint)])
    access = Access(names=frozenset({"localhost"}))
    guarded = Guard(app, access, Counters(), "http", Limits())
    server = uvicorn.Server(uvicorn.Config(guarded, lifespan="off", log_level="error", http="h11"))
    own = socket.create_server(("127.0.0.1", port))
    print(f"listening on {own.getsockname()[1]}", flush=True)
    await server.serve([own])


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
