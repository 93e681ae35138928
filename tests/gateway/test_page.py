"""The page and `op-dbus page`: what a browser gets, and who is refused."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from harness.gateways import Gateway
from harness.running import PATIENCE_SECONDS, environment, read_lines

PAGE = Path(__file__).parents[2] / "opdbus/gateway/page"


@contextmanager
def open_page(gateway: Gateway, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `op-dbus page`, and give its link."""
    command = [sys.executable, "-m", "opdbus", "page", "--print", *flags]
    process = subprocess.Popen(
        [*command, "--socket", str(gateway.socket)],
        env=environment("session", gateway.socket.parent, {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = read_lines(process, lambda text: "/once/" in text and "\n" in text)
        found = re.search(r"http://\S+", said)
        assert found
        yield found[0], process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def browser(gateway: Gateway) -> Iterator[tuple[httpx.Client, str, str]]:
    """Follow a link, and give a client with its cookie, the page's address, and the link."""
    with open_page(gateway) as (link, _), httpx.Client(timeout=60) as client:
        entrance = client.get(link)
        path = re.search(r'href="([^"]+)"', entrance.text)
        assert path
        assert entrance.status_code == 200
        yield client, f"{link.partition('/once/')[0]}{path[1]}", link


def test_the_page_has_a_strict_policy(http: httpx.Client) -> None:
    """Serve a page with nothing inline, and again only if it has changed."""
    first = http.get("/")
    assert "default-src 'self'" in first.headers["content-security-policy"]
    assert http.get("/", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", first.text)


def test_the_script_is_small() -> None:
    """Have a browser load less than 60 kB of script, in one file; the fleet's view has its own."""
    assert {path.name for path in PAGE.glob("*.js")} == {"page.js", "fleet.js"}
    assert (PAGE / "page.js").stat().st_size < 60_000
    assert (PAGE / "fleet.js").stat().st_size < 20_000
    assert "fleet.js" not in (PAGE / "index.html").read_text()


def test_the_link_gives_a_cookie_that_opens_the_page(
    browser: tuple[httpx.Client, str, str],
) -> None:
    """Let the browser that followed the link see the page and the gateway's answers."""
    client, address, _ = browser
    (cookie,) = client.cookies.jar
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite", "").lower() == "strict"
    assert "op-dbus" in client.get(address).text
    assert client.get(f"{address}status").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Cookie": "op-dbus-page=wrong"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_others_are_refused(
    browser: tuple[httpx.Client, str, str], headers: dict[str, str]
) -> None:
    """Refuse other sites, other names of this host, and whoever has another cookie."""
    client, address, _ = browser
    cookie = {"Cookie": "; ".join(f"{one.name}={one.value}" for one in client.cookies.jar)}
    assert httpx.get(f"{address}status", headers=cookie, timeout=60).status_code == 200
    assert httpx.get(f"{address}status", headers=cookie | headers, timeout=60).status_code == 403


def test_a_link_works_once(browser: tuple[httpx.Client, str, str]) -> None:
    """Refuse a link that was followed."""
    answer = httpx.get(browser[2], timeout=60)
    assert answer.status_code == 403
    assert "used already" in answer.text


def test_a_preview_does_not_use_the_link_up(gateway: Gateway) -> None:
    """Leave the link to who follows it, if something looks at its head before."""
    with open_page(gateway) as (link, _):
        assert httpx.head(link).status_code == 403
        assert httpx.get(link, timeout=60).status_code == 200


def test_half_requests_block_nobody(gateway: Gateway) -> None:
    """Serve the browser beside 70 connections with half a head, and end these in time."""
    with open_page(gateway) as (link, _), ExitStack() as stack:
        host, _, port = link.removeprefix("http://").partition("/")[0].partition(":")
        half = [
            stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(70)
        ]
        for own in half:
            own.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        answers = [httpx.get(link, timeout=60) for _ in range(2)]
        assert [each.status_code for each in answers] == [200, 403]
        last = b""
        while more := half[-1].recv(65536):
            last += more
        assert last.startswith(b"HTTP/1.1 408 ")


def test_two_lengths_end_the_connection(gateway: Gateway) -> None:
    """Answer a request with both lengths by an error, and close its connection."""
    with open_page(gateway) as (link, _):
        host, _, port = link.removeprefix("http://").partition("/")[0].partition(":")
        with socket.create_connection((host, int(port)), 60) as own:
            lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            own.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + lengths)
            found = b""
            while more := own.recv(65536):
                found += more
    assert found.startswith(b"HTTP/1.1 400 ")


def test_it_ends_when_nobody_asks(gateway: Gateway) -> None:
    """End after the time without a request that was given."""
    with open_page(gateway, "--idle", "0.01") as (_, process):
        assert process.wait(PATIENCE_SECONDS) == 0
