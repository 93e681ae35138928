"""TLS in front of the embedded server, which is built without: PostgreSQL's protocol up to login.

The front reads what a client sends before its login, checks its certificate, and hands all that
follows to the server's unix socket, where the password is checked too. Sources: PostgreSQL's
chapter "Frontend/Backend Protocol", sections "Start-up", "SSL Session Encryption" and "Message
Formats".
"""

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

import structlog

from opdbus.errors import ConfigError
from opdbus.fleet.administration import OWN_WORKER, ROLE_PREFIX
from opdbus.fleet.embedded_server import SUPERUSER
from opdbus.fleet.pending_logins import PendingLogin, PendingLogins
from opdbus.platform import tasks

log = structlog.get_logger()

SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102
ALPN: Final = "postgresql"
_TLS_RECORD: Final = 0x16
# The server's own limit of the packet that begins a session, and of names.
_LONGEST_PACKET: Final = 10_000
_LONGEST_NAME: Final = 63
_BLOCK: Final = 1 << 16
_CLOSE_SECONDS: Final = 5.0
_BACKLOG: Final = 512
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds: sessions at once, those of clients without a certificate, and logins at once.

    A connection has `hello_seconds` until TLS begins, and `seconds` until its login. Where all
    places of logins are taken, it keeps its own for `kept_seconds` at least.
    """

    sessions: int = 360
    without_certificate: int = 64
    logins: int = 256
    seconds: float = 10.0
    hello_seconds: float = 3.0
    kept_seconds: float = 0.25


class Refusal(Exception):
    """An error for the client: its SQLSTATE, the message and a hint."""

    def __init__(self, sqlstate: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.hint = hint

    def packet(self) -> bytes:
        """Return the message ErrorResponse of a fatal error."""
        values = {"S": "FATAL", "V": "FATAL", "C": self.sqlstate, "M": str(self), "H": self.hint}
        fields = b"".join(
            code.encode() + value.encode() + b"\0" for code, value in values.items() if value
        )
        return b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0"


class Startup(NamedTuple):
    """The packet that begins a session, as it was sent, and the role that it names."""

    packet: bytes
    role: str


@dataclass
class _Client:
    """A connection past TLS; `certificate` is in DER, empty without one."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str
    is_direct: bool = False
    common_name: str = ""
    certificate: bytes = field(default=b"", repr=False)


