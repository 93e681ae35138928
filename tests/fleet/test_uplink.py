"""Rules of what a host may store in the fleet's database."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import asyncpg
import pytest
from harness.fleets import DIMENSION, another_database, facts, history, state_row, text_digest

from opdbus.errors import AccessDenied, DatabaseUnreachable, LimitsExceeded, OpDbusError
from opdbus.fleet import administration, postgres
from opdbus.fleet.host_overview import list_hosts
from opdbus.fleet.uplink import StateRow
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.fleets import FleetDatabase

VECTOR = [1.0] * DIMENSION
STATES = [state_row("nginx", state="active"), state_row("cron", state="active")]


def send(database: FleetDatabase, host: str, **given: object) -> list[StateRow]:
    """Send the rows of a host that is begun with its own machine; return what lacks vectors."""

    async def run() -> list[StateRow]:
        changes = given.get("changes", [])
        async with database.uplink(host) as uplink:
            seq, _ = await uplink.stored_history()
            own = {row.seq: row.hash for row in changes}
            machine = str(given.get("machine", host))
            await uplink.begin(facts(machine, 1, max(own, default=0)), own.get(seq))
            return await uplink.send(changes, given.get("objects", []), 0)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def untouched(database_server: FleetDatabase) -> Iterator[FleetDatabase]:
    """Give a database with two hosts, in which what a test tries stores nothing."""
    with another_database(database_server, 901) as found:
        for name in ("lone1", "lone2"):
            found.add(name)
        send(found, "lone2", objects=STATES)
        yield found


def test_equal_states_are_stored_once(database: FleetDatabase) -> None:
    """Store a state and a text that two hosts have once, and ask one host only for its vector."""
    web1, web2 = database.add("web1"), database.add("web2")
    assert send(database, web1, objects=STATES) == STATES

    async def offer() -> int:
        async with database.uplink(web1) as uplink:
            return await uplink.offer_vectors(dict.fromkeys(map(text_digest, STATES), VECTOR))

    assert asyncio.run(offer()) == 2
    assert send(database, web2, objects=STATES) == []
    assert database.fetch("SELECT count(*) FROM opdbus.object") == [(4,)]
    assert database.fetch("SELECT count(*) FROM opdbus.content") == [(2,)]
    assert database.fetch("SELECT count(*) FROM opdbus.text") == [(2,)]


def test_a_batch_that_is_sent_twice_changes_nothing(database: FleetDatabase) -> None:
    """Store rows of history once, however often they are sent."""
    host = database.add("web1")
    rows = history(5)
    send(database, host, changes=rows[:3], objects=STATES)
    send(database, host, changes=rows[:3], objects=STATES)
    send(database, host, changes=rows)
    assert database.fetch("SELECT seq FROM opdbus.change ORDER BY seq") == [
        (seq,) for seq in range(1, 6)
    ]
    assert database.fetch("SELECT seq, hash FROM opdbus.host") == [(5, rows[-1].hash)]


def test_what_is_gone_is_removed(database: FleetDatabase) -> None:
    """Remove an object that a host says is gone, on this host only."""
    web1, web2 = database.add("web1"), database.add("web2")
    for host in (web1, web2):
        send(database, host, objects=STATES)
    send(database, web1, objects=[STATES[0]._replace(body=None)])
    rows = database.fetch(
        "SELECT host.name, object.name FROM opdbus.object JOIN opdbus.host USING (host)"
        " ORDER BY 1, 2"
    )
    assert rows == [("web1", "cron"), ("web2", "cron"), ("web2", "nginx")]


def test_a_history_that_was_rewritten_is_named(database: FleetDatabase) -> None:
    """Keep the stored rows and name the host, if its history contradicts them."""
    host = database.add("web1")
    send(database, host, changes=history(5))
    send(database, host, changes=history(7, mark="rewritten"))
    ((conflict,),) = database.fetch("SELECT conflict FROM opdbus.host")
    assert conflict == "row 5 of history is not the one that was stored before"
    counts = "SELECT epoch, count(*) FROM opdbus.change GROUP BY 1 ORDER BY 1"
    assert database.fetch(counts) == [(1, 5), (2, 7)]


def test_a_history_that_was_cut_is_named(database: FleetDatabase) -> None:
    """Name a host whose history ends before the row that is stored."""
    host = database.add("web1")
    send(database, host, changes=history(5))
    send(database, host, changes=history(2))
    assert database.fetch("SELECT conflict FROM opdbus.host") == [
        ("history ends at row 2, and row 5 was stored before",)
    ]


def test_rows_that_do_not_follow_are_refused(database: FleetDatabase) -> None:
    """Refuse a row whose hash does not cover the row before, and store nothing of its batch."""
    host = database.add("web1")
    rows = history(3)
    wrong = [*rows[:2], rows[2]._replace(hash=bytes(32))]
    with pytest.raises(OpDbusError, match="hash of row 3 of history does not follow from row 2"):
        send(database, host, changes=wrong, objects=STATES)
    for table in ("object", "change", "staged_object", "staged_change"):
        assert database.fetch(f"TABLE opdbus.{table}") == [], table


def test_another_machine_with_the_same_credentials_is_refused(database: FleetDatabase) -> None:
    """Refuse a cloned host that comes with the credentials of the first, and name it."""
    host = database.add("web1")
    send(database, host, objects=STATES, machine="op-dbus/one")
    with pytest.raises(AccessDenied, match="belong to another machine"):
        send(database, host, objects=STATES[:1], machine="op-dbus/two")
    ((conflict, objects),) = database.fetch(
        "SELECT conflict, (SELECT count(*) FROM opdbus.object) FROM opdbus.host"
    )
    assert "op-dbus/two" in conflict
    assert objects == len(STATES)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO opdbus.staged_object VALUES (2, 0, 'a', 'b', 'c', 1, '{}')",
        "SELECT * FROM opdbus.object",
        "SELECT * FROM opdbus.text",
        "SELECT * FROM opdbus.host",
        "SELECT body FROM opdbus.staged_object",
        "UPDATE opdbus.host SET tags = '{}'",
        "DELETE FROM opdbus.object",
        "INSERT INTO opdbus.vector VALUES (1, '\\x00', '[1,2,3,4,5,6,7,8]')",
        "SELECT opdbus.begin_epoch(2, 0, 'gap', NULL)",
        "SELECT opdbus.apply_objects(2, 1::smallint)",
        "SELECT opdbus.add_numerics('other', 'high', 768)",
        "CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
        "CREATE TABLE opdbus.mine (a integer)",
    ],
)
def test_a_host_reaches_only_its_own_rows(untouched: FleetDatabase, statement: str) -> None:
    """Refuse every statement of a host that reads or writes what others have."""

    async def run() -> None:
        connection = await postgres.connect(untouched.url("lone1"), untouched.passwords["lone1"])
        try:
            await connection.fetch(statement)
        finally:
            await connection.close()

    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        asyncio.run(run())


def test_a_host_offers_vectors_of_its_own_texts_only(database: FleetDatabase) -> None:
    """Take no vector of a text that the host has not sent, so that it learns nothing of others."""
    web1, web2 = database.add("web1"), database.add("web2")
    send(database, web1, objects=STATES[:1])
    send(database, web2, objects=STATES[1:])

    async def offer() -> int:
        async with database.uplink(web1) as uplink:
            return await uplink.offer_vectors(dict.fromkeys(map(text_digest, STATES), VECTOR))

    assert asyncio.run(offer()) == 1


def test_offers_of_a_model_before_go(database: FleetDatabase) -> None:
    """Keep offers of one model for each host, so that they do not add up."""
    host, other = database.add("web1"), database.add("web2")

    async def offer(name: str, numerics: str) -> None:
        async with database.uplink(name) as uplink:
            await uplink.begin(facts(name, numerics=numerics), None)
            await uplink.send([], STATES, 0)
            await uplink.offer_vectors({text_digest(row): VECTOR for row in STATES})

    async def run() -> None:
        for name, numerics in ((host, "a/b/float"), (other, "a/b/float"), (host, "c/d/float")):
            await offer(name, numerics)

    database.fetch(
        "SELECT opdbus.add_numerics(n, 'medium', $1) FROM unnest($2::text[]) AS n",
        DIMENSION,
        ["a/b/float", "c/d/float"],
    )
    asyncio.run(run())
    offers = (
        "SELECT host.name, numerics.name, count(*) FROM opdbus.offered_vector AS offered"
        " JOIN opdbus.host USING (host) JOIN opdbus.numerics ON numerics.numerics ="
        " offered.numerics GROUP BY 1, 2 ORDER BY 1"
    )
    assert database.fetch(offers) == [(host, "c/d/float", 2), (other, "a/b/float", 2)]


def test_values_that_a_host_erased_are_erased_here(database: FleetDatabase) -> None:
    """Erase the values of the rows that a row `forgot` names."""
    host = database.add("web1")
    rows = history(3)
    send(database, host, changes=rows)
    (forgot,) = history(1, 4, rows[-1].hash)
    hashed = forgot.chained.replace('"changed"', '"forgot"')

    fields = [["rows", "", "[[1,2]]"]]
    details = {"fields": fields, "sentence": "values erased", "severity": "", "known": {}}
    digest = row_hash(rows[-1].hash, json.loads(hashed))
    send(
        database,
        host,
        changes=[*rows, forgot._replace(chained=hashed, hash=digest, details=details)],
    )
    kept = "SELECT seq FROM opdbus.change WHERE fields IS NOT NULL ORDER BY seq"
    assert database.fetch(kept) == [(3,), (4,)]


def test_functions_with_the_owners_rights_find_nothing_of_the_session(
    database: FleetDatabase,
) -> None:
    """Look for types and tables of the session last, in every function of the schema."""
    rows = database.fetch(
        "SELECT proname, proconfig[1] FROM pg_proc WHERE pronamespace = 'opdbus'::regnamespace"
    )
    assert len(rows) > 10
    assert [row for row in rows if not str(row[1]).endswith(", pg_temp")] == []


def test_a_host_takes_no_models_name(database: FleetDatabase) -> None:
    """Add no model for a host, and take no vectors of another dimension than the model's."""
    host = database.add("web1")

    async def begin(numerics: str, dimension: int) -> None:
        async with database.uplink(host) as uplink:
            own = facts(host, numerics=numerics)
            await uplink.begin(dataclasses.replace(own, dimension=dimension), None)

    asyncio.run(begin("another/model/float", 5))
    asyncio.run(begin("tiny/test/float", 5))
    assert database.fetch("SELECT numerics FROM opdbus.host") == [(None,)]
    assert database.fetch("SELECT count(*) FROM opdbus.numerics") == [(1,)]
    asyncio.run(begin("tiny/test/float", DIMENSION))
    assert database.fetch("SELECT numerics FROM opdbus.host") == [(1,)]


