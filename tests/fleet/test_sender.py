"""The sender with a real daemon and a real database: the database equals the host."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from harness.running import calling, replace

from opdbus.bus import paths
from opdbus.bus.transport.connection import Connection
from opdbus.client import Client
from opdbus.history.ledger import Limits
from opdbus.index.state_store.history_retention import HistoryRetention
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import canonical

pytest.importorskip("asyncpg")

from harness.fleet_hosts import FleetHost, Proxy, until
from harness.fleets import state_row

from opdbus.fleet import host_reader
from opdbus.fleet.host_reader import Model
from opdbus.fleet.questions import fleet_past
from opdbus.fleet.questions.fleet_scope import Scope, find_hosts

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fleets import FleetDatabase
    from harness.running import Running

    from opdbus.fleet.sender import Sender

LAMP = ("lamp",)
BOXES = [("lab", "box", f"n{n}", {"number": n, "size": "large"}) for n in range(40)]
DECLARED = {"version": 1, "plugins": {"lab": {"boxes": {"n1": {"number": 7}, "gone": {"a": 1}}}}}

# Texts of objects without a vector that a host offered.
LACKING = (
    "SELECT count(*) FROM opdbus.object JOIN opdbus.content ON content.digest = object.content"
    " LEFT JOIN opdbus.offered_vector AS offered ON offered.digest = content.text"
    " WHERE offered.digest IS NULL"
)
# Notes the transaction of each new row of history, and of each state.
RECORD_ORDER = """
CREATE TABLE opdbus.written (kind text, xid xid8);
CREATE FUNCTION opdbus.note_written() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO opdbus.written VALUES (TG_ARGV[0], pg_current_xact_id());
  RETURN NULL;
END $$;
CREATE TRIGGER noted AFTER INSERT ON opdbus.change FOR EACH ROW WHEN (NEW.name = 'n9')
  EXECUTE FUNCTION opdbus.note_written('change');
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON opdbus.object FOR EACH ROW WHEN (NEW.name = 'n9')
  EXECUTE FUNCTION opdbus.note_written('object');
CREATE VIEW opdbus.seen AS SELECT count(*) FILTER (WHERE kind = 'change') AS changes,
  sum(count(*) FILTER (WHERE kind = 'change')) OVER so_far AS all_changes,
  sum(count(*) FILTER (WHERE kind = 'object')) OVER so_far AS states
  FROM opdbus.written GROUP BY xid WINDOW so_far AS (ORDER BY xid)
"""
# Notes the objects that are removed.
RECORD_REMOVALS = """
CREATE TABLE opdbus.removed (name text);
CREATE FUNCTION opdbus.note_removed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO opdbus.removed VALUES (OLD.name);
  RETURN NULL;
END $$;
CREATE TRIGGER noted AFTER DELETE ON opdbus.object FOR EACH ROW
  EXECUTE FUNCTION opdbus.note_removed()
"""


def box_path(name: str) -> str:
    """Return the path of a box."""
    return paths.of("lab", "box", name)


async def says(sender: Sender, words: str) -> bool:
    """Return whether the status has these words."""
    return words in sender.progress.text


async def is_away(sender: Sender) -> bool:
    """Return whether the database cannot be reached."""
    return await says(sender, "cannot be reached")


async def compared_since(sender: Sender, count: int) -> bool:
    """Return whether all was compared once more."""
    return sender.progress.comparisons > count and await says(sender, "All is sent")


@pytest.fixture
def make_host(
    database: FleetDatabase, daemons: Callable[..., Running], tmp_path: Path
) -> Callable[..., FleetHost]:
    """Make the host web1 of a fleet; its daemon is not started."""
    file = replace(tmp_path / "state.json", json.dumps(DECLARED))
    name = database.add("web1")
    return lambda **settings: FleetHost(daemons(STATE_FILE=file, **settings), database, name)


@pytest.fixture
def host(make_host: Callable[..., FleetHost]) -> FleetHost:
    """Start the daemon of a host."""
    host = make_host()
    host.daemon.start()
    return host


async def test_first_synchronization_and_changes(host: FleetHost) -> None:
    """Send all objects, history, drift and vectors; then what changes and what goes."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        await client.publish("test", BOXES)
        await caller.vectorized()
        # as the first worker does
        numerics, dimension = await host_reader.read_model(client)
        await host.fetch(f"SELECT opdbus.add_numerics('{numerics}', 'medium', {dimension})")
        async with host.sending():
            await host.until_equal(client)
            await host.until_answer("SELECT name FROM opdbus.drift", ("n1",))
            await client.publish("test", [("lab", "box", "n1", {"number": 100})])
            await client.publish("test", [("lab", "box", "new", {"text": "a\\u0000b"})])
            await client.withdraw(["/org/opdbus/state/lab/box/n2"])
            await host.until_equal(client)
            await caller.vectorized()
            await host.until_answer(LACKING, (0,))
        counts = await host.fetch("SELECT backlog, conflict, epoch FROM opdbus.host")
        assert counts == [(0, None, 1)]


