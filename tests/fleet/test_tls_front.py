"""Rules of who comes to the fleet's database, with the clients that people use."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from harness.fleets import facts, state_row

from opdbus.errors import AccessDenied, DatabaseUnreachable
from opdbus.fleet import postgres, tls_front
from opdbus.fleet.administration import OWN_WORKER
from opdbus.fleet.certificates import Authority
from opdbus.fleet.embedded_server import SUPERUSER
from opdbus.fleet.pending_logins import PendingLogin, PendingLogins, network_of
from opdbus.fleet.tls_front import Limits, TlsFront, tls_context
from opdbus.fleet.uplink import Uplink

if TYPE_CHECKING:
    from harness.fleet_servers import FleetServer

TLS_REQUEST = struct.pack("!II", 8, 80877103)
GSS_REQUEST = struct.pack("!II", 8, 80877104)
VERSION = 3 << 16
PATIENCE = 60.0
# asyncpg closes the transport of a refused login, and TLS takes a moment more than the loop lives
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def web1(server: FleetServer) -> Path:
    """Add a host, and return its credentials."""
    return server.add("web1")


@pytest.fixture(scope="module")
def web2(server: FleetServer) -> Path:
    """Add another host, and return its credentials."""
    return server.add("web2")


def password(credentials: Path) -> str:
    """Return the password of a host's folder."""
    return (credentials / "password").read_text("ascii").strip()


def startup(*pairs: str, version: int = VERSION, end: bytes = b"\0") -> bytes:
    """Return the packet that begins a session."""
    rest = b"".join(each.encode() + b"\0" for each in pairs) + end
    return struct.pack("!II", len(rest) + 8, version) + rest


def dial(server: FleetServer) -> socket.socket:
    """Connect to the server, in the clear."""
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE)


def encrypted(server: FleetServer, credentials: Path | None = None) -> ssl.SSLSocket:
    """Connect to the server by TLS, as PostgreSQL's clients do."""
    plain = dial(server)
    plain.sendall(TLS_REQUEST)
    assert plain.recv(1) == b"S"
    return server.context(credentials).wrap_socket(plain, server_hostname="localhost")


def everything(connection: socket.socket) -> bytes:
    """Return all that the server sends until it closes."""
    found = b""
    while True:
        try:
            part = connection.recv(65536)
        except (ConnectionError, ssl.SSLError):
            return found
        if not part:
            return found
        found += part


def send_states(server: FleetServer, role: str, credentials: Path, word: str) -> None:
    """Store an object as a host does."""

    async def run() -> None:
        async with Uplink(server.url(role, credentials), word) as uplink:
            await uplink.begin(facts(role), None)
            await uplink.send([], [state_row("nginx", state="active")], 0)

    asyncio.run(run())


async def ask(url: str, word: str, sql: str = "SELECT session_user") -> object:
    """Return the value of a query."""
    async with postgres.connected(url, word) as connection:
        return await connection.fetchval(sql)


def test_a_host_writes_with_its_certificate_and_password(server: FleetServer, web1: Path) -> None:
    """Let a host in that has both, over verified TLS, and store what it sends."""
    send_states(server, "host-web1", web1, password(web1))
    assert server.database.fetch(
        "SELECT object.name FROM opdbus.object JOIN opdbus.host USING (host) WHERE host.name='web1'"
    ) == [("nginx",)]


