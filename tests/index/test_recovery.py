"""A damaged database is set aside and built anew, with what could still be read of it."""

import asyncio
import os
import random
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from harness.remembering import run, verified
from harness.running import STATE, STATE_PATH, Caller, Running, calling, state_file

from opdbus.errors import StoreError
from opdbus.history.row_filter import MAX_INT64, Filter, Reader
from opdbus.index.database.database import Damaged
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.storage import recovery
from opdbus.state import redact
from opdbus.state.object import FILE, Identity, StateObject

OWNER, COUNT = 1000, 3000
PAGE = 4096


def unit(name: str, text: str = "network") -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity("publish:probe", "systemd", "unit", name), {"description": text})


async def fill(memory: StateStore) -> None:
    """Publish objects enough for many pages, and one that does not outlive its publisher."""
    await memory.publish([unit(f"u{n}", f"text {n} " * 20) for n in range(COUNT)], OWNER)
    await memory.publish([unit("transient")], OWNER, holder=":1.1")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fill a database once for all tests."""
    folder = tmp_path_factory.mktemp("full")
    run(folder, fill)
    return folder / "memory.db"


@pytest.fixture
def filled(tmp_path: Path, full: Path) -> Path:
    """Give a folder with a full database for the test to damage."""
    shutil.copy(full, tmp_path)
    return tmp_path


async def names(memory: StateStore) -> set[str]:
    """Give the names of all objects, each of which can be read and searched."""
    entries = list(memory.catalogue)
    contents = await memory.content(entries[:100])
    assert len(contents) == len(entries[:100])
    await memory.archive.read(lambda store: store.words.match(["text"], 10))
    return {entry.identity.name for entry in entries}


async def told(memory: StateStore) -> str:
    """Give what the memory says of the rebuild."""
    return memory.archive.notice


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write over a part of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def foreign(path: Path) -> None:
    """Put the database of another program in the place of ours."""
    path.unlink()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("PRAGMA application_id = 252006673")
        other.execute("PRAGMA user_version = 1")
        other.execute("CREATE TABLE objects (id)")


def hole(path: Path) -> None:
    """Overwrite pages in the middle of the objects."""
    found = [match.start() for match in re.finditer(rb'{"description":', path.read_bytes())]
    page = found[len(found) // 2] // PAGE
    overwrite(path, page * PAGE, random.Random(1).randbytes(8 * PAGE))  # noqa: S311 -- the same noise in every run


def without_table(path: Path) -> None:
    """Take a part of ours away."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE vectors")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage header": lambda path: overwrite(path, 0, b"\xff" * 100),
    "garbage first page": lambda path: overwrite(path, 100, b"\xff" * (PAGE - 100)),
    "no database": lambda path: path.write_bytes(b"this is no database at all" * 100),
    "cut in a header": lambda path: os.truncate(path, 50),
    "cut in the middle": lambda path: os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE),
    "cut inside a page": lambda path: os.truncate(path, path.stat().st_size // 2 + 17),
    "pages overwritten": hole,
    "of another program": foreign,
    "a table is gone": without_table,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_rebuilt(filled: Path, damage: str) -> None:
    """Serve with a new database, keep the old file as it was, say both, and stay well."""
    path = filled / "memory.db"
    DAMAGES[damage](path)
    before = path.read_bytes()

    async def look(memory: StateStore) -> None:
        aside = filled / "memory.db.damaged-1"
        assert aside.read_bytes() == before
        assert aside.stat().st_mode & 0o777 == 0o600
        assert str(aside) in memory.archive.notice
        assert await names(memory) <= {f"u{n}" for n in range(COUNT)}
        await memory.publish([unit("new")], OWNER)
        assert "new" in await names(memory)

    run(filled, look)
    assert run(filled, told) == ""
    assert not (filled / "memory.db.damaged-2").exists()


def test_what_can_be_read_is_kept(filled: Path) -> None:
    """Lose only the objects on the pages that are damaged, from both sides of them."""
    hole(filled / "memory.db")
    found = run(filled, names)
    assert COUNT * 0.8 < len(found) < COUNT
    assert {"u0", f"u{COUNT - 1}"} <= found


def test_generations_go_on(filled: Path) -> None:
    """Never give a number of a change again after a rebuild."""
    without_table(filled / "memory.db")

    async def generation(memory: StateStore) -> int:
        return memory.generation

    assert run(filled, generation) == 2


def test_an_altered_object_is_not_believed(filled: Path) -> None:
    """Leave out an object whose content is not what its fingerprint was made of."""
    with closing(sqlite3.connect(filled / "memory.db")) as other, other:
        other.execute("""UPDATE objects SET properties = '{"a":1}' WHERE name = 'u5'""")
        other.execute("UPDATE objects SET properties = 'x{' WHERE name = 'u6'")
    without_table(filled / "memory.db")
    assert run(filled, names) == {f"u{n}" for n in range(COUNT)} - {"u5", "u6"}


def test_a_garbage_log_is_survived(filled: Path) -> None:
    """Serve what the database itself holds where the log beside it is noise."""
    (filled / "memory.db-wal").write_bytes(random.Random(2).randbytes(20 * PAGE))  # noqa: S311 -- noise
    (filled / "memory.db-shm").write_bytes(b"\xff" * 32768)
    assert len(run(filled, names)) == COUNT


def test_few_damaged_files_are_kept(tmp_path: Path) -> None:
    """Keep the last three damaged databases, however often it happens."""
    path = tmp_path / "memory.db"
    for number in range(5):
        path.write_bytes(b"no database %d" % number * 100)
        run(tmp_path, names)
    kept = sorted(file.name for file in tmp_path.glob("*.damaged-*"))
    assert kept == [f"memory.db.damaged-{n}" for n in (3, 4, 5)]


@pytest.mark.parametrize("moment", ["marked", "moved", "begun"])
def test_a_rebuild_that_was_cut_short_is_done_again(filled: Path, moment: str) -> None:
    """Lose nothing that could be read, whenever a rebuild was killed."""
    path, aside = filled / "memory.db", filled / "memory.db.damaged-1"
    without_table(path)
    recovery.mark_damaged(path)
    if moment != "marked":
        path.rename(aside)
    if moment == "begun":
        run(filled / "other", names)
        (filled / "other" / "memory.db").rename(path)
    assert len(run(filled, names)) == COUNT
    assert sorted(file.name for file in filled.glob("memory.db.*")) == [aside.name]


def test_damage_that_is_found_later_ends_the_daemon_once(filled: Path) -> None:
    """Tell of damage that a later read finds, and have the next start rebuild the database."""

    async def find(memory: StateStore) -> None:
        entries = list(memory.catalogue)
        hole(filled / "memory.db")
        with pytest.raises(StoreError, match="damaged"):  # noqa: PT012 -- whichever meets it first
            for _ in range(3):
                await memory.archive.read(lambda store: store.words.match(["text"], 5000))
                await memory.content(entries)
                await memory.publish([unit(f"more {n}") for n in range(100)], OWNER)
        with pytest.raises(Damaged, match="sets it aside at its next start"):
            async with asyncio.timeout(60):
                await memory.archive.raise_when_damaged()

    run(filled, find)
    assert "found damaged before" in run(filled, told)
    assert run(filled, told) == ""


def test_a_daemon_recovers(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Have the declared objects back with their vectors, say what happened, and do so once."""
    file = state_file(tmp_path / "state.json", {f"d{n}": f"mail {n}" for n in range(30)})
    daemon = daemons(STATE_FILE=file)
    with daemon:
        asyncio.run(_served(daemon))
        assert daemon.stop() == 0
        (daemon.state_dir / "memory.db").write_bytes(b"\xff" * 10_000)
        daemon.start()
        sentence = asyncio.run(_served(daemon))
        assert "memory.db.damaged-1" in sentence
        assert re.search(r"store rebuilt .*memory\.db\.damaged-1", daemon.log)
        daemon.send(signal.SIGKILL)
        daemon.exit_code()
        daemon.start()
        assert asyncio.run(_served(daemon)) == ""
        assert "store rebuilt" not in daemon.log
        assert daemon.stop() == 0


async def _served(daemon: Running) -> str:
    """Wait until all has vectors, check it, and give LastError."""
    async with calling(daemon.bus) as caller:
        await caller.ready()
        await caller.vectorized()
        assert await _count(caller) >= 30
        found = await caller.ask("Search", "mail 7", 5, {"all": True})
        assert len(found[0]) == 5
        error: str = await caller.read("LastError")
        return error


async def _count(caller: Caller) -> int:
    count: int = await caller.read("Count")
    return count


def test_a_daemon_ends_for_damage_and_the_next_one_is_well(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """End with code 1 when a running daemon meets damage, and rebuild at the next start."""
    file = state_file(tmp_path / "state.json", {f"d{n}": f"mail {n}" for n in range(30)})
    daemon = daemons(STATE_FILE=file)
    with daemon:
        asyncio.run(_served(daemon))
        daemon.send(signal.SIGSTOP)
        database = daemon.state_dir / "memory.db"
        for path in (database, database.with_name("memory.db-wal")):
            overwrite(path, 0, random.Random(3).randbytes(path.stat().st_size))  # noqa: S311 -- noise
        daemon.send(signal.SIGCONT)
        asyncio.run(_ask_all(daemon))
        assert daemon.exit_code() == 1
        assert "Traceback" not in daemon.log
        daemon.start()
        assert "memory.db.damaged-1" in asyncio.run(_served(daemon))
        assert daemon.stop() == 0


async def _ask_all(daemon: Running) -> None:
    """Ask for contents until the daemon has met the damage."""
    async with calling(daemon.bus) as caller:
        path = f"{STATE_PATH}/systemd/unit/d1"
        with pytest.raises(Exception, match=r"damaged|stopping|bus|reply|Name"):  # noqa: PT012 -- whichever meets it
            while True:
                await caller.ask("Get", path, {})
                more = [("p", "k", f"n{n}", {}) for n in range(1000)]
                publish = (STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}")
                await caller.call(*publish, "probe", more, {})


def test_declared_objects_survive_without_their_file(tmp_path: Path) -> None:
    """Keep declared objects through a rebuild too: their file may be bad at that moment."""

    async def declare(memory: StateStore) -> None:
        item = StateObject(Identity(FILE, "systemd", "unit", "a"), {"description": "text"})
        await memory.replace(FILE, {item.identity}, [item])

    run(tmp_path, declare)
    without_table(tmp_path / "memory.db")
    assert run(tmp_path, names) == {"a"}


# history


async def busy(memory: StateStore) -> None:
    """Record enough changes for many pages."""
    for number in range(40):
        items = [unit(f"u{n}", f"text {number} {n} " * 20) for n in range(30)]
        await memory.publish(items, OWNER)


async def one_more(memory: StateStore) -> None:
    """Record one more change."""
    await memory.publish([unit("more")], OWNER)


def test_history_survives_a_rebuild(tmp_path: Path) -> None:
    """Keep all of history where it can be read, and go on with the same chain."""
    run(tmp_path, busy)
    without_table(tmp_path / "memory.db")
    run(tmp_path, one_more)
    report = verified(tmp_path / "memory.db")
    assert (report.problems, report.first, report.last) == ([], 1, 1201)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as reader:
        counting = "SELECT count(*), count(sentence) FROM history"
        assert reader.execute(counting).fetchone() == (1201, 1201)
        matching = "SELECT count(*) FROM sentence_words WHERE sentence_words MATCH 'text'"
        assert reader.execute(matching).fetchone()[0] > 100
        numbers = Reader(reader).candidate_range(Filter(since=1, before=MAX_INT64))
        assert numbers == range(1, 1202)


def test_what_can_be_read_of_history_is_kept(tmp_path: Path) -> None:
    """Lose only the rows on the pages that are damaged; verification says which."""
    run(tmp_path, busy)
    path = tmp_path / "memory.db"
    found = [match.start() for match in re.finditer(rb'\[\[\["description"\]', path.read_bytes())]
    page = found[len(found) // 2] // PAGE
    overwrite(path, page * PAGE, random.Random(1).randbytes(4 * PAGE))  # noqa: S311 -- the same noise
    recovery.mark_damaged(path)
    run(tmp_path, one_more)
    report = verified(tmp_path / "memory.db")
    assert 1100 < report.rows < 1201
    assert report.last == 1201
    problem = report.problems[0]
    assert re.fullmatch(r"the rows up to \d+ are missing", problem.text)
    assert 1 < problem.seq < 1201


def test_a_lost_end_of_history_is_found_again(tmp_path: Path) -> None:
    """Compute the end of the chain anew where what was noted of it is lost."""
    run(tmp_path, busy)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as other, other:
        other.execute("DROP TABLE vectors")
        other.execute("DELETE FROM facts")
    run(tmp_path, one_more)
    assert verified(tmp_path / "memory.db").problems == []


def test_history_is_looked_through_by_a_new_redaction(tmp_path: Path) -> None:
    """Erase from history what this version recognizes as secret and the last one did not."""

    async def publish(memory: StateStore) -> None:
        for secret in ("hunter2", "hunter3"):
            hidden = {"password": secret, "port": len(secret)}
            value = {"name": "DB_PASSWORD", "value": secret}
            for name, properties in (("a", hidden), ("b", value), ("c", {"state": "up"})):
                identity = Identity("publish:probe", "systemd", "unit", name)
                await memory.publish([StateObject(identity, properties)], OWNER)

    run(tmp_path, publish)
    path = tmp_path / "memory.db"
    assert b"hunter" in path.read_bytes()
    with closing(sqlite3.connect(path)) as other, other:
        (before,) = other.execute("SELECT value FROM facts WHERE name = 'written by'").fetchone()
        older = before.replace("redaction ", "redaction 0")
        other.execute("UPDATE facts SET value = ? WHERE name = 'written by'", (older,))
    for _ in range(2):
        run(tmp_path, names)
        assert b"hunter" not in path.read_bytes()
        report = verified(tmp_path / "memory.db")
        assert (report.problems, report.erased, report.last) == ([], 4, 6)
    with closing(sqlite3.connect(path)) as reader:
        rows = reader.execute("SELECT what, cause FROM history WHERE seq = 6").fetchall()
    assert rows == [("forgot", f"redaction {redact.VERSION}")]
