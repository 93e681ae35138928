"""Databases of earlier commits are brought up to this version while they serve."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.house import House
from harness.old_databases import COMMITS, OBJECTS, old
from harness.remembering import OWNER, run, unit, verified
from harness.running import STATE, STATE_PATH, Caller, Running, ask, search, state_file

from opdbus.config import Config
from opdbus.errors import StoreError
from opdbus.history.forget import Target
from opdbus.history.row_filter import Filter
from opdbus.index.changes import history_reader
from opdbus.index.database.records import written_by
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.storage import migration
from opdbus.index.storage.archive import Archive
from opdbus.index.storage.migration import Migration
from opdbus.state.object import Identity, ObjectId, StateObject

SECRET = "hunter2-PLANTED"
COLUMNS = "source, plugin, kind, name, owner, properties, text, words, fingerprint, text_digest"


def stored(path: Path, columns: str = f"{COLUMNS}, traits") -> list[Any]:
    """Read all objects as any program would, and check that words and objects agree."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO lexicon (lexicon, rank) VALUES ('integrity-check', 1)")
        return database.execute(f"SELECT {columns} FROM objects ORDER BY 1, 2, 3, 4").fetchall()  # noqa: S608 -- our own


def fact(path: Path, name: str) -> str | None:
    """Read a named value of a database."""
    with closing(sqlite3.connect(path)) as database:
        row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


