"""HTTP connection with limits: deadlines for headers and readers, and a place among others."""

import asyncio
import json
import re
import socket
import struct
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from opdbus.gateway.http_errors import type_of
from opdbus.gateway.http_limits import Limits

_CREDENTIALS: Final = struct.Struct("3i")
_REASONS: Final = {
    408: "the request's headers came too slowly",
    431: "the request's line and headers are too long",
    503: "too many connections are busy: connect again later",
}


# The end of a request's head, as h11 finds it.
_HEAD_END: Final = re.compile(rb"\n\r?\n")


class _MeasuredConnection(h11.Connection):
    """h11's connection, which refuses a head that is too long before it is parsed."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, limits.header_bytes)
        self._limits = limits

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; raises RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            received = self.trailing_data[0]
            end = _HEAD_END.search(received, 0, self._limits.header_bytes)
            head = received[: end.start()] if end else received
            is_long = len(head) > self._limits.header_bytes
            if is_long or head.count(b"\n") > self._limits.headers:
                raise h11.RemoteProtocolError(_REASONS[431], error_status_hint=431)
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                # a proxy before us may have taken the other one (RFC 9112, 6.1)
                raise h11.RemoteProtocolError("a request has one of two lengths")
        return event


class HttpConnection(H11Protocol):
    """uvicorn's connection, which ends clients that send or read too slowly.

    uvicorn makes connections itself: their limits are an attribute of the class.
    """

    limits = Limits()

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*arguments, **named)
        self.conn = _MeasuredConnection(self.limits)
        self._deadline: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self.idle_since = self.loop.time()

    @property
    def is_idle(self) -> bool:
        """True while no request is running."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unread(self) -> int:
        """Bytes of responses that the client has not read."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place; a client on a unix socket is known by its user."""
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        if own.family == socket.AF_UNIX:
            found = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.client = (f"uid {_CREDENTIALS.unpack(found)[1]}", 0)
        self._deadline = self.loop.call_later(self.limits.header_seconds, self._end_slow)
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._deadline, self._linger, self._reading):
            if timer:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Process what came; headers that are not complete get a deadline."""
        super().data_received(data)
        if self._linger and self.conn.their_state is not h11.SEND_BODY:
            self._linger.cancel()
            self._linger = None
        is_partial = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if self._deadline and not is_partial:
            self._deadline.cancel()
            self._deadline = None
        if self.transport.is_closing():
            return
        if is_partial and not self._deadline:
            self._deadline = self.loop.call_later(self.limits.header_seconds, self._end_slow)

        elif self.is_idle and not is_partial and not self.timeout_keep_alive_task:
            # what came was the rest of a body, which ended the time that was running
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, with the status that h11 gives its fault."""
        fault = sys.exception()
        status = fault.error_status_hint if isinstance(fault, h11.RemoteProtocolError) else 400
        # what h11 found comes after a colon
        self._refuse(status, _REASONS.get(status, f"{msg} {str(fault).partition(':')[0]}"))

    def on_response_complete(self) -> None:
        """Drain a body that nobody reads for a moment, so that the client sees its answer."""
        self.idle_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._linger = self.loop.call_later(self.limits.linger_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """Watch a client that does not read; of all, drop the one that leaves most unread."""
        super().pause_writing()
        everyone = self._all()
        if sum(each.unread for each in everyone) > self.limits.unread_bytes:
            max(everyone, key=lambda each: each.unread).transport.abort()
        elif not self.transport.is_closing():
            self._reading = self.loop.call_later(
                self.limits.read_seconds, self._require_reading, self.unread
            )

    def resume_writing(self) -> None:
        """Trust the client again."""
        super().resume_writing()
        if self._reading:
            self._reading.cancel()
            self._reading = None

    def _require_reading(self, before: int) -> None:
        if before - self.unread < self.limits.read_bytes:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(
                self.limits.read_seconds, self._require_reading, self.unread
            )

    def _end_slow(self) -> None:
        self._deadline = None
        if self.conn.trailing_data[0]:
            self._refuse(408, _REASONS[408])
        else:
            self.transport.close()

    def _all(self) -> list["HttpConnection"]:
        """Return this listener's connections that are not closing."""
        ours = [each for each in self.connections if isinstance(each, HttpConnection)]
        return [each for each in ours if not each.transport.is_closing()]

    def _make_room(self) -> None:
        idle = [each for each in self._all() if each.is_idle and each is not self]
        if idle:
            min(idle, key=lambda each: each.idle_since).transport.close()
        else:
            self._refuse(503, _REASONS[503])

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error and close; without an answer if one has begun."""
        is_running = self.cycle is not None and not self.cycle.response_complete
        if is_running:
            # the application sends nothing any more, and reads the end
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            error = {"message": message, "type": type_of(status), "param": None, "code": None}
            content = json.dumps({"error": error}).encode()
            headers = [("content-type", "application/json"), ("connection", "close")]
            headers.append(("content-length", str(len(content))))
            headers += [("retry-after", "1")] if status == 503 else []
            start = h11.Response(
                status_code=status, headers=headers, reason=STATUS_PHRASES.get(status, b"")
            )
            # a request that cannot be read has no method, and so an answer with a body
            is_head = is_running and self.scope["method"] == "HEAD"
            body = [] if is_head else [h11.Data(content)]
            for event in (start, *body, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
