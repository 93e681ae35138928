"""Routes of the fleet: the questions of `op-dbus fleet` over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from harness.gateways import Gateway
from harness.running import PATIENCE_SECONDS

from opdbus.errors import DatabaseUnreachable, LimitsExceeded, TimedOut
from opdbus.gateway.fleet import fleet_models
from opdbus.gateway.fleet.fleet_link import MOST_CONNECTIONS, FleetLink

if TYPE_CHECKING:
    from pathlib import Path

    import asyncpg
    import httpx
    from harness.known_fleet import KnownFleet
    from harness.running import Running

OPENSSH = "packages/package/openssh"
# Each route with parameters that it answers, and the model of its answer.
ROUTES: list[tuple[str, dict[str, Any], Any]] = [
    ("search", {"q": "which package stores tables"}, fleet_models.SEARCH),
    ("search", {"q": "kind:package", "where": "version=18.1"}, fleet_models.SEARCH),
    ("search", {"q": "openssh", "at": "-1s"}, fleet_models.PAST),
    ("hosts", {}, fleet_models.FleetHostsAnswer),
    ("changes", {}, fleet_models.CHANGES),
    ("changes", {"about": "redis upgraded", "since": "-2h", "until": "-1s"}, fleet_models.CHANGES),
    ("drift", {"severity": "warning"}, fleet_models.DRIFT),
    ("compare", {"first": "web1", "second": "web5"}, fleet_models.COMPARISON),
    ("odd", {"tag": "web"}, fleet_models.ODD),
    ("missing", {"of": "web4"}, fleet_models.MISSING),
    ("object", {"name": "openssh"}, fleet_models.OBJECT),
]


@pytest.fixture(scope="module")
def fleet_http(fleet_gateway: Gateway) -> Iterator[httpx.Client]:
    """Connect to it."""
    with fleet_gateway.http() as client:
        yield client


def ask(http: httpx.Client, route: str, **given: object) -> Any:
    """Return a route's answer."""
    answer = http.get(f"/fleet/{route}", params=given)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("route", "given", "model"),
    ROUTES,
    ids=[f"{route}-{n}" for n, (route, *_) in enumerate(ROUTES)],
)
def test_routes_answer_as_they_are_described(
    fleet_http: httpx.Client, route: str, given: dict[str, Any], model: Any
) -> None:
    """Answer with all keys of the model, and none besides."""
    found = ask(fleet_http, route, **given)
    checked = model.model_validate(found)
    assert checked.model_dump(mode="json") == found
    assert _extra(checked) == []


def _extra(model: Any) -> list[str]:
    """Return the keys that a model does not name, at any depth."""
    own = [*(model.model_extra or ())]
    for value in dict(model).values():
        for each in value if isinstance(value, list) else [value]:
            own += _extra(each) if hasattr(each, "model_extra") else []
    return own


def test_search_finds_by_words_vectors_and_conditions(fleet_http: httpx.Client) -> None:
    """Find an object on the one host that has it; compare the vectors of the daemon's model."""
    found = ask(fleet_http, "search", q="which package stores tables")
    first = found["hits"][0]["found"]
    assert first["object_id"]["name"] == "postgresql-18"
    assert first["where"] == {
        "words": "on 1 of 6 hosts: db1",
        "on": ["db1"],
        "not_on": ["web1", "web2", "web3", "web4", "web5"],
    }
    assert found["compared"] == ["static"]
    assert found["notes"] == []
    assert found["hosts"]["headline"].startswith("6 hosts; newest")
    assert found["hosts"]["remarks"] == ["silent: db1"]
    met = ask(fleet_http, "search", q="openssh host:web*", where="version=0.9-1")
    assert [hit["found"]["where"]["on"] for hit in met["hits"]] == [["web5"]]


