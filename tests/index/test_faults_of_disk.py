"""A full disk, a read-only database: what is there is served, what is refused is said."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.mounts import mounted
from harness.remembering import run, verified
from harness.running import (
    PATIENCE_SECONDS,
    STATE,
    STATE_PATH,
    Running,
    calling,
    run_program,
    state_file,
    work_of,
)
from structlog.testing import capture_logs

from opdbus import config
from opdbus.cli.alerts.alert_rules import Rules
from opdbus.cli.alerts.delivery import Host
from opdbus.client import Client
from opdbus.doctor import examine
from opdbus.errors import StoreError
from opdbus.history.forget import Target
from opdbus.history.ledger import Limits
from opdbus.index.database.fulltext_table import FulltextTable
from opdbus.index.database.store import UNCLEAN
from opdbus.index.state_store import erasure
from opdbus.index.state_store.history_retention import HistoryRetention
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, StateObject

OWNER = 1000
MIB = 1 << 20
PUBLISH = (STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}")


def unit(name: str, text: str = "network") -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity("publish:probe", "systemd", "unit", name), {"description": text})


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Give a folder on a file system of 8 MiB."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=8m", "tmpfs") as folder:
        yield folder


def fill(folder: Path) -> Path:
    """Leave no room on a file system."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    assert os.statvfs(folder).f_bavail == 0
    return ballast


