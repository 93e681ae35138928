"""Forgetting erases values for good, and history can still be verified."""

import asyncio
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from harness import commands
from harness.remembering import OWNER, flipped, run, unit, verified
from harness.rewriting import alter
from harness.running import (
    HISTORY,
    HISTORY_PATH,
    STATE,
    STATE_PATH,
    Caller,
    Running,
    ask,
    state_file,
)  # fmt: skip

from opdbus.bus.transport.connection import RemoteError
from opdbus.history import change, checkpoint
from opdbus.history.checkpoint import Checkpoint
from opdbus.history.forget import Forgotten, Target
from opdbus.history.ledger import UNCHECKED
from opdbus.index.database.store import Store
from opdbus.index.state_store import erasure
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import ObjectId

# as JSON writes it, it is another text
SECRET = 'tele"phone\\ü'


def forgetting(*targets: Target) -> Callable[[StateStore], Awaitable[list[Forgotten]]]:
    """Make work that records changes of some objects, then forgets."""

    async def work(memory: StateStore) -> list[Forgotten]:
        for number in range(6):
            items = [
                unit("a", description=f"{SECRET} {number}", port=number),
                unit("b", port=number),
            ]
            await memory.publish(items, OWNER)
        await memory.publish([unit("a", description="mended", port=7)], OWNER)
        found = []
        for target in targets:
            done, is_clean = await memory.forget(target, "bus::1.7 uid 0")
            assert is_clean
            found.append(done)
        return found

    return work


def rows(folder: Path, columns: str, where: str = "1") -> list[tuple[Any, ...]]:
    """Read rows of history as any other program would."""
    with closing(sqlite3.connect(folder / "memory.db")) as reader:
        sql = f"SELECT {columns} FROM history WHERE {where} ORDER BY seq"  # noqa: S608 -- our own
        return reader.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("target", "numbers"),
    [
        (Target(ObjectId("systemd", "unit", "a")), [1, 3, 5, 7, 9, 11, 13]),
        (Target(text=SECRET), [1, 3, 5, 7, 9, 11, 13]),
        (Target(text=f"{SECRET} 3"), [7, 9]),
        (Target(row=2), [2]),
        (Target(row=13), [13]),
        (Target(row=99), []),
    ],
)
@pytest.mark.parametrize("unchecked", [0, 7, 13])
def test_values_are_erased_and_rows_stay(
    tmp_path: Path, target: Target, numbers: list[int], unchecked: int
) -> None:
    """Erase values, salts and sentences of just the rows that are meant, be they hidden or not."""

    async def work(memory: StateStore) -> Forgotten:
        await forgetting()(memory)
        # as after an update until they were looked through
        await memory.archive.write(partial(hide, last=unchecked))
        done, _ = await memory.forget(target, "bus::1.7 uid 0")
        return done

    done = run(tmp_path, work)
    assert done.rows == numbers
    erased = rows(tmp_path, "seq, fields, sentence", "salt IS NULL")
    assert erased == [(number, "[[[]]]", None) for number in numbers]
    report = verified(tmp_path / "memory.db")
    assert (report.problems, report.erased) == ([], len(numbers))
    assert report.last == done.last == 13 + bool(numbers)


def test_a_row_tells_what_was_forgotten_and_by_whom(tmp_path: Path) -> None:
    """Record how many rows, which, and by whom, without the text."""
    run(tmp_path, forgetting(Target(text=f"{SECRET} 3")))
    ((what, cause, fields),) = rows(tmp_path, "what, cause, fields", "seq = 14")
    assert (what, cause) == ("forgot", "bus::1.7 uid 0")
    assert json.loads(fields) == [[["count"], [], [2]], [["rows"], [], [[[7, 7], [9, 9]]]]]


def traces(folder: Path) -> list[str]:
    """Name the files that have a word of the secret."""
    words = re.compile(b"tele|phone")
    files = [file for file in folder.iterdir() if file.is_file()]
    return [file.name for file in files if words.search(file.read_bytes())]


