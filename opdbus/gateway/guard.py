"""Guard around an application: who may ask, and how large, slow and many requests may be."""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opdbus.gateway.http_errors import HttpError, answer_error
from opdbus.gateway.http_limits import Limits
from opdbus.gateway.http_metrics import Counters

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_VERSIONS: Final = ("1.0", "1.1")
# Bodies of these routes are read in parts.
_STREAMED: Final = ("/batch/import",)
# A target with a scheme, as requests to proxies have (RFC 9112, 3.2.2).
_ABSOLUTE: Final = re.compile(rb"https?://([^/@]+)(/.*)?", re.IGNORECASE | re.DOTALL)
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d+)?")
# Slashes hidden from a proxy that decides by the path; names of objects may have them.
_HIDDEN: Final = (b"%2f", b"%5c", b"\\")
_NAMED: Final = b"/objects/"
# One client may have this part of all bytes that are held, or one body.
_SHARES: Final = 4
# Memory of a value of JSON once it is read, and the signs before one that is no string.
_VALUE_BYTES: Final = 40
_SIGNS: Final = (b",", b"[", b"{")
# A string, which may be open at the end; the last group is its end.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a listener.

    Without a token, everyone who reaches the socket; with names (lower case), requests that name
    one of them or an IP address as their host, so that no page of a browser reaches it by a name
    of its own.
    """

    token: str = ""
    names: frozenset[str] | None = None

    def require(self, request: Request) -> None:
        """Raise the HttpError of a request that may not pass."""
        host = request.headers.get("host", "").lower()
        if self.names is not None and host and not self._is_ours(host):
            raise HttpError(
                421,
                f"Host: {host!r} is not a name of this server; use its address, or have"
                " OP_DBUS_HTTP_HOSTS name it",
            )
        if (origin := request.headers.get("origin")) and not _is_same(origin, host):
            raise HttpError(403, "Origin: pages of other servers may not ask")
        if self.token and not self._is_authorized(request.headers.get("authorization", "")):
            raise HttpError(401, "Authorization: send `Bearer` and the token of this server")

    def _is_ours(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if not parts:
            return False
        try:
            ipaddress.ip_address(parts[1] or parts[2])
        except ValueError:
            return parts[2] in (self.names or ())
        return True

    def _is_authorized(self, given: str) -> bool:
        scheme, _, token = given.partition(" ")
        # digests have one length, so that the time says nothing of the token's
        digests = [hashlib.sha256(text.encode()).digest() for text in (token.strip(), self.token)]
        return hmac.compare_digest(*digests) and scheme.lower() == "bearer"


class Guard:
    """An ASGI application that refuses what goes beyond its limits, and counts all requests."""

    def __init__(
        self, app: ASGIApp, access: Access, counters: Counters, listener: str, limits: Limits
    ) -> None:
        self._app = app
        self._access = access
        self._counters = counters
        self._listener = listener
        self.limits = limits
        self._running: Counter[str] = Counter()
        # bytes of bodies and of their values, by client
        self.held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_head = scope["method"] == "HEAD"
        scope = _as_routed(_in_origin_form(scope))
        exchange = _Exchange(self, scope, receive, send)
        exchange.is_head = is_head
        with self._counters.watch(self._listener, scope) as on_response, exchange.holding():
            exchange.on_response = on_response
            try:
                _require_sound(exchange.request)
                self._access.require(exchange.request)
                with self._place(exchange.client):
                    exchange.require_size()
                    await self._app(scope, exchange.receive, exchange.send)
            except HttpError as error:
                await exchange.refuse(error)

    @contextmanager
    def _place(self, client: str) -> Iterator[None]:
        """Take one of the client's places; raises HttpError if none is left."""
        if (count := self._running[client]) >= self.limits.running_of_client:
            raise HttpError(429, f"{count} requests of this client are running: send fewer")
        if (count := self._running.total()) >= self.limits.running:
            raise HttpError(503, f"{count} requests are running: ask again later")
        self._running[client] += 1
        try:
            yield
        finally:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]


class _ValueCounter:
    """Counts the values of a JSON text that comes in parts."""

    def __init__(self) -> None:
        # of a string that has not ended, what decides where it ends
        self._open = b""

    def count(self, part: bytes) -> int:
        """Return about how many values the next part has; 64 KiB usually take 0.2 ms."""
        outside, strings = _STRING.subn(rb"\1", self._open + part)
        is_open = outside.count(b'"') < strings
        self._open = (b'"\\' if outside.endswith(b"\\") else b'"') if is_open else b""
        # its end, in a later part, is counted once more
        return strings + sum(map(outside.count, _SIGNS))