@pytest.mark.parametrize(
    "state",
    [
        {"observed": [1]},
        {"observed": "text"},
        {"declared": 5},
        {"text": None},
        {"observed": {"n": 10**400}},
        {"observed": functools.reduce(lambda inner, _: {"a": inner}, range(300), {})},
    ],
    ids=["list", "text", "number", "no text", "long number", "deep"],
)
def test_states_that_readers_could_not_read_are_refused(
    untouched: FleetDatabase, state: dict[str, object]
) -> None:
    """Store no state that would make questions about all hosts fail."""
    row = state_row("nginx", state="active")
    assert row.body is not None
    body = canonical(json.loads(row.body) | state)
    with pytest.raises(OpDbusError, match="a state has no text, or values"):
        send(untouched, "lone1", objects=[row._replace(body=body)])


@pytest.mark.parametrize("fields", [5, [5], [["a"]], [["a", "", 1]], {"a": 1}])
def test_changes_that_readers_could_not_read_are_refused(
    untouched: FleetDatabase, fields: object
) -> None:
    """Store no change whose fields are not lists of three texts."""
    (row,) = history(1)
    with pytest.raises(OpDbusError, match="no lists of three texts"):
        send(untouched, "lone1", changes=[row._replace(details={**row.details, "fields": fields})])


