"""Composition root of the gateway: listeners, their applications, and an orderly end."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from opdbus import __version__
from opdbus.gateway import embeddings
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.http_errors import add_error_answers
from opdbus.gateway.mcp.mcp_route import mcp_route
from opdbus.platform.tasks import signals
from opdbus.systemd.notify import Systemd

log = structlog.get_logger()

# Longer than clients keep an idle connection, so that they close it, not the server.
_IDLE_SECONDS: Final = 300
# Bytes of a request's line and headers.
_HEADER_BYTES: Final = 32 << 10
# Seconds for running requests after SIGTERM.
_STOP_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket and the application that serves it, by name."""

    name: str
    socket: socket.socket


def read_app(link: DaemonLink) -> FastAPI:
    """Return the application of the reading socket."""
    app = FastAPI(
        title="op-dbus",
        version=__version__,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.link = link
    add_error_answers(app)
    app.include_router(embeddings.router)
    app.router.routes.append(mcp_route(link))
    return app


async def serve(bus: str, listeners: Sequence[Listener], service: Systemd) -> None:
    """Serve the listeners until SIGTERM."""
    async with DaemonLink(bus) as link, signals(asyncio.Event()) as stopped:
        servers = [(_server(read_app(link)), each.socket) for each in listeners]
        tasks = [asyncio.create_task(server.serve([own])) for server, own in servers]
        service.ready()
        ended = asyncio.create_task(stopped.wait())
        await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
        service.stopping()
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)
        ended.cancel()


class _Server(uvicorn.Server):
    """A server that leaves signals to the gateway."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _server(app: FastAPI) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            h11_max_incomplete_event_size=_HEADER_BYTES,
        )
    )
