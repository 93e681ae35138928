"""Programs of the gateway with nothing installed but what their own extra brings."""

import asyncio
import socket
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import EXAMPLE, ROOT
from harness import extras
from harness.assistants import text_of
from harness.gateways import Gateway
from harness.running import Bus, Running, environment, run_program
from mcp import Client, StdioServerParameters
from system import extras_alone, packages_alone

from opdbus.cli.gateway import open_page
from opdbus.errors import ConfigError
from opdbus.platform import pip

WLAN = "net/interface/wlan0"
MCP_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a daemon that searches by words."""
    bus, folder = Bus(), tmp_path_factory.mktemp("daemon")
    with Running(folder, bus.address, VECTOR_LEVEL="none", STATE_FILE=EXAMPLE) as daemon:
        daemon.wait_for_log("state file read")
        yield daemon
    bus.kill()


@pytest.fixture(scope="module")
def alone(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway that has the extra `http` and no other."""
    gateway = Gateway(served, tmp_path_factory.mktemp("alone"))
    gateway.environ |= extras.only("http")
    with gateway:
        yield gateway


def test_the_gateway_needs_no_other_extra(alone: Gateway) -> None:
    """Serve health, search, the page and metrics with the extra `http` alone."""
    with alone.http() as client:
        assert client.get("/health").status_code == 200
        found = client.get("/search", params={"q": "which network is for guests"})
        assert WLAN in found.text
        assert "op-dbus" in client.get("/").text
        assert client.get("/openapi.json").status_code == 200


def test_the_gateway_says_what_a_route_lacks(alone: Gateway) -> None:
    """Answer a route whose extra is missing with the module that is missing and its extra."""
    headers = {"accept": "application/json, text/event-stream"}
    with alone.http() as client:
        answer = client.post("/mcp", json=MCP_CALL, headers=headers)
    assert answer.status_code == 501
    assert "mcp is not installed" in answer.text
    assert "op-dbus[mcp]" in answer.text


def test_mcp_needs_no_other_extra(served: Running) -> None:
    """Answer an assistant over stdin and stdout with the extra `mcp` alone."""
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "opdbus", "mcp"],
        env=environment(served.bus, served.state_dir, {}) | extras.only("mcp"),
    )

    async def work() -> None:
        async with Client(program) as client:
            question = {"question": "which network is for guests"}
            assert WLAN in text_of(await client.call_tool("ask", question))

    asyncio.run(work())


@pytest.mark.parametrize(
    ("command", "installed", "missing", "extra"),
    [
        ("gateway --listen unix:{}", (), "uvicorn", "http"),
        ("gateway --listen unix:{}", ("mcp",), "fastapi", "http"),
        ("page --socket {}", (), "h11", "http"),
        ("mcp", ("http", "fleet"), "mcp", "mcp"),
        ("mcp --fleet", ("mcp",), "asyncpg", "fleet"),
        ("fleet hosts", ("http", "mcp"), "asyncpg", "fleet"),
        ("models pull low", ("http",), "huggingface_hub", "pull"),
    ],
)
def test_a_command_names_what_it_lacks(
    tmp_path: Path, command: str, installed: tuple[str, ...], missing: str, extra: str
) -> None:
    """End with one sentence that names the missing module and what installs it."""
    words = command.format(tmp_path / "none.sock").split()
    environ = environment("unix:path=/nowhere", tmp_path, {}) | extras.only(*installed)
    done = run_program([sys.executable, "-m", "opdbus", *words], env=environ)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{missing} is not installed: {pip.install(f'op-dbus[{extra}]')}" in line
    assert not done.stdout


def test_the_fleet_needs_no_other_extra(tmp_path: Path) -> None:
    """Go as far as the database that is not there with the extra `fleet` alone."""
    environ = environment("unix:path=/nowhere", tmp_path, {}) | extras.only("fleet")
    command = ["-m", "opdbus", "fleet", "--folder", str(tmp_path / "none"), "hosts"]
    done = run_program([sys.executable, *command], env=environ)
    assert "there is no database in" in done.stderr


def test_each_extra_and_each_package_is_tried_alone() -> None:
    """Have a program and its right answer for each extra, and for each package that has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {*project["optional-dependencies"]}
    assert {*extras_alone.EXTRAS} - {"base"} | {"dev", "train"} == known
    packages = {path.stem for path in (ROOT / "packaging").glob("*.yaml")}
    assert {*packages_alone.PACKAGES, *packages_alone.BASE} == packages


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "does not answer within 0.05 s"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 503 Service Unavailable\r\n", "answers 'HTTP/1.1 503"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "answers 'SSH-2.0-OpenSSH_9.2'"),
    ],
)
def test_the_page_asks_the_gateway_before_it_gives_a_link(
    tmp_path: Path, answer: bytes | None, reason: str
) -> None:
    """Refuse a socket that accepts connections and behind which no gateway serves the page."""
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with ThreadPoolExecutor() as thread:
            if answer is not None:
                thread.submit(_answer, listening, answer)
            with pytest.raises(ConfigError, match=reason):
                open_page.require_gateway(path, 0.05 if answer is None else 60)


def _answer(listening: socket.socket, answer: bytes) -> None:
    """Read a request, answer it and close the connection."""
    with listening.accept()[0] as own:
        own.recv(4096)
        own.sendall(answer)