def test_values_that_were_forgotten_after_a_gap_are_erased(database: FleetDatabase) -> None:
    """Erase rows of the history before a gap too: they are the same history."""
    host = database.add("web1")
    send(database, host, changes=history(3))

    async def after_gap() -> None:
        (row,) = history(1, 7, bytes(32))
        hashed = row.chained.replace('"changed"', '"forgot"')
        forgot = row._replace(
            chained=hashed,
            hash=row_hash(bytes(32), json.loads(hashed)),
            details={**row.details, "fields": [["rows", "", "[[1,2]]"]]},
        )
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host, 7, 7), None)
            await uplink.send([forgot], [], 0)

    asyncio.run(after_gap())
    kept = "SELECT seq FROM opdbus.change WHERE fields IS NOT NULL ORDER BY seq"
    assert database.fetch(kept) == [(3,), (7,)]


def begin(database: FleetDatabase, host: str, first: int, last: int) -> str:
    """Begin a synchronization without a hash; return the host's conflict."""

    async def run() -> None:
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host, first, last), None)

    asyncio.run(run())
    return str(database.fetch("SELECT coalesce(conflict, '') FROM opdbus.host")[0][0])


def test_a_row_without_its_hash_is_named(database: FleetDatabase) -> None:
    """Name a host that has the stored row and does not show its hash."""
    host = database.add("web1")
    send(database, host, changes=history(5))
    assert "does not show its hash" in begin(database, host, 1, 9)


