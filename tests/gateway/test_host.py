"""Routes of the host: searches, objects, drift, changes and status."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from harness.gateways import Gateway
from harness.running import PATIENCE_SECONDS, Bus, Caller, Running, ask

NAMES = [
    r"dev-disk-by\x2duuid-0a1b.device",
    "user@1000.service",
    "/srv/www/changes",
    "/",
    "a b?c#d&e=f%2Fg;h",
    "Ünïcode 名前 \u202e",
    "similar",
    "..",
]
SECRET = "hunter2-swordfish"


def address(plugin: str, kind: str, name: str) -> str:
    """Return the route of an object."""
    return "/objects/" + "/".join(quote(part, safe="") for part in (plugin, kind, name))


@pytest.fixture(scope="module", autouse=True)
def _published(served: Running) -> None:
    """Publish objects whose names have all kinds of characters, with a secret in each."""

    async def publish(caller: Caller) -> None:
        properties = {"text": "odd", "password": SECRET, "command": f"curl -u admin:{SECRET} x"}
        found = [("odd/p", "k%i/nd", name, properties) for name in NAMES]
        await caller.ask("Publish", "odd", found, {})
        await caller.vectorized()

    ask(served, publish)


def test_any_name_has_its_route(http: httpx.Client) -> None:
    """Show objects whose names have slashes, escapes, and the words of routes."""
    for name in NAMES:
        url = address("odd/p", "k%i/nd", name)
        if name == "..":
            url = url.replace("..", "%2E%2E")
        shown = http.get(url)
        assert (shown.status_code, shown.json().get("name")) == (200, name)
        changes = http.get(f"{url}/changes").json()["changes"]
        assert {change["name"] for change in changes} == {name}


def test_searches_answer_as_the_bus_does(http: httpx.Client, served: Running) -> None:
    """Give the hits of State1.Search, in its order, with their scores."""

    async def search(caller: Caller) -> list[Any]:
        return list((await caller.ask("Search", "mail relay", 5, {"explain": True}))[0])

    asked = {"q": "mail relay", "limit": 5, "explain": True}
    hits = http.get("/search", params=asked).json()["hits"]
    assert (
        [[hit["path"], hit["score"]] for hit in hits]
        == [row[:2] for row in ask(served, search)]
        != []
    )
    assert hits[0]["why"]["total"] > 0


def test_a_list_is_read_page_by_page(http: httpx.Client) -> None:
    """List each object once, whatever the size of the pages, and only those that match."""
    total = http.get("/objects", params={"limit": 1}).json()["total"]
    pages = [
        http.get("/objects", params={"limit": 30, "offset": offset}).json()["objects"]
        for offset in range(0, total, 30)
    ]
    names = [each["path"] for page in pages for each in page]
    assert len(set(names)) == len(names) == total
    odd = http.get("/objects", params={"where": "plugin=odd/p", "limit": 50}).json()
    assert {each["name"] for each in odd["objects"]} == set(NAMES)


def test_changes_are_read_page_by_page(http: httpx.Client) -> None:
    """Give every row once by the cursor, in both orders."""
    rows: dict[str, list[int]] = {}
    for order, cursor in (("newest", "below"), ("oldest", "after")):
        found, at = rows.setdefault(order, []), 0
        while at is not None:
            page = http.get("/changes", params={"order": order, cursor: at, "limit": 40}).json()
            found += [change["seq"] for change in page["changes"]]
            at = page["next"]
    assert rows["newest"] == rows["oldest"][::-1]
    assert len(set(rows["newest"])) == len(rows["newest"]) >= 100


def test_changes_are_in_the_words_of_the_command(http: httpx.Client, served: Running) -> None:
    """Say each line that `op-dbus changes` prints, with all its changes once, in both orders."""
    newest = http.get("/changes", params={"limit": 1000}).json()
    oldest = http.get("/changes", params={"limit": 1000, "order": "oldest"}).json()
    assert newest["lines"] == oldest["lines"][::-1]
    told = {row: line["words"] for line in oldest["lines"] for row in line["rows"]}
    assert sorted(told) == [change["seq"] for change in oldest["changes"]]
    printed = served.cli("changes", "-n", "1000").stdout.splitlines()
    assert [line[17:] for line in printed] == [line["words"] for line in oldest["lines"]]
    assert all(change["words"] for change in oldest["changes"])


def test_what_led_to_an_event_comes_with_it(http: httpx.Client, served: Running) -> None:
    """Give the event itself beside the changes before it, for a question and for its filter."""
    unit: dict[str, Any] = {"plugin": "systemd", "kind": "unit", "name": "hall.service"}
    for state in ("active", "failed"):
        unit["properties"] = {"active_state": state}
        assert served.cli("publish", "units", stdin=json.dumps([unit])).returncode == 0
    for url, asked in (
        ("/changes", {"before_event": "hall failed"}),
        ("/ask", {"q": "why did hall fail?"}),
    ):
        answer = http.get(url, params=asked).json()
        event = answer["event"]
        assert (event["name"], event["event"]) == ("hall.service", event["seq"]), answer
        assert event["seq"] not in {change["seq"] for change in answer["changes"]}
        assert all(change["event"] == event["seq"] for change in answer["changes"])


def test_a_past_object_is_shown(http: httpx.Client) -> None:
    """Show an object as it was at a time, and 404 for a time before it."""
    url = address("odd/p", "k%i/nd", NAMES[0])
    change = http.get(f"{url}/changes").json()["changes"][0]
    found = http.get(f"{url}/at", params={"time": change["at"]}).json()
    assert (found["name"], found["observed"]["text"]) == (NAMES[0], "odd")
    assert http.get(f"{url}/at", params={"time": "2001-01-01"}).status_code == 404


@pytest.mark.parametrize(
    ("url", "status", "words"),
    [
        ("/search", 400, "q"),
        ("/search?q=a&limit=0", 400, "limit"),
        ("/search?q=a&limt=3", 400, "limt"),
        ("/search?q=a%00b", 400, "q"),
        ("/search?q=a&where=b", 400, "condition"),
        ("/search?q=a&kind=nosuch", 400, "nosuch"),
        ("/changes?since=tomorrowish", 400, "since"),
        ("/changes?around=nosuchthing", 404, "around"),
        ("/similar?object=nosuchthing", 404, "object"),
        ("/objects/a/b/%00", 400, "control"),
        ("/objects/a/b/%ff", 400, "UTF-8"),
        ("/objects/a/b/c", 404, "there is no object"),
        ("/nosuch", 404, "Not Found"),
    ],
)
def test_faults_of_the_caller_say_what_is_wrong(
    http: httpx.Client, url: str, status: int, words: str
) -> None:
    """Answer a documented status and a sentence that names the fault."""
    answer = http.get(url)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True)


def test_secrets_are_replaced_on_every_route(http: httpx.Client) -> None:
    """Show no redacted value in any answer about the objects that have it."""
    urls = [
        "/search?q=odd&all=1&explain=1",
        f"/search?q={SECRET}&all=1",
        "/ask?q=odd",
        "/objects?where=plugin=odd/p",
        "/changes",
        "/changes?about=odd",
        "/clusters?objects=100",
        "/map",
        "/status",
    ]
    for name in NAMES[:-1]:
        url = address("odd/p", "k%i/nd", name)
        urls += [url, f"{url}/changes", f"{url}/similar?explain=1", f"{url}/at?time=now"]
    for url in urls:
        answer = http.get(url)
        assert (url, answer.status_code) == (url, 200)
        assert SECRET not in answer.text


def test_the_map_has_a_place_for_each_object(http: httpx.Client) -> None:
    """Give columns of one length, or a picture."""
    known = http.get("/map").json()
    assert {len(known[key]) for key in ("x", "y", "name", "text", "kind")} == {known["total"]}
    picture = http.get("/map", params={"format": "svg"})
    assert picture.headers["content-type"] == "image/svg+xml"
    assert picture.text.startswith("<svg")


def test_pages_of_drift_are_those_of_the_whole(tmp_path: Path) -> None:
    """Give each drifted object on one page, in the order of the whole, and nothing past the end."""
    bus = Bus()
    units = {f"u{number}.service": {"active_state": "active"} for number in range(5)}
    state = tmp_path / "s.json"
    state.write_text(json.dumps({"version": 1, "plugins": {"systemd": {"units": units}}}))
    settings = {"VECTOR_LEVEL": "none", "STATE_FILE": state}

    failed = [
        {
            "plugin": "systemd",
            "kind": "unit",
            "name": name,
            "properties": {"active_state": "failed"},
        }
        for name in units
    ]
    with Running(tmp_path, bus.address, **settings) as daemon, Gateway(daemon, tmp_path) as gateway:
        daemon.wait_for_log("state file read")
        assert daemon.cli("publish", "seen", stdin=json.dumps(failed)).returncode == 0
        with gateway.http() as http:

            def page(offset: int, limit: int) -> list[dict[str, Any]]:
                answer = http.get("/drift", params={"offset": offset, "limit": limit})
                found: list[dict[str, Any]] = answer.json()["drifts"]
                return found

            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(whole := page(0, 100)) < len(units):
                assert time.monotonic() < deadline, whole
            assert [*page(0, 2), *page(2, 2), *page(4, 2)] == whole
            assert page(5, 2) == []
            # when each became so, and by what
            (field,) = whole[0]["fields"]
            assert field["cause"].startswith("bus:")
            assert 0 <= time.time() - field["at"] / 1e6 < PATIENCE_SECONDS
    bus.kill()
