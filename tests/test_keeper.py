"""Checkpoints of history reach the journal when there is something new, and not while idle."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from test_journal import Journald

from opdbus import config, log
from opdbus.history import checkpoint, witness
from opdbus.history.checkpoint import Checkpoint
from opdbus.history.verify import verify
from opdbus.index.database import connect_to_read
from opdbus.index.events import Event, Recorded
from opdbus.index.keeper import Keeper
from opdbus.index.memory import Memory
from opdbus.journal import MESSAGE_IDS
from opdbus.state.object import Identity, StateObject

OWNER = 1000
PATIENCE_SECONDS = 20


def unit(name: str, **properties: object) -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity("publish:probe", "systemd", "unit", name), properties)


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    """Read what is sent to a socket."""
    with closing(Journald(tmp_path / "journal")) as found:
        yield found


@pytest.fixture
def to_journal(journald: Journald) -> Iterator[structlog.typing.FilteringBoundLogger]:
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
    path: Path, keeper: Callable[[Memory], Keeper], work: Callable[..., Awaitable[None]]
) -> None:
    """Do something while history is kept."""

    async def both() -> None:
        holder: list[Keeper] = []

        def take(event: Event) -> None:
            if isinstance(event, Recorded):
                holder[0].recorded()

        async with Memory(path, take, boot="b1") as memory, asyncio.timeout(PATIENCE_SECONDS):
            holder.append(keeper(memory))
            await work(memory, holder[0])

    asyncio.run(both())


def read(entry: dict[str, str]) -> Checkpoint:
    """Read an entry as journalctl prints it."""
    line = json.dumps({**entry, "__REALTIME_TIMESTAMP": "17"})
    (found,) = witness.parsed([line.encode()])
    return found


def test_a_checkpoint_is_an_entry(
    tmp_path: Path, journald: Journald, to_journal: structlog.typing.FilteringBoundLogger
) -> None:
    """Write what verifies the rows, with the event's id, once for the same rows."""
    path = tmp_path / "memory.db"

    async def work(memory: Memory, keeper: Keeper) -> None:
        for number in range(5):
            await memory.publish([unit("a", number=number)], OWNER)
        await keeper.keep()
        await keeper.keep()
        await memory.publish([unit("a", number=5)], OWNER)
        await keeper.keep()

    run(path, lambda memory: Keeper(memory, to_journal, "op-dbus/1"), work)
    entry = journald.receive()
    assert entry["MESSAGE_ID"] == MESSAGE_IDS["history checkpoint"]
    assert entry[checkpoint.FIELD].splitlines()[:2] == ["op-dbus/1", "5"]
    points = [read(entry), read(journald.receive())]
    assert [(point.size, point.first, point.at) for point in points] == [(5, 1, 17), (6, 1, 17)]
    with closing(connect_to_read(path)) as database:
        report = verify(database, points)
    assert (report.problems, report.vouched) == ([], 6)


def test_checkpoints_follow_changes(
    tmp_path: Path, journald: Journald, to_journal: structlog.typing.FilteringBoundLogger
) -> None:
    """Write one some time after a change, and none while nothing changes."""

    async def work(memory: Memory, keeper: Keeper) -> None:
        await memory.publish([unit("a")], OWNER)
        task = asyncio.create_task(keeper.run())
        assert read(await asyncio.to_thread(journald.receive)).size == 1
        await asyncio.sleep(0.1)
        await memory.publish([unit("b"), unit("c")], OWNER)
        assert read(await asyncio.to_thread(journald.receive)).size == 3
        task.cancel()

    run(tmp_path / "memory.db", lambda memory: Keeper(memory, to_journal, "op-dbus/1", 0.01), work)


def test_no_journal_is_told(tmp_path: Path) -> None:
    """Say once that nothing vouches for history."""

    async def work(memory: Memory, keeper: Keeper) -> None:
        await memory.publish([unit("a")], OWNER)
        task = asyncio.create_task(keeper.run())
        await asyncio.sleep(0.1)
        await keeper.keep()
        task.cancel()

    with capture_logs() as lines:
        run(tmp_path / "memory.db", lambda memory: Keeper(memory, None, "op-dbus/1", 0.01), work)
    assert [line["event"] for line in lines] == ["history not vouched for"]


def test_only_the_service_is_believed(tmp_path: Path) -> None:
    """Ask journalctl for fields that only journald sets, in another journal if one is named."""
    asked = witness.command(990, "op-dbus.service", tmp_path)
    assert {"_UID=990", "_SYSTEMD_UNIT=op-dbus.service", f"--directory={tmp_path}"} < set(asked)
    assert f"--file={tmp_path}/x" in witness.command(990, "u", tmp_path / "x")
    with pytest.raises(witness.NoWitness, match="no journal to ask"):
        witness.checkpoints(["/nonexistent/journalctl"])
    with pytest.raises(witness.NoWitness, match="try root"):
        witness.checkpoints(["sh", "-c", "echo broken >&2; exit 1"])


def test_a_field_that_is_there_twice_is_not_believed() -> None:
    """Read no entry that op-dbus cannot have written."""
    text = checkpoint.text_of(checkpoint.Head(), "op-dbus/1")
    entry = {"__REALTIME_TIMESTAMP": "1", checkpoint.FIELD: [text, text]}
    assert (
        list(witness.parsed([json.dumps(entry).encode(), b'{"__REALTIME_TIMESTAMP": "1"}'])) == []
    )
