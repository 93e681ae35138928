"""Checkpoints of history reach the journal when there is something new, and not while idle."""

import asyncio
import json
import logging
import math
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from harness.journald import Journald
from harness.mounts import mounted
from harness.remembering import OWNER, unit, verified
from structlog.testing import capture_logs

from opdbus import config, log
from opdbus.history import checkpoint, ledger
from opdbus.history.checkpoint import Checkpoint
from opdbus.history.hash_chain import Head
from opdbus.history.ledger import Limits
from opdbus.index.database.store import Store
from opdbus.index.state_store.events import Event, Recorded
from opdbus.index.state_store.history_retention import HistoryRetention
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.journal import MESSAGE_IDS

Logger = structlog.typing.FilteringBoundLogger
PATIENCE_SECONDS = 120
ALL = Limits()
DAY = 86_400.0


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    """Read what is sent to a socket."""
    with closing(Journald(tmp_path / "journal")) as found:
        yield found


@pytest.fixture
def to_journal(journald: Journald) -> Iterator[Logger]:
    """Log errors only, and to the console; checkpoints reach the journal all the same."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    settings = config.load({"OP_DBUS_LOG_LEVEL": "error", "OP_DBUS_LOG_FORMAT": "console"})
    with closing(log.configure(settings, {}, socket=journald.path)) as lines:
        found = lines.to_journal()
        assert found
        yield found
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def run(
    path: Path,
    retention: Callable[[StateStore], HistoryRetention],
    work: Callable[..., Awaitable[None]],
) -> None:
    """Do something while history is kept."""

    async def both() -> None:
        holder: list[HistoryRetention] = []

        def take(event: Event) -> None:
            if isinstance(event, Recorded):
                holder[0].schedule_checkpoint(event.seq)

        async with StateStore(path, take, boot="b1") as memory, asyncio.timeout(PATIENCE_SECONDS):
            holder.append(retention(memory))
            await work(memory, holder[0])

    asyncio.run(both())


def made(
    memory: StateStore,
    to_journal: Logger | None,
    seconds: float = 600,
    limits: Limits = ALL,
    clock: Callable[[], float] = time.time,
    elapsed: Callable[[], float] = time.monotonic,
    idle_seconds: float = DAY,
) -> HistoryRetention:
    """Make a keeper of a memory's history."""
    return HistoryRetention(
        memory, to_journal, "op-dbus/1", limits, seconds, clock, idle_seconds, elapsed
    )


def read(entry: dict[str, str]) -> Checkpoint:
    """Read an entry as journalctl prints it."""
    line = json.dumps({**entry, "__REALTIME_TIMESTAMP": "17"})
    (found,) = checkpoint.read_entries([line.encode()])
    return found


def test_a_checkpoint_is_an_entry(tmp_path: Path, journald: Journald, to_journal: Logger) -> None:
    """Write what verifies the rows, with the event's id, once for the same rows."""
    path = tmp_path / "memory.db"

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        for number in range(5):
            await memory.publish([unit("a", number=number)], OWNER)
        await retention.checkpoint_and_prune()
        await retention.checkpoint_and_prune()
        await memory.publish([unit("a", number=5)], OWNER)
        await retention.checkpoint_and_prune()

    run(path, lambda memory: made(memory, to_journal), work)
    entry = journald.receive()
    assert entry["MESSAGE_ID"] == MESSAGE_IDS["history checkpoint"]
    assert entry[checkpoint.FIELD].splitlines()[:2] == ["op-dbus/1", "5"]
    points = [read(entry), read(journald.receive())]
    assert [(point.size, point.first, point.at) for point in points] == [(5, 1, 17), (6, 1, 17)]
    report = verified(path, *points)
    assert (report.problems, report.vouched) == ([], 6)


def numbers(retention: HistoryRetention) -> tuple[object, ...]:
    """Return the last row of history, and the last that a checkpoint covers."""
    return tuple(family.samples[()] for family in retention.metrics())


def test_metrics_of_history(tmp_path: Path, journald: Journald, to_journal: Logger) -> None:
    """Know the last row from the start on, and the last that a checkpoint of this run covers."""

    async def first(memory: StateStore, retention: HistoryRetention) -> None:
        await memory.publish([unit("a"), unit("b")], OWNER)
        assert numbers(retention) == (2, 0)
        await retention.checkpoint_and_prune()
        assert numbers(retention) == (2, 2)

    async def second(_memory: StateStore, retention: HistoryRetention) -> None:
        assert numbers(retention) == (0, 0)
        task = asyncio.create_task(retention.run())
        while numbers(retention) == (0, 0):  # noqa: ASYNC110 -- nothing says that it was read
            await asyncio.sleep(0)
        assert numbers(retention) == (2, 0)
        task.cancel()

    for work in (first, second):
        run(tmp_path / "memory.db", lambda memory: made(memory, to_journal), work)
    assert read(journald.receive()).size == 2