async def test_what_is_withdrawn_is_erased(host: FleetHost) -> None:
    """Erase the values of withdrawn objects in the rows that were sent before, as the host does."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        async with host.sending():
            for _ in range(2):
                await client.publish("test", BOXES[:4])
                await client.publish("test", [("lab", "box", "n1", {"number": 55})])
                await caller.until(lambda: caller.read("Drifted"), 1)
                await host.until_equal(client)
                await client.withdraw([box_path("n1"), box_path("n2")])
                await host.until_equal(client)
        erased = "SELECT count(*) FROM opdbus.change WHERE name = 'n1' AND fields IS NULL"
        assert await host.fetch(erased) != [(0,)]


async def test_a_restart_resumes_at_the_cursor(host: FleetHost) -> None:
    """Send only the rows that are new, and what changed while no sender ran."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        # without n1, which is declared: once it has drifted for a while there is a row of that
        await client.publish("test", BOXES[2:])
        async with host.sending() as first:
            await host.until_equal(client)
        await client.publish("test", [("lab", "box", "n3", {"number": 300})])
        await client.withdraw([box_path("n4")])
        async with host.sending() as second:
            await host.until_equal(client)
        assert first.progress.rows + second.progress.rows == await client.last_row()
        assert 0 < second.progress.rows < first.progress.rows
        assert await host.fetch("SELECT epoch, reason FROM opdbus.epoch") == [(1, "first")]


async def test_rows_are_sent_with_the_state_of_their_objects(host: FleetHost) -> None:
    """Have the new state as soon as the row is there."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        async with host.sending() as sender:
            await host.until_equal(client)
            first_rows = await client.last_row()
            await host.until_answer("SELECT max(seq) FROM opdbus.change", (first_rows,))
            await host.fetch_none(RECORD_ORDER)
            # of a box that is not declared: one that drifts has a row more when it did for a while
            for number in range(5):
                await client.publish("test", [("lab", "box", "n9", {"number": number})])
                await host.until_equal(client)
            await host.until_answer("SELECT max(all_changes) FROM opdbus.seen", (5,))
            # with the row, or before it where the state was sent as it was read
            early = "SELECT * FROM opdbus.seen WHERE changes > 0 AND all_changes > states"
            assert await host.fetch(early) == []
            assert sender.progress.comparisons == 1


async def test_a_daemon_that_restarts_removes_nothing(host: FleetHost) -> None:
    """Keep every object while the daemon begins, which has only its state file and its memory."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        await client.publish("test", BOXES)
        async with host.sending() as sender:
            await host.until_equal(client)
            await host.fetch_none(RECORD_REMOVALS)
            for _ in range(2):
                before = sender.progress.comparisons
                host.daemon.kill()
                host.daemon.start()
                await caller.ready()
                await until(partial(compared_since, sender, before), wanted=True)
                await host.until_equal(client)
        assert await host.fetch("SELECT * FROM opdbus.removed") == []