@pytest.mark.parametrize(
    ("mode", "files", "user", "answer"),
    [
        ("verify-full", "web1", "host-web1", None),
        ("require", "web1", "host-web1", None),
        ("verify-full", "", "host-web1", "needs the certificate"),
        ("verify-full", "web2", "host-web1", 'the certificate is that of "host-web2"'),
        ("verify-full", "web1", SUPERUSER, "unix socket only"),
        ("verify-full", "", SUPERUSER, "unix socket only"),
        ("verify-full", "", OWN_WORKER, "unix socket only"),
        ("verify-full", "web1", "reader-1", 'certificate is that of "host-web1"'),
        ("disable", "", "host-web1", "accepts only TLS connections"),
        ("verify-full", "", "nobody-knows", "password authentication failed"),
    ],
)
def test_psql(
    server: FleetServer, web1: Path, web2: Path, mode: str, files: str, user: str, answer: str
) -> None:
    """Answer the program psql with what PostgreSQL's protocol has for it."""
    program = shutil.which("psql")
    if not program:
        pytest.skip("psql is not installed")
    url = server.url(user, {"web1": web1, "web2": web2}.get(files))
    done = subprocess.run(
        [program, url.replace("verify-full", mode), "-Atc", "SELECT session_user"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        # no files of the user who runs the tests
        env={"PGPASSWORD": password(web1), "HOME": "/nonexistent", "PATH": os.environ["PATH"]},
    )
    assert done.returncode == (2 if answer else 0), done.stderr
    assert (answer or "") in done.stderr
    assert answer or done.stdout == f"{user}\n"


def test_a_wrong_password_is_refused_with_the_right_certificate(
    server: FleetServer, web1: Path, web2: Path
) -> None:
    """Let nobody in by a certificate alone."""
    with pytest.raises(AccessDenied, match="password authentication failed"):
        asyncio.run(ask(server.url("host-web1", web1), password(web2)))


def test_another_hosts_certificate_writes_nothing(
    server: FleetServer, web1: Path, web2: Path
) -> None:
    """Refuse a host that has another host's password but its own certificate, before the login."""
    with pytest.raises(AccessDenied, match='certificate is that of "host-web1"'):
        send_states(server, "host-web2", web1, password(web2))
    assert (
        server.database.fetch(
            "SELECT 1 FROM opdbus.object JOIN opdbus.host USING (host) WHERE host.name = 'web2'"
        )
        == []
    )


def test_readers_need_no_certificate(server: FleetServer) -> None:
    """Let a reader in by its password, and let it write nothing."""
    word = server.add_reader("alice")
    url = server.url("alice")
    assert asyncio.run(ask(url, word, "SELECT count(*) >= 0 FROM opdbus.object"))
    with pytest.raises(AccessDenied, match="permission denied"):
        asyncio.run(ask(url, word, "DELETE FROM opdbus.object"))


def test_a_certificate_of_another_authority_is_refused(server: FleetServer, tmp_path: Path) -> None:
    """End the handshake of a client whose certificate this fleet did not make."""
    foreign = Authority(tmp_path / "tls").issue("host-web1")
    (tmp_path / "host.crt").write_text(foreign.certificate)
    (tmp_path / "host.key").write_text(foreign.key)
    with encrypted(server, tmp_path) as connection:
        connection.sendall(startup("user", "host-web1"))
        assert everything(connection) == b""


def test_clients_notice_another_server(server: FleetServer, web1: Path, tmp_path: Path) -> None:
    """Give clients what verify-full needs: they refuse another authority and another name."""
    Authority(tmp_path / "tls")
    url = server.url("host-web1", web1)
    other = url.replace(f"{server.folder}/server/tls/ca.crt", f"{tmp_path}/tls/ca.crt")
    with pytest.raises(DatabaseUnreachable, match="certificate is not accepted"):
        asyncio.run(ask(other, password(web1)))
    # another name of the same address
    named = server.url("host-web1", web1, host="127.1")
    with pytest.raises(DatabaseUnreachable, match="certificate is not accepted"):
        asyncio.run(ask(named, password(web1)))


def test_a_removed_host_is_gone_at_once(server: FleetServer) -> None:
    """End the session of a host that is removed, and let its credentials in no more."""
    credentials = server.add("old")
    word = password(credentials)
    send_states(server, "host-old", credentials, word)

    async def run() -> None:
        connection = await postgres.connect(server.url("host-old", credentials), word)
        assert "1 objects" in await asyncio.to_thread(server.command, "remove", "old")
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("SELECT 1")
        await postgres.close(connection)
        with pytest.raises(AccessDenied, match="withdrawn or replaced"):
            await postgres.connect(server.url("host-old", credentials), word)

    asyncio.run(run())
    # a host of the same name is another one
    server.command("add", "old", "--out", str(server.folder / "old2"))
    with pytest.raises(AccessDenied, match="withdrawn or replaced"):
        asyncio.run(ask(server.url("host-old", credentials), word))
    renewed = server.folder / "old2"
    assert asyncio.run(ask(server.url("host-old", renewed), password(renewed))) == "host-old"


def test_renewed_credentials_replace_the_old_ones(server: FleetServer) -> None:
    """Refuse the old certificate and the old password of a host that got new ones."""
    before = server.add("renewed")
    after = server.folder / "renewed2"
    server.command("add", "renewed", "--renew", "--out", str(after))
    assert asyncio.run(ask(server.url("host-renewed", after), password(after))) == "host-renewed"
    with pytest.raises(AccessDenied, match="withdrawn or replaced"):
        asyncio.run(ask(server.url("host-renewed", before), password(after)))
    with pytest.raises(AccessDenied, match="password"):
        asyncio.run(ask(server.url("host-renewed", after), password(before)))


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\0" * 4096,
        b"\xff" * 4096,
        b"\x16\x03\x01\x02\x00" + b"A" * 600,
        struct.pack("!II", 1 << 31, VERSION),
        struct.pack("!II", 4, VERSION),
        struct.pack("!II", 16, 80877102) + b"12345678",
        TLS_REQUEST + TLS_REQUEST,
        GSS_REQUEST * 3,
        TLS_REQUEST + b"A" * 600,
        b"",
    ],
)
def test_strange_first_bytes(server: FleetServer, web1: Path, first: bytes) -> None:
    """Close connections that are not PostgreSQL's, and serve on."""
    with dial(server) as connection:
        connection.sendall(first)
        with suppress(OSError):  # closed already
            connection.shutdown(socket.SHUT_WR)
        assert everything(connection)[:1] != b"R"
    assert asyncio.run(ask(server.url("host-web1", web1), password(web1))) == "host-web1"


