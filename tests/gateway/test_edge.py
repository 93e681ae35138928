"""Limits of the gateway: each hostile request has a documented status, and others are served."""

import asyncio
import json
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
from conftest import ROOT
from harness.gateways import Gateway, receive, status
from harness.health import memory_mib
from harness.running import PATIENCE_SECONDS, Running

from opdbus.client import Client
from opdbus.gateway import host_routes
from opdbus.gateway.guard import _ValueCounter
from opdbus.gateway.host_models import MapRequest
from opdbus.gateway.http_errors import HttpError
from opdbus.gateway.http_limits import Limits

LIMITS = {
    "header_seconds": 0.3,
    "body_seconds": 0.3,
    "body_bytes": 100_000,
    "held_bytes": 150_000,
    "read_seconds": 0.3,
    "linger_seconds": 0.3,
    "connections": 40,
    "running_of_client": 2,
}
POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def request(target: str, method: str = "GET", *headers: str) -> bytes:
    """Write a request."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def post(body: bytes) -> bytes:
    """Write a request with a body."""
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def limited(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway with small limits."""
    with Gateway(served, tmp_path_factory.mktemp("limited"), limits=LIMITS) as running:
        yield running


def is_ended(own: socket.socket, data: bytes) -> bool:
    """Send the same again and again, until the gateway ends the connection."""
    try:
        for _ in range(200_000):
            own.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