async def test_objects_of_an_observer_that_has_not_listed_are_kept(
    make_host: Callable[..., FleetHost], system_bus: str
) -> None:
    """Keep what an observer found before its daemon lost its memory, until it lists again."""
    name = "org.example.Slow"
    host = make_host(bus=system_bus, OBSERVE=name, VECTOR_LEVEL="none")
    daemon = host.daemon
    stored = [state_row("lamp", source=f"live:{name}"), state_row("old", source="live:other")]
    assert daemon.bus == system_bus
    async with Connection(daemon.bus) as silent, Client(daemon.bus) as client:
        await silent.own(name)
        daemon.start()
        async with calling(daemon.bus) as caller:
            await caller.ready()
        async with host.uplink() as uplink:
            facts = await host_reader.read_facts(client, Model())
            await uplink.begin(facts, None)
            await uplink.send([], stored, 0)
        async with host.sending() as sender:
            # the observer waits for the silent service, ten seconds
            await host.until_answer(
                "SELECT name FROM opdbus.object WHERE plugin = 'app'", ("lamp",)
            )
            await until(partial(compared_since, sender, 2), wanted=True)
            assert await host.fetch("SELECT compared_at FROM opdbus.host") == [(None,)]
            await silent.__aexit__()
            await host.until_equal(client)
        assert await host.fetch("SELECT compared_at IS NULL FROM opdbus.host") == [(False,)]


async def test_a_host_is_partial_until_its_observers_have_listed(
    make_host: Callable[..., FleetHost], system_bus: str
) -> None:
    """Do not count a first synchronization as a comparison while an observer lists its objects."""
    name = "org.example.Slow"
    host = make_host(bus=system_bus, OBSERVE=name, VECTOR_LEVEL="none")
    daemon = host.daemon

    async def is_partial() -> bool:
        hosts = await asyncio.to_thread(
            host.database.run, lambda connection: find_hosts(connection, Scope())
        )
        (part,) = hosts.parts
        assert part.age is not None
        return part.is_partial

    async with Connection(daemon.bus) as silent, Client(daemon.bus) as client:
        await silent.own(name)
        async with host.sending() as sender:
            # before the observer gives up, ten seconds later
            daemon.start()
            await until(partial(compared_since, sender, 0), wanted=True)
            assert await is_partial()
            await silent.__aexit__()
            await host.until_equal(client)
            await until(is_partial, wanted=False)


