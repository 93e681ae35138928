"""Who may use the gateway: sockets, tokens, names, and settings that are refused."""

import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from harness.gateways import TOKEN, Gateway, receive, status
from harness.running import Running, environment, run_program

from opdbus.gateway.listeners import Listener


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a token that only this user may read."""
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def tcp(
    served: Running, token_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Run a gateway on TCP."""
    settings = {"HTTP_TOKEN_FILE": token_file, "HTTP_HOSTS": "memory.example.org"}
    folder = tmp_path_factory.mktemp("tcp")
    with Gateway(served, folder, "--listen", "127.0.0.1:0", **settings) as running:
        yield running


def ask(gateway: Gateway, **headers: str) -> httpx.Response:
    """Ask over TCP with some headers."""
    return httpx.get(f"http://127.0.0.1:{gateway.port('http')}/health", headers=headers, timeout=60)


def start(served: Running, folder: Path, *flags: str, **settings: object) -> tuple[int, str]:
    """Start a gateway that ends at once, and give its exit code and what it says."""
    given = {f"OP_DBUS_{key}": str(value) for key, value in settings.items()}
    environ = environment(served.bus, folder, given)
    done = run_program([sys.executable, "-m", "opdbus", "gateway", *flags], env=environ)
    return done.returncode, done.stderr


def test_tcp_sends_at_once() -> None:
    """Connections of a listener inherit that no part of an answer waits for an acknowledgement."""
    own = Listener("http", socket.create_server(("127.0.0.1", 0))).socket
    with own, socket.create_connection(own.getsockname()), own.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_tcp_takes_the_token(tcp: Gateway) -> None:
    """Serve who sends the token, with a scheme in any case."""
    assert ask(tcp, Authorization=f"Bearer {TOKEN}").status_code == 200
    assert ask(tcp, Authorization=f"bearer {TOKEN}").status_code == 200


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"],
)
def test_other_tokens_are_refused(tcp: Gateway, given: str) -> None:
    """Answer 401 and how to authenticate, whatever else is sent, and log nothing of it."""
    port = tcp.port("http")
    header = {"Authorization": given.encode("latin-1")} if given else {}
    refused = httpx.get(f"http://127.0.0.1:{port}/nothing", headers=header, timeout=60)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in refused.text + tcp.log.read_text()


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:80", "memory.example.org"])
def test_own_names_are_served(tcp: Gateway, host: str) -> None:
    """Serve who names an address, this host, or a name of the settings."""
    assert ask(tcp, Authorization=f"Bearer {TOKEN}", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost", "x/"],
)
def test_other_names_are_refused(tcp: Gateway, host: str) -> None:
    """Answer 421 to a page that reaches this address by a name of its own, token or not."""
    assert ask(tcp, Authorization=f"Bearer {TOKEN}", Host=host).status_code == 421


@pytest.mark.parametrize(
    ("target", "host", "wanted"),
    [("localhost", "evil.example", 200), ("evil.example", "localhost", 421)],
)
def test_the_host_of_a_target_counts(tcp: Gateway, target: str, host: str, wanted: int) -> None:
    """Check the host that a request's target names, and not the header beside it."""
    with socket.create_connection(("127.0.0.1", tcp.port("http"))) as own:
        head = f"GET http://{target}/health HTTP/1.1\r\nHost: {host}\r\n"
        own.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert status(receive(own)) == wanted


def test_nobody_is_allowed_from_other_origins(tcp: Gateway) -> None:
    """Send no header that lets a page of another server read."""
    given = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}
    refused = ask(tcp, **given)
    assert refused.status_code == 403
    own = f"http://127.0.0.1:{tcp.port('http')}"
    answer = ask(tcp, **{**given, "Origin": own})
    assert answer.status_code == 200
    assert not {name for name in (*refused.headers, *answer.headers) if "access-control" in name}


def test_tcp_does_not_start_without_a_token(served: Running, tmp_path: Path) -> None:
    """Refuse to listen where any user could ask."""
    code, said = start(served, tmp_path, "--listen", "127.0.0.1:0")
    assert code == 2
    assert "needs a token" in said
    assert "OP_DBUS_HTTP_TOKEN_FILE" in said


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "at least 16"),
        ("short", 0o600, "at least 16"),
        ("two words of a token", 0o600, "write one word"),
        (TOKEN, 0o604, "open to all users"),
    ],
)
def test_a_weak_token_is_refused(
    served: Running, tmp_path: Path, text: str, mode: int, why: str
) -> None:
    """Refuse a token that can be guessed or read, without showing it."""
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    code, said = start(served, tmp_path, "--listen", "127.0.0.1:0", HTTP_TOKEN_FILE=file)
    assert (code, why in said, bool(text) and text in said) == (2, True, False), said