def test_differences_are_found(fleet_http: httpx.Client) -> None:
    """Name the odd hosts, what is missing, what differs, what changed and what drifted."""
    odd = {each["name"]: each for each in ask(fleet_http, "odd", tag="web")["odd"]}
    assert {"web1", "web4", "web5"} == set(odd)
    (oddity,) = odd["web5"]["oddities"]
    assert oddity["object_id"]["name"] == "openssh"
    assert odd["web4"]["counts"] == {"missing": 1}
    (lacking,) = ask(fleet_http, "missing", of="web4")["missing"]
    assert lacking["object_id"]["name"] == "nginx.service"
    kinds = ask(fleet_http, "compare", first="web1", second="web5")["kinds"]
    assert {(kind["kind"], *kind["counts"]) for kind in kinds} == {
        ("package", "both"),
        ("unit", "first"),
    }
    (change,) = ask(fleet_http, "changes")["changes"]
    assert change["where"]["on"] == ["web1", "web2", "web3", "web4"]
    drift = ask(fleet_http, "drift")
    assert drift["total"] == 1
    assert drift["drift"][0]["where"]["on"] == ["web1", "web2"]
    shown = ask(fleet_http, "object", name=OPENSSH)
    assert [len(state["hosts"]) for state in shown["states"]] == [5, 1]
    assert shown["total"] == 2
    assert len(ask(fleet_http, "object", name=OPENSSH, limit=1)["states"]) == 1


def test_hosts_tell_their_faults_and_a_cursor(fleet_http: httpx.Client) -> None:
    """List silent hosts first, with findings; only those that changed after a cursor."""
    found = ask(fleet_http, "hosts")
    assert [each["name"] for each in found["hosts"]][:2] == ["db1", "web3"]
    assert found["hosts"][0]["is_silent"]
    assert found["hosts"][1]["findings"] == ["observer docker failed: no answer"]
    assert ask(fleet_http, "hosts", changed_since=found["cursor"])["hosts"] == []
    assert len(ask(fleet_http, "hosts", tag="db")["hosts"]) == 1


@pytest.mark.parametrize(
    ("route", "given", "status", "says"),
    [
        ("search", {"q": " "}, 400, "empty"),
        ("search", {"q": "x host:nowhere"}, 400, "no host of host:nowhere"),
        ("search", {"q": "x", "where": "no_such_field=1"}, 400, "no object of the fleet"),
        ("compare", {"first": "web1"}, 400, "second"),
        ("compare", {"first": "web1", "second": "web1"}, 400, "one host"),
        ("object", {"name": "no-such-object"}, 404, "no host has an object"),
        ("hosts", {"changed_since": "yesterday"}, 400, "no cursor"),
        ("changes", {"since": "-1h", "until": "-2h"}, 400, "earlier"),
        ("odd", {"tag": "db"}, 400, "at least 3"),
        ("odd", {"colour": "red"}, 400, "colour"),
    ],
)
def test_wrong_questions_are_refused(
    fleet_http: httpx.Client, route: str, given: dict[str, str], status: int, says: str
) -> None:
    """Refuse with a sentence."""
    answer = fleet_http.get(f"/fleet/{route}", params=given)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]


def test_without_a_fleet_there_is_a_sentence(http: httpx.Client) -> None:
    """Say how a fleet is set up, and that there is none."""
    for route in ("/fleet/hosts", "/fleet/search?q=x", "/mcp/fleet"):
        answer = http.get(route)
        assert answer.status_code == 404, route
        assert "OP_DBUS_FLEET_DATABASE" in answer.json()["error"]["message"]
    assert http.get("/status").json()["Fleet"] == ""


def test_status_tells_of_the_fleet(fleet_http: httpx.Client) -> None:
    """Say in the status that the fleet's database answers."""
    ask(fleet_http, "hosts")
    assert fleet_http.get("/status").json()["Fleet"] == "answers"


def test_a_database_that_is_away(served: Running, tmp_path: Path) -> None:
    """Answer 503 with a time to ask again; the host's own routes go on."""
    url = f"postgresql://page@/opdbus?host={tmp_path}"
    with Gateway(served, tmp_path, FLEET_DATABASE=url) as gateway, gateway.http() as http:
        answer = http.get("/fleet/hosts")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "cannot be reached" in answer.json()["error"]["message"]
        status = http.get("/status")
        assert status.status_code == 200
        assert status.json()["Fleet"].startswith("away: ")