def test_a_change_at_the_end_does_not_keep_it_running(tmp_path: Path, to_journal: Logger) -> None:
    """End when cancelled, also at the moment at which history has a new row."""

    async def work(_memory: StateStore, retention: HistoryRetention) -> None:
        for turns in range(5):
            task = asyncio.create_task(retention.run())
            await asyncio.sleep(0.1)
            retention.schedule_checkpoint(1)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=1.0)
            assert done, f"cancelled {turns} turns after the row"

    run(tmp_path / "memory.db", lambda memory: made(memory, to_journal, seconds=0.01), work)


def test_checkpoints_follow_changes(tmp_path: Path, journald: Journald, to_journal: Logger) -> None:
    """Write one some time after a change, and none while nothing changes."""

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        await memory.publish([unit("a")], OWNER)
        task = asyncio.create_task(retention.run())
        assert read(await asyncio.to_thread(journald.receive)).size == 1
        await asyncio.sleep(0.1)
        await memory.publish([unit("b"), unit("c")], OWNER)
        assert read(await asyncio.to_thread(journald.receive)).size == 3
        task.cancel()

    run(tmp_path / "memory.db", lambda memory: made(memory, to_journal, 0.01), work)


def test_no_journal_is_told(tmp_path: Path) -> None:
    """Say once that nothing vouches for history."""

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        await memory.publish([unit("a")], OWNER)
        task = asyncio.create_task(retention.run())
        await asyncio.sleep(0.1)
        await retention.checkpoint_and_prune()
        task.cancel()

    with capture_logs() as lines:
        run(tmp_path / "memory.db", lambda memory: made(memory, None, 0.01), work)
    assert [line["event"] for line in lines] == ["history has no checkpoints"]


def test_a_checkpoint_covers_only_rows_that_survive_a_power_cut(
    tmp_path: Path, journald: Journald, to_journal: Logger
) -> None:
    """Have rows on the disk before their checkpoint, also while a reader holds an older state."""
    image, later = tmp_path / "image", tmp_path / "later"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        await memory.publish([unit("a")], OWNER)
        await memory.archive.write(lambda store: store.empty_log())
        with closing(Store(memory.archive._path)) as reader, reader.snapshot():
            assert reader.ledger.state().head.seq == 1
            await memory.publish([unit("b")], OWNER)
            await retention.checkpoint_and_prune()
            # what the disk has now, and nothing that the kernel keeps in memory
            shutil.copy(image, later)

    with mounted(tmp_path / "disk", "-o", "loop", str(image)) as disk:
        (disk / "state").mkdir()
        os.sync()
        run(disk / "state/memory.db", lambda memory: made(memory, to_journal), work)
    point = read(journald.receive())
    with mounted(tmp_path / "after", "-o", "loop", str(later)) as disk:
        report = verified(disk / "state/memory.db", point)
    assert (point.size, report.problems, report.vouched) == (2, [], 2)


def test_only_the_service_is_believed(tmp_path: Path) -> None:
    """Ask journalctl for fields that only journald sets, in another journal if one is named."""
    asked = checkpoint.journal_command(990, "op-dbus.service", tmp_path)
    assert {"_UID=990", "_SYSTEMD_UNIT=op-dbus.service", f"--directory={tmp_path}"} < set(asked)
    assert f"--file={tmp_path}/x" in checkpoint.journal_command(990, "u", tmp_path / "x")
    with pytest.raises(checkpoint.NoWitness, match="no journal to ask"):
        checkpoint.read_journal(["/nonexistent/journalctl"])
    with pytest.raises(checkpoint.NoWitness, match="try root"):
        checkpoint.read_journal(["sh", "-c", "echo broken >&2; exit 1"])


def test_a_field_that_is_there_twice_is_not_believed() -> None:
    """Read no entry that op-dbus cannot have written."""
    text = checkpoint.text_of(Head(), "op-dbus/1")
    entry = {"__REALTIME_TIMESTAMP": "1", checkpoint.FIELD: [text, text]}
    lines = [json.dumps(entry).encode(), b'{"__REALTIME_TIMESTAMP": "1"}']
    assert list(checkpoint.read_entries(lines)) == []


# pruning


