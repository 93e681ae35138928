"""Composition root of the gateway: listeners, their applications, and an orderly end."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from fastapi import FastAPI

from opdbus import __version__
from opdbus.gateway import (
    change_stream,
    embeddings,
    host_routes,
    ollama,
    tei,
    write_routes,
)
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.fleet import fleet_routes
from opdbus.gateway.fleet.fleet_link import FleetLink, embed_by_daemon
from opdbus.gateway.guard import Access, Guard
from opdbus.gateway.http_connection import HttpConnection
from opdbus.gateway.http_errors import add_error_answers
from opdbus.gateway.http_limits import Limits
from opdbus.gateway.http_metrics import Counters, metrics_app
from opdbus.gateway.listeners import METRICS, WRITE, Listener, Options
from opdbus.gateway.mcp.mcp_route import mcp_routes
from opdbus.gateway.openapi import describe_routes
from opdbus.gateway.page import page_routes as page
from opdbus.gateway.web_config import BasicAuth, WebConfig
from opdbus.platform.tasks import cancel, signals
from opdbus.systemd.notify import Systemd

if TYPE_CHECKING:
    from starlette.types import ASGIApp

# A path takes the first route that fits: the stream comes before objects of any name.
_READING: Final = (
    embeddings.router,
    tei.router,
    ollama.router,
    change_stream.router,
    host_routes.router,
    host_routes.objects,
    fleet_routes.router,
    page.router,
)
# Seconds between two looks at the clock, for the header `Date`.
_TICK_SECONDS: Final = 1.0


def read_app(link: DaemonLink, fleet: FleetLink | None = None) -> FastAPI:
    """Return the application of the reading socket."""
    app = _new_app(link, fleet)
    for router in _READING:
        app.include_router(router)
    app.router.routes += mcp_routes(link, fleet)
    return app


def write_app(link: DaemonLink, fleet: FleetLink | None = None) -> FastAPI:
    """Return the application of the writing socket, which has the reading routes as well."""
    app = read_app(link, fleet)
    app.include_router(write_routes.router)
    return app


async def serve(options: Options, listeners: Sequence[Listener], service: Systemd) -> None:
    """Serve the listeners, which `require_tokens` accepts, until SIGTERM."""
    counters = Counters()
    async with DaemonLink(options.bus) as link, signals(asyncio.Event()) as stopped:
        fleet = FleetLink(*options.fleet, embed_by_daemon(link)) if options.fleet else None
        servers = [_server(each, link, fleet, options, counters) for each in listeners]
        counters.count_connections(
            lambda: sum(len(server.server_state.connections) for server in servers)
        )
        tasks = [
            asyncio.create_task(server.serve([each.socket]))
            for server, each in zip(servers, listeners, strict=True)
        ]
        ended = [asyncio.create_task(work) for work in (stopped.wait(), service.ping_watchdog())]
        service.describe = lambda: _describe(listeners, counters, fleet)
        service.ready()
        counters.on_fault = service.renew
        await asyncio.wait([*tasks, *ended], return_when=asyncio.FIRST_COMPLETED)
        service.stopping()
        link.is_ending.set()
        for server in servers:
            server.stop()
        await asyncio.gather(*tasks)
        await cancel(ended)
        if fleet:
            await fleet.close()


def _new_app(link: DaemonLink, fleet: FleetLink | None) -> FastAPI:
    app = FastAPI(
        title="op-dbus",
        version=__version__,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.link = link
    app.state.fleet = fleet
    app.state.feed = change_stream.ChangeFeed(link)
    add_error_answers(app)
    describe_routes(app)
    return app


def _describe(listeners: Sequence[Listener], counters: Counters, fleet: FleetLink | None) -> str:
    fault = f"; last fault: {counters.last_fault}" if counters.last_fault else ""
    others = f"; fleet: {fleet.state}" if fleet else ""
    return f"Serving {', '.join(map(str, listeners))}{others}{fault}"


class _Server(uvicorn.Server):
    """A server that leaves signals to the gateway, and looks at the clock once a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def main_loop(self) -> None:
        """Wait for the end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self._ending.wait()

    def stop(self) -> None:
        """Accept nothing more; `serve` returns when all requests have ended."""
        self.should_exit = True
        self._ending.set()


def _server(
    listener: Listener,
    link: DaemonLink,
    fleet: FleetLink | None,
    options: Options,
    counters: Counters,
) -> _Server:
    """Return the server of a listener, behind its guard."""
    names = None
    if listener.is_tcp:
        own = (socket.gethostname(), socket.getfqdn(), "localhost", *options.names)
        names = frozenset(name.lower() for name in own)
    config: WebConfig | None = None
    if listener.name != METRICS:
        app: ASGIApp = (write_app if listener.name == WRITE else read_app)(link, fleet)
    else:
        app = metrics_app(link, counters)
        config = options.web_config
        if config:
            app = BasicAuth(app, config)
    limits = options.limits
    guarded = Guard(app, Access(options.token_of(listener), names), counters, listener.name, limits)
    context = config.context if config else None
    return _Server(
        uvicorn.Config(
            guarded,
            http=_connection(limits, config),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            # a client's address is not what it says in a header
            proxy_headers=False,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=limits.stop_seconds,
            ssl_context_factory=(lambda _config, _default: context) if context else None,
        )
    )


def _connection(limits_of_all: Limits, config: WebConfig | None) -> type[HttpConnection]:
    """Return a listener's kind of connection, which begins with the web configuration as it is."""

    class Connection(HttpConnection):
        limits = limits_of_all

        def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 -- uvicorn's own
            if config:
                config.refresh()
            super().__init__(*arguments, **named)

    return Connection
