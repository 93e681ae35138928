"""Loopback listener of `op-dbus page`: a link that works once, a cookie, and the gateway behind.

The token of the link is exchanged for a cookie that scripts cannot read and that other sites
cannot send. Browsers send a cookie to all ports of a host, so the page has a random path as well,
to which the cookie is limited.
"""

import asyncio
import html
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from opdbus.gateway.http_connection import HttpConnection
from opdbus.gateway.http_limits import Limits
from opdbus.platform.tasks import signals

_Event = TypeVar("_Event", bound=h11.Event)

_COOKIE: Final = "op-dbus-page"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_PASSED: Final = ("accept", "if-none-match", "last-event-id")
# Headers between two neighbours, which are not passed on; see RFC 9110, 7.6.1.
_HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_CHUNK_BYTES: Final = 64 << 10
_LIMITS: Final = Limits(header_bytes=16 << 10, header_seconds=5.0, connections=64)
_STOP_SECONDS: Final = 1
# A link that is followed from another site would not send a strict cookie along a redirection:
# the page goes on by itself.
_ENTRANCE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>op-dbus</title>'
    '<meta http-equiv="refresh" content="0;url={url}"><p><a href="{url}">Go on to op-dbus</a></p>'
)
# The page itself, while there is no gateway: it tries again by itself.
_WITHOUT_GATEWAY: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>op-dbus does not answer</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta http-equiv="refresh" content="2"><main><h1>op-dbus does not answer</h1><p>{why}.'
    "<p>This page tries again every two seconds.</main>"
)
_GUARD: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageListener:
    """Answers requests of one browser, and passes them on to the gateway's unix socket."""

    def __init__(self, gateway: Path) -> None:
        self._gateway = str(gateway)
        self._link = f"/once/{secrets.token_urlsafe(32)}"
        self._is_link_used = False
        self._cookie = secrets.token_urlsafe(32)
        self._root = f"/{secrets.token_urlsafe(16)}/"
        self.last_used = time.monotonic()

    def link(self, port: int) -> str:
        """Return the link that works once."""
        return f"http://127.0.0.1:{port}{self._link}"

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "HEAD"])])

    async def _answer(self, request: Request) -> Response:
        if not _is_loopback(request.headers.get("host", "")):
            return _refuse("This name is not that of this host: open http://127.0.0.1 or localhost")
        path = request.scope["raw_path"].decode("latin-1")
        if secrets.compare_digest(path.encode(), self._link.encode()):
            return self._exchange(request)
        cookie = request.cookies.get(_COOKIE, "")
        if not secrets.compare_digest(cookie.encode(errors="replace"), self._cookie.encode()):
            return _refuse("Open the link that `op-dbus page` printed; it works once")
        if _is_foreign(request):
            return _refuse("Another site asks: op-dbus answers its own page only")
        if not path.startswith(self._root):
            return PlainTextResponse("Not found\n", 404, _GUARD)
        self.last_used = time.monotonic()
        query = request.scope["query_string"].decode("latin-1")
        target = path.removeprefix(self._root.rstrip("/")) + (f"?{query}" if query else "")
        return await self._forward(request, target)

    def _exchange(self, request: Request) -> Response:
        """Answer the link: once with the cookie, then with a refusal."""
        if self._is_link_used or request.method != "GET":
            return _refuse("This link was used already: run `op-dbus page` again for another one")
        self._is_link_used = True
        self.last_used = time.monotonic()
        answer = HTMLResponse(_ENTRANCE.format(url=html.escape(self._root)), headers=_GUARD)
        answer.set_cookie(_COOKIE, self._cookie, path=self._root, httponly=True, samesite="strict")
        return answer

    async def _forward(self, request: Request, target: str) -> Response:
        """Ask the gateway, and pass its answer on as it comes."""
        headers = [("host", "localhost"), ("connection", "close")]
        headers += [(key, request.headers[key]) for key in _PASSED if key in request.headers]
        asked = h11.Request(method=request.method, target=target, headers=headers)
        try:
            upstream = await _Upstream.ask(self._gateway, asked)
        except (OSError, h11.RemoteProtocolError) as error:
            message = f"the gateway at {self._gateway} does not answer: {error}"
            if urlsplit(target).path == "/":
                text = _WITHOUT_GATEWAY.format(why=html.escape(message))
                return HTMLResponse(text, 503, {**_GUARD, "Retry-After": "2"})
            return JSONResponse({"error": {"message": message}}, 503, {"Retry-After": "1"})
        answer = StreamingResponse(upstream.body(), upstream.head.status_code)
        answer.raw_headers = [each for each in upstream.head.headers if each[0] not in _HOP_BY_HOP]
        return answer


class _Upstream:
    """One request to the gateway, on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._connection = h11.Connection(h11.CLIENT)
        self.head: h11.Response

    @classmethod
    async def ask(cls, path: str, request: h11.Request) -> Self:
        """Send a request without a body, and read the head of its answer."""
        own = cls(*await asyncio.open_unix_connection(path))
        try:
            for event in (request, h11.EndOfMessage()):
                own._writer.write(own._connection.send(event) or b"")
            own.head = await own._next(h11.Response)
        except BaseException:
            own._writer.close()
            raise
        return own

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body, then close the connection, also when the browser has left."""
        try:
            while isinstance(event := await self._next(h11.Event), h11.Data):
                yield bytes(event.data)
        finally:
            self._writer.close()

    async def _next(self, kind: type[_Event]) -> _Event:
        """Return the next event; raises RemoteProtocolError if it is of another kind."""
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(await self._reader.read(_CHUNK_BYTES))
        if not isinstance(event, kind):
            raise h11.RemoteProtocolError("it closed the connection")
        return event


async def serve(listener: PageListener, own: socket.socket, idle_seconds: float) -> None:
    """Serve until SIGINT or SIGTERM, or until no request came for some time."""
    server = _Server(
        uvicorn.Config(
            listener.app(),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
    )
    async with signals(asyncio.Event()) as stopped:
        task = asyncio.create_task(server.serve([own]))
        while not stopped.is_set():
            rest = listener.last_used + idle_seconds - time.monotonic()
            if rest <= 0 or task.done():
                break
            await asyncio.wait(
                {asyncio.ensure_future(stopped.wait()), task},
                timeout=rest,
                return_when=asyncio.FIRST_COMPLETED,
            )
        server.should_exit = True
        await task


class _Connection(HttpConnection):
    limits = _LIMITS


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names this host's loopback; `ssh -L` may change the port."""
    try:
        return urlsplit(f"//{host}").hostname in _LOOPBACK
    except ValueError:
        return False


def _is_foreign(request: Request) -> bool:
    """Return whether another site, or another port of this host, made the browser ask."""
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{request.headers['host']}":
        return True
    return request.headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}


def _refuse(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 403, _GUARD)