def test_a_missing_token_file_is_named(served: Running, tmp_path: Path) -> None:
    """Say which file cannot be read."""
    code, said = start(served, tmp_path, "--listen", "127.0.0.1:0", HTTP_TOKEN_FILE=tmp_path / "t")
    assert (code, str(tmp_path / "t") in said) == (2, True)


def test_a_credential_has_the_token(served: Running, tmp_path: Path) -> None:
    """Take the token that systemd passes."""
    (tmp_path / "op-dbus.http-token").write_text(TOKEN)
    (tmp_path / "op-dbus.http-token").chmod(0o400)
    gateway = Gateway(served, tmp_path, "--listen", "127.0.0.1:0")
    gateway.environ["CREDENTIALS_DIRECTORY"] = str(tmp_path)
    with gateway as running:
        assert ask(running).status_code == 401
        assert ask(running, Authorization=f"Bearer {TOKEN}").status_code == 200


def test_publishing_has_a_token_of_its_own(served: Running, tmp_path: Path) -> None:
    """Refuse the token for reading where objects are published, at the start and later."""
    read, write = tmp_path / "read", tmp_path / "write"
    for file, token in ((read, TOKEN), (write, f"{TOKEN}-too")):
        file.write_text(token)
        file.chmod(0o600)
    listen = ("--listen", "127.0.0.1:0", "--listen", "write=127.0.0.1:0")
    code, said = start(served, tmp_path, *listen, HTTP_TOKEN_FILE=read)
    assert (code, "OP_DBUS_HTTP_WRITE_TOKEN_FILE" in said) == (2, True), said
    code, said = start(served, tmp_path, *listen, HTTP_TOKEN_FILE=read, HTTP_WRITE_TOKEN_FILE=read)
    assert (code, "another token for writing" in said) == (2, True), said
    settings = {"HTTP_TOKEN_FILE": read, "HTTP_WRITE_TOKEN_FILE": write}
    with Gateway(served, tmp_path, *listen, **settings) as gateway:
        for name, given, wanted in (
            ("http", TOKEN, 200),
            ("http", f"{TOKEN}-too", 401),
            ("write", TOKEN, 401),
            ("write", f"{TOKEN}-too", 200),
        ):
            answer = httpx.get(
                f"http://127.0.0.1:{gateway.port(name)}/health",
                headers={"Authorization": f"Bearer {given}"},
                timeout=60,
            )
            assert (name, given, answer.status_code) == (name, given, wanted)


def test_a_variable_says_where_to_listen(served: Running, tmp_path: Path) -> None:
    """Take the addresses of OP_DBUS_LISTEN, several of them, and end with code 0."""
    both = f"unix:{tmp_path}/http.sock,metrics=127.0.0.1:0"
    gateway = Gateway(served, tmp_path, "--log-nothing", LISTEN=both)
    gateway.command[:] = ["-m", "opdbus", "gateway"]
    with gateway as running:
        assert running.is_served()
        assert running.stop() == 0


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "unix:x", "other=127.0.0.1:1", "a:b"])
def test_bad_addresses_are_refused(served: Running, tmp_path: Path, address: str) -> None:
    """Say what is accepted."""
    code, said = start(served, tmp_path, LISTEN=address)
    assert (code, "HOST:PORT" in said) == (2, True), said


def test_a_taken_address_is_refused(served: Running, gateway: Gateway, tmp_path: Path) -> None:
    """Leave the socket of a gateway that runs, and files that are no sockets."""
    code, said = start(served, tmp_path, "--listen", f"unix:{gateway.socket}")
    assert (code, "Address already in use" in said) == (2, True)
    file = tmp_path / "file"
    file.write_text("kept")
    code, said = start(served, tmp_path, "--listen", f"unix:{file}")
    assert (code, file.read_text()) == (2, "kept")
    assert gateway.is_served()


def test_the_socket_is_closed_to_others(gateway: Gateway) -> None:
    """Let the socket's owner and group connect, and nobody else."""
    assert stat.S_IMODE(gateway.socket.stat().st_mode) == 0o660


def test_a_socket_that_was_left_is_taken_over(served: Running, tmp_path: Path) -> None:
    """Start again after a crash."""
    for _ in range(2):
        with Gateway(served, tmp_path) as running:
            assert running.is_served()
        assert running.socket.exists()
