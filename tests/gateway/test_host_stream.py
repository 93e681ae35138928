"""Changes as server-sent events: order, resumption, filters, ends, and many clients."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from harness.gateways import Gateway
from harness.running import Bus, Caller, Running, ask

from opdbus.gateway.change_stream import MAX_STREAMS_OF_CLIENT


class Event(NamedTuple):
    """One server-sent event."""

    id: int
    name: str
    data: dict[str, Any]


def read_events(answer: httpx.Response) -> Iterator[Event]:
    """Yield the events of a stream; id 0 for one without."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line:
            if "data" in fields:
                data = json.loads(fields["data"])
                yield Event(int(fields.get("id", 0)), fields["event"], data)
            fields = {}
        name, _, value = line.partition(": ")
        fields[name] = value


def take(events: Iterator[Event], count: int) -> list[Event]:
    """Return the next changes; other events are dropped."""
    changes = (each for each in events if each.name == "change")
    return [next(changes) for _ in range(count)]


def publish(daemon: Running, *names: str, **properties: str) -> None:
    """Publish objects."""

    async def work(caller: Caller) -> None:
        found = [("s", "item", name, properties) for name in names]
        await caller.ask("Publish", "stream", found, {})

    ask(daemon, work)


def test_changes_come_in_order_with_their_numbers(http: httpx.Client, served: Running) -> None:
    """Send what is published after the stream began, each row once."""
    with http.stream("GET", "/changes/stream") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = read_events(answer)
        publish(served, "a", "b")
        publish(served, "c")
        found = take(events, 3)
    assert {each.data["name"] for each in found[:2]} == {"a", "b"}
    assert found[2].data["name"] == "c"
    assert [each.id for each in found] == [each.data["seq"] for each in found]
    assert [each.id for each in found] == sorted({each.id for each in found})


def test_a_stream_resumes_where_it_ended(http: httpx.Client, served: Running) -> None:
    """Send all rows after Last-Event-ID or ?after=, also those that came meanwhile."""
    newest = http.get("/changes", params={"limit": 1}).json()["changes"][0]["seq"]
    publish(served, "d", "e")
    ways: list[dict[str, Any]] = [
        {"url": f"/changes/stream?after={newest}"},
        {"url": "/changes/stream", "headers": {"Last-Event-ID": str(newest)}},
        {"url": f"/changes?after={newest}", "headers": {"Accept": "text/event-stream"}},
    ]
    for way in ways:
        with http.stream("GET", **way) as answer:
            found = take(read_events(answer), 2)
        assert [each.id for each in found] == [newest + 1, newest + 2]
    with http.stream("GET", "/changes/stream?after=0") as answer:
        every = take(read_events(answer), newest + 2)
    assert [each.id for each in every] == [*range(1, newest + 3)]


def test_a_filter_holds_for_what_comes(http: httpx.Client, served: Running) -> None:
    """Send only what meets the conditions, and refuse those that cannot be met."""
    with http.stream("GET", "/changes/stream", params={"where": "mode=on"}) as answer:
        events = read_events(answer)
        publish(served, "f", mode="off")
        publish(served, "g", mode="on")
        assert take(events, 1)[0].data["name"] == "g"
    assert http.get("/changes/stream", params={"kind": "nosuch"}).status_code == 400
    assert http.get("/changes/stream", params={"around": "nosuch"}).status_code == 404
    assert http.get("/changes/stream", headers={"Last-Event-ID": "x"}).status_code == 400


def test_a_number_of_another_history_is_told(http: httpx.Client) -> None:
    """Tell that history began anew, and go on with what it has."""
    with http.stream("GET", "/changes/stream?after=9000000000") as answer:
        events = read_events(answer)
        assert next(events).name == "gap"
        assert take(events, 1)[0].id == 1


def test_streams_are_bounded_and_their_places_free_again(
    gateway: Gateway, http: httpx.Client, served: Running
) -> None:
    """Refuse one stream too many with 429, serve the others from one read, and free all places."""
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.http()) for _ in range(MAX_STREAMS_OF_CLIENT)]
        streams = [
            stack.enter_context(client.stream("GET", "/changes/stream")) for client in clients
        ]
        assert {each.status_code for each in streams} == {200}
        refused = http.get("/changes/stream")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        events = [read_events(each) for each in streams]
        publish(served, "many")
        assert {take(each, 1)[0].data["name"] for each in events} == {"many"}
    for _ in range(MAX_STREAMS_OF_CLIENT):
        with http.stream("GET", "/changes/stream") as answer:
            last = answer.status_code
    assert last == 200


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    """Run a daemon that may be killed."""
    bus = Bus()
    with Running(tmp_path, bus.address, VECTOR_LEVEL="none", STATE_FILE="") as daemon:
        yield daemon.vectorized()
    bus.kill()


def test_a_stream_survives_the_daemon_and_ends_with_the_gateway(
    own: Running, tmp_path: Path
) -> None:
    """Tell that the daemon is away and back, miss no row, and end at once at SIGTERM."""
    with Gateway(own, tmp_path) as gateway, gateway.http() as http:
        with http.stream("GET", "/changes/stream") as answer:
            events = read_events(answer)
            publish(own, "before")
            first = take(events, 1)[0]
            own.kill()
            away = next(events)
            assert (away.name, away.data["serving"]) == ("daemon", False)
            own.start().vectorized()
            publish(own, "after")
            back = next(events)
            assert (back.name, back.data) == ("daemon", {"serving": True})
            second = take(events, 1)[0]
            assert (second.data["name"], second.id) == ("after", first.id + 1)
            ended = threading.Thread(target=gateway.stop)
            ended.start()
            assert list(events) == []
            ended.join()
        assert "Traceback" not in gateway.log.read_text()


def test_a_slow_reader_holds_no_memory(own: Running, tmp_path: Path) -> None:
    """Wait for a reader that takes nothing, instead of keeping rows for it."""
    with Gateway(own, tmp_path) as gateway, gateway.http() as http:
        rows = [("s", "big", f"{n}", {"text": f"{n} " * 2000}) for n in range(100)]

        async def work(caller: Caller) -> None:
            for turn in range(30):
                for row in rows:
                    row[3]["turn"] = turn
                await caller.ask("Publish", "slow", rows, {})

        with http.stream("GET", "/changes/stream?after=0"):
            before = memory_of(gateway.pid)
            writer = threading.Thread(target=lambda: ask(own, work))
            writer.start()
            writer.join()
            http_changes = gateway.http()
            with http_changes:
                assert http_changes.get("/changes?limit=1").json()["changes"][0]["seq"] >= 3000
            assert memory_of(gateway.pid) - before < 64 << 20


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096