async def until(test: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(60):
        while not test():  # noqa: ASYNC110 -- a migration tells of its steps on no event
            await asyncio.sleep(0)


async def finished(memory: StateStore) -> None:
    """Wait until all is as this version writes it."""
    async with asyncio.timeout(120):
        await memory.migrator.done.wait()


def afresh(folder: Path, source: Path) -> list[Any]:
    """Store the same objects in a new database, and read it."""
    items = [
        StateObject(Identity(*row[:4]), json.loads(row[4]))
        for row in stored(source, "source, plugin, kind, name, properties")
    ]

    async def publish(memory: StateStore) -> None:
        await memory.publish(items, OWNER)

    run(folder, publish)
    return stored(folder / "memory.db")


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[threading.Event]:
    """Have a migration wait after so many batches, until what this gives is set."""
    go, count, original = threading.Event(), iter(range(1 << 30)), migration.render

    def render(*given: Any) -> Any:
        if next(count) >= after:
            go.wait(60)
        return original(*given)

    monkeypatch.setattr(migration, "render", render)
    yield go
    go.set()


@pytest.mark.parametrize("commit", COMMITS)
def test_a_database_of_an_earlier_commit_ends_as_one_built_afresh(
    tmp_path: Path, commit: str
) -> None:
    """Objects, texts, words and traits are those of a new database, and history's chain holds."""
    path = old(tmp_path / "old", commit)
    assert len(stored(path, COLUMNS)) == OBJECTS
    run(path.parent, finished)
    assert stored(path) == afresh(tmp_path / "new", path)
    assert (fact(path, "written by"), fact(path, "migration")) == (written_by(), None)
    assert verified(path).problems == []


@pytest.mark.parametrize("commit", COMMITS)
def test_objects_are_found_and_published_while_they_are_migrated(
    tmp_path: Path, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer by the old words or the new ones, and keep what is published meanwhile."""
    path = old(tmp_path, commit)

    async def work(memory: StateStore) -> None:
        found = await memory.archive.read(lambda store: store.words.match(["cache"], 10_000))
        assert len(memory.catalogue) == OBJECTS
        assert (memory.is_settled, memory.migrator.objects) == (False, OBJECTS - 500)
        known = {entry.identity for entry in memory.catalogue}
        items = [
            unit("new", description="cache of today"),
            StateObject(next(iter(known)), {"a": "cache"}),
        ]
        # the batch that waits has the lock of writers
        go.set()
        await memory.publish(items, OWNER)
        await finished(memory)
        after = await memory.archive.read(lambda store: store.words.match(["cache"], 10_000))
        assert len(found) <= len(after) <= len(found) + 2
        assert {entry.identity for entry in memory.catalogue} == known | {items[0].identity}

    async def begin(memory: StateStore) -> None:
        await until(lambda: memory.migrator.objects == OBJECTS - 500)
        await work(memory)

    with held(monkeypatch, after=1) as go:
        run(tmp_path, begin)
    (text,) = {row[6] for row in stored(path) if row[3] == "new"}
    assert "cache of today" in text


def test_a_migration_goes_on_where_a_kill_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch that was committed is read again, and the end is the same."""
    path = old(tmp_path / "old", "9b7201f")
    expected = afresh(tmp_path / "new", path)
    read: list[int] = []
    original = migration.read_batch

    def reading(store: Store, left: Migration) -> Any:
        read.append(left.rendered)
        return original(store, left)

    monkeypatch.setattr(migration, "read_batch", reading)
    monkeypatch.setattr(migration, "AT_A_TIME", 100)

    async def soon(memory: StateStore) -> None:
        before = memory.migrator.objects
        migrator = memory.migrator
        await until(lambda: migrator.objects not in {0, before} or migrator.done.is_set())

    for _ in range(5):
        run(path.parent, soon)
    assert fact(path, "migration")
    run(path.parent, finished)
    assert stored(path) == expected
    # that which a start ended is read twice at most
    assert len(read) <= OBJECTS // 100 + 1 + 6
    assert read == sorted(read)


def test_another_version_begins_a_migration_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one version left halfway, another one takes as written by neither of them."""
    path = old(tmp_path, "ae6f312")

    async def half(memory: StateStore) -> None:
        await until(lambda: memory.migrator.objects == OBJECTS - 500)

    with monkeypatch.context() as patch:
        patch.setattr(migration, "written_by", lambda: "redaction 9, text 9")
        patch.setattr(migration, "REDACTED_BY", "redaction 9, ")
        with held(patch, after=1) as go:
            asyncio.run(_closing(path, half, go))
    assert fact(path, "written by") == "in migration"
    run(tmp_path, finished)
    assert fact(path, "written by") == written_by()
    assert stored(path) == afresh(tmp_path / "new", path)


async def _closing(
    path: Path, work: Callable[[StateStore], Awaitable[None]], go: threading.Event
) -> None:
    async with StateStore(path, boot="b1") as memory:
        await work(memory)
        # to close waits for the thread
        asyncio.get_running_loop().call_later(0.2, go.set)


def leaking(path: Path) -> None:
    """Have what an older version let pass as no secret be in objects and in history."""

    async def publish(memory: StateStore) -> None:
        await memory.publish([unit("b", description="first words"), unit("gone", a=1)], OWNER)
        await memory.publish([unit("b", description="second words"), unit("gone", a=2)], OWNER)

    run(path.parent, publish)
    leak = json.dumps({"description": "plain", "password": SECRET})
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(
            "UPDATE objects SET properties = ?, text = text || ?, words = words || ?"
            " WHERE name = 'b'",
            (leak, f" {SECRET}", f" {SECRET}"),
        )
        other.execute("UPDATE history SET fields = replace(fields, '2', ?)", (f'"{SECRET}"',))
        other.execute("UPDATE history SET fields = replace(fields, '\"a\"', '\"password\"')")
        other.execute("UPDATE facts SET value = 'redaction 0, text 0' WHERE name = 'written by'")


def test_a_migration_goes_on_after_reads_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Try again what could not be read, also where the database can be written all the time."""
    old(tmp_path, "f936244", written="redaction 0, text 0")
    failures = {"read": 1, "find": 2}

    def failing(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def read(*given: Any, **named: Any) -> Any:
            # the first look for a migration is the start's
            if failures["read"] == 0 or name == "read":
                failures[name] -= 1
                if failures[name] >= 0:
                    raise StoreError("disk I/O error")
            return work(*given, **named)

        return read

    async def work(memory: StateStore) -> None:
        memory.archive._retry_seconds = (0.01,)
        await finished(memory)
        assert not memory.archive.fault

    monkeypatch.setattr(migration, "read_batch", failing("read", migration.read_batch))
    monkeypatch.setattr(Migration, "find", failing("find", Migration.find))
    run(tmp_path, work)
    assert max(failures.values()) < 0


def test_what_could_not_be_read_is_not_tried_again_at_once(tmp_path: Path) -> None:
    """Pause before work is tried again where the database can be written, and then run it."""
    tried: list[float] = []

    async def live(pause: float, turns: int) -> None:
        async def work() -> None:
            tried.append(pause)
            archive.when_writable(work)

        async with Archive(tmp_path / "memory.db", retry_seconds=(pause,)) as archive:
            archive.when_writable(work)
            for _ in range(turns):
                await asyncio.sleep(0)
            if not pause:
                await until(lambda: len(tried) > 2)

    asyncio.run(live(3600.0, 200))
    assert tried == []
    asyncio.run(live(0.0, 0))


@pytest.mark.parametrize("commit", ["ae6f312", "f936244"])
def test_what_is_secret_now_is_in_no_answer_from_the_start(
    tmp_path: Path, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are redacted before they are read, history is hidden until it was looked through."""
    path = old(tmp_path, commit, times=2)
    leaking(path)
    assert SECRET.encode() in path.read_bytes()

    async def work(memory: StateStore) -> None:
        assert not memory.migrator.done.is_set()
        entries = [*memory.catalogue]
        contents = await memory.content(entries)
        assert not any(SECRET in str(content) for content in contents.values())
        assert await memory.archive.read(lambda store: store.words.match(["hunter2"], 9)) == []
        await until(lambda: memory.migrator.rows > 0)
        rows = await history_reader.first_rows(memory, Filter(), 10_000)
        assert {row.change_type for row in rows} <= {"forgot"}
        object_id = ObjectId("systemd", "unit", "gone")
        assert await memory.archive.read(lambda store: store.history.newest(object_id, 9)) == []
        said = await memory.archive.read(lambda store: store.sentences.hits(range(999), None))
        assert said == []
        assert len(memory.catalogue) == len(entries)
        go.set()
        await finished(memory)
        rows = await history_reader.first_rows(memory, Filter(), 10_000)
        assert {"appeared", "changed", "forgot"} <= {row.change_type for row in rows}
        assert SECRET not in str(rows)
        await memory.forget(Target(row=1), "")

    with held(monkeypatch, after=0) as go:
        run(tmp_path, work)
    for file in tmp_path.iterdir():
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
    assert verified(path).problems == []


def test_objects_get_vectors_while_history_is_checked(
    live: Callable[..., Any], settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embed all objects, also new ones, before history was looked through."""
    go, check = threading.Event(), migration.check_history
    path = settings.state_dir / "memory.db"

    async def publish(made: House) -> None:
        await made.publish(*(unit(f"u{n}", description=f"word {n}") for n in range(20)))
        await made.vectorized()

    def check_later(store: Store, left: Migration, **named: Any) -> Migration:
        # without progress, since history may be long
        return check(store, left, **named) if go.wait(0.002) else left

    async def embed(made: House) -> None:
        async with asyncio.timeout(60):
            await made.memory.migrator.rendered.wait()
            assert made.memory.archive.no_bulk_load.is_set()
            while made.vectors.missing_object_count():  # noqa: ASYNC110 -- as `until`
                await asyncio.sleep(0.01)
            assert not made.memory.migrator.done.is_set()
            go.set()
            await made.publish(unit("new", description="later"))
            await made.vectorized()
            await made.memory.migrator.done.wait()
        assert len(made.vectors.current or ()) == 21

    live(publish)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE facts SET value = 'redaction 0, text 0' WHERE name = 'written by'")
        other.execute("DELETE FROM vectors")
    monkeypatch.setattr(migration, "check_history", check_later)
    live(embed)


def test_objects_stay_apart_whose_names_were_secret(tmp_path: Path) -> None:
    """Objects whose names differ only in what is secret now are as many after a migration."""
    path = old(tmp_path, "f936244", times=2)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE objects SET name = 'token=' || ? || id", (SECRET,))
        database.execute("UPDATE facts SET value = 'redaction 0, text 0' WHERE name = 'written by'")
    before = len(stored(path))

    async def work(memory: StateStore) -> None:
        await finished(memory)
        assert len(memory.catalogue) == before

    run(tmp_path, work)
    assert len(stored(path)) == before > 1
    assert "PLANTED" not in str(stored(path))


def test_the_daemon_survives_kills_in_a_migration(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """Killed at several moments, a daemon answers at once, and is ready only when all is done."""
    file = state_file(tmp_path / "state.json", {})
    daemon = daemons(VECTOR_LEVEL="none", STATE_FILE=file)
    path = old(daemon.state_dir, "0018d2d")
    expected = afresh(tmp_path / "new", path)

    async def found(caller: Caller) -> int:
        await caller.ready("loading", "ready")
        return len(await search(caller, "lexical", "cache"))

    for _ in range(3):
        with daemon.start():
            daemon.wait_for_log("migrat|serving")
            assert ask(daemon, found) == 5
            daemon.kill()

    async def ready(caller: Caller) -> tuple[int, int]:
        await caller.ready()
        get = caller.get
        return await get(STATE_PATH, STATE, "Pending"), await get(STATE_PATH, STATE, "Count")

    with daemon.start():
        assert ask(daemon, ready) == (0, OBJECTS)
    assert stored(path) == expected


def test_a_newer_database_is_refused_and_left_as_it_was(daemons: Callable[..., Running]) -> None:
    """Say in one sentence what to do, end with 2, and change no byte."""
    daemon = daemons(VECTOR_LEVEL="none")
    path = old(daemon.state_dir, "f936244", times=2)
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with daemon.start():
        assert daemon.exit_code() == 2
    assert "was written by a newer op-dbus (version 99); install that one" in daemon.log
    assert "Traceback" not in daemon.log
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*damaged*"))


QUESTIONS = ("cache of the sensor", "cpu or network interface", "backup in Vienna", "mail")


def test_ready_means_final_answers(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Without the files of a run before, the answers at `ready` are those when all was read again.

    Of so many objects, a search does not wait until their words are read.
    """
    file = state_file(tmp_path / "state.json", {})
    daemon = daemons(VECTOR_LEVEL="none", STATE_FILE=file)
    path = old(daemon.state_dir, "f936244", times=460, written=written_by())

    async def answers(caller: Caller) -> list[Any]:
        await caller.ready()
        return [
            await search(caller, mode, one) for one in QUESTIONS for mode in ("lexical", "hybrid")
        ]

    async def both(caller: Caller) -> tuple[list[Any], list[Any]]:
        first = await answers(caller)
        daemon.wait_for_log("entries sealed")
        return first, await answers(caller)

    for _ in range(2):
        with daemon.start():
            first, later = ask(daemon, both)
            assert first == later
            daemon.kill()
        for derived in path.parent.glob("*.sealed"):
            derived.unlink()