def overwrite(database: Path, *, everything: bool = False) -> None:
    """Damage the pages in the middle of a database, or all of it."""
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(0 if everything else size // 8192 * 4096)
        file.write(b"\xff" * (size if everything else 65536))


def names(memory: StateStore) -> set[str]:
    """Give the names of all objects."""
    return {entry.identity.name for entry in memory.catalogue}


async def stored(memory: StateStore) -> set[str]:
    """Give the names of all objects in the database."""
    entries = await memory.archive.read(lambda store: list(store.entries()))
    return {entry.identity.name for entry in entries}


@work_of(run, "small")
async def test_a_holder_that_leaves_on_a_full_disk_is_forgotten_later(
    memory: StateStore, small: Path
) -> None:
    """Remove what was to live as long as a connection as soon as that can be written."""
    changed = asyncio.Event()
    await memory.publish([unit("kept")], OWNER)
    items = [unit(f"n{n}", "text " * 100) for n in range(1000)]
    await memory.publish(items, OWNER, holder=":1.5")
    await memory.archive.write(lambda store: store.empty_log())
    ballast = fill(small)
    with pytest.raises(StoreError):
        await memory.release(":1.5")
    assert len(names(memory)) == 1001
    memory.notify = lambda _event: changed.set()
    ballast.unlink()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await changed.wait()
    assert names(memory) == {"kept"} == await stored(memory)


def count_values(memory: StateStore) -> Callable[[], int]:
    """Return a function that counts the rows of history with the word `hushed`."""

    def count() -> int:
        with closing(sqlite3.connect(memory.archive._path)) as reader:
            rows = "SELECT count(*) FROM history WHERE fields LIKE '%hushed%'"
            return int(reader.execute(rows).fetchone()[0])

    return count


@pytest.mark.parametrize("at_a_time", [2048, 100])
async def test_what_cannot_be_forgotten_on_a_full_disk_is_forgotten_later(
    small: Path, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erase the rest as soon as there is room, whether some rows were erased before or none."""
    monkeypatch.setattr(erasure, "_AT_A_TIME", at_a_time)
    async with StateStore(small / "memory.db", boot="b1") as memory:
        memory.archive._retry_seconds = (0.05,)
        items = [unit(f"n{n}", f"{'hushed' if n % 2 else 'other'} {n} " * 40) for n in range(1000)]
        await memory.publish(items, OWNER)
        await memory.archive.write(lambda store: store.empty_log())
        ballast, left = fill(small), count_values(memory)
        if at_a_time == 100:
            with ballast.open("r+b") as file:
                file.truncate(ballast.stat().st_size - 3 * MIB // 4)
        # nothing of a request is stored where there is no room at all
        unless = "" if at_a_time == 100 else ", unless op-dbus ends before: ask again then"
        with pytest.raises(StoreError, match=f"erased as soon as it can be{unless}$"):
            await memory.forget(Target(text="hushed"), "")
        assert (left() == 500) is (at_a_time == 2048)
        with pytest.raises(StoreError, match="make room"):
            await memory.forget(Target(text="hushed"), "")
        ballast.unlink()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while left() or await memory.archive.read(lambda store: store.fact(UNCLEAN)):  # noqa: ASYNC110 -- it tells of its end on no event
                await asyncio.sleep(0.02)
    assert verified(small / "memory.db").problems == []


@work_of(run, "small")
async def test_pruning_goes_on_once_there_is_room(memory: StateStore, small: Path) -> None:
    """Remove rows past the limits that a full disk had kept, without any further change."""
    memory.archive._retry_seconds = (0.05,)
    items = [unit(f"n{n}", f"text {n} " * 40) for n in range(1000)]
    await memory.publish(items, OWNER)
    await memory.archive.write(lambda store: store.empty_log())
    retention = HistoryRetention(memory, None, "op-dbus/1", Limits(rows=10))
    ballast = fill(small)
    await retention.checkpoint_and_prune()
    assert memory.archive.fault
    ballast.unlink()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await memory.archive.read(lambda store: store.ledger.cut().seq) != 990:  # noqa: ASYNC110 -- it tells of its end on no event
            await asyncio.sleep(0.02)


@work_of(run, "small")
async def test_failed_loads_are_made_up_for_once(
    memory: StateStore, small: Path, tmp_path: Path
) -> None:
    """Read the state file once when there is room again, however many loads had failed."""
    units = {f"d{n}": f"mail {n}" * 300 for n in range(300)}
    file = state_file(tmp_path / "state.json", units)
    changed = asyncio.Event()
    memory.notify = lambda _event: changed.set()
    declared = StateFileLoader(file, memory)
    ballast = fill(small)
    for _ in range(5):
        with pytest.raises(StoreError):
            await declared.load()
    with capture_logs() as logs:
        ballast.unlink()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await changed.wait()
        await declared.load()  # after all that wait already
    assert names(memory) == units.keys()
    assert [line["event"] for line in logs].count("state file read") == 2


def test_a_daemon_outlives_a_full_disk(
    daemons: Callable[..., Running], small: Path, tmp_path: Path
) -> None:
    """Serve reads and search, be degraded, give vectors from memory, and store all of it later."""
    file = state_file(tmp_path / "state.json", {"a": "mail"})
    daemon = daemons(STATE_FILE=file)
    (daemon.state_dir / "graphs").rename(tmp_path / "graphs")
    subprocess.run(["cp", "-r", tmp_path / "graphs", small / "graphs"], check=True)
    daemon.state_dir = small
    with daemon:
        asyncio.run(_through_a_full_disk(daemon, small, file))
        assert "Traceback" not in daemon.log
        assert daemon.stop() == 0
    with sqlite3.connect(small / "memory.db") as reader:
        assert reader.execute("SELECT count(*) FROM vectors").fetchone()[0] >= 40
    reader.close()


async def _through_a_full_disk(daemon: Running, folder: Path, file: Path) -> None:
    async with calling(daemon.bus) as caller, Client(daemon.bus) as client:
        alerts, news = Host(client, Rules([], 1)), client.new_rows()
        assert not await anext(news)
        await caller.ready()
        await caller.vectorized()
        ballast = fill(folder)
        objects = [("p", "k", f"n{n}", {"text": "s" * 2000}) for n in range(1000)]
        with pytest.raises(Exception, match="make room"):
            await caller.call(*PUBLISH, "probe", objects, {})
        assert await caller.ready("degraded")
        assert "make room" in await caller.read("LastError")
        for words, code in ((["drift", "--exit-code"], 11), (["changes"], 0)):
            done = await asyncio.to_thread(daemon.cli, *words)
            assert done.returncode == code
            assert "op-dbus: nothing new is stored, so what changes now" in done.stderr
        while "PropertiesChanged" not in await anext(news):
            pass
        await alerts.check()
        assert "nothing, so there are no alerts: cannot use " in str(alerts)
        told = await examine(lambda _: replace(config.load({}), bus=daemon.bus))
        (verdict,) = [each for each in told if each.subject == "daemon"]
        assert (verdict.status, verdict.advice) == ("wrong", "make room on its file system")
        assert "memory.db: " in verdict.finding
        found = await caller.ask("Search", "mail", 5, {"all": True})
        assert len(found[0]) == 1
        state_file(file, {f"d{n}": f"mail {n}" * 300 for n in range(40)})
        await caller.until(lambda: caller.read("Count"), 1)
        ballast.unlink()
        await caller.ready("ready")
        await caller.until(lambda: caller.read("Count"), 40)
        await caller.vectorized()
        # the last fault is over when what is not needed any more was removed, too
        await caller.until(lambda: caller.read("LastError"), "")
        await alerts.check()
        assert not str(alerts)
        await news.aclose()


def test_a_start_on_a_full_disk_is_one_sentence(
    daemons: Callable[..., Running], small: Path, tmp_path: Path
) -> None:
    """End with code 1 and say what to do where not even a start has the room that it needs."""
    file = state_file(tmp_path / "state.json", {"a": "mail"})
    daemon = daemons(STATE_FILE=file, VECTOR_LEVEL="none")
    daemon.state_dir = small
    with daemon:
        asyncio.run(_ready(daemon))
        assert daemon.stop() == 0
        fill(small)
        daemon.start()
        assert daemon.exit_code() == 1
        assert "make room on its file system" in daemon.log
        assert "Traceback" not in daemon.log


def test_a_rebuild_that_finds_no_room_is_one_sentence(
    daemons: Callable[..., Running], small: Path, tmp_path: Path
) -> None:
    """Name the full disk where a damaged database cannot be replaced, and rebuild it later."""
    file = state_file(tmp_path / "state.json", {"a": "mail"})
    daemon = daemons(STATE_FILE=file, VECTOR_LEVEL="none")
    daemon.state_dir = small
    run(small, _publish_many)
    overwrite(small / "memory.db")
    ballast = fill(small)
    # room to open the database and to find the damage, but not for a second one
    os.truncate(ballast, ballast.stat().st_size - 256 * 1024)
    with daemon:
        assert daemon.exit_code() == 1
        assert "make room on its file system" in daemon.log
        assert "Traceback" not in daemon.log
        ballast.unlink()
        daemon.start()
        asyncio.run(_ready(daemon))
        assert daemon.stop() == 0
    assert run(small, _stored_names) > {"n0", "a"}


async def _publish_many(memory: StateStore) -> None:
    await memory.publish([unit(f"n{n}", "text " * 40) for n in range(1000)], OWNER)


async def _stored_names(memory: StateStore) -> set[str]:
    return names(memory)


@pytest.mark.parametrize("damage", ["header", "objects"])
def test_a_damaged_database_that_is_read_only_is_one_sentence(
    daemons: Callable[..., Running], tmp_path: Path, damage: str
) -> None:
    """Ask for the right to write, which a rebuild needs, where a damaged one can only be read."""
    file = state_file(tmp_path / "state.json", {"a": "mail"})
    daemon = daemons(STATE_FILE=file, VECTOR_LEVEL="none")
    folder = daemon.state_dir
    run(folder, _publish_many)
    overwrite(folder / "memory.db", everything=damage == "header")
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with daemon:
            assert daemon.exit_code() == 1
            assert "let the user that op-dbus runs as write it" in daemon.log
            assert "sets it aside at its next start" not in daemon.log
            assert "Traceback" not in daemon.log


async def _ready(daemon: Running) -> None:
    async with calling(daemon.bus) as caller:
        await caller.ready()
        await caller.vectorized()


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_read_only_database_is_served(
    daemons: Callable[..., Running], tmp_path: Path, end: str
) -> None:
    """Serve what a read-only database holds, with search by vectors, and say what is refused."""
    daemon = daemons(STATE_FILE=state_file(tmp_path / "state.json", {"a": "mail", "b": "disk"}))
    with daemon:
        asyncio.run(_ready(daemon))
        if end == "killed":  # so that the database has a log
            daemon.kill()
        else:
            assert daemon.stop() == 0
        before = (daemon.state_dir / "memory.db").read_bytes()
        folder = daemon.state_dir
        with mounted(folder, "--bind", str(folder)):
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
            daemon.start()
            asyncio.run(_use_read_only(daemon))
            assert daemon.stop() == 0
            assert "Traceback" not in daemon.log
        assert (daemon.state_dir / "memory.db").read_bytes() == before


async def _use_read_only(daemon: Running) -> None:
    async with calling(daemon.bus) as caller:
        await caller.ready("degraded")
        await caller.vectorized()
        assert "is read-only: what it holds is served" in await caller.read("LastError")
        options = {"mode": "vector", "all": True}
        found = await caller.ask("Search", "mail", 5, options)
        assert len(found[0]) == 2
        with pytest.raises(Exception, match="read-only"):
            await caller.call(*PUBLISH, "probe", [("p", "k", "n", {})], {})


def as_another_user(database: Path, work: str) -> subprocess.CompletedProcess[str]:
    """Do work with a memory as the user nobody, which prints the sentence of a StoreError."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import asyncio, os, sys, tempfile\n"
        "from pathlib import Path\n"
        "from opdbus.errors import StoreError\n"
        "from opdbus.index.state_store.state_store import StateStore as Memory\n"
        "from opdbus.state.object import Identity, StateObject\n"
        "async def once(database, work):\n"
        "    async with Memory(database) as memory:\n"
        "        await work(memory)\n"
        # now: the user may not enter the environment's folders, from which tables are read
        "one = StateObject(Identity('publish:p', 'a', 'b', 'c'), {'description': 'one'})\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    asyncio.run(once(Path(folder, 'own.db'), lambda store: store.publish([one], 1)))\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "async def work(memory):\n"
        f"    {work}\n"
        "try:\n"
        "    asyncio.run(once(Path(sys.argv[1]), work))\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    return run_program([sys.executable, "-c", program, str(database)])


def test_a_read_only_folder_is_served_to_another_user() -> None:
    """Serve a database that this user may only read."""

    async def make(memory: StateStore) -> None:
        await memory.publish([unit("here")], OWNER)

    # not pytest's folder, which other users cannot enter
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), make)
        database = Path(folder) / "memory.db"
        database.parent.chmod(0o755)
        database.chmod(0o644)
        done = as_another_user(
            database,
            "print([e.identity.name for e in memory.catalogue]);"
            " await memory.publish([StateObject(Identity('publish:p', 'a', 'b', 'c'), {})], 1)",
        )
    assert "['here']" in done.stdout, done.stderr
    assert "is read-only" in done.stdout.splitlines()[-1]


def test_a_folder_that_may_not_be_entered_is_one_sentence() -> None:
    """Say that the database cannot be opened where not even its existence may be seen."""
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700
        done = as_another_user(Path(folder) / "state" / "memory.db", "pass")
    assert done.stdout.endswith("state/memory.db: Permission denied\n"), done.stderr


async def test_a_read_that_fails_is_logged(tmp_path: Path) -> None:
    """Log why fields cannot be read, once a minute at most, and read them later."""
    async with StateStore(tmp_path / "memory.db") as memory:
        await memory.publish([unit("a")], OWNER)
        failing = [StoreError("disk I/O error"), StoreError("disk I/O error")]
        sift = FulltextTable.sift

        def sift_later(*given: Any, **named: Any) -> Any:
            if failing:
                raise failing.pop()
            return sift(*given, **named)

        with capture_logs() as lines, pytest.MonkeyPatch.context() as patch:
            patch.setattr(FulltextTable, "sift", sift_later)
            for _ in range(2):
                with pytest.raises(StoreError):
                    await memory.fields.catch_up()
            await memory.fields.catch_up()
        assert [line["reason"] for line in lines] == ["disk I/O error"]
