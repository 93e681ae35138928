"""Containers of podman, docker and incus, published from fakes of their sockets."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from harness.running import (
    PATIENCE_SECONDS,
    STATE,
    STATE_PATH,
    Caller,
    Running,
    calling,
    read_lines,
    state_file,
)

from opdbus.bus.transport.connection import RemoteError
from opdbus.platform.tasks import cancel
from opdbus.publishers.containers import ENGINES, Engine, main, read_containers

WEB = {
    "Id": "0123456789abcdef",
    "Names": ["/web"],
    "Image": "nginx:1.27",
    "Command": "nginx --password=hunter2-secret",
    "State": "running",
    "Status": "Up 3 minutes",
    "Ports": [{"IP": "127.0.0.1", "PrivatePort": 80, "PublicPort": 8080, "Type": "tcp"}],
    "Labels": {"com.example.role": "shop"},
    "NetworkSettings": {"Networks": {"bridge": {}}},
    "Mounts": [{"Source": "/srv/web", "Destination": "/usr/share/nginx/html"}],
}
SHOP = {
    "name": "shop",
    "status": "Running",
    "type": "container",
    "architecture": "x86_64",
    "profiles": ["default"],
    "config": {"image.description": "Debian 13", "user.user-data": "password: hunter2-secret"},
}


class FakeEngine:
    """An engine that lists what it has, and sends a line to those that read its events."""

    def __init__(self, path: Path, *, is_incus: bool) -> None:
        self.path = path
        self.is_incus = is_incus
        self.rows: list[dict[str, Any]] = [SHOP if is_incus else WEB]
        self.asked: list[str] = []
        self._readers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen; at the end all connections are closed."""
        server = await asyncio.start_unix_server(self._answer, self.path)
        yield
        for writer in self._readers:
            await closed(writer)
        self._readers.clear()
        server.close()
        self.path.unlink()

    def tell(self, **event: Any) -> None:
        """Send an event."""
        for writer in self._readers:
            writer.write(json.dumps(event).encode() + b"\n")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readline()).decode().split()
        while (await reader.readline()).strip():
            pass
        self.asked.append(f"{method} {target}")
        if "/events" in target:
            # incus ends its lines otherwise
            end = "\n" if self.is_incus else "\r\n"
            writer.write(f"HTTP/1.1 200 OK{end}Content-Type: application/json{end}{end}".encode())
            self._readers.add(writer)
            return
        rows = {"type": "sync", "metadata": self.rows} if self.is_incus else self.rows
        body = json.dumps(rows).encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + body)
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, also one that the other side has closed."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def shown(caller: Caller) -> dict[str, dict[str, Any]]:
    """Return all containers by engine and name."""
    state = "org.opdbus.State1"
    _, rows = await caller.call("/org/opdbus/state", f"{state}.List", "a{sv}uu", {}, 0, 100)
    found = {}
    for path, plugin, kind, name in rows:
        if kind != "container":
            continue
        with suppress(RemoteError):  # it is gone meanwhile
            (text,) = await caller.call("/org/opdbus/state", f"{state}.Get", "oa{sv}", path, {})
            found[f"{plugin}/{name}"] = json.loads(text)["observed"]
    return found


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running], tmp_path_factory: Any) -> Running:
    """Run a daemon without objects."""
    file = state_file(tmp_path_factory.mktemp("declared") / "state.json", {})
    return shared_daemons(OBSERVE="none", STATE_FILE=file, VECTOR_LEVEL="none").start()


@pytest.mark.parametrize("name", [engine.name for engine in ENGINES])
async def test_containers_are_published(daemon: Running, tmp_path: Path, name: str) -> None:
    """They come, change and leave as the engine says, and all leave with the engine."""
    (known,) = (engine for engine in ENGINES if engine.name == name)
    engine = FakeEngine(tmp_path / "engine.sock", is_incus=name == "incus")

    async def until(caller: Caller, is_so: Callable[[dict[str, Any]], object]) -> None:
        async def ask() -> bool:
            return bool(is_so(await shown(caller)))

        await caller.until(ask, wanted=True)

    async with calling(daemon.bus) as caller:
        await caller.ready()
        task = asyncio.create_task(main([known._replace(path=str(engine.path))], daemon.bus))
        async with engine.serve():
            await until(caller, lambda found: len(found) == 1)
            check(name, await shown(caller))
            row = engine.rows[0]
            state = "status" if engine.is_incus else "State"
            engine.rows = [row | {state: "stopped", "Status": "Exited"}]
            engine.tell(Action="die")
            await until(caller, lambda f: [v["state"] for v in f.values()] == ["stopped"])
            other = {"name": "b"} if engine.is_incus else {"Names": ["/b"]}
            engine.rows = [row | other]
            engine.tell(Action="create")
            await until(caller, lambda found: list(found) == [f"{name}/b"])
        await until(caller, lambda found: not found)
        async with engine.serve():
            await until(caller, lambda found: list(found) == [f"{name}/b"])
        await cancel([task])
        await until(caller, lambda found: not found)
    assert set(engine.asked) == {f"GET {known.listing}", f"GET {known.events}"}
    assert "hunter2-secret" not in daemon.logs()


