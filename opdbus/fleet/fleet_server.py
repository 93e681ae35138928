"""Composition root of the fleet's server: the embedded database, TLS in front, an orderly end."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from opdbus.errors import OpDbusError
from opdbus.fleet import administration, postgres, tls_front
from opdbus.fleet.certificates import Authority
from opdbus.fleet.embedded_server import DATABASE, SUPERUSER, EmbeddedServer
from opdbus.platform import regular_files
from opdbus.platform.tasks import pauses, signals, until_first_ends
from opdbus.systemd.notify import Systemd

log = structlog.get_logger()

LISTEN: Final = "127.0.0.1:5433"
NO_LEVEL: Final = "none"
_RENEW_SECONDS: Final = 86_400
# Pauses before a worker is started again, which ends if it lacks the model.
_WORKER_SECONDS: Final = (1.0, 5.0, 30.0, 300.0)
_WORKER_END_SECONDS: Final = 20.0
_WORKER_NICE: Final = 19
# A sender's batch takes a minute at most.
_TRANSACTION_SECONDS: Final = 120.0
_CHECK_SECONDS: Final = 30.0
# materialized, since PostgreSQL may call the function before it looks at the conditions
_END_LONG: Final = """
WITH long AS MATERIALIZED (
    SELECT pid, usename FROM pg_stat_activity
    WHERE usename LIKE 'host-%' AND xact_start < now() - make_interval(secs => $1))
SELECT usename FROM long WHERE pg_terminate_backend(pid)
"""
_CERTIFICATES: Final = "tls"
_ENDPOINT: Final = "endpoint.json"
_WORKER_PASSWORD: Final = "worker-password"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The server's folder, addresses to listen on, and the names by which hosts reach it.

    `level` is what its worker computes: empty what the fleet wants, `none` starts no worker.
    `environment` is the worker's.
    """

    folder: Path
    listen: Sequence[str] = (LISTEN,)
    names: Sequence[str] = ()
    level: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Endpoint(NamedTuple):
    """The name and the port by which hosts reach the server."""

    name: str
    port: int

    def url(self, role: str, files: str) -> str:
        """Return the URL for a role; `files` is the folder of its certificates, or empty."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        query = f"sslmode=verify-full&sslrootcert={files}ca.crt"
        return f"postgresql://{role}@{name}:{self.port}/{DATABASE}?{query}"


async def serve(options: ServeOptions, service: Systemd, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` gets the lines for people.

    Raises ConfigError, or OpDbusError if the database ends by itself.
    """
    listeners = [tls_front.listen(each) for each in options.listen]
    try:
        async with signals(asyncio.Event()) as stopped:
            service.progress()
            authority = _open_authority(options.folder)
            names = server_names(options.names, options.listen)
            context = tls_front.tls_context(
                authority.certificate_file, *authority.server_files(names)
            )
            front = tls_front.TlsFront(
                EmbeddedServer(options.folder).socket, context, authority.accepts
            )
            # the database ends before the front, so that clients receive what it says of it
            async with front, EmbeddedServer(options.folder) as server:
                async with postgres.connected(server.url, server.password) as connection:
                    await postgres.make_schema(connection)
                    # new at each start, so that it is nowhere else
                    word = await administration.renew_own_worker(connection)
                regular_files.replace_file(options.folder / _WORKER_PASSWORD, word + "\n")
                endpoint = Endpoint(names[0], listeners[0].getsockname()[1])
                _write_endpoint(options.folder, endpoint)
                announce(_line(endpoint))
                service.describe = lambda: f"{_line(endpoint)}; {front.sessions} sessions"
                front.on_change = service.renew
                service.ready()
                await until_first_ends(
                    _run_worker(options, server),
                    stopped.wait(),
                    _require_running(server),
                    service.ping_watchdog(),
                    _end_long_transactions(server),
                    _renew(lambda: context.load_cert_chain(*authority.server_files(names))),
                    *map(front.accept, listeners),
                )
                service.stopping()
    finally:
        for each in listeners:
            each.close()