@pytest.mark.parametrize(
    "packet",
    [
        startup("user", "host-web1", "user", "host-web2"),
        startup("user", "host-web2", "user", "host-web1"),
        startup("user", "host-web1", end=b""),
        startup("user", "host-web1", "database"),
        startup("user", "host-web1", "", "", "user", "host-web2"),
        startup("user", "host-web1" + "x" * 60),
        startup("database", "opdbus"),
        startup("user", ""),
        startup("user", "host-web1", version=2 << 16),
        startup("user", "host-web1", version=4 << 16),
        startup("user", "host-web1", "options", "x" * 20_000),
        struct.pack("!II", 3, VERSION),
        TLS_REQUEST,
        GSS_REQUEST,
    ],
)
def test_strange_startup_packets(server: FleetServer, web1: Path, packet: bytes) -> None:
    """Refuse startup packets that the server would read otherwise than the front, or not at all."""
    with encrypted(server, web1) as connection:
        connection.sendall(packet)
        answer = everything(connection)
    assert answer[:1] == b"E"
    assert b"FATAL" in answer


def test_bytes_in_the_clear_are_no_part_of_the_session(server: FleetServer, web1: Path) -> None:
    """Take nothing that was sent in the clear after the request for TLS as sent inside of it."""
    with dial(server) as connection:
        connection.sendall(TLS_REQUEST + startup("user", "host-web2"))
        assert connection.recv(1) == b"S"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.context(web1).wrap_socket(connection, server_hostname="localhost")