HOSTILE = [
    (request("/health", "TRACE"), 405),
    (request("/health", "BREW"), 405),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (request("/health", "POST"), 405),
    (request("/health", "OPTIONS", "Origin: http://x"), 405),
    (request("*", "OPTIONS"), 400),
    (request("/../etc/passwd"), 404),
    (request("/%2e%2e/etc/passwd"), 404),
    (request("/v1//models"), 404),
    (request("/v1%2fmodels"), 404),
    (request("/v1%5Cmodels"), 404),
    (request("/v1/./models"), 404),
    (request("/health%00"), 400),
    (request("/health%0a"), 400),
    (request("/%ff"), 400),
    (request("http://user@x/health"), 400),
    (request("ftp://x/health"), 400),
    (request("http:///health"), 400),
    (request("http://x/../health"), 404),
    (request("/health", "GET", "Origin: http://evil.example"), 403),
    (request("/health", "GET", "Origin: null"), 403),
    (request("/metrics"), 404),
    (request("/health", "GET", *(f"X-{n}: 1" for n in range(200))), 431),
    (request("/health", "GET", "X: " + "x" * 40_000), 431),
    (request("/" + "x" * 40_000), 431),
    (request("/health?" + "x" * 40_000), 431),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", 505),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (POST + b"Content-Length: -1\r\n\r\n", 400),
    (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
    (POST + b"Content-Length: 99999999999999\r\n\r\n", 413),
    (POST + b"Content-Length: 9999999999999999999999999\r\n\r\n", 400),
    (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    # a head that is too long has no parsed part: it would be 400
    (request("/health", "GET", *["no header at all"] * 9000), 431),
    (request("/health", "GET", *["no header at all"] * 101), 431),
    (request("/health", "BREW", "X: " + "\0" * 200_000), 431),
    (request("/" + "x" * 200_000, "GET", "no header"), 431),
    (b"GET /health HTTP/1.1\n" + b"no header\n" * 5000 + b"\n", 431),
    (b"\x16" * 40_000, 431),
    (CHUNKED + b"zz\r\n", 400),
    (CHUNKED + b"-1\r\n", 400),
    (CHUNKED + b"fffffffffffffffffffff\r\n", 400),
    (CHUNKED + b"2\r\n{}garbage", 400),
    (post(b"[" * 90_000), 400),
    (post(b'{"input":' + b"[" * 900 + b"]" * 900 + b"}"), 400),
    (post(b'{"input": ' + b"9" * 5000 + b"}"), 400),
    (post(b'{"input": "\xff"}'), 400),
    (post(b'{"input": "x"} rest'), 400),
    (post(b""), 400),
]


@pytest.mark.parametrize(("data", "wanted"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_requests_have_a_status(gateway: Gateway, data: bytes, wanted: int) -> None:
    """Answer each with its documented status, and a body in the documented form."""
    response = gateway.tell(data)
    assert status(response) == wanted, response
    error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"]
    assert gateway.is_served()


def test_two_lengths_end_the_connection(gateway: Gateway) -> None:
    """Close a connection after a request with both lengths, which a proxy may read otherwise."""
    hidden = request("/health")
    body = b"0\r\n\r\n" + hidden
    with gateway.connect() as own:
        lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(body)
        own.sendall(POST + lengths + body)
        found = b""
        while more := own.recv(65536):
            found += more
    assert found.count(b"HTTP/1.1 ") == 1


def test_a_long_head_after_an_unread_body_is_refused(gateway: Gateway) -> None:
    """Measure each head of a connection, also one that comes with the end of a body."""
    with gateway.connect() as own:
        own.sendall(request("/nothing", "POST", "Content-Length: 4"))
        assert status(receive(own)) in {404, 405}
        own.sendall(b"rest" + request("/health", "GET", *["no header at all"] * 5000))
        assert status(receive(own)) == 431


def described(http: httpx.Client) -> list[tuple[str, dict[str, str]]]:
    """Return the routes that answer GET, with the parameters that they need."""
    found = []
    for path, operations in http.get("/openapi.json").json()["paths"].items():
        needed = operations.get("get", {}).get("parameters", ())
        if "get" in operations and "{" not in path:
            found.append((path, {e["name"]: "disk" for e in needed if e.get("required")}))
    return [*found, ("/", {}), ("/openapi.json", {}), ("/page.js", {})]


def test_head_is_answered_as_get(gateway: Gateway, http: httpx.Client) -> None:
    """Answer HEAD on all routes with the status and headers of GET, and end a stream at once."""
    for path, needed in described(http):
        with http.stream("GET", path, params=needed) as wanted:
            found = http.head(path, params=needed)
            assert found.status_code == wanted.status_code, path
            assert found.headers["content-type"] == wanted.headers["content-type"], path
            assert found.content == b""
    with gateway.connect() as own:
        own.sendall(request("/changes/stream", "HEAD"))
        assert own.recv(65536).startswith(b"HTTP/1.1 200 ")
        own.sendall(request("/health"))
        assert status(receive(own)) == 200
    refused = http.head("/embed")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert http.post("/status").headers["allow"] == "GET, HEAD"


def test_a_trailing_slash_is_no_redirection(http: httpx.Client) -> None:
    """Answer a path with a slash at its end as without one: behind TLS, our scheme is wrong."""
    for path, needed in described(http):
        with http.stream("GET", f"{path.rstrip('/')}/", params=needed) as found:
            with http.stream("GET", path, params=needed) as wanted:
                assert found.status_code == wanted.status_code, path
            assert "location" not in found.headers
    assert http.post("/v1/embeddings/", json={"input": "disk"}).status_code == 200
    assert http.post("/api/embed/", json={"input": "disk", "model": "static"}).status_code == 200
    assert http.post("/embed/", json={"inputs": []}).json().keys() == {
        "error", "error_type", "message"
    }  # fmt: skip
    assert http.get("/objects/fs/mount/%2Fsrv/").json()["error"]["message"].endswith("%2Fsrv/") or (
        http.get("/objects/fs/mount/%2Fsrv/").status_code == 404
    )
    assert http.get("/nothing/").status_code == 404


def test_maps_are_few() -> None:
    """Refuse one map too many with 503, before anything is asked of the daemon."""

    async def work() -> HttpError:
        for _ in range(host_routes._MOST_MAPS):
            await host_routes._maps.acquire()
        try:
            with pytest.raises(HttpError) as caught:
                await host_routes.map_(MapRequest(), Client("unix:path=/nowhere"))
        finally:
            for _ in range(host_routes._MOST_MAPS):
                host_routes._maps.release()
        return caught.value

    assert asyncio.run(work()).status == 503


@pytest.mark.parametrize(
    ("target", "path"), [("http://x/health", "/health"), ("HTTP://x:80?a=1", "/")]
)
def test_targets_may_have_a_host(gateway: Gateway, target: str, path: str) -> None:
    """Serve a target with scheme and host as its path."""
    assert (
        gateway.tell(request(target)).split(b"\r\n\r\n")[1]
        == (gateway.tell(request(path)).split(b"\r\n\r\n")[1])
    )
    assert status(gateway.tell(request(target))) == 200


def test_names_of_objects_may_have_slashes(gateway: Gateway) -> None:
    """Pass what would be a trick elsewhere to the routes of objects, where a name may have it."""
    raw = gateway.tell(request("/objects/fs/mount/%2Fhome%2F.."))
    assert b"escaped slashes" not in raw
    assert status(raw) in {200, 404}


def test_a_body_without_an_end_is_refused(limited: Gateway) -> None:
    """Answer 413 as soon as a body of chunks is too long, while the client goes on sending."""
    with limited.connect() as own:
        own.sendall(CHUNKED)
        chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        assert is_ended(own, chunk)
        assert status(receive(own)) == 413
    assert limited.is_served()


def test_a_declared_body_is_refused_before_it_is_sent(limited: Gateway, gateway: Gateway) -> None:
    """Answer 413 instead of 100 to a client that asks before it sends too much."""
    head = POST + b"Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n"
    assert status(limited.tell(head)) == 413
    allowed = POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with gateway.connect() as own:
        own.sendall(allowed)
        assert own.recv(65536).startswith(b"HTTP/1.1 100 ")
        own.sendall(b"{}")
        assert status(receive(own)) == 400


@pytest.mark.parametrize("sent", [b"G", GET, GET + b"X: "])
def test_headers_that_come_slowly_end(limited: Gateway, sent: bytes) -> None:
    """Answer 408 if a request's headers are not there in time."""
    assert status(limited.tell(sent)) == 408


def test_each_request_has_its_own_time_for_headers(limited: Gateway) -> None:
    """Give a second request on a connection its time, and not longer."""
    with limited.connect() as own:
        own.sendall(GET + b"\r\n")
        assert status(receive(own)) == 200
        own.sendall(GET)
        assert status(receive(own)) == 408


def test_a_connection_without_a_request_is_closed(limited: Gateway) -> None:
    """Close it without an answer, which its client would take for that of its next request."""
    with limited.connect() as own:
        assert own.recv(1) == b""


@pytest.mark.parametrize("head", [POST + b"Content-Length: 100\r\n\r\n", CHUNKED + b"2\r\n{"])
def test_bodies_that_come_slowly_end(limited: Gateway, head: bytes) -> None:
    """Answer 408 if a body does not come in time."""
    assert status(limited.tell(head)) == 408
    assert limited.is_served()


def test_an_idle_connection_ends_whatever_was_sent(served: Running, tmp_path: Path) -> None:
    """Close a connection without a request in time, also after a body that nobody waited for."""
    with Gateway(served, tmp_path, limits={"idle_seconds": 1}) as gateway:
        with gateway.connect() as own:
            own.sendall(request("/nothing", "POST", "Content-Length: 4"))
            assert status(receive(own)) in {404, 405}
            own.sendall(b"rest")
            assert own.recv(1) == b""
        assert gateway.is_served()
        assert gateway.stop() == 0


def test_a_client_that_does_not_read_is_dropped(limited: Gateway) -> None:
    """Close the connection of a client that leaves its answers unread."""
    with limited.connect() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        assert is_ended(own, GET + b"\r\n")
    assert limited.is_served()


def test_a_client_has_a_bounded_number_of_requests(served: Running, tmp_path: Path) -> None:
    """Answer 429 with Retry-After to one request too many, and serve again when one has ended."""
    # bodies have their usual time, so that both are held when the third comes
    with Gateway(served, tmp_path, limits={"running_of_client": 2}) as gateway:
        with ExitStack() as stack:
            held = [stack.enter_context(gateway.connect()) for _ in range(2)]
            for own in held:
                own.sendall(POST + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n")
                assert own.recv(65536).startswith(b"HTTP/1.1 100 ")
            refused = gateway.tell(GET + b"\r\n")
            assert status(refused) == 429
            assert b"retry-after: 1" in refused.lower()
        assert gateway.is_served()


@pytest.mark.parametrize("broken", [b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", b"\r\nx\r\n\r\n"])
def test_a_broken_request_after_its_head_or_in_its_body_is_no_fault(
    limited: Gateway, broken: bytes
) -> None:
    """Answer what breaks off in the body of HEAD, and what follows HEAD, without a traceback."""
    with limited.connect() as own:
        own.sendall(b"HEAD /health HTTP/1.1\r\nHost: x\r\n" + broken)
        assert receive(own).startswith(b"HTTP/1.1 ")
    assert "LocalProtocolError" not in limited.log.read_text()


def test_bodies_together_are_bounded(limited: Gateway) -> None:
    """Answer 429 if the bodies of one client would take the memory of all."""
    with limited.connect() as first:
        first.sendall(POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 99_000)
        with limited.connect() as second:
            second.sendall(POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 99_000)
            refused = receive(second)
            assert status(refused) in {408, 429}
    assert limited.is_served()


def test_an_idle_connection_is_the_clients_to_close(gateway: Gateway) -> None:
    """Keep one longer than clients do, so that none sends on one that ends (NeMo-Gym PR 1555)."""
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with gateway.connect() as own:
        own.sendall(request)
        assert status(receive(own)) == 200
        # clients and servers often wait for five
        time.sleep(6)
        own.sendall(request)
        assert status(receive(own)) == 200


def test_the_values_of_a_body_are_bounded(gateway: Gateway, http: httpx.Client) -> None:
    """Answer 413 to 9 MiB of empty lists before they are read: they would take 25 times as much."""
    before = memory_mib(gateway.pid, "VmHWM")
    answer = http.post("/v1/embeddings", content=b'{"input":[' + b"[]," * 3_000_000 + b"[]]}")
    assert answer.status_code == 413
    assert "values" in answer.json()["error"]["message"]
    assert memory_mib(gateway.pid, "VmHWM") < before + 64
    text = '"a", [disk], {a link}, \\ ' * 2000
    assert http.post("/v1/embeddings", json={"input": [text] * 200}).status_code == 200


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_values_are_counted_in_parts(size: int) -> None:
    """Count strings, and signs outside of them, wherever the parts of a body end."""
    text = json.dumps({"a": [1, "x, [y]", '"\\', "\\\\"], "b\\": {"c": [[], {}]}}).encode()
    counter = _ValueCounter()
    counts = [counter.count(text[at : at + size]) for at in range(0, len(text), size)]
    # three keys and three texts, six lists and objects, five commas; a string that is in two
    # parts counts twice
    assert sum(counts) >= 17
    assert sum(counts) == 17 or size < len(text)
    whole = _ValueCounter()
    assert whole.count(text) == 17


def test_the_longest_idle_connection_makes_room(limited: Gateway) -> None:
    """Serve a new client though all places are taken by idle ones."""
    with ExitStack() as stack:
        idle = [stack.enter_context(limited.connect()) for _ in range(LIMITS_CONNECTIONS)]
        assert limited.is_served()
        assert idle[0].recv(1) == b""


LIMITS_CONNECTIONS = int(LIMITS["connections"])


def test_a_thousand_idle_connections_are_borne(gateway: Gateway, http: httpx.Client) -> None:
    """Serve others while a thousand clients are connected and silent, and keep these."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with ExitStack() as stack:
            idle = [stack.enter_context(gateway.connect()) for _ in range(1000)]
            assert http.get("/health").status_code == 200
            for own in idle[::100]:
                own.sendall(GET + b"\r\n")
                assert status(receive(own)) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    """Answer requests that were sent together one after the other."""
    with gateway.connect() as own:
        last = request("/health", "GET", "Connection: close")
        own.sendall(request("/health") + request("/nothing") + last)
        found = b""
        while more := own.recv(65536):
            found += more
    assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_old_http_is_served(gateway: Gateway) -> None:
    """Serve HTTP/1.0 without a Host, and close the connection after it."""
    with gateway.connect() as own:
        own.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert status(receive(own)) == 200
        assert own.recv(1) == b""


def test_nothing_hostile_is_logged(gateway: Gateway, limited: Gateway) -> None:
    """Write no line for a client's fault: it could fill the log."""
    assert "Traceback" not in gateway.log.read_text() + limited.log.read_text()
    assert Path(gateway.log).stat().st_size < 2000


def test_a_killed_gateway_is_not_noticed_by_the_daemon(served: Running, tmp_path: Path) -> None:
    """Kill it under load: calls over the bus go on, and clients that try again are served."""
    ended = threading.Event()
    answered = Counter[str]()

    def load() -> None:
        """Embed until told to end, and connect again after each fault."""
        while not ended.is_set():
            with suppress(OSError), gateway.connect() as own:
                while not ended.is_set():
                    own.sendall(post(json.dumps({"input": ["mail server"] * 20}).encode()))
                    if not (answer := receive(own)):
                        break
                    assert status(answer) in {0, 200}
                    answered[generation] += 1
            time.sleep(0.02)

    async def call_the_bus() -> int:
        """Call the daemon while the gateway is killed."""
        async with Client(served.bus) as client:
            for _ in range(50):
                await client.search("mail", 5, {})
            return 50

    generation = "before"
    gateway = Gateway(served, tmp_path)
    threads = [threading.Thread(target=load) for _ in range(4)]
    with gateway:
        for thread in threads:
            thread.start()
        wait_until(lambda: answered["before"] > 20)
    generation = "after"
    before = served.logs()
    with Gateway(served, tmp_path):
        assert asyncio.run(call_the_bus()) == 50
        wait_until(lambda: answered["after"] > 20)
        ended.set()
        for thread in threads:
            thread.join()
    assert served.logs() == before


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for other threads."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_limits_are_documented() -> None:
    """Name each limit in docs/http.md with its number."""
    text = " ".join((ROOT / "docs" / "http.md").read_text().partition("## Limits")[2].split())
    ours = Limits()
    units = {"bytes": (1 << 10, "KiB"), "rate": (1 << 10, "KiB/s"), "seconds": (1, "s")}
    for name in (field.name for field in fields(ours)):
        value, kind = getattr(ours, name), name.rpartition("_")[2]
        size, unit = units.get(kind, (1, ""))
        if kind == "bytes":
            size, unit = max((1 << 10 * n, f"{p}iB") for n, p in ((1, "K"), (2, "M"), (3, "G"))
                             if value >= 1 << 10 * n)  # fmt: skip
        wanted = f"{value / size:,.0f} {unit}".strip()
        assert wanted in text, f"{name}: {wanted}"
