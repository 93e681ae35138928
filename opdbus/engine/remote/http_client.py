"""HTTP client of one embedding server: kept connections, time limits, and errors as sentences."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from opdbus import __version__
from opdbus.errors import ProviderError, ServerUnreachable

# Seconds for a connection to be made.
_CONNECT_SECONDS: Final = 5.0
# Errors of the system that a unit without a network gives.
_FENCED: Final = {errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.EPERM}
ALLOW_NETWORK: Final = (
    "copy /usr/lib/systemd/system/op-dbus.service.d/remote.conf.example to"
    " /etc/systemd/system/op-dbus.service.d/remote.conf, name the servers in it, then `systemctl"
    " daemon-reload` and `systemctl restart op-dbus`"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's status, the seconds of its Retry-After (0 without one), and its body."""

    status: int
    retry_after: float
    body: bytes


class _SocketConnection(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_SECONDS)
        self.sock.connect(self._path)


class HttpClient:
    """Client of one server; safe to call from threads, each of which uses its own connection."""

    def __init__(self, url: str, token: str, seconds: float) -> None:
        self.url = url
        self._seconds = seconds
        parts = urlsplit(url)
        is_socket = parts.scheme == "unix"
        # the path of a unix socket is not part of a request's
        self.path = "" if is_socket else parts.path
        self._address = parts.path if is_socket else parts.netloc
        self._scheme = parts.scheme
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"op-dbus/{__version__}",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._is_closed = False

    def close(self) -> None:
        """Break all connections; requests in progress fail at once."""
        with self._lock:
            self._is_closed = True
            for connection in self._busy:
                _break(connection)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def request(self, path: str, body: bytes | None, most_bytes: int) -> Answer:
        """Post a body, or get without one, and return an answer of at most `most_bytes`.

        Raises ServerUnreachable, also where the server has closed a kept connection, and
        ProviderError for an answer that is late or too long.
        """
        late = threading.Event()
        with self._connection() as connection:

            def stop() -> None:
                late.set()
                _break(connection)

            # a socket's own limit is for one packet, and a slow server sends many
            timer = threading.Timer(self._seconds, stop)
            try:
                self._connect(connection)
                timer.start()
                connection.request("POST" if body else "GET", path or "/", body, self._headers)
                with closing(connection.getresponse()) as response:
                    data = response.read(most_bytes + 1)
                    if len(data) > most_bytes:
                        raise ProviderError(
                            f"{self.url} answered with more than {most_bytes} bytes"
                        )
                    if response.length:
                        raise http.client.IncompleteRead(data, response.length)
                return Answer(response.status, _seconds(response.getheader("Retry-After")), data)
            except (OSError, http.client.HTTPException) as error:
                if late.is_set():
                    raise ProviderError(
                        f"{self.url} gave no answer in {self._seconds:g} s"
                    ) from None
                raise ServerUnreachable(f"{self.url} broke off: {_reason(error)}") from None
            finally:
                timer.cancel()

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        """Lend a connection, which is kept; after an error all that are idle are closed."""
        with self._lock:
            if self._is_closed:
                raise ProviderError(f"{self.url} is used no more")
            connection = self._idle.pop() if self._idle else self._make()
            self._busy.add(connection)
        try:
            yield connection
        except BaseException:
            with self._lock:
                # the server may have ended all of them
                for each in (connection, *self._idle):
                    each.close()
                self._idle.clear()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)
                if self._is_closed:
                    connection.close()
                elif connection.sock:
                    self._idle.append(connection)

    def _make(self) -> http.client.HTTPConnection:
        if self._scheme == "unix":
            return _SocketConnection(self._address)
        if self._tls:
            return http.client.HTTPSConnection(
                self._address, timeout=_CONNECT_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(self._address, timeout=_CONNECT_SECONDS)

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock:
            return
        try:
            connection.connect()
        except (OSError, ValueError) as error:
            fenced = isinstance(error, OSError) and self._scheme != "unix" and _is_fenced(error)
            advice = f"; this process has no network: {ALLOW_NETWORK}" if fenced else ""
            raise ServerUnreachable(
                f"{self.url} cannot be reached: {_reason(error)}{advice}"
            ) from None
        if connection.sock:
            # longer than the timer's time, which says that the answer is late
            connection.sock.settimeout(self._seconds + 1)


def reach(url: str) -> int:
    """Return the HTTP status that a server answers with; raises ProviderError."""
    client = HttpClient(url.partition("#")[0], "", _CONNECT_SECONDS)
    try:
        return client.request(f"{client.path}/v1/models", None, 1 << 20).status
    finally:
        client.close()


def _seconds(text: str | None) -> float:
    """Return the seconds of Retry-After; 0 for a date or none."""
    return float(text) if text and text.isascii() and text.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else ""
    return text or str(error) or type(error).__name__


def _break(connection: http.client.HTTPConnection) -> None:
    """End a connection while another thread reads from it."""
    if connection.sock:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _is_fenced(error: OSError) -> bool:
    """Return true if an address cannot be reached since this process has no network."""
    if error.errno in _FENCED:
        return True
    try:
        return {name for _, name in socket.if_nameindex()} <= {"lo"}
    except OSError:
        return True