def published(count: int) -> Callable[[StateStore, HistoryRetention], Awaitable[None]]:
    """Make work that records so many rows, and keeps history after them."""

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        for number in range(count):
            await memory.publish([unit(f"u{number % 50}", number="x" * number)], OWNER)
        await retention.checkpoint_and_prune()

    return work


def counted(path: Path) -> tuple[int, int, int, int]:
    """Count rows, sentences, words of these, and the bytes that are noted."""
    with closing(sqlite3.connect(path)) as reader:
        (end,) = reader.execute("SELECT value FROM facts WHERE name = 'history'").fetchone()
        rows, sentences, words = (
            reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 -- our own
            for table in ("history", "sentences", "sentence_words")
        )
        return rows, sentences, words, json.loads(end)[2]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(rows=70), range(331, 401)),
        (Limits(bytes=50_000), range(340, 401)),
        (Limits(days=30), range(401, 401)),
        (Limits(days=90), range(1, 401)),
    ],
)
def test_the_oldest_rows_are_pruned(
    tmp_path: Path,
    journald: Journald,
    to_journal: Logger,
    limits: Limits,
    kept: range,
) -> None:
    """Keep no more than the limits allow, after a checkpoint, and verify what is left."""
    path, passed = tmp_path / "memory.db", [1.0]

    def retention(memory: StateStore) -> HistoryRetention:
        return made(memory, to_journal, 600, limits, elapsed=lambda: passed[0])

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        await published(400)(memory, made(memory, None, elapsed=lambda: passed[0]))
        passed[0] += 89 * DAY
        await retention.checkpoint_and_prune()

    run(path, retention, work)
    point = read(journald.receive())
    report = verified(path, point)
    assert (report.problems, report.vouched) == ([], 400)
    assert (point.size, point.first) == (400, report.first)
    rows, sentences, words, size = counted(path)
    assert rows == report.rows == report.last + 1 - report.first
    assert sentences == words <= rows
    assert size <= limits.bytes
    if limits.bytes == Limits().bytes:
        assert range(report.first, report.last + 1) == kept
    else:
        assert size > limits.bytes * 0.9
    run(path, lambda memory: made(memory, None), published(3))
    assert verified(path, point).problems == []


def test_what_becomes_too_old_is_pruned_while_nothing_changes(
    tmp_path: Path, journald: Journald, to_journal: Logger
) -> None:
    """Look for rows beyond the limit of days now and then, although no change comes."""
    days = [0]

    def retention(memory: StateStore) -> HistoryRetention:
        def elapsed() -> float:
            return time.monotonic() + days[0] * DAY

        return made(memory, to_journal, 0.01, elapsed=elapsed, idle_seconds=0.01)

    async def work(memory: StateStore, retention: HistoryRetention) -> None:
        await memory.publish([unit("a")], OWNER)
        task = asyncio.create_task(retention.run())
        assert read(await asyncio.to_thread(journald.receive)).first == 1
        days[0] = ALL.days + 1
        assert read(await asyncio.to_thread(journald.receive)).first == 2
        task.cancel()

    run(tmp_path / "memory.db", retention, work)


@pytest.mark.parametrize(
    ("clocks", "boots"),
    [
        ([0, 365, 365], "aaa"),
        ([0, 365, 0], "aaa"),
        ([0, 365, 0], "abc"),
        ([-20_000, 0, 0], "aaa"),
        ([0, -20_000, 0], "abb"),
        ([0, 91, 182], "abc"),
        ([0, 4_000, 8_000], "abc"),
    ],
)
def test_a_clock_that_jumps_removes_no_history(
    tmp_path: Path, clocks: list[int], boots: str
) -> None:
    """Count as age what has passed: clocks (days from now) that jump, also at a boot, age nothing.

    A row that is days ahead of its time is warned about.
    """
    path, elapsed = tmp_path / "memory.db", [100.0]

    async def both(days: int, boot: str) -> None:
        def clock() -> float:
            return time.time() + days * DAY

        async with StateStore(path, clock=clock, boot=boot) as memory:
            retention = made(memory, None, clock=clock, elapsed=lambda: elapsed[0])
            for number in range(50):
                await memory.publish([unit("a", number=f"{days} {boot} {number}")], OWNER)
            for _ in range(3):
                elapsed[0] += 600
                await retention.checkpoint_and_prune()

    with capture_logs() as lines:
        for days, boot in zip(clocks, boots, strict=True):
            asyncio.run(both(days, boot))
    report, reboots = verified(path), len({*boots}) - 1
    assert (report.problems, report.first, report.rows) == ([], 1, 150 + reboots)
    steps = pairwise(zip(clocks, boots, strict=True))
    is_ahead = any(later > now and boot == next_ for (now, boot), (later, next_) in steps)
    assert any("clock was set" in line["event"] for line in lines) is is_ahead