async def test_no_trace_is_left(tmp_path: Path) -> None:
    """Leave nothing of it in any file, while others read and after that."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        (done,) = await forgetting(Target(text=SECRET))(memory)
        assert len(done.rows) == 7
        assert traces(tmp_path) == []
        # words are in the index of words, and not only as they were written
        with closing(sqlite3.connect(tmp_path / "memory.db")) as reader:
            matching = "SELECT count(*) FROM sentence_words WHERE sentence_words MATCH 'phone'"
            assert reader.execute(matching).fetchone() == (0,)
    assert traces(tmp_path) == []


async def test_a_reader_keeps_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that a trace is left while another program reads, and none when asked again after it."""
    monkeypatch.setattr(erasure, "_TRIES", 3)
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await forgetting()(memory)
        await memory.archive.write(lambda store: store.sync())
        with closing(sqlite3.connect(tmp_path / "memory.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM history").fetchone()
            done, is_clean = await memory.forget(Target(text=SECRET), "")
            assert (len(done.rows), is_clean) == (7, False)
        done, is_clean = await memory.forget(Target(text=SECRET), "")
        assert (len(done.rows), is_clean) == (0, True)
        assert traces(tmp_path) == []


async def test_a_log_that_a_reader_kept_is_emptied_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave no trace once the other program has ended, without being asked again."""
    monkeypatch.setattr(erasure, "_TRIES", 1)
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        memory.archive._retry_seconds = (0.01,)
        await forgetting()(memory)
        with closing(sqlite3.connect(tmp_path / "memory.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM history").fetchone()
            assert not (await memory.forget(Target(text=SECRET), ""))[1]
        async with asyncio.timeout(60):
            while traces(tmp_path):  # noqa: ASYNC110 -- it tells of its end on no event
                await asyncio.sleep(0.02)


def test_what_cannot_be_erased_is_counted(tmp_path: Path) -> None:
    """Count the rows whose object's name or cause has the text, which the chain covers."""

    async def work(memory: StateStore) -> Forgotten:
        await memory.publish([unit("hushed", state="hushed"), unit("b")], OWNER)
        await memory.publish([unit("b", a=1)], OWNER, cause="dpkg: hushed")
        done, _ = await memory.forget(Target(text="hushed"), "")
        return done

    done = run(tmp_path, work)
    assert (done.rows, done.kept) == ([1], 2)


def hide(store: Store, last: int) -> None:
    """Hide rows, as after an update until they were looked through."""
    with store.transaction():
        store.set_fact(UNCHECKED, str(last))


def test_many_rows_are_forgotten_at_once(tmp_path: Path) -> None:
    """Tell of any number of rows, in as many rows as that takes."""

    async def work(memory: StateStore) -> Forgotten:
        texts = ("other", "hushed")
        await memory.publish([unit(f"u{n}", text=texts[n % 2]) for n in range(9000)], OWNER)
        done, _ = await memory.forget(Target(text="hushed"), "")
        return done

    assert len(run(tmp_path, work).rows) == 4500
    assert {what for (what,) in rows(tmp_path, "what", "seq > 9000")} == {"forgot"}
    report = verified(tmp_path / "memory.db")
    assert (report.problems, report.erased) == ([], 4500)


def test_changes_are_found_after_forgetting(tmp_path: Path) -> None:
    """Find a changed byte in what was erased, in what was not, and in what tells of it."""
    run(tmp_path, forgetting(Target(row=7)))
    path, columns = tmp_path / "memory.db", "at cause name digest folded hash fields salt".split()
    for seq, column in product([2, 7, 14], columns):
        ((value,),) = rows(tmp_path, column, f"seq = {seq}")
        change = f"UPDATE history SET {column} = :value WHERE seq = {seq}"  # noqa: S608 -- our own
        alter(path, change, value=flipped(value))
        assert any(problem.seq == seq for problem in verified(path).problems), (column, seq)
        alter(path, change, value=value)
    assert verified(path).problems == []


async def test_forgetting_and_pruning_keep_to_checkpoints(tmp_path: Path) -> None:
    """Agree with the checkpoints of before, whatever was forgotten and pruned since."""
    points: list[Checkpoint] = []
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        dice = random.Random(7)  # noqa: S311 -- the same in every run
        for number in range(300):
            await memory.publish([unit(f"u{number % 9}", text=f"t{dice.random()}")], OWNER)
            if number % 20 == 3:
                await memory.forget(Target(row=dice.randrange(1, number + 1)), "")
            if number % 70 == 9:
                state = await memory.archive.read(lambda store: store.ledger.state())
                point = checkpoint.parse(checkpoint.text_of(state.head, "op-dbus/1"), number, "120")
                assert point
                points.append(point)
        await memory.forget(Target(ObjectId("systemd", "unit", "u3")), "")
        await memory.archive.write(lambda store: store.prune_history(90))
    report = verified(tmp_path / "memory.db", *points)
    assert (report.problems, report.first) == ([], 91)
    assert report.vouched == points[-1].size


# of a daemon


def test_a_daemon_forgets_for_its_manager(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Forget by the command and on the bus; refuse what is not exactly one thing."""

    async def work(caller: Caller) -> None:
        await caller.ready()
        objects = [("systemd", "unit", n, {"description": "hushed"}) for n in ("a", "b", "gone")]
        await caller.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", objects, {})
        method = HISTORY_PATH, f"{HISTORY}.Forget", "a{sv}"
        for wrong in ({}, {"row": 1, "containing": "x"}, {"row": 0}, {"containing": ""}):
            with pytest.raises(RemoteError, match="one of: object, row"):
                await caller.call(*method, wrong)
        assert await caller.call(*method, {"row": 3}) == [1, 0, True]

    file = state_file(tmp_path / "state.json", {})
    daemon = daemons(STATE_FILE=file, VECTOR_LEVEL="none")
    verifying = "history", "verify", "--json", f"--database={daemon.state_dir / 'memory.db'}"
    with daemon:
        ask(daemon, work)
        said = "the values of 1 row of systemd/unit/a were erased\n"
        assert commands.ok(daemon, "history", "forget", "systemd/unit/a") == said
        told = commands.fails(daemon, 1, "history", "forget", "systemd/unit/never")
        assert "there is no object systemd/unit/never" in told
        told = commands.run(daemon, "history", "forget", "--containing", "-", stdin="hushed\n")
        assert told.stdout == "the values of 1 row were erased\n"
        assert commands.run(daemon, "history", "forget").returncode == 2
        # what the daemon has open can be read all the same
        found = commands.run(daemon, *verifying)
        assert (found.returncode, json.loads(found.stdout)["last"]) == (0, 6)
        assert daemon.stop() == 0
    found = commands.run(daemon, *verifying)
    report = json.loads(found.stdout)
    assert (found.returncode, report["ok"], report["erased"], report["last"]) == (0, True, 3, 6)


def filled(count: int) -> Callable[[StateStore], Awaitable[None]]:
    """Make work that records so many rows, a third of which have the secret."""

    async def work(memory: StateStore) -> None:
        for text in ("first", SECRET, "last"):
            items = [unit(f"u{n}", description=f"{text} {n}") for n in range(count // 3)]
            await memory.publish(items, OWNER)

    return work


async def test_others_publish_while_much_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that begins after a forget ends before it: the forget gives way after each step."""
    monkeypatch.setattr(erasure, "_AT_A_TIME", 2)
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await filled(900)(memory)
        ended: list[str] = []
        forgetting = asyncio.create_task(memory.forget(Target(text=SECRET), ""))
        forgetting.add_done_callback(lambda _: ended.append("forget"))
        for number in range(5):
            await memory.publish([unit(f"new{number}", a=1)], OWNER)
            ended.append("publish")
        done, is_clean = await forgetting
        assert (len(done.rows), is_clean, ended) == (600, True, [*["publish"] * 5, "forget"])
    assert traces(tmp_path) == []
    assert verified(tmp_path / "memory.db").problems == []


_KILLED = """
import asyncio, os, sys
from pathlib import Path
from opdbus.history.forget import Target
from opdbus.index.state_store import erasure
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.database.store import Store

steps = int(sys.argv[2])
erasure._AT_A_TIME = 100

def counted(original):
    def step(*given, **named):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), 9)
        return original(*given, **named)
    return step

erasure.Eraser._step = counted(erasure.Eraser._step)
Store._merge_words = counted(Store._merge_words)

async def work():
    async with StateStore(Path(sys.argv[1]), boot="b1") as memory:
        await memory.forget(Target(text=sys.argv[3]), "bus::1.7 uid 0")

asyncio.run(work())
"""


@pytest.mark.parametrize("steps", [1, 9, 11])
def test_a_forget_that_was_killed_goes_on_at_the_next_start(tmp_path: Path, steps: int) -> None:
    """History holds after a kill at any step, and then nothing is left of what was to be forgotten.

    With nine steps all rows are erased, and words are still to be.
    """
    run(tmp_path, filled(900))
    command = [sys.executable, "-c", _KILLED, tmp_path / "memory.db", str(steps), SECRET]
    done = subprocess.run(command, check=False, timeout=120)
    assert done.returncode == -9
    assert verified(tmp_path / "memory.db").problems == []

    async def gone_on(memory: StateStore) -> None:
        async with asyncio.timeout(60):
            while await memory.archive.read(lambda store: store.fact("unclean")):  # noqa: ASYNC110 -- it tells of its end on no event
                await asyncio.sleep(0.01)

    run(tmp_path, gone_on)
    erased = rows(tmp_path, "seq", f"salt IS NULL AND cause <> '{change.FIRST}'")
    assert len(erased) == 600
    report = verified(tmp_path / "memory.db")
    assert (report.problems, report.erased) == ([], 600)
    assert traces(tmp_path) == []