async def test_a_state_too_large_to_send_leaves_the_host_uncompared(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Send all other states, say once what to do, and compare with success once it is smaller."""
    monkeypatch.setattr(host_reader, "_MOST_BYTES", 20_000)
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        await client.publish("test", [*BOXES[:4], ("lab", "box", "huge", {"text": "x" * 30_000})])
        async with host.sending() as sender:
            await until(partial(compared_since, sender, 0), wanted=True)
            boxes = "SELECT count(*) FROM opdbus.object WHERE name IN ('n0', 'n2', 'huge')"
            assert await host.fetch(boxes) == [(2,)]
            assert await host.fetch("SELECT compared_at FROM opdbus.host") == [(None,)]
            await until(partial(compared_since, sender, 2), wanted=True)
            await client.publish("test", [("lab", "box", "huge", {"text": "x"})])
            await host.until_answer("SELECT compared_at IS NULL FROM opdbus.host", (False,))
            assert await host.fetch(boxes) == [(3,)]
    said = capfd.readouterr()
    assert (said.out + said.err).count("split it into several objects") == 1


async def test_values_too_large_to_send_are_unknown_in_the_past(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send them as erased ones: not as a change of nothing, and without erasing older rows."""
    monkeypatch.setattr(host_reader, "_MOST_BYTES", 20_000)
    name = "huge"
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        await client.publish("test", [("lab", "box", name, {"text": "short"})])
        rows = [await client.last_row()]
        await client.publish("test", [("lab", "box", name, {"text": "x" * 15_000})])
        rows.append(await client.last_row())
        await client.publish("test", [("lab", "box", name, {"text": "short"})])
        async with host.sending():
            await host.until_equal(client)
    fields = "SELECT fields FROM opdbus.change WHERE name = 'huge' ORDER BY seq"
    kept = [json.loads(row[0]) for row in await host.fetch(fields)]
    assert len(kept) == 3
    assert kept[1:] == [[["", "", ""]]] * 2
    assert kept[0] != kept[1]
    ((at,),) = await host.fetch("SELECT at FROM opdbus.change WHERE seq = $1", rows[1])

    async def rewound(connection: Any) -> fleet_past.Past:
        return await fleet_past.rewind(connection, await find_hosts(connection, Scope()), at)

    past = await asyncio.to_thread(host.database.run, rewound)
    assert name in {each.object_id.name for each in past.unknown}


async def test_a_history_that_was_deleted_is_named(host: FleetHost) -> None:
    """Name the host, keep its old history, and send the new one."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        await client.publish("test", BOXES)
        async with host.sending():
            await host.until_equal(client)
            host.daemon.kill()
            for file in host.daemon.state_dir.glob("*.db*"):
                file.unlink()
            host.daemon.start()
            await caller.ready()
            await host.until_equal(client)
        ((conflict,),) = await host.fetch("SELECT conflict FROM opdbus.host")
        assert "stored before" in conflict
        epochs = await host.fetch("SELECT epoch, reason FROM opdbus.epoch ORDER BY epoch")
        assert epochs == [(1, "first"), (2, "rewritten")]
        assert await host.fetch("SELECT count(*) > 40 FROM opdbus.change WHERE epoch = 1") == [
            (True,)
        ]


async def test_a_week_of_backlog(host: FleetHost) -> None:
    """Send thousands of rows in batches once the database is there."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        async with host.sending() as sender:
            await host.until_equal(client)
            host.url, url = "postgresql://nobody@/none?host=%2Fnonexistent", host.url
            async with host.sending() as away:
                for day in range(4):
                    boxes = [("lab", "box", f"n{n}", {"day": day, "n": n}) for n in range(900)]
                    await client.publish("test", boxes)
                await until(lambda: is_away(away), wanted=True)
            host.url = url
            await host.until_equal(client)
            assert sender.progress.rows > 3600
            assert sender.progress.batches < 60
        assert await host.fetch("SELECT backlog, conflict FROM opdbus.host") == [(0, None)]


async def test_rows_that_were_pruned_begin_an_epoch(
    make_host: Callable[..., FleetHost],
) -> None:
    """Go on at the oldest row that is kept, without a reproach, and compare all objects."""
    host = make_host(VECTOR_LEVEL="none")
    daemon = host.daemon.start()
    async with calling(daemon.bus) as caller, Client(daemon.bus) as client:
        await caller.ready()
        async with host.sending():
            await host.until_equal(client)
        for day in range(4):
            boxes = [("lab", "box", f"n{n}", {"day": day, "n": n}) for n in range(900)]
            await client.publish("test", boxes)
        daemon.stop()
        async with StateStore(daemon.state_dir / "memory.db", boot="b") as store:
            await HistoryRetention(store, None, "", Limits(rows=1000)).checkpoint_and_prune()
        daemon.start()
        await caller.ready()
        async with host.sending():
            await host.until_equal(client)
        epochs = await host.fetch("SELECT epoch, reason FROM opdbus.epoch ORDER BY epoch")
        assert epochs == [(1, "first"), (2, "gap")]
        assert await host.fetch("SELECT conflict FROM opdbus.host") == [(None,)]


async def test_a_refusal_is_said_once(host: FleetHost, capfd: pytest.CaptureFixture[str]) -> None:
    """Say a wrong password and another machine once each, and go on once it is mended."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        right = host.database.passwords["web1"]
        host.database.passwords["web1"] = "wrong"
        async with host.sending() as sender:
            await until(lambda: says(sender, "refuses this login"), wanted=True)
            await asyncio.sleep(1)
            host.database.passwords["web1"] = right
            await host.until_equal(client)
        await host.fetch_none("UPDATE opdbus.host SET machine = 'op-dbus/another'")
        async with host.sending() as sender:
            await until(lambda: says(sender, "belong to another machine"), wanted=True)
            await asyncio.sleep(1)
    lines = [line for line in capfd.readouterr().out.splitlines() if "cannot send" in line]
    assert len(lines) == 2, lines


async def test_a_host_over_its_limit_goes_on_once_it_is_raised(host: FleetHost) -> None:
    """Say which limit it is, keep what is stored, and send the rest when there is room."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        async with host.sending() as sender:
            await host.until_equal(client)
            stored = await host.fetch("SELECT objects FROM opdbus.host")
            await host.fetch("UPDATE opdbus.host SET most_objects = objects")
            await client.publish("test", BOXES)
            await until(lambda: says(sender, "takes no more of this host"), wanted=True)
            assert f"and may have {stored[0][0]};" in sender.progress.text
            assert await host.fetch("SELECT objects FROM opdbus.host") == stored
            await host.fetch("UPDATE opdbus.host SET most_objects = NULL")
            await host.until_equal(client)
        assert await host.fetch("SELECT refused_at, conflict FROM opdbus.host") == [(None, None)]


async def test_a_batch_whose_answer_is_lost_is_stored_once(host: FleetHost, tmp_path: Path) -> None:
    """Send a batch again if the connection ends before the answer to its commit."""
    async with (
        calling(host.daemon.bus) as caller,
        Client(host.daemon.bus) as client,
        Proxy(tmp_path / "p", host.database) as proxy,
    ):
        await caller.ready()
        host.url = proxy.url(host)
        seen = []

        def fault(data: bytes) -> str:
            if b"COMMIT" in data:
                seen.append(data)
                return "deaf" if len(seen) % 3 == 1 else ""
            return ""

        proxy.fault = fault
        async with host.sending():
            for number in range(3):
                await client.publish("test", [("lab", "box", "n1", {"number": number})])
                await host.until_equal(client)
        assert proxy.faults["deaf"] >= 2


def test_the_command_sends_until_it_is_stopped(host: FleetHost, tmp_path: Path) -> None:
    """Tell systemd that it is ready and how far it is, and end at SIGTERM."""
    # its name is there before its objects are
    host.daemon.vectorized()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(60)
        more = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        with host.process(tmp_path / "sender.log", **more) as process:
            try:
                seen = ""
                for wanted in ("READY=1", "WATCHDOG=1", "STATUS=All is sent, up to row"):
                    while wanted not in seen:
                        seen += notified.recv(4096).decode() + "\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0, (tmp_path / "sender.log").read_text()
            finally:
                process.kill()

    async def check() -> None:
        async with Client(host.daemon.bus) as client:
            assert await host.differences(client) == {}

    asyncio.run(check())


def test_preview_lists_what_is_sent(host: FleetHost) -> None:
    """List every object with its text, without a database."""

    async def read() -> list[str]:
        async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
            await caller.vectorized()
            await client.publish("test", BOXES[:3])
            await caller.until(lambda: caller.read("Drifted"), 1)
            return [row.body or "" async for row in host_reader.read_everything(client)]

    bodies = asyncio.run(read())
    answer = host.daemon.cli("fleet", "preview", "--json")
    found = json.loads(answer.stdout)
    assert [canonical(row) for row in found["objects"]] == bodies
    assert {"plugin": "lab", "kind": "box", "objects": 4} in found["kinds"]
    assert found["last_row"] >= 3
    assert found["drifted"] == 1
    assert found["machine"].startswith("op-dbus/")
    assert found["numerics"]
    text = host.daemon.cli("fleet", "preview").stdout
    for body in bodies:
        assert "/".join(json.loads(body)[key] for key in ("plugin", "kind", "name")) in text
        assert json.loads(body)["text"].splitlines()[0] in text