async def ask_plainly(fleet: FleetLink, question: Callable[..., Awaitable[Any]]) -> Any:
    """Return a question's answer as it is."""
    return await fleet.ask(question, lambda answer: answer)


def test_no_question_holds_a_connection_for_long(known: KnownFleet) -> None:
    """End a statement and a question that take longer, and serve others then."""

    async def work() -> None:
        password = known.password_file.read_text()
        # a connection is made in the time that a question waits for one: it is short only later
        fleet = FleetLink(known.url, password, seconds=3)
        thinking = threading.Semaphore(0)

        async def sleep(connection: asyncpg.Connection, _embed: object) -> None:
            await connection.execute("SELECT pg_sleep(60)")

        async def think(_connection: object, _embed: object) -> None:
            thinking.release()
            await asyncio.sleep(60)

        async def count(connection: asyncpg.Connection, _embed: object) -> object:
            return await connection.fetchval("SELECT count(*) FROM opdbus.host")

        for slow in (sleep, think):
            with pytest.raises(TimedOut):
                await ask_plainly(fleet, slow)
        assert await ask_plainly(fleet, count) == 6
        assert thinking.acquire(timeout=0)
        busy = [asyncio.create_task(ask_plainly(fleet, think)) for _ in range(MOST_CONNECTIONS)]
        for _ in busy:
            assert await asyncio.to_thread(thinking.acquire, timeout=PATIENCE_SECONDS)
        fleet._wait_seconds = 0.2
        with pytest.raises(DatabaseUnreachable, match="other questions"):
            await ask_plainly(fleet, count)
        fleet._wait_seconds = PATIENCE_SECONDS
        assert {type(each) for each in await asyncio.gather(*busy, return_exceptions=True)} == {
            TimedOut
        }
        assert await ask_plainly(fleet, count) == 6
        await fleet.close()

    asyncio.run(work())


def test_connections_that_were_lost_are_made_again(known: KnownFleet) -> None:
    """Answer after the server ended all connections, which costs one question at most."""

    async def work() -> None:
        fleet = FleetLink(known.url, known.password_file.read_text())

        async def count(connection: asyncpg.Connection, _embed: object) -> object:
            return await connection.fetchval("SELECT count(*) FROM opdbus.host")

        async def end_itself(connection: asyncpg.Connection, _embed: object) -> object:
            return await connection.fetchval("SELECT pg_terminate_backend(pg_backend_pid())")

        for _ in range(2 * MOST_CONNECTIONS):
            with pytest.raises(DatabaseUnreachable):
                await ask_plainly(fleet, end_itself)
            assert fleet.state.startswith("away: ")
            assert await ask_plainly(fleet, count) == 6
            assert fleet.state == "answers"
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'page'"
        await asyncio.to_thread(known.database.fetch, ends)
        # the pool may not have seen it yet
        with suppress(DatabaseUnreachable):
            await ask_plainly(fleet, count)
        assert await ask_plainly(fleet, count) == 6
        await fleet.close()

    asyncio.run(work())


def test_an_answer_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say how to ask for less, instead of holding what no client reads."""
    monkeypatch.setattr(fleet_models, "MOST_CHARACTERS", 1000)
    assert fleet_models.as_text({"a": "b" * 900})
    with pytest.raises(LimitsExceeded, match="ask for less"):
        fleet_models.as_text({"a": "b" * 1000})


def test_questions_leave_the_gateway_free(known: KnownFleet) -> None:
    """Go on with others while a question computes."""

    async def work() -> None:
        fleet = FleetLink(known.url, known.password_file.read_text())
        began = asyncio.Event()
        own = asyncio.get_running_loop()
        is_done = False

        async def compute(_connection: object, _embed: object) -> None:
            own.call_soon_threadsafe(began.set)
            while not is_done:
                time.sleep(0.001)  # noqa: ASYNC251 -- it computes

        task = asyncio.create_task(ask_plainly(fleet, compute))
        await began.wait()
        is_done = True
        await task
        await fleet.close()

    asyncio.run(asyncio.wait_for(work(), 60))
