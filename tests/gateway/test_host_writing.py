"""Routes of the writing socket."""

import json
import time
from collections.abc import Iterator

import httpx
import pytest
from harness.gateways import Gateway
from harness.running import PATIENCE_SECONDS, Running


@pytest.fixture(scope="module")
def writer(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Connect to the writing socket of a gateway of its own."""
    folder = tmp_path_factory.mktemp("writing")
    listen = ("--listen", f"write=unix:{folder}/http.sock")
    with Gateway(served, folder, *listen) as gateway:
        with gateway.http() as client:
            yield client
        assert "Traceback" not in gateway.log.read_text()


def lines(*items: object) -> bytes:
    """Return items as lines of JSON; texts as they are."""
    texts = (item if isinstance(item, str) else json.dumps(item) for item in items)
    return "\n".join(texts).encode()


def test_what_is_added_is_found(writer: httpx.Client, http: httpx.Client) -> None:
    """Publish objects under the source http, and find them on both sockets."""
    one = {"name": "kiln/1", "text": "pottery kiln at 1200 degrees", "properties": {"a": None}}
    added = writer.post("/add", json=one).json()
    assert (added["added"], added["objects"][0]["name"]) == (1, "kiln/1")
    many = [{"plugin": "shop", "kind": "shelf", "name": f"{n}"} for n in range(3)]
    assert writer.post("/add", json=many).json()["added"] == 3
    for client in (writer, http):
        shown = client.get("/objects/http/document/kiln%2F1").json()
        assert (shown["source"], shown["observed"]["text"]) == ("publish:http", one["text"])
    (first, *_) = http.get("/search", params={"q": "pottery kiln", "limit": 3}).json()["hits"]
    assert (first["plugin"], first["kind"], first["name"]) == ("http", "document", "kiln/1")


def test_the_reading_socket_does_not_write(http: httpx.Client) -> None:
    """Have no writing route where the group reads."""
    for url in ("/add", "/batch/import"):
        assert http.post(url, json={"name": "x"}).status_code == 404


def test_an_import_tells_each_line_at_fault(writer: httpx.Client) -> None:
    """Import the sound lines, name the others by number, and skip empty ones."""
    deep: object = 1
    for _ in range(40):
        deep = {"a": deep}
    content = lines(
        {"name": "l1", "text": "one"},
        "",
        "{broken",
        {"text": "no name"},
        {"name": "l5", "properties": {"n": 1 << 70}},
        {"name": "l6", "properties": {"deep": deep}},
        {"name": "l7", "text": "a\0b"},
        '{"name": "\\ud800"}',
        {"name": "ü" * 1000},
        "x" * (2 << 20),
        {"name": "l11", "properties": {"list": [1, "a", {"b": [], "none": None}]}},
    )
    found = writer.post("/batch/import", content=content).json()
    assert (found["imported"], found["failed"]) == (2, 8)
    assert [error["line"] for error in found["errors"]] == [*range(3, 11)]
    assert writer.get("/objects/http/document/l11").status_code == 200
    assert writer.get("/objects/http/document/l5").status_code == 404
    assert writer.get("/health").status_code == 200


def test_an_import_may_be_repeated(writer: httpx.Client) -> None:
    """Replace objects by those of the same name, also within one import."""
    rows = [{"kind": "row", "name": f"{n}", "properties": {"turn": 0}} for n in range(1200)]
    for turn in range(2):
        for row in rows:
            row["properties"] = {"turn": turn}
        content = lines(*rows, {**rows[0], "properties": {"turn": 9}})
        found = writer.post("/batch/import", content=content).json()
        assert (found["imported"], found["failed"]) == (1201, 0)
        listed = writer.get("/objects", params={"plugin": "http", "kind": "row", "limit": 1})
        assert listed.json()["total"] == 1200
        shown = writer.get("/objects/http/row/0").json()
        assert shown["observed"]["turn"] == 9


def test_a_body_that_ends_early_keeps_whole_batches(writer: httpx.Client) -> None:
    """Survive a client that leaves in the middle, and import what it sent in full batches."""

    def parts() -> Iterator[bytes]:
        yield lines(*({"kind": "early", "name": f"{n}"} for n in range(600)))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while count() < 500 and time.monotonic() < deadline:
            time.sleep(0.05)
        raise ConnectionError

    def count() -> int:
        wanted = {"plugin": "http", "kind": "early", "limit": 1}
        found: int = writer.get("/objects", params=wanted).json().get("total", 0)
        return found

    with pytest.raises(ConnectionError):
        writer.post("/batch/import", content=parts())
    assert count() == 500


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a", "foo": 1}, "foo"),
        ({"name": "a", "properties": {"n": 1 << 70}}, "64 bits"),
        ({"name": "a", "properties": {"n": [1, None, 3]}}, "null"),
        ({"name": "a", "properties": {"n": {"m": [[None]]}}}, "null"),
        ([], "1 item"),
        ([{"name": "a"}, {"nam": "b"}], "1: there is no 'nam'"),
    ],
)
def test_what_cannot_be_published_is_refused(
    writer: httpx.Client, body: object, words: str
) -> None:
    """Answer 400 that names the fault."""
    answer = writer.post("/add", json=body)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (400, True)
