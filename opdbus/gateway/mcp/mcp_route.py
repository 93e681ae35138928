"""Route `/mcp`: the MCP server over streamable HTTP, made by the first request."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.http_errors import HttpError

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

# Sessions of clients of 2025, and seconds after which an idle one ends.
_MOST_SESSIONS: Final = 256
_IDLE_SECONDS: Final = 1800.0
_BODY_BYTES: Final = 1 << 20


def mcp_route(link: DaemonLink) -> Route:
    """Return the route; hosts, origins and tokens are the gateway's guard's to check."""
    return Route("/mcp", endpoint=McpEndpoint(link), methods=["GET", "POST", "DELETE"])


class McpEndpoint:
    """An ASGI application; the SDK is loaded on a thread when it is asked first."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if not self._manager:
            self._manager = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._manager))
        manager = await asyncio.shield(self._manager)
        await manager.handle_request(scope, receive, send)

    async def _serve(self, ready: "asyncio.Future[StreamableHTTPSessionManager]") -> None:
        """Keep the sessions until the gateway ends."""
        try:
            module = await asyncio.to_thread(import_module, "opdbus.gateway.mcp.mcp_server")
        except ImportError as error:
            reason = f"/mcp needs the MCP SDK: `pip install 'op-dbus[mcp]'` ({error})"
            ready.set_exception(HttpError(501, reason))
            return
        server = module.make_server(self._link)
        server.streamable_http_app(
            host="",
            max_sessions=_MOST_SESSIONS,
            session_idle_timeout=_IDLE_SECONDS,
            max_request_body_size=_BODY_BYTES,
        )
        async with server.session_manager.run():
            ready.set_result(server.session_manager)
            await asyncio.get_running_loop().create_future()