def test_a_gap_is_no_conflict_and_is_listed(database: FleetDatabase) -> None:
    """Say of a host whose rows were pruned before they came that they never came."""
    host = database.add("web1")
    send(database, host, changes=history(5))
    assert begin(database, host, 7, 9) == ""
    (found,) = database.run(list_hosts)
    assert "rows of its history before row 7 never came" in found.findings()


def test_rows_that_do_not_follow_the_stored_one_are_named(database: FleetDatabase) -> None:
    """Store rows beside the others and name the host, if they do not follow the stored row."""
    host = database.add("web1")
    send(database, host, changes=history(5))

    async def forge() -> None:
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host, 6, 7), None)
            await uplink.send(history(2, 6, b"x" * 32), [], 0)

    asyncio.run(forge())
    assert database.fetch("SELECT epoch, count(*) FROM opdbus.change GROUP BY 1 ORDER BY 1") == [
        (1, 5),
        (2, 2),
    ]
    ((conflict,),) = database.fetch("SELECT conflict FROM opdbus.host")
    assert conflict == "row 6 of history does not follow the row that was stored before"


def test_a_host_has_eight_sessions_at_most(database: FleetDatabase) -> None:
    """Refuse a host's ninth session, let others in, and let it in again after its sessions end."""
    host, other = database.add("web1"), database.add("web2")

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(database.uplink(host))
            with pytest.raises(DatabaseUnreachable, match="too many connections for role"):
                await stack.enter_async_context(database.uplink(host))
            await stack.enter_async_context(database.uplink(other))
        async with asyncio.timeout(60):
            while True:
                # PostgreSQL ends a session a moment after its client
                with suppress(DatabaseUnreachable):
                    async with database.uplink(host) as uplink:
                        assert await uplink.stored_history() == (0, bytes(32))
                        return

    asyncio.run(run())