def test_gssapi_is_declined_and_tls_follows(server: FleetServer, web1: Path) -> None:
    """Answer a request for GSSAPI with N, after which the client asks for TLS."""
    with dial(server) as plain:
        plain.sendall(GSS_REQUEST)
        assert plain.recv(1) == b"N"
        plain.sendall(TLS_REQUEST)
        assert plain.recv(1) == b"S"
        with server.context(web1).wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(startup("user", "host-web1", "database", "opdbus"))
            assert connection.recv(1) == b"R"


@pytest.mark.parametrize("protocols", [["postgresql"], ["http/1.1"], []])
def test_tls_at_once(server: FleetServer, web1: Path, protocols: list[str]) -> None:
    """Accept TLS without a request if the client names the protocol, as PostgreSQL 17 does."""
    context = server.context(web1)
    if protocols:
        context.set_alpn_protocols(protocols)
    with (
        dial(server) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(startup("user", "host-web1", "database", "opdbus"))
        answer = everything_first(connection)
    assert (answer == b"R") == (protocols == ["postgresql"])


def everything_first(connection: socket.socket) -> bytes:
    """Return the first byte that the server sends, or none."""
    try:
        return connection.recv(1)
    except (ConnectionError, ssl.SSLError):
        return b""


def test_tls_1_1_is_refused(server: FleetServer) -> None:
    """Accept TLS 1.2 and later only."""
    context = server.context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with dial(server) as plain:
        plain.sendall(TLS_REQUEST)
        assert plain.recv(1) == b"S"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain, server_hostname="localhost")


def test_a_statement_is_cancelled_through_tls(server: FleetServer, web1: Path) -> None:
    """Forward a request to cancel that came by TLS."""

    async def run() -> None:
        url, word = server.url("host-web1", web1), password(web1)
        async with postgres.connected(url, word) as connection:
            with pytest.raises(TimeoutError):
                await connection.execute("SELECT pg_sleep(600)", timeout=0.5)
            # it waits for the end of the one before
            assert await connection.fetchval("SELECT 1", timeout=PATIENCE) == 1

    asyncio.run(run())


def test_a_client_that_does_not_read_is_held_back(server: FleetServer) -> None:
    """Stop reading from the database for a client that reads nothing."""
    word = server.add_reader("deaf")
    if not (program := shutil.which("psql")):
        pytest.skip("psql is not installed")
    copy = "COPY (SELECT repeat('x', 1000000) FROM generate_series(1, 400)) TO STDOUT"
    blocked = "SELECT wait_event FROM pg_stat_activity WHERE usename = 'deaf'"
    before = resident_kib(server)
    reader = subprocess.Popen(
        [program, server.url("deaf"), "-c", copy],
        stdout=subprocess.PIPE,
        env={"PGPASSWORD": word, "HOME": "/nonexistent", "PATH": os.environ["PATH"]},
    )
    assert reader.stdout
    with closing(reader.stdout):
        assert reader.stdout.read(1) == b"x"
        wait_until(lambda: server.database.fetch(blocked) == [("ClientWrite",)])
        assert resident_kib(server) - before < 32 * 1024
        reader.kill()
        reader.wait(PATIENCE)
    wait_until(lambda: server.database.fetch(blocked) == [])


