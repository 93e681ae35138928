"""Routes `/mcp` and `/mcp/fleet`: MCP servers over streamable HTTP, made by the first request."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.fleet.fleet_link import NO_FLEET, FleetLink
from opdbus.gateway.http_errors import HttpError
from opdbus.platform import pip

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from opdbus.gateway.mcp.session_places import SessionPlaces

# Sessions of clients of 2025, and seconds after which an idle one ends.
_MOST_SESSIONS: Final = 256
_IDLE_SECONDS: Final = 1800.0
_BODY_BYTES: Final = 1 << 20


def mcp_routes(link: DaemonLink, fleet: FleetLink | None) -> list[Route]:
    """Return the routes; hosts, origins and tokens are the gateway's guard's to check."""
    servers = {"/mcp": partial(_load_server, link), "/mcp/fleet": partial(_load_fleet, fleet)}
    return [
        Route(
            path,
            endpoint=McpEndpoint(load, link.is_ending),
            methods=["GET", "POST", "DELETE"],
        )
        for path, load in servers.items()
    ]


def _load_server(link: DaemonLink) -> "MCPServer[Any]":
    """Load the SDK and return the host's server."""
    from opdbus.gateway.mcp.mcp_server import make_server

    return make_server(link)


def _load_fleet(fleet: FleetLink | None) -> "MCPServer[Any]":
    """Load the SDK and return the fleet's server; raises HttpError where there is no fleet."""
    if not fleet:
        raise HttpError(404, NO_FLEET)
    from opdbus.gateway.mcp.mcp_server import make_fleet_server

    return make_fleet_server(fleet)


class McpEndpoint:
    """An ASGI application; its server is loaded on a thread by the first request."""

    def __init__(self, load: "Callable[[], MCPServer[Any]]", is_ending: asyncio.Event) -> None:
        self._load = load
        self._is_ending = is_ending
        self._sessions: asyncio.Future[SessionPlaces] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if not self._sessions:
            self._sessions = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._sessions))
        sessions = await asyncio.shield(self._sessions)
        await sessions(scope, receive, send)

    async def _serve(self, ready: "asyncio.Future[SessionPlaces]") -> None:
        """Keep the sessions until the gateway ends."""
        try:
            server = await asyncio.to_thread(self._load)
        except Exception as error:  # noqa: BLE001 -- of the SDK: those who wait need an answer
            reason = f"MCP is not served: {type(error).__name__}: {error}"
            if isinstance(error, ModuleNotFoundError):
                reason = f"MCP needs its SDK: {pip.is_missing(error, 'mcp')}"
            known = isinstance(error, HttpError)
            ready.set_exception(error if known else HttpError(501, reason))
            # the next request tries again
            self._sessions = None
            return
        from mcp.server.subscriptions import ListenHandler

        from opdbus.gateway.mcp.session_places import SessionPlaces

        server.streamable_http_app(
            host="",
            max_sessions=_MOST_SESSIONS,
            session_idle_timeout=_IDLE_SECONDS,
            max_request_body_size=_BODY_BYTES,
        )
        async with server.session_manager.run():
            ready.set_result(SessionPlaces(server.session_manager))
            await self._is_ending.wait()
            listening = server._lowlevel_server.get_request_handler("subscriptions/listen")
            if listening and isinstance(listening.handler, ListenHandler):
                # its streams are requests of their own, which the sessions' end does not end
                listening.handler.close()
