"""The witness: what of a host's stored history is found to be wrong, and what is not."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from harness.fleet_workers import work
from harness.fleets import facts, history

from opdbus.errors import UnknownObject
from opdbus.fleet.witness import HostReport, verify_host
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.fleets import FleetDatabase

    from opdbus.config import Config
    from opdbus.fleet.uplink import ChangeRow

DAY = 86_400_000_000
ROWS = history(20)


def send(database: FleetDatabase, host: str, rows: Sequence[ChangeRow], first: int = 1) -> None:
    """Send rows as a host whose history begins at `first`, five a batch."""

    async def run() -> None:
        async with database.uplink(host) as uplink:
            seq, _ = await uplink.stored_history()
            own = {row.seq: row.hash for row in rows}
            after = await uplink.begin(facts(host, first, rows[-1].seq), own.get(seq))
            new = [row for row in rows if row.seq > after]
            for place in range(0, len(new), 5):
                await uplink.send(new[place : place + 5], [], 0)

    asyncio.run(run())


def verify(database: FleetDatabase, host: str = "web1") -> HostReport:
    """Verify what is stored of a host."""
    return database.run(lambda connection: verify_host(connection, host))


def change(database: FleetDatabase, sql: str) -> None:
    """Change the database behind the server's back."""
    database.run(lambda connection: connection.execute(sql))


def texts(report: HostReport) -> list[tuple[int, int, str]]:
    """Return the findings without times and names."""
    return [(each.epoch, each.seq, each.text) for each in report.findings]


@pytest.fixture
def stored(database: FleetDatabase) -> FleetDatabase:
    """Give a database with a host's history of twenty rows."""
    send(database, database.add("web1"), ROWS)
    return database


def test_an_untouched_history_is_right(stored: FleetDatabase) -> None:
    """Find nothing, and say which rows the first checkpoint vouches for."""
    report = verify(stored)
    assert texts(report) == []
    ((number, reason, first, last, rows, vouched),) = [
        (each.epoch, each.reason, each.first, each.last, each.rows, each.vouched)
        for each in report.epochs
    ]
    assert (number, reason, first, last, rows) == (1, "first", 1, 20, 20)
    assert vouched == 5, "another checkpoint is noted after ten minutes"


def test_an_unknown_host_is_refused(database: FleetDatabase) -> None:
    """Say where the names of hosts are."""
    with pytest.raises(UnknownObject, match="no host web9"):
        verify(database, "web9")


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (
            "UPDATE opdbus.change SET what = 'appeared' WHERE seq = 7",
            (1, 7, "the row was changed in the database"),
        ),
        (
            "UPDATE opdbus.change SET at = at + 1 WHERE seq = 20",
            (1, 20, "the row was changed in the database"),
        ),
        ("DELETE FROM opdbus.change WHERE seq = 7", (1, 7, "the row is missing in the database")),
        (
            "DELETE FROM opdbus.change WHERE seq > 17",
            (1, 18, "the rows up to 20 are missing in the database"),
        ),
        (
            "DELETE FROM opdbus.change WHERE seq < 4",
            (1, 1, "the rows up to 3 are missing in the database"),
        ),
        (
            "DELETE FROM opdbus.change",
            (1, 1, "the rows up to 20 are missing in the database"),
        ),
    ],
)
def test_what_was_changed_in_the_database_is_found(
    stored: FleetDatabase, sql: str, found: tuple[int, int, str]
) -> None:
    """Name the first row that was changed, or is missing."""
    change(stored, sql)
    assert texts(verify(stored))[:1] == [found]
    assert verify(stored).finding_count == 1


def test_rows_that_were_computed_anew_are_found(stored: FleetDatabase) -> None:
    """Find a history that somebody who may write wrote anew, with right hashes."""

    async def rewrite(connection: object) -> None:
        before = bytes(32)
        for row in ROWS:
            values = json.loads(row.chained)
            if row.seq >= 3:
                values[7] = "appeared"
            before = row_hash(before, values)
            await connection.execute(  # type: ignore[attr-defined]
                "UPDATE opdbus.change SET what = $2, hash = $3 WHERE seq = $1",
                *(row.seq, values[7], before),
            )

    stored.run(rewrite)
    (_, first, witnessed), (_, last, noted) = texts(verify(stored))
    assert (first, last) == (5, 20)
    assert witnessed.startswith("the row is not the one that was witnessed at ")
    assert noted == "the last row is not the one that was noted when it came"
    assert verify(stored).epochs[0].vouched == 0


def test_a_host_that_rewrote_its_history_is_named(stored: FleetDatabase) -> None:
    """Report the epoch that contradicts the one before, and the one before as it is."""
    send(stored, "web1", history(25, mark="other"))
    report = verify(stored)
    assert [(each.epoch, each.reason, each.rows) for each in report.epochs] == [
        (1, "first", 20),
        (2, "rewritten", 25),
    ]
    ((epoch, seq, text),) = texts(report)
    assert (epoch, seq) == (2, 1)
    assert "row 20 of history is not the one that was stored before" in text
    assert [each.vouched for each in report.epochs] == [5, 5]


def test_rows_that_were_pruned_before_they_came_are_no_finding(stored: FleetDatabase) -> None:
    """Say that an epoch begins after a gap, and believe its first row only."""
    send(stored, "web1", history(40)[30:], first=31)
    report = verify(stored)
    assert texts(report) == []
    assert [(each.reason, each.first, each.begins_known) for each in report.epochs] == [
        ("first", 1, True),
        ("gap", 31, False),
    ]
    change(stored, "UPDATE opdbus.change SET name = 'x' WHERE seq = 32")
    assert [seq for _, seq, _ in texts(verify(stored))] == [32]


def test_old_rows_are_pruned_and_the_rest_is_verified(
    database: FleetDatabase, static: Config
) -> None:
    """Prune what is older than kept, say so, and still find a changed row after it."""
    host = database.add("web1")
    now = time.time_ns() // 1000
    # row 95 of a hundred days is ninety days old
    rows = history(100, at=DAY)
    begin = now - 100 * DAY - DAY // 2
    before, dated = bytes(32), []
    for row in rows:
        values = json.loads(row.chained)
        values[1] += begin
        before = row_hash(before, values)
        dated.append(row._replace(chained=canonical(values), hash=before))
    send(database, host, dated)
    work(database, static)
    kept = "SELECT min(seq), count(*) FROM opdbus.change"
    assert database.fetch(kept) == [(11, 90)]
    report = verify(database)
    assert texts(report) == []
    (epoch,) = report.epochs
    assert (epoch.pruned, epoch.first, epoch.begins_known) == (10, 11, True)
    change(database, "UPDATE opdbus.change SET name = 'x' WHERE seq = 11")
    assert [seq for _, seq, _ in texts(verify(database))] == [11]
    change(database, "DELETE FROM opdbus.change WHERE seq <= 12")
    assert texts(verify(database)) == [(1, 11, "the rows up to 12 are missing in the database")]
