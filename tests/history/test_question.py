"""Questions to history: which rows they mean, and how they are found."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from opdbus.errors import InvalidArgs
from opdbus.history.change import Cause, Change, FieldChange
from opdbus.history.ledger import BLOCK, Ledger
from opdbus.history.row_filter import Filter, Reader, read_ranges
from opdbus.index.changes import history_reader
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state import conditions
from opdbus.state.object import Identity, ObjectId

SOURCE = "live:systemd"


def change(name: str, cause: str = "", *, plugin: str = "systemd", **after: object) -> Change:
    """Make a change of an object whose fields were all `old` before."""
    fields = [FieldChange([key], ["old"], [value]) for key, value in after.items()]
    return Change(Identity(SOURCE, plugin, "unit", name), "changed", Cause(cause), fields)


def asked(folder: Path, changes: Sequence[Change], *filters: Filter, limit: int = 100) -> list:
    """Write changes, a second apart and 10 s after 1970, and give the numbers of what is meant."""

    async def work() -> list[list[int]]:
        async with StateStore(folder / "memory.db", boot="b1") as memory:
            await memory.archive.write(lambda store: write(store, changes))
            found = [await history_reader.first_rows(memory, wanted, limit) for wanted in filters]
            return [[row.seq for row in rows] for rows in found]

    return asyncio.run(work())


def write(store: Store, changes: Sequence[Change]) -> None:
    """Write each change at its own second."""
    with store.transaction():
        for number, item in enumerate(changes):
            store.ledger.append([item], (10 + number) * 1_000_000, "b1")


def test_times_and_numbers_limit_rows(tmp_path: Path) -> None:
    """Mean rows since a time, before another, and between numbers that are not meant."""
    changes = [change("a") for _ in range(6)]
    assert asked(
        tmp_path,
        changes,
        Filter(),
        Filter(is_oldest_first=True),
        Filter(since=12_000_000),
        Filter(since=12_000_000, before=14_000_000),
        Filter(after_seq=2, before_seq=5),
        Filter(since=99_000_000),
        Filter(before=1),
    ) == [[6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], [6, 5, 4, 3], [4, 3], [4, 3], [], []]


def test_what_is_kept_is_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    """Find every row of a time although the clock was set back meanwhile."""

    async def work() -> list[int]:
        async with StateStore(tmp_path / "memory.db") as memory:
            for at in (50, 10, 20, 60):
                await memory.archive.write(lambda store, at=at: one(store, at))
            return [row.seq for row in await history_reader.first_rows(memory, Filter(since=15), 9)]

    def one(store: Store, at: int) -> None:
        with store.transaction():
            store.ledger.append([change("a")], at, "")

    assert asyncio.run(work()) == [4, 3, 1]


def test_a_cause_is_given_by_its_beginning(tmp_path: Path) -> None:
    """Mean job 47 and not job 4711, and all jobs, and no cause with a pattern."""
    causes = ("job:47 start", "job:4711 stop", "apt:2026-11-22T07:01 upgrade", "", "a*")
    changes = [change("a", cause) for cause in causes]
    filters = [Filter(cause=cause) for cause in ("job:47", "job", "apt:2026-11-22", "a*", "J")]
    assert asked(tmp_path, changes, *filters) == [[1], [2, 1], [3], [5], []]


def test_names_and_things_limit_rows(tmp_path: Path) -> None:
    """Mean the rows of a plugin, of a kind, of what happened, of some objects."""
    changes = [change("a"), change("b"), change("a", plugin="net"), change("c")]
    object_ids = [ObjectId("systemd", "unit", name) for name in ("a", "c")]
    assert asked(
        tmp_path,
        changes,
        Filter(plugin="net"),
        Filter(kind="unit"),
        Filter(what="gone"),
        Filter(object_ids=object_ids),
        Filter(object_ids=object_ids, plugin="net"),
        Filter(object_ids=[]),
    ) == [[3], [4, 3, 2, 1], [], [4, 1], [], []]


def test_a_condition_is_met_before_or_after(tmp_path: Path) -> None:
    """Look at the values on both sides, unless the condition names one."""
    changes = [change("a", state="new"), change("b", state="failed"), change("c", other="new")]
    wanted = (
        "state=new",
        "state=old",
        "after.state=failed",
        "before.state=failed",
        "before.state=old, after.state=new",
        "name=c, other~e",
        "state!=new",
    )
    filters = [Filter(where=conditions.parse(text)) for text in wanted]
    assert asked(tmp_path, changes, *filters) == [[1], [2, 1], [2], [], [1], [3], [2]]


def test_rows_are_found_beyond_one_part(tmp_path: Path) -> None:
    """Go on reading where a part had too few, and stop at the limit."""
    changes = [change(str(number), flag=number % 700) for number in range(2500)]
    where = conditions.parse("flag=3")
    assert asked(tmp_path, changes, Filter(where=where), limit=3) == [[2104, 1404, 704]]
    assert [len(part) for part in read_ranges(Filter(), range(1, 20_000))] == [3615, 8192, 8192]


def test_only_what_is_recorded_is_asked_for() -> None:
    """Refuse a name that no row has, and say which there are."""
    with pytest.raises(InvalidArgs, match=r"'exploded'; there are appeared, changed, gone"):
        Filter(what="exploded")


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    """Open a database as the daemon makes it."""

    async def make() -> None:
        async with StateStore(tmp_path / "memory.db"):
            pass

    asyncio.run(make())
    return sqlite3.connect(tmp_path / "memory.db")


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Filter(plugin="a", kind="b", cause="c"), "SEARCH history USING INTEGER PRIMARY KEY"),
        (
            Filter(object_ids=[ObjectId("a", "b", "c")]),
            "USING INDEX history_by_thing (plugin=? AND",
        ),
        (
            Filter(object_ids=[ObjectId("a", "b", "c")], kind="b"),
            "AND name=? AND rowid>? AND rowid<?)",
        ),
    ],
)
def test_rows_are_looked_up(database: sqlite3.Connection, wanted: Filter, index: str) -> None:
    """Read no row outside of the numbers of a part, nor of other objects; of a time, no row."""
    plans: list[str] = []
    with closing(database):
        Ledger(database).append([change("a")], 5, "")
        database.set_trace_callback(plans.append)
        Reader(database).candidate_range(Filter(since=3, before=9))
        (text,) = [text for text in plans if "latest" in text]
        ((*_, detail),) = database.execute(f"EXPLAIN QUERY PLAN {text}").fetchall()
        assert detail == "SCAN history_times"
        database.set_trace_callback(plans.append)
        Reader(database).rows(wanted, range(1, 9))
        database.set_trace_callback(None)
        plan = database.execute(f"EXPLAIN QUERY PLAN {plans[-1]}").fetchall()
    details = [row[-1] for row in plan]
    assert any(index in detail for detail in details), details
    assert not any("SCAN history" in detail for detail in details)


def test_numbers_of_a_time_are_near(database: sqlite3.Connection) -> None:
    """Leave out blocks that have no row of a time, before and after, also once some are pruned."""
    with closing(database), database:
        ledger, reader = Ledger(database), Reader(database)
        # the clock is set back to 200 after 500, and comes to 500 again
        for at in (100, 500, 200, 500, 600):
            ledger.append([change("a")] * BLOCK, at, "")
        for since, before in ((0, 700), (150, 300), (200, 600), (600, 601), (601, 700), (0, 100)):
            wanted = Filter(since=since, before=before)
            meant = [
                row[0]
                for row in database.execute(
                    "SELECT seq FROM history WHERE at >= ? AND at < ? ORDER BY seq", (since, before)
                )
            ]
            found = reader.candidate_range(wanted)
            assert set(meant) <= set(found)
            assert len(found) <= (meant[-1] + 1 - meant[0] + 2 * BLOCK if meant else 0)
        assert list(reader.candidate_range(Filter(since=600)))[-1] == 5 * BLOCK
        while ledger.prune(2 * BLOCK):
            pass
        assert reader.candidate_range(Filter(before=200)) == range(0)
        assert reader.candidate_range(Filter(since=200, before=300))[0] == 2 * BLOCK + 1