@pytest.mark.parametrize(
    ("back", "is_closed"), [(0, False), (0, True), (-365, True), (-365, False)]
)
def test_the_end_of_a_run_is_told_by_a_clock_that_was_set_back(
    tmp_path: Path, *, back: int, is_closed: bool
) -> None:
    """Take the last look at ages where the last row is ahead; without one no time is known."""
    path, days = tmp_path / "memory.db", [0]

    def clock() -> float:
        return 1_800_000_000.0 + days[0] * DAY

    async def run_twice() -> float:
        async with StateStore(path, clock=clock, boot="a") as memory:
            await memory.publish([unit("a")], OWNER)
            days[0] = back
            if is_closed:
                await made(memory, None, clock=clock).close()
        async with StateStore(path, clock=clock, boot="a") as memory:
            return memory.recorded_until

    assert asyncio.run(run_twice()) == (clock() * 1e6 if is_closed or not back else math.inf)


def test_age_is_counted_across_restarts_and_boots(tmp_path: Path) -> None:
    """Remove rows whose days have passed in several runs and boots; the time between is not one."""
    path = tmp_path / "memory.db"

    async def one(boot: str, uptimes: list[float]) -> int:
        async with StateStore(path, boot=boot) as memory:
            elapsed = [0.0]
            limits = Limits(days=30)
            retention = made(memory, None, limits=limits, elapsed=lambda: elapsed[0])
            for elapsed[0] in uptimes:
                await retention.checkpoint_and_prune()
                await memory.publish([unit("a", number=elapsed[0])], OWNER)
            await retention.close()
            return (await memory.archive.read(lambda store: store.ledger.cut())).seq

    # a row is seen by the look after it: the first at 10 days, the second at 20
    assert asyncio.run(one("a", [1.0, 10 * DAY])) == 0
    assert asyncio.run(one("a", [20 * DAY])) == 0
    assert asyncio.run(one("b", [100.0, 19 * DAY])) == 0
    assert asyncio.run(one("b", [21 * DAY])) == 1
    assert asyncio.run(one("b", [31 * DAY])) == 2


def test_what_was_not_pruned_is_missed(
    tmp_path: Path, journald: Journald, to_journal: Logger
) -> None:
    """Find that rows were removed from the beginning as if op-dbus had pruned them."""
    path = tmp_path / "memory.db"
    run(path, lambda memory: made(memory, to_journal, 600, Limits(rows=70)), published(100))
    point = read(journald.receive())
    assert verified(path, point).first == 31
    with closing(Store(path)) as store:
        assert store.prune_history(40) == 10
    problem = verified(path, point).problems[0]
    assert (problem.seq, problem.text) == (
        31,
        "the rows up to 40 are missing, and op-dbus did not prune so far",
    )


def test_a_step_of_pruning_is_short(tmp_path: Path) -> None:
    """Delete no more at a time than others can wait for, by number and by size."""
    path = tmp_path / "memory.db"
    run(path, lambda memory: made(memory, None), published(ledger.MAX_PRUNED + 5))
    with closing(Store(path)) as store:
        assert store.prune_history(ledger.MAX_PRUNED + 2) == ledger.MAX_PRUNED
        assert store.prune_history(ledger.MAX_PRUNED + 2) == 2
        assert store.prune_history(ledger.MAX_PRUNED + 2) == 0
    large = ["y" * 120_000 + str(number) for number in range(10)]

    async def work(memory: StateStore, _: HistoryRetention) -> None:
        for text in large:
            await memory.publish([unit("large", text=text)], OWNER)

    run(path, lambda memory: made(memory, None), work)
    with closing(Store(path)) as store:
        steps = [store.prune_history(10_000) for _ in range(4)]
    assert sum(steps) == 3 + len(large)
    assert max(steps) < sum(steps)
    assert verified(path).problems == []


def test_a_damaged_end_stops_nobody(tmp_path: Path) -> None:
    """Record what changes although the noted end of the chain is damaged or behind."""
    path = tmp_path / "memory.db"
    run(path, lambda memory: made(memory, None), published(20))
    with closing(sqlite3.connect(path)) as other:
        (before,) = other.execute("SELECT value FROM facts WHERE name = 'history'").fetchone()
    damaged = ["", "[1]", "{}", json.dumps([3, "00", [], 1]), before.replace("[20", "[19")]
    for number, value in enumerate(damaged):
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE facts SET value = ? WHERE name = 'history'", (value,))
        run(path, lambda memory: made(memory, None), published(21 + number))
        assert verified(path).problems == []