class _Exchange:
    """One request and its response: counts the body while it is read, and can end it early."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = Request(scope)
        self.client = (scope.get("client") or ("",))[0]
        self.on_response: Callable[[Message], None] = _ignore
        self.is_head = False
        self._guard = guard
        self._receive = receive
        self._send = send
        self._is_streamed = scope["path"] in _STREAMED
        self._limits = guard.limits
        self._most = self._limits.streamed_bytes if self._is_streamed else self._limits.body_bytes
        self._received = self._held = 0
        self._values = _ValueCounter()
        self._waited = 0.0
        self._has_ended = self._has_begun = self._is_refused = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Release what is held of the body at the end."""
        try:
            yield
        finally:
            self._hold(-self._held)

    def require_size(self) -> None:
        """Raise HttpError if the body is declared larger than it may be."""
        declared = self.request.headers.get("content-length", "")
        # h11 accepts digits only
        if declared and (len(declared) > 18 or int(declared) > self._most):
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next part of the body; a client that sends too much or too slowly is gone."""
        if self._has_ended or self._is_refused:
            return await self._receive() if self._has_ended else {"type": "http.disconnect"}
        earned = self._received / self._limits.body_rate
        # a large part earns no long silence
        allowed = min(earned - self._waited, 0.0) + self._limits.body_seconds
        began = time.monotonic()
        try:
            async with asyncio.timeout(allowed):
                message = await self._receive()
        except TimeoutError:
            return await self._end(HttpError(408, "the body came too slowly"))
        self._waited += time.monotonic() - began
        self._has_ended = not message.get("more_body", False)
        body = message.get("body", b"")
        self._received += len(body)
        if self._received > self._most:
            return await self._end(self._too_large())
        if not self._is_streamed:
            self._hold(len(body) + _VALUE_BYTES * self._values.count(body))
            held, most = self._guard.held, self._limits.held_bytes
            share = max(most // _SHARES, self._most)
            if self._held > share:
                return await self._end(
                    HttpError(413, f"the body's values take more than {share:,} bytes: send fewer")
                )
            if held[self.client] > share:
                return await self._end(HttpError(429, "too many bodies of this client are held"))
            if held.total() > most:
                return await self._end(HttpError(503, "too many bodies are held: ask again later"))
        return message

    def _hold(self, size: int) -> None:
        """Count bytes that are held, or are not any more if negative."""
        held = self._guard.held
        self._held += size
        held[self.client] += size
        if not held[self.client]:
            del held[self.client]

    async def send(self, message: Message) -> None:
        """Send a part of the response, unless the request was refused meanwhile."""
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            self._has_begun = True
            self.on_response(message)
        await self._send(message)
        if self.is_head:
            # also of a stream, which would not end
            self._is_refused = True
            await self._send({"type": "http.response.body"})

    async def refuse(self, error: HttpError) -> None:
        """Answer with an error, unless a response has begun."""
        if self._has_begun or self._is_refused:
            return
        response = answer_error(self.request, error)
        await response(self.request.scope, self._receive, self.send)
        self._is_refused = True

    async def _end(self, error: HttpError) -> Message:
        await self.refuse(error)
        self._is_refused = True
        return {"type": "http.disconnect"}

    def _too_large(self) -> HttpError:
        return HttpError(413, f"the body may have at most {self._most:,} bytes")


def _in_origin_form(scope: Scope) -> Scope:
    """Return a request whose target is a path; a target's host replaces that of the headers."""
    found = _ABSOLUTE.fullmatch(scope["raw_path"])
    if not found:
        return scope
    raw = found[2] or b"/"
    others = [each for each in scope["headers"] if each[0] != b"host"]
    headers = [*others, (b"host", found[1])]
    return {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii")), "headers": headers}


def _as_routed(scope: Scope) -> Scope:
    """Return a request as routes know it: HEAD is GET, and a path ends without a slash.

    Names of objects may end with one. A redirection would need our scheme behind a proxy.
    """
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    raw, path = scope["raw_path"], scope["path"]
    if len(raw) > 1 and raw.endswith(b"/") and (raw == _NAMED or not raw.startswith(_NAMED)):
        raw, path = raw.removesuffix(b"/"), path.removesuffix("/")
    return {**scope, "method": method, "raw_path": raw, "path": path}


def _require_sound(request: Request) -> None:
    """Raise HttpError for methods and paths that no client of ours sends."""
    if request.scope["http_version"] not in _VERSIONS:
        raise HttpError(505, "only HTTP/1.0 and HTTP/1.1 are served")
    if request.method not in _METHODS:
        raise HttpError(405, f"the method {request.method} is not served")
    raw: bytes = request.scope["raw_path"]
    path = unquote_to_bytes(raw)
    if not raw.startswith(b"/") or min(path) < ord(" ") or not _is_text(path):
        raise HttpError(
            400, "the path has to begin with / and to be UTF-8 without control characters"
        )
    hidden = any(text in raw.lower() for text in _HIDDEN) or b"//" in path
    if not path.startswith(_NAMED) and (hidden or {b".", b".."} & set(path.split(b"/"))):
        raise HttpError(404, "there is no such path: it has //, dots or escaped slashes")


def _ignore(_start: Message) -> None:
    """Count nothing."""


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    return origin.lower() in {f"http://{host}", f"https://{host}"}
