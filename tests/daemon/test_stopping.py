"""SIGTERM at work that takes long: the daemon ends soon, with code 0, and loses nothing."""

import asyncio
import json
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Timer

import pytest
from conftest import ROOT
from harness.running import STATE, STATE_PATH, Running, calling, replace, run_program, state_file

from opdbus.bus.transport.connection import RemoteError
from opdbus.errors import StoreError
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.storage import recovery
from opdbus.index.storage.archive import Archive
from opdbus.state.object import Identity, StateObject

COUNT = 20_000
# as a script starts a job with `&`
IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
PUBLISH = (STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}")


def count(folder: Path) -> int:
    """Count the objects that a daemon would find, without changing anything."""
    with closing(sqlite3.connect(f"file:{folder}/memory.db?mode=ro", uri=True)) as reader:
        found: int = reader.execute("SELECT count(*) FROM objects").fetchone()[0]
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database with as many objects as take seconds to write anew."""
    path = tmp_path_factory.mktemp("filled") / "memory.db"
    items = [
        StateObject(
            Identity("publish:probe", "systemd", "unit", f"u{n}"), {"description": f"mail {n}"}
        )
        for n in range(COUNT)
    ]

    async def work() -> None:
        async with StateStore(path) as memory:
            await memory.publish(items, 0)

    asyncio.run(work())
    return path


@pytest.mark.parametrize("work", ["rebuild", "migration"])
def test_sigterm_while_the_store_is_written_anew(
    daemons: Callable[..., Running], tmp_path: Path, filled: Path, work: str
) -> None:
    """End a start soon that has seconds to do, and do all of it at the next one."""
    daemon = daemons(STATE_FILE=state_file(tmp_path / "state.json", {}), VECTOR_LEVEL="none")
    shutil.copy(filled, daemon.state_dir)
    if work == "rebuild":
        recovery.mark_damaged(daemon.state_dir / "memory.db")
    else:
        with closing(sqlite3.connect(daemon.state_dir / "memory.db")) as other, other:
            other.execute("UPDATE facts SET value = 'an older one' WHERE name = 'written by'")
    for _ in range(2):
        with daemon.start():
            daemon.wait_for_log("starting")
            assert daemon.stop() == 0
            assert "serving" not in daemon.log
            assert "Traceback" not in daemon.log
    with daemon.start():
        daemon.wait_for_log("serving")
        assert daemon.stop() == 0
    assert count(daemon.state_dir) == COUNT


def test_sigterm_during_a_large_publish(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """End soon in a call that brings much, and keep what it brought whole or not at all."""
    daemon = daemons(STATE_FILE=state_file(tmp_path / "state.json", {}), VECTOR_LEVEL="none")

    async def publish() -> None:
        async with calling(daemon.bus) as caller:
            await caller.ready()
            objects = [("p", "k", f"n{n}", {"text": f"mail {n}"}) for n in range(9000)]
            call = asyncio.create_task(caller.call(*PUBLISH, "probe", objects, {}))
            await caller.read("Count")
            assert await asyncio.to_thread(daemon.stop) == 0
            with suppress(RemoteError):
                await call

    with daemon.start():
        asyncio.run(publish())
        assert "Traceback" not in daemon.log
    assert count(daemon.state_dir) in {0, 9000}


def test_sigterm_while_a_large_file_is_read(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """End soon while a state file of tens of MiB is parsed."""
    path = state_file(tmp_path / "state.json", {"a": "mail"})
    daemon = daemons(STATE_FILE=path, VECTOR_LEVEL="none")
    units = {f"u{n}": {"description": "mail " * 100} for n in range(60_000)}
    with daemon.start():
        daemon.wait_for_log("state file read")
        replace(path, json.dumps({"version": 1, "plugins": {"p": {"units": units}}}))
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log
    assert count(daemon.state_dir) in {1, 60_000}


def test_sigint_ends_a_daemon_that_a_script_started(daemons: Callable[..., Running]) -> None:
    """End on SIGINT in order, though the daemon was started with SIGINT ignored."""
    daemon = daemons(VECTOR_LEVEL="none")
    daemon.starter = IGNORING
    with daemon:
        daemon.wait_for_log("serving")
        daemon.send(signal.SIGINT)
        assert daemon.exit_code() == 0


def test_programs_of_tests_do_not_ignore_sigint() -> None:
    """Start programs with SIGINT at its default, also where a script runs the tests with `&`."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    program = f"import conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    done = run_program([*IGNORING, sys.executable, "-c", program], cwd=ROOT / "tests")
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("read", ["read", "read_apart"])
async def test_closing_ends_a_read_whose_next_statement_has_no_end(
    tmp_path: Path, read: str
) -> None:
    """End a thread that reads, also where its statement begins when the store closes already."""
    endless = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n FROM n) SELECT sum(n) FROM n"
    begun, closing_now = Event(), Event()

    def work(store: Store) -> None:
        begun.set()
        closing_now.wait()
        store._database.execute(endless).fetchone()

    async with Archive(tmp_path / "memory.db") as archive:
        reading = asyncio.create_task(getattr(archive, read)(work))
        await asyncio.to_thread(begun.wait)
        Timer(0.2, closing_now.set).start()
    with pytest.raises(StoreError, match="interrupted"):
        await reading
