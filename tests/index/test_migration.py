"""What another version stored is redacted and rendered anew; other schemas are set aside."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.house import House
from harness.remembering import OWNER, disown, run, unit, verified
from harness.running import STATE, STATE_PATH, Caller, Running, ask, search, state_file

from opdbus.config import Config
from opdbus.errors import StoreError
from opdbus.history.forget import Target
from opdbus.history.row_filter import Filter
from opdbus.index.changes import history_reader
from opdbus.index.database.records import REDACTED_BY, written_by
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.storage import migration
from opdbus.index.storage.archive import Archive
from opdbus.state.object import ObjectId

SECRET = "hunter2-PLANTED"
COLUMNS = (
    "source, plugin, kind, name, owner, properties, text, words, fingerprint, text_digest, traits"
)
NOUNS = "cache sensor cpu network interface backup Vienna mail disk user printer clock".split()
COUNT = 1_100


def filled(folder: Path, count: int = COUNT) -> Path:
    """Make a database with so many different objects."""
    first, second = NOUNS[:7], NOUNS[7:]
    items = [
        unit(f"u{n}", description=f"{first[n % 7]} of the {second[n % 5]} {n % 11}", number=n)
        for n in range(count)
    ]
    run(folder, lambda memory: memory.publish(items, OWNER))
    return folder / "memory.db"


def stored(path: Path) -> list[Any]:
    """Read all objects as any program would, and check that words and objects agree."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO lexicon (lexicon, rank) VALUES ('integrity-check', 1)")
        return database.execute(f"SELECT {COLUMNS} FROM objects ORDER BY 1, 2, 3, 4").fetchall()  # noqa: S608 -- our own


def fact(path: Path, name: str) -> str | None:
    """Read a named value of a database."""
    with closing(sqlite3.connect(path)) as database:
        row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def render_otherwise(path: Path, written: str) -> None:
    """Have texts, words and traits be those of a version with other rules."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(
            "UPDATE objects SET text = 'old ' || text, words = '',"
            " traits = zeroblob(length(traits)), text_digest = zeroblob(length(text_digest))"
        )
    disown(path, written)


async def finished(memory: StateStore) -> None:
    """Wait until all is as this version writes it."""
    async with asyncio.timeout(120):
        await memory.eraser.checked.wait()


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have the check of history wait until what this gives is set."""
    go, original = threading.Event(), migration.check_history

    def check(*given: Any, **named: Any) -> int:
        go.wait(60)
        return original(*given, **named)

    monkeypatch.setattr(migration, "check_history", check)
    yield go
    go.set()


@pytest.mark.parametrize("written", ["redaction 0, text 0", f"{REDACTED_BY}text 0"])
def test_a_database_of_another_version_ends_as_one_built_afresh(
    tmp_path: Path, written: str
) -> None:
    """Objects, texts, words and traits are those of a new database, and history's chain holds."""
    path = filled(tmp_path)
    expected = stored(path)
    assert len(expected) == COUNT
    render_otherwise(path, written)
    assert stored(path) != expected
    run(path.parent, finished)
    assert stored(path) == expected
    assert fact(path, "written by") == written_by()
    assert verified(path).problems == []


def test_a_migration_that_was_ended_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one version left halfway is taken as written by no version, and the end is the same."""
    path = filled(tmp_path)
    expected = stored(path)
    render_otherwise(path, "redaction 0, text 0")
    original, count = migration._migrate_batch, iter(range(9))

    def fail_later(*given: Any) -> bool:
        if next(count):
            raise StoreError("op-dbus is stopping: nothing of this was kept")
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(migration, "_migrate_batch", fail_later)
        with pytest.raises(StoreError, match="stopping"):
            run(path.parent, finished)
    assert fact(path, "written by") == "in migration"
    assert stored(path) != expected
    run(path.parent, finished)
    assert (stored(path), fact(path, "written by")) == (expected, written_by())


def leaking(path: Path) -> None:
    """Have what another version let pass as no secret be in objects and in history."""

    async def publish(memory: StateStore) -> None:
        await memory.publish([unit("b", description="first words"), unit("gone", a=1)], OWNER)
        await memory.publish([unit("b", description="second words"), unit("gone", a=2)], OWNER)

    run(path.parent, publish)
    # version 3 did not know that the option is a password
    leak = json.dumps({"description": f"steghide embed -p {SECRET}", "password": SECRET})
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(
            "UPDATE objects SET properties = ?, text = text || ?, words = words || ?"
            " WHERE name = 'b'",
            (leak, f" {SECRET}", f" {SECRET}"),
        )
        other.execute("UPDATE history SET fields = replace(fields, '2', ?)", (f'"{SECRET}"',))
        other.execute("UPDATE history SET fields = replace(fields, '\"a\"', '\"password\"')")
    disown(path, "redaction 3, text 0")


def test_a_check_goes_on_after_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again what could not be done, also where the database can be written all the time."""
    path = tmp_path / "memory.db"
    leaking(path)
    failures, original = [StoreError("disk I/O error")] * 2, migration.check_history

    def check(*given: Any, **named: Any) -> int:
        if failures:
            raise failures.pop()
        return original(*given, **named)

    async def work(memory: StateStore) -> None:
        memory.archive._retry_seconds = (0.01,)
        await finished(memory)
        assert not memory.archive.fault

    monkeypatch.setattr(migration, "check_history", check)
    run(tmp_path, work)
    assert not failures


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
                async with asyncio.timeout(60):
                    while len(tried) <= 2:  # noqa: ASYNC110 -- tells of its steps on no event
                        await asyncio.sleep(0)

    asyncio.run(live(3600.0, 200))
    assert tried == []
    asyncio.run(live(0.0, 0))