def resident_kib(server: FleetServer) -> int:
    """Return the memory of the server's process, in which the front runs."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("addresses", [1, 50])
def test_silent_connections_keep_no_host_out(
    server: FleetServer, web1: Path, addresses: int
) -> None:
    """Let a host in at its first attempt while 500 connections send nothing, and more come."""
    places = itertools.cycle([(f"127.0.0.{number}", 0) for number in range(1, addresses + 1)])
    is_over = threading.Event()

    def log_in() -> float:
        began = time.monotonic()
        assert asyncio.run(ask(server.url("host-web1", web1), password(web1))) == "host-web1"
        return time.monotonic() - began

    alone = max(log_in() for _ in range(3))

    def open_silent(stack: ExitStack) -> None:
        connection = socket.create_connection(
            ("127.0.0.1", server.port), PATIENCE, source_address=next(places)
        )
        stack.enter_context(connection)

    def flood() -> None:
        with ExitStack() as more:
            while not is_over.wait(0.002):
                open_silent(more)

    with ExitStack() as stack:
        for _ in range(500):
            open_silent(stack)
        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            seconds = log_in()
        finally:
            is_over.set()
            flooding.join()
    assert seconds < 5 + 20 * alone, "a login has ten where nothing else runs"


def test_places_are_bounded(tmp_path: Path) -> None:
    """Bound sessions, those without certificates, and the time until a login."""

    async def run() -> None:
        authority = Authority(tmp_path / "tls")
        context = tls_context(authority.certificate_file, *authority.server_files(["localhost"]))
        limits = Limits(sessions=3, without_certificate=2, logins=2, kept_seconds=0.02)
        server_socket = tmp_path / "s"

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"R")
            await reader.read()
            writer.close()

        backend = await asyncio.start_unix_server(answer, server_socket)
        client = ssl.create_default_context(cafile=authority.certificate_file)

        async def enter() -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(TLS_REQUEST)
            assert await reader.readexactly(1) == b"S"
            await writer.start_tls(client, server_hostname="localhost")
            writer.write(startup("user", "reader"))
            return await reader.read(200), writer

        listener = tls_front.listen("127.0.0.1:0")
        async with TlsFront(server_socket, context, authority.accepts, limits) as front:
            is_empty = asyncio.Event()
            front.on_change = lambda: None if front.sessions else is_empty.set()
            accepting = asyncio.create_task(front.accept(listener))
            # two that send nothing take the places of logins, until they have had their time
            silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
            first, one = await enter()
            second, two = await enter()
            third, three = await enter()
            assert (first, second, third[:1]) == (b"R", b"R", b"E")
            assert b"53300" in third
            assert front.sessions == 2
            for writer in (one, two, three, *(each for _, each in silent)):
                writer.close()
            await is_empty.wait()
            # many of another address keep nobody out, as long as they may stay
            place = listener.getsockname()
            elsewhere = ("127.0.0.2", 0)
            silent = [
                await asyncio.open_connection(*place, local_addr=elsewhere) for _ in range(50)
            ]
            again, writer = await enter()
            assert again == b"R"
            for each in (writer, *(each for _, each in silent)):
                each.close()
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
        backend.close()
        listener.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_who_gives_way() -> None:
    """End the oldest silent login, then the oldest of the network with the most, each in time."""

    async def run() -> None:
        now = 0.0
        logins = PendingLogins(4, 0.1, lambda: now)
        pending: list[PendingLogin] = []

        async def login(own: PendingLogin) -> None:
            pending.append(own)
            await asyncio.Event().wait()

        async def come(address: str, *, is_silent: bool = False) -> asyncio.Task[None]:
            async with asyncio.timeout(PATIENCE):
                await logins.make_place()
            task = logins.start(address, login)
            await asyncio.sleep(0)
            pending[-1].is_silent = is_silent
            return task

        other, one = await come("10.0.0.2"), await come("10.0.0.1")
        now = 1.0
        silent, two = await come("10.0.0.3", is_silent=True), await come("10.0.0.1")
        waiting = asyncio.create_task(come("10.0.0.4"))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "the silent one has not had its time"
        now = 2.0
        three = await waiting
        tasks = [other, one, silent, two, three]
        assert [each.cancelling() for each in tasks] == [0, 0, 1, 0, 0]
        four = await come("10.0.0.5")
        assert [each.cancelling() for each in tasks] == [0, 1, 1, 0, 0]
        # who has logged in is out of the way, and is not cancelled
        logins.end(pending[0])
        now = 9.0
        await come("10.0.0.6")
        assert [each.cancelling() for each in tasks] == [0, 1, 1, 0, 0]
        assert not four.cancelling()
        every = asyncio.all_tasks() - {asyncio.current_task()}
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_networks(address: str, network: str) -> None:
    """Count the addresses that one client may have as one."""
    assert network_of(address) == network