def server_names(given: Sequence[str], listen: Sequence[str]) -> list[str]:
    """Return the names and addresses of the server's certificate; hosts use the first one."""
    addresses = [each.rpartition(":")[0].strip("[]") for each in listen]
    own = [each for each in addresses if each not in ("0.0.0.0", "::", "")]  # noqa: S104 -- no bind
    is_local = own and all(map(_is_loopback, own))
    called = [] if is_local else [socket.getfqdn(), socket.gethostname()]
    # a machine without a name of its own calls itself `localhost`, which leads hosts to themselves
    host = [each for each in called if not each.startswith("localhost")]
    everywhere = [] if len(own) == len(addresses) else ["127.0.0.1", "::1"]
    return list(dict.fromkeys((*given, *host, *own, *everywhere, "localhost")))


def read_endpoint(folder: Path) -> Endpoint | None:
    """Return how hosts reach the server of a folder; None if it never served."""
    with suppress(OSError, ValueError):
        return Endpoint(**json.loads((folder / _ENDPOINT).read_text(encoding="utf-8")))
    return None


def open_authority(folder: Path) -> Authority:
    """Return the authority of the server in a folder; raises ConfigError."""
    return Authority(folder / _CERTIFICATES)


def _open_authority(folder: Path) -> Authority:
    # as the server makes it, which comes later
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return open_authority(folder)


def _write_endpoint(folder: Path, endpoint: Endpoint) -> None:
    regular_files.replace_file(
        folder / _ENDPOINT, json.dumps(endpoint._asdict()) + "\n", mode=0o644
    )


def _line(endpoint: Endpoint) -> str:
    return f"serving {endpoint.url('ROLE', '')}"


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


async def _end_long_transactions(server: EmbeddedServer) -> None:
    """End sessions of hosts whose transaction lasts too long, which others may wait for."""
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        try:
            async with postgres.connected(server.url, server.password) as connection:
                for row in await connection.fetch(_END_LONG, _TRANSACTION_SECONDS):
                    log.warning("transaction of a host ended", role=row["usename"])
        except OpDbusError as error:
            log.warning("transactions are not looked at", reason=str(error))


async def _require_running(server: EmbeddedServer) -> None:
    status = await server.wait()
    raise OpDbusError(f"PostgreSQL ended by itself with status {status}: its messages are above")


async def _run_worker(options: ServeOptions, server: EmbeddedServer) -> None:
    """Run a worker as a process, so that no session waits for a model; restart it if it ends.

    It logs in by a role of its own, which may do what a worker has to.
    """
    if options.level == NO_LEVEL:
        await asyncio.Event().wait()
    environ = {
        name: text
        for name, text in options.environment.items()
        # these are for the server
        if name not in ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
    } | {
        "OP_DBUS_FLEET_DATABASE": server.url.replace(SUPERUSER, administration.OWN_WORKER, 1),
        "OP_DBUS_FLEET_PASSWORD_FILE": str((options.folder / _WORKER_PASSWORD).resolve()),
    }
    command = [sys.executable, "-P", "-m", "opdbus", "fleet"]
    level = ["--level", options.level] if options.level else []
    for pause in pauses(_WORKER_SECONDS):
        worker = await asyncio.create_subprocess_exec(
            *(*command, "worker", *level),
            stdin=asyncio.subprocess.DEVNULL,
            env=environ,
            # a session is what the kernel gives processor time to
            start_new_session=True,
        )
        _lower_priority(worker.pid)
        try:
            status = await worker.wait()
        finally:
            if worker.returncode is None:
                worker.terminate()
                await _end(worker)
        log.warning("worker ended", exit_status=status, retry_seconds=pause)
        await asyncio.sleep(pause)


def _lower_priority(pid: int) -> None:
    """Let a worker have what questions and senders leave of the processors."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _WORKER_NICE)
        # of its session as a whole, where the kernel groups by session: see sched(7)
        Path(f"/proc/{pid}/autogroup").write_text(str(_WORKER_NICE), encoding="ascii")


async def _end(worker: asyncio.subprocess.Process) -> None:
    """Wait until a worker has ended its batch; the database would only undo it."""
    try:
        await asyncio.wait_for(worker.wait(), _WORKER_END_SECONDS)
    except TimeoutError:
        worker.kill()
        await worker.wait()


async def _renew(load: Callable[[], None]) -> None:
    """Look at the server's certificate each day; new connections get the renewed one."""
    while True:
        await asyncio.sleep(_RENEW_SECONDS)
        load()
