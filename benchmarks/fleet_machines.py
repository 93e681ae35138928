"""Machines of benchmarks/fleet.py: the fleet's server, and a booted host with its own sender."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from system.booting import booted, why_not
from system.installing import installed
from system.service import SETTINGS, Service

from opdbus.client import Client
from opdbus.fleet import administration, host_reader, postgres
from opdbus.fleet.embedded_server import EmbeddedServer
from opdbus.fleet.fleet_server import Endpoint, open_authority, read_endpoint
from opdbus.fleet.uplink import Uplink

if TYPE_CHECKING:
    from system.host import Host

ROOT: Final = Path(__file__).parents[1]
# Addresses of both ends of the cable between this machine and the booted host.
SERVER_ADDRESS, HOST_ADDRESS, PREFIX = "10.231.39.1", "10.231.39.2", 30
PORT: Final = 54339
_PATIENCE_SECONDS: Final = 300.0


class FleetServer:
    """`op-dbus fleet serve` in a folder of its own, as a context; its `pid` has PostgreSQL below.

    `level` is that of its worker, `none` for no worker.
    """

    def __init__(self, folder: Path, listen: str, level: str) -> None:
        self.folder = folder
        self._listen = listen
        self._level = level
        self._database = EmbeddedServer(folder)
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        """Start it, and wait until it serves."""
        name = self._listen.rpartition(":")[0]
        given = ("--listen", self._listen, "--name", name, "--level", self._level)
        command = self._command("serve", *given)
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | {"OP_DBUS_LOG_LEVEL": "warning"},
        )
        output = self._process.stdout
        while output and (line := await output.readline()):
            if line.startswith(b"serving"):
                return self
        raise RuntimeError("the server did not start: its messages are above")

    async def __aexit__(self, *_error: object) -> None:
        """Stop it."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()

    @property
    def pid(self) -> int:
        """The process that ends TLS; PostgreSQL and the worker are its children."""
        return self._process.pid

    @property
    def admin(self) -> tuple[str, str]:
        """The superuser's URL, by the unix socket, and password."""
        return self._database.url, self._database.password

    @property
    def endpoint(self) -> Endpoint:
        """The address for hosts and readers."""
        if not (found := read_endpoint(self.folder)):
            raise RuntimeError("the server did not start")
        return found

    async def add_reader(self, name: str) -> tuple[str, str]:
        """Add a role that may ask; return its URL, by TLS, and password."""
        async with postgres.connected(*self.admin) as connection:
            password = await administration.add_role(connection, name, administration.READER)
        return self.endpoint.url(name, f"{self.folder}/tls/"), password

    async def add_hosts(self, tags: dict[str, list[str]]) -> dict[str, Uplink]:
        """Add hosts with their tags; return their connections, by TLS, not open yet."""
        authority, links = open_authority(self.folder), {}
        keys = self.folder / "keys"
        keys.mkdir()
        async with postgres.connected(*self.admin) as connection:
            for name, own in tags.items():
                password = await administration.add_host(connection, name, own)
                role = administration.role_of(name)
                files = keys / f"{name}.crt", keys / f"{name}.key"
                for file, text in zip(files, authority.issue(role), strict=True):
                    file.write_text(text)
                    file.chmod(0o600)
                url = self.endpoint.url(role, f"{self.folder}/tls/")
                links[name] = Uplink(f"{url}&sslcert={files[0]}&sslkey={files[1]}", password)
        return links

    def add_real(self, name: str, out: Path) -> None:
        """Add a host as its administrator does: `out` gets the credentials."""
        command = self._command("add", name, "--tag", "real", "--out", str(out))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    async def crash(self) -> None:
        """Kill all of PostgreSQL's processes at once, and wait until `serve` has ended of it."""
        first_line = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[0]
        os.killpg(int(first_line), signal.SIGKILL)
        await self._process.wait()

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "opdbus", "fleet", "--folder", str(self.folder), *arguments]