class TlsFront:
    """Accepts clients of the server behind `server_socket`.

    `accepts` returns whether a certificate (DER) is the current one of a role.
    """

    def __init__(
        self,
        server_socket: Path,
        context: ssl.SSLContext,
        accepts: Callable[[str, bytes], bool],
        limits: Limits | None = None,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.sessions = 0
        self._without_certificate = 0
        self._server_socket = server_socket
        self._context = context
        self._accepts = accepts
        self._limits = limits or Limits()
        self._logins = PendingLogins(self._limits.logins, self._limits.kept_seconds)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Begin without a listener."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End all sessions."""
        await tasks.cancel(self._tasks)

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; sessions go on afterwards."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)  # noqa: FBT003 -- it takes no keywords
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _FULL:
                    log.warning("cannot accept a connection", reason=error.strerror)
                    await asyncio.sleep(1)
                continue
            try:
                await self._logins.make_place()
            except BaseException:
                connection.close()
                raise
            login = partial(self._handle, connection, str(address[0]))
            task = self._logins.start(str(address[0]), login)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # also of a task that is cancelled before it begins
            task.add_done_callback(partial(_close_socket, connection))

    async def _handle(self, connection: socket.socket, address: str, login: PendingLogin) -> None:
        client: _Client | None = None
        try:
            _set_keepalive(connection)
            async with asyncio.timeout(self._limits.seconds):
                client = await self._begin_tls(connection, address, login)
                startup = await self._read_startup(client) if client else None
                if not client or not startup:
                    return
                self._check(client, startup.role)
                reader, writer = await self._connect()
            self._logins.end(login)
            writer.write(startup.packet)
            await self._run_session(client, reader, writer)
        except Refusal as refusal:
            log.info("connection refused", address=address, reason=str(refusal))
            if client:
                await _send_last(client.writer, refusal.packet())
        except ssl.SSLError as error:
            log.info("TLS failed", address=address, reason=str(error))
        except (OSError, TimeoutError, EOFError) as error:
            log.debug("connection ended", address=address, reason=str(error))
        finally:
            if client:
                await _close(client.writer)

    async def _begin_tls(
        self, connection: socket.socket, address: str, login: PendingLogin
    ) -> _Client | None:
        """Return the client once its connection is encrypted; None if it was answered."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._limits.hello_seconds):
            is_direct = await _is_tls(connection)
            login.is_silent = False
            if not is_direct:
                if not await self._agree(connection):
                    return None
                # TLS has a longer time of its own once it begins
                await _is_tls(connection)
        reader = asyncio.StreamReader(limit=_BLOCK)
        protocol = asyncio.StreamReaderProtocol(reader)
        # only the request was read, so that bytes which follow it in the clear are no part of TLS
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=self._limits.seconds,
            ssl_shutdown_timeout=_CLOSE_SECONDS,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        channel: ssl.SSLObject = transport.get_extra_info("ssl_object")
        client = _Client(reader, writer, address, is_direct)
        if certificate := channel.getpeercert(binary_form=True):
            client.certificate = certificate
            client.common_name = _common_name(channel)
        if is_direct and channel.selected_alpn_protocol() != ALPN:
            await _close(writer)
            raise EOFError(f"TLS without the protocol {ALPN}")
        return client

    async def _agree(self, connection: socket.socket) -> bool:
        """Answer requests in the clear; return whether the client begins TLS next."""
        loop = asyncio.get_running_loop()
        for _ in range(2):  # one request for GSSAPI may come before
            length, code = struct.unpack("!II", await _receive(connection, 8))
            if code == GSS_REQUEST and length == 8:
                await loop.sock_sendall(connection, b"N")
            elif code == SSL_REQUEST and length == 8:
                await loop.sock_sendall(connection, b"S")
                return True
            elif code >> 16 == 3 and 8 <= length <= _LONGEST_PACKET:
                # read to its end: closing with unread bytes would destroy the answer on its way
                await _receive(connection, length - 8)
                refusal = Refusal(
                    "28000",
                    "this server accepts only TLS connections",
                    "connect with sslmode=verify-full and sslrootcert=ca.crt",
                )
                await loop.sock_sendall(connection, refusal.packet())
                return False
            else:
                # a cancelled statement's key in the clear, or another protocol
                return False
        return False

    async def _read_startup(self, client: _Client) -> Startup | None:
        """Return the startup packet; None if it was a request to cancel a statement."""
        length, code = struct.unpack("!II", await client.reader.readexactly(8))
        if not 8 <= length <= _LONGEST_PACKET:
            raise Refusal("08P01", "invalid length of startup packet")
        rest = await client.reader.readexactly(length - 8)
        packet = struct.pack("!II", length, code) + rest
        if code == CANCEL_REQUEST:
            _, writer = await self._connect()
            writer.write(packet)
            await _close(writer)
            return None
        if code >> 16 != 3:
            raise Refusal("0A000", f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}")
        return Startup(packet, _role(rest))

    def _check(self, client: _Client, role: str) -> None:
        """Raise Refusal unless the client may log in as the role, if it has the password."""
        if role in (SUPERUSER, OWN_WORKER):
            raise Refusal("28000", f"{role} may log in by the server's unix socket only")
        if client.certificate:
            if client.common_name != role:
                raise Refusal(
                    "28000", f'the certificate is that of "{client.common_name}", not of "{role}"'
                )
            if not self._accepts(role, client.certificate):
                raise Refusal(
                    "28000",
                    f'the certificate of "{role}" was withdrawn or replaced',
                    "op-dbus fleet add --renew makes a new one",
                )
        elif role.startswith(ROLE_PREFIX):
            raise Refusal(
                "28000",
                f'"{role}" is a host, which needs the certificate that `op-dbus fleet add` made',
            )
        elif self._without_certificate >= self._limits.without_certificate:
            raise Refusal("53300", "too many clients without a certificate already")
        if self.sessions >= self._limits.sessions:
            raise Refusal("53300", "too many clients already")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(self._server_socket, limit=_BLOCK)
        except OSError:
            raise Refusal("57P03", "the database system is starting up") from None

    async def _run_session(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Copy both ways until one side ends."""
        anonymous = int(not client.certificate)
        self.sessions += 1
        self._without_certificate += anonymous
        self.on_change()
        copies = [
            asyncio.create_task(_copy(client.reader, writer)),
            asyncio.create_task(_copy(reader, client.writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.sessions -= 1
            self._without_certificate -= anonymous
            self.on_change()
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            await _close(writer)


def listen(address: str) -> socket.socket:
    """Return a listening socket of ADDRESS:PORT or [ADDRESS]:PORT; raises ConfigError."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=family, backlog=_BACKLOG, reuse_port=False
        )
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {address!r}: {error}; give ADDRESS:PORT, such as 0.0.0.0:5433"
        ) from None


def tls_context(authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the settings of TLS: 1.2 or later, and certificates of the authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([ALPN])
    return context


def _role(rest: bytes) -> str:
    """Return the role of a startup packet, read as the server reads it; raises Refusal.

    The server takes the last of two equal names and cuts long ones: both are refused here.
    """
    invalid = Refusal("08P01", "invalid startup packet layout")
    *words, end = rest.split(b"\0")
    # an empty name ends the packet: NAME\0VALUE\0...\0
    if end or not words or words[-1] or len(words) % 2 != 1 or b"" in words[:-1:2]:
        raise invalid
    names, values = words[:-1:2], words[1::2]
    if names.count(b"user") != 1:
        raise Refusal("28000", "no PostgreSQL user name specified in startup packet")
    try:
        role = values[names.index(b"user")].decode()
    except UnicodeDecodeError:
        raise invalid from None
    if not role or len(role.encode()) > _LONGEST_NAME or not role.isprintable():
        raise Refusal("28000", "no role has such a name")
    return role


def _common_name(channel: ssl.SSLObject) -> str:
    """Return the only common name of the client's certificate; empty for several."""
    subject = (channel.getpeercert() or {}).get("subject", ())
    names = [str(pair[1]) for group in subject for pair in group if pair[0] == "commonName"]
    return names[0] if len(names) == 1 else ""


async def _is_tls(connection: socket.socket) -> bool:
    """Return whether the client begins TLS at once; reads nothing."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    connection.setblocking(False)  # noqa: FBT003 -- it takes no keywords
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    first = connection.recv(1, socket.MSG_PEEK)
    if not first:
        raise EOFError("no first byte")
    return first[0] == _TLS_RECORD


async def _receive(connection: socket.socket, count: int) -> bytes:
    """Return exactly so many bytes; raises EOFError."""
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < count:
        part = await loop.sock_recv(connection, count - len(found))
        if not part:
            raise EOFError("the client went away")
        found += part
    return found


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end; a receiver that is slow stops the reading."""
    with suppress(OSError, ssl.SSLError):
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()


async def _send_last(writer: asyncio.StreamWriter, packet: bytes) -> None:
    with suppress(OSError, ssl.SSLError, TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            writer.write(packet)
            await writer.drain()


def _close_socket(connection: socket.socket, _task: asyncio.Task[None]) -> None:
    connection.close()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close after what was written has gone, or at once if that takes too long."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await writer.wait_closed()
    except (OSError, ssl.SSLError, TimeoutError):
        pass
    finally:
        # of a transport that is closed already, asyncio has nothing to abort
        with suppress(AttributeError):
            writer.transport.abort()


def _set_keepalive(connection: socket.socket) -> None:
    """End a session within minutes if the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 15),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 120_000),
    ):
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