def test_a_host_sends_no_more_in_a_day_than_it_may(database: FleetDatabase) -> None:
    """Refuse a batch above the limit, keep the stored rows, and name the host in the list."""
    host, other = database.add("web1"), database.add("web2")
    large = [state_row(f"n{n}", text="x" * 4_000_000) for n in range(5)]
    rows = history(3)
    assert database.run(lambda each: administration.limit_host(each, host, 16)).mib == 16
    send(database, host, changes=rows[:1], objects=large[:3])
    with pytest.raises(LimitsExceeded, match="as much today"):
        send(database, host, changes=rows, objects=large[3:])
    count = "SELECT objects FROM opdbus.host ORDER BY name"
    assert database.fetch(count) == [(3,), (0,)]
    assert database.fetch("SELECT max(seq) FROM opdbus.change") == [(1,)]
    found = {each.name: each.findings() for each in database.run(list_hosts)}
    assert any("over its limit" in each for each in found[host])
    limits = database.run(lambda each: administration.read_limits(each, host))
    assert limits == (16, 11, 200_000, 3, "it has sent as much today as it may, 16 MiB")
    send(database, other, objects=large)
    # small batches pass as before, and so does everything on the next day
    send(database, host, changes=rows[:2])
    database.run(lambda each: each.execute("UPDATE opdbus.host SET sent_on = sent_on - 1"))
    send(database, host, changes=rows, objects=large[3:])
    assert database.fetch(count) == [(5,), (5,)]
    assert not [each for one in database.run(list_hosts) for each in one.findings()]
    assert database.run(lambda each: administration.limit_host(each, host, None)).mib == 1024


def test_a_host_has_no_more_objects_than_it_may(database: FleetDatabase) -> None:
    """Refuse new objects above the limit, keep what is stored, and take changes and removals."""
    host = database.add("web1")
    limit = administration.limit_objects
    assert database.run(lambda each: limit(each, host, 3)).most_objects == 3
    rows = [state_row(f"n{n}") for n in range(6)]
    gone = [row._replace(body=None) for row in rows]
    send(database, host, objects=rows[:3])
    with pytest.raises(LimitsExceeded, match="3 objects and sends 1 new ones, and may have 3;"):
        send(database, host, changes=history(2), objects=rows[:4])
    with pytest.raises(LimitsExceeded):
        send(database, host, objects=[gone[0], rows[3], rows[4]])
    (found,) = database.run(list_hosts)
    assert (found.objects, found.refused_at is None) == (3, False)
    assert database.fetch("SELECT count(*) FROM opdbus.change") == [(0,)]
    # names that come twice, removals of absent objects, and of one that comes again
    send(database, host, objects=[state_row("n0", text="new"), gone[1], gone[5], rows[3], rows[3]])
    send(database, host, objects=[gone[2], rows[2]])
    count = "SELECT objects, (SELECT count(*) FROM opdbus.object) FROM opdbus.host"
    assert database.fetch(count) == [(3, 3)]
    assert database.run(lambda each: limit(each, host, 2)).most_objects == 2
    send(database, host, objects=[gone[0], state_row("n2", text="new")])
    send(database, host, objects=[state_row("n2", text="newer")], changes=history(2))
    assert database.fetch(count) == [(2, 2)]
    assert database.run(lambda each: limit(each, host, None)).most_objects == 200_000
    send(database, host, objects=rows, changes=history(2))
    assert database.fetch(count) == [(6, 6)]
    assert not [each for one in database.run(list_hosts) for each in one.findings()]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (("INSERT INTO opdbus.staged_object (host, place, plugin, kind, name, body)"
         " SELECT opdbus.own_host(), n, 'a', 'b', 'c', repeat('x', 4000000)"
         " FROM generate_series(0, 17) AS n"), "64 MiB at a time"),
        (("INSERT INTO opdbus.staged_object (host, place, plugin, kind, name)"
         " SELECT opdbus.own_host(), n, 'a', 'b', 'c' FROM generate_series(0, 5000) AS n"),
         "violates check constraint"),
        (("INSERT INTO opdbus.staged_change SELECT opdbus.own_host(), n, '[]', '', '{}'"
         " FROM generate_series(1, 5000) AS n"), "row-level security"),
        ("SELECT opdbus.put_drift(to_jsonb(ARRAY[repeat('x', 34000000)]))", "at most 32 MiB"),
    ],
)  # fmt: skip
def test_staged_rows_are_limited(untouched: FleetDatabase, sql: str, reason: str) -> None:
    """Refuse more staged rows, or drift, than any batch has."""

    async def run() -> None:
        own = untouched.url("lone1"), untouched.passwords["lone1"]
        async with postgres.connected(*own) as connection:
            await connection.execute(sql)

    with pytest.raises(OpDbusError, match=reason):
        asyncio.run(run())