class RealHost:
    """A booted host with op-dbus at level medium; its name in the fleet is `real`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        # by its own bus, whose socket can be reached from outside
        self.bus = f"unix:path={host.path('/run/dbus/system_bus_socket')}"

    async def send_to(self, server: FleetServer) -> float:
        """Switch its sender on; return the seconds until the fleet has all of it."""
        place = self.host.path("/etc/op-dbus-fleet")
        with tempfile.TemporaryDirectory() as folder:
            await asyncio.to_thread(server.add_real, "real", Path(folder, "real"))
            shutil.copytree(Path(folder, "real"), place, dirs_exist_ok=True)
        began = time.perf_counter()
        await self._ask("systemctl", "enable", "--now", "op-dbus-fleet")
        sql = "SELECT compared_at IS NOT NULL FROM opdbus.host WHERE name = 'real'"
        await self._until(server, sql)
        return time.perf_counter() - began

    async def change(self, server: FleetServer, waits: list[float]) -> None:
        """Start transient units, and add the seconds until the fleet has each, until cancelled."""
        number = 0
        while True:
            number += 1
            unit = f"probe-{number}.service"
            await self._ask("systemd-run", "--quiet", f"--unit={unit}", "sleep", "3")
            began = time.perf_counter()
            await self._until(
                server, "SELECT EXISTS (SELECT FROM opdbus.change WHERE name = $1)", unit
            )
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(1)

    async def until_equal(self, server: FleetServer) -> int:
        """Wait until the fleet has its objects, by digests; return their number."""
        sql = (
            "SELECT plugin, kind, object.name, content FROM opdbus.object"
            " JOIN opdbus.host USING (host) WHERE host.name = 'real'"
        )
        async with (
            asyncio.timeout(_PATIENCE_SECONDS),
            postgres.connected(*server.admin) as connection,
            Client(self.bus) as client,
        ):
            while True:
                own = {name: digest async for name, digest in host_reader.read_digests(client)}
                rows = await connection.fetch(sql)
                if own == {tuple(name): digest for *name, digest in rows}:
                    return len(own)
                await asyncio.sleep(0.5)

    async def _ask(self, *command: str) -> str:
        return await asyncio.to_thread(self.host.ask, *command)

    async def _until(self, server: FleetServer, sql: str, *arguments: object) -> None:
        async with (
            asyncio.timeout(_PATIENCE_SECONDS),
            postgres.connected(*server.admin) as connection,
        ):
            while not await connection.fetchval(sql, *arguments):  # noqa: ASYNC110 -- a database
                await asyncio.sleep(0.05)


@contextmanager
def real_host() -> Iterator[RealHost]:
    """Boot a host that observes itself, with a cable to this machine.

    Raises SystemExit where none can be booted.
    """
    if reason := why_not():
        raise SystemExit(f"no host can be booted: {reason}")
    # as `make test` keeps it
    cache = ROOT / ".pytest_cache" / "d" / "system"
    with installed(cache) as layer, booted("dbus", layer) as host, _cable(host.init):
        settings = "OP_DBUS_OBSERVE=auto\nOP_DBUS_VECTOR_LEVEL=medium\n"
        host.write(SETTINGS, host.path(SETTINGS).read_text() + settings)
        service = Service(host)
        service.systemctl("start")
        yield RealHost(host)


@contextmanager
def _cable(init: int) -> Iterator[None]:
    """Connect a booted host's network with this machine's."""
    names = f"opd{os.getpid()}", "eth0"
    ends = ["name", names[0], "type", "veth", "peer", "name", names[1], "netns", str(init)]
    _ip("link", "add", *ends)
    try:
        _ip("address", "add", f"{SERVER_ADDRESS}/{PREFIX}", "dev", names[0])
        _ip("link", "set", names[0], "up")
        inside = ["nsenter", f"--target={init}", "--net"]
        _ip("address", "add", f"{HOST_ADDRESS}/{PREFIX}", "dev", names[1], inside=inside)
        _ip("link", "set", names[1], "up", inside=inside)
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            _ip("link", "delete", names[0])


def _ip(*arguments: str, inside: list[str] | None = None) -> None:
    subprocess.run([*(inside or []), "ip", *arguments], check=True)


def processes(root: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield root
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text().split():
                yield from processes(int(child))


def memory_mib(root: int) -> float:
    """Return the proportional memory of a process and all below it, in MiB."""
    total = 0
    for pid in processes(root):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found = re.search(r"^Pss: +(\d+)", text, re.MULTILINE)
            total += int(found[1]) if found else 0
    return round(total / 1024, 1)


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and all below it, with those that have ended."""
    total = 0
    for pid in processes(root):
        with suppress(OSError):
            fields: list[Any] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")