def check(name: str, found: dict[str, Any]) -> None:
    """Require what is known of the first container, without its secrets."""
    if name == "incus":
        assert found == {
            "incus/shop": {
                "state": "running",
                "image": "Debian 13",
                "type": "container",
                "architecture": "x86_64",
                "profiles": ["default"],
            }
        }
        return
    assert found == {
        f"{name}/web": {
            "id": "0123456789ab",
            "image": "nginx:1.27",
            "command": "nginx --password=[redacted]",
            "state": "running",
            "labels": {"com.example.role": "shop"},
            "ports": ["8080:80/tcp"],
            "mounts": ["/srv/web on /usr/share/nginx/html"],
            "networks": ["bridge"],
        }
    }


DOCKER, INCUS = ENGINES[1], ENGINES[2]


@pytest.mark.parametrize(
    ("engine", "row", "name"),
    [
        (DOCKER, {"Names": ["/web"]}, "web"),
        (DOCKER, {"Names": ["web"]}, "web"),
        (DOCKER, {"Names": ["/web/database", "/db"]}, "db"),
        (DOCKER, {"Names": ["/db", "/web/database", "/app/store"]}, "db"),
        (DOCKER, {"Names": ["/web/database"]}, "0123456789ab"),
        (DOCKER, {"Names": None}, "0123456789ab"),
        (DOCKER, {"Names": []}, "0123456789ab"),
        (DOCKER, {"Names": [""]}, "0123456789ab"),
        (DOCKER, {"Names": "web"}, "web"),
        (DOCKER, {"Ports": None, "Mounts": None, "NetworkSettings": None}, "web"),
        (DOCKER, {"Ports": [None, {}], "Mounts": ["/data"], "Labels": None}, "web"),
        (DOCKER, {"NetworkSettings": {"Networks": None}, "Id": None}, "web"),
        (DOCKER, {"Names": None, "Id": None}, ""),
        (DOCKER, {"Names": [None, "/web"]}, "web"),
        (DOCKER, {"Names": 7}, ""),
        (INCUS, {"status": None, "config": None}, "shop"),
        (INCUS, {"name": None}, ""),
        (INCUS, {"name": 7}, ""),
        (INCUS, {"config": "no settings"}, ""),
    ],
)
def test_a_row_that_is_odd_costs_itself_alone(
    engine: Engine, row: dict[str, Any], name: str
) -> None:
    """Whatever is odd in one container, the others are listed, and it is named if it can be."""
    usual = SHOP if engine is INCUS else WEB
    own = "name" if engine is INCUS else "Names"
    others = [usual | {own: each if engine is INCUS else [each]} for each in ("first", "last")]
    rows = [others[0], usual | row, None, [], others[1]]
    found, odd = read_containers(engine, rows if engine is DOCKER else {"metadata": rows})
    assert list(found) == ["first", *([name] if name else []), "last"]
    assert len(odd) == (2 if name else 3)


@pytest.mark.parametrize("answer", [None, 7, "x", {}, {"metadata": None}, {"metadata": {}}])
def test_a_list_that_is_none(answer: object) -> None:
    """An answer without a list is a fault, not a host without containers."""
    with pytest.raises(ValueError, match="list of containers"):
        read_containers(INCUS, answer)


async def test_a_container_that_cannot_be_stored(
    daemon: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container that is too large, or that is no container, hides no other one, and is counted.

    The status says how many there are, and the shape of the last, until the publisher ends.
    """
    engine = FakeEngine(tmp_path / "engine.sock", is_incus=False)
    huge = WEB | {"Names": ["/huge"], "Labels": {"text": "x" * 300_000}}
    engine.rows = [huge, WEB, {"Names": 7}, WEB | {"Names": ["/b"], "Labels": {"a": None}}]
    known = [DOCKER._replace(path=str(engine.path))]
    note = '2 containers not understood or refused; the last: {"x": 9}'
    async with calling(daemon.bus) as caller, engine.serve():
        await caller.ready()
        task = asyncio.create_task(main(known, daemon.bus))

        async def has_others() -> bool:
            return {"docker/web", "docker/b"} == (await shown(caller)).keys()

        await caller.until(has_others, wanted=True)

        async def said() -> list[str]:
            rows = await caller.get(STATE_PATH, STATE, "Observers")
            return [detail for name, _, _, detail in rows if name == "docker"]

        await caller.until(said, wanted=[note])
        await cancel([task])
        await caller.until(said, wanted=[])
    assert f"docker: {note}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 403 Forbidden\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n{", b"\0\n" * 1000],
)
async def test_an_engine_that_is_none(
    bus_address: str, tmp_path: Path, answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """What answers nonsense is named, with what it said, and is tried again."""

    async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await closed(writer)

    path = str(tmp_path / "engine.sock")
    server = await asyncio.start_unix_server(nonsense, path)
    task = asyncio.create_task(main([ENGINES[0]._replace(path=path)], bus_address))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while f"podman at {path}: " not in capsys.readouterr().err:  # noqa: ASYNC110 -- a text
            await asyncio.sleep(0.01)
    assert not task.done()
    await cancel([task])
    server.close()


def test_the_program_says_which_engines_are_missing() -> None:
    """It waits for those that come later."""
    command = [sys.executable, "-m", "opdbus.publishers.containers"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        told = read_lines(p, lambda text: text.count("No such file") == len(ENGINES))
        assert all(f"{engine.name} at {engine.path}: " in told for engine in ENGINES)
        p.kill()