def test_what_is_secret_now_is_in_no_answer_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are redacted before they are read, history is hidden until it was looked through."""
    path = filled(tmp_path, 20)
    leaking(path)
    assert SECRET.encode() in path.read_bytes()

    async def work(memory: StateStore) -> None:
        assert not memory.is_settled
        entries = [*memory.catalogue]
        contents = await memory.content(entries)
        assert not any(SECRET in str(content) for content in contents.values())
        assert await memory.archive.read(lambda store: store.words.match(["hunter2"], 9)) == []
        assert memory.eraser.unchecked > 0
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

    with held(monkeypatch) as go:
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

    def check_later(store: Store, at: int, boot: str) -> int:
        # without progress, since history may be long
        return check(store, at, boot) if go.wait(0.002) else migration.unchecked(store)

    async def embed(made: House) -> None:
        async with asyncio.timeout(60):
            assert made.memory.archive.no_bulk_load.is_set()
            while made.vectors.missing_object_count():  # noqa: ASYNC110 -- it tells of its steps on no event
                await asyncio.sleep(0.01)
            assert not made.memory.eraser.checked.is_set()
            go.set()
            await made.publish(unit("new", description="later"))
            await made.vectorized()
            await made.memory.eraser.checked.wait()
        assert len(made.vectors.current or ()) == 21

    live(publish)
    disown(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DELETE FROM vectors")
    monkeypatch.setattr(migration, "check_history", check_later)
    live(embed)


def test_objects_stay_apart_whose_names_were_secret(tmp_path: Path) -> None:
    """Objects whose names differ only in what is secret now are as many after a migration."""
    path = filled(tmp_path, 90)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE objects SET name = 'token=' || ? || id", (SECRET,))
    disown(path)
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
    """Killed at several moments, a daemon has all objects by its own rules in the end."""
    file = state_file(tmp_path / "state.json", {})
    daemon = daemons(VECTOR_LEVEL="none", STATE_FILE=file)
    path = filled(daemon.state_dir)
    expected = stored(path)
    render_otherwise(path, "redaction 0, text 0")
    for moment in ("starting", "starting", "serving"):
        with daemon.start():
            daemon.wait_for_log(moment)
            daemon.kill()

    async def ready(caller: Caller) -> tuple[int, int]:
        await caller.ready()
        get = caller.get
        return await get(STATE_PATH, STATE, "Pending"), await get(STATE_PATH, STATE, "Count")

    with daemon.start():
        assert ask(daemon, ready) == (0, COUNT)
    assert stored(path) == expected


@pytest.mark.parametrize("version", [6, 99])
def test_a_database_of_another_schema_is_set_aside(
    daemons: Callable[..., Running], version: int
) -> None:
    """Say so in one sentence, keep every byte of each such database, and begin anew."""
    daemon = daemons(VECTOR_LEVEL="none")
    kept = []

    async def error(caller: Caller) -> str:
        await caller.ready()
        said: str = await caller.get(STATE_PATH, STATE, "LastError")
        return said

    for number in (1, 2):
        path = filled(daemon.state_dir, 9)
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"PRAGMA user_version = {version}")
            other.execute("PRAGMA journal_mode = DELETE")
        kept.append((path.with_name(f"memory.db.schema-{version}.{number}"), path.read_bytes()))
        with daemon.start():
            said = ask(daemon, error)
        assert f"has the schema {version} of another op-dbus; it is kept as {kept[-1][0]}" in said
        assert "Traceback" not in daemon.log
        assert not any(row[0].startswith("publish:") for row in stored(path))
    assert all(aside.read_bytes() == before for aside, before in kept)


QUESTIONS = ("cache of the printer", "cpu or network interface", "backup in Vienna", "mail")


def test_ready_means_final_answers(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """The answers at `ready` are those when all was read.

    Of so many objects, a search does not wait until their words are read.
    """
    file = state_file(tmp_path / "state.json", {})
    daemon = daemons(VECTOR_LEVEL="none", STATE_FILE=file)
    filled(daemon.state_dir, 20_700)

    async def answers(caller: Caller) -> list[Any]:
        await caller.ready()
        return [
            await search(caller, mode, one) for one in QUESTIONS for mode in ("lexical", "hybrid")
        ]

    async def both(caller: Caller) -> tuple[list[Any], list[Any]]:
        first = await answers(caller)
        await asyncio.sleep(1)
        return first, await answers(caller)

    with daemon.start():
        first, later = ask(daemon, both)
        assert first == later
