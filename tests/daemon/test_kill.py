"""kill -9 at any moment of a first vectorization: it goes on where it was."""

import asyncio
import os
import random
import re
import select
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from harness.running import PATIENCE_SECONDS, Running, calling, search, state_file

from opdbus import config
from opdbus.engine.opening import open_embedder
from opdbus.models import folder
from opdbus.models.level_table import LEVELS
from opdbus.platform.tasks import cancel

OBJECTS, BATCH_TOKENS = 1500, 48
ROUNDS = int(os.environ.get("OP_DBUS_TEST_KILLS", "10"))
WORDS = "network mail disk user time login backup service host rule".split()


def _vectors(database: Path) -> dict[bytes, bytes]:
    """Read every vector by its key, as any other program would."""
    if not database.exists():
        return {}
    with closing(sqlite3.connect(database)) as reader:
        there = reader.execute("SELECT 1 FROM sqlite_master WHERE name = 'vectors'").fetchone()
        rows = reader.execute("SELECT key, data FROM vectors").fetchall() if there else []
    reader.close()
    return dict(rows)


def _count(database: Path) -> int:
    """Count the vectors."""
    with (
        suppress(sqlite3.OperationalError),  # no file yet, or no table in it
        closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reader,
    ):
        return int(reader.execute("SELECT count(*) FROM vectors").fetchone()[0])
    return 0


def _vectors_left(database: Path, copy: Path) -> dict[bytes, bytes]:
    """Read what a killed daemon left from a copy, so that the next one has to recover it."""
    copy.mkdir(exist_ok=True)
    for name in (database.name, f"{database.name}-wal"):
        (copy / name).unlink(missing_ok=True)
        if database.with_name(name).exists():
            shutil.copy(database.with_name(name), copy / name)
    return _vectors(copy / database.name)


def _wait_for_progress(daemon: Running, database: Path, wanted: int) -> int:
    """Wait until so many vectors are committed, or the daemon has no more to do; give the count."""
    finished = re.compile(r"vectorized .*computed=[1-9]")
    waiter = os.pidfd_open(daemon.pid)
    try:
        for _ in range(int(PATIENCE_SECONDS * 50)):
            count = _count(database)
            if count >= wanted or finished.search(daemon.log):
                return count
            ready, _, _ = select.select([waiter], [], [], 0.02)
            assert not ready, daemon.log
    finally:
        os.close(waiter)
    raise AssertionError(daemon.log)


def test_nothing_is_lost_and_next_to_nothing_computed_twice(
    daemons: Callable[..., Running], tmp_path: Path, tiny_model: Path
) -> None:
    """Keep each committed vector over many kills, and compute at most one batch again for each."""
    dice = random.Random(4)  # noqa: S311 -- the same moments in every run
    texts = {f"u{n:04}": f"{WORDS[n % 10]} {WORDS[n // 10 % 10]} {n}" for n in range(OBJECTS)}
    file = state_file(tmp_path / "state.json", texts)
    daemon = daemons(STATE_FILE=file, BATCH_TOKENS=BATCH_TOKENS)
    database = daemon.state_dir / "memory.db"
    known: dict[bytes, bytes] = {}
    for number in range(ROUNDS):
        daemon.start()
        if number % 5 == 4:  # some of them before the first batch, or before the database
            daemon.wait_for_log(dice.choice(["starting", "serving", "state file read"]))
        else:
            # on a busy machine a kill comes late, and nothing may be missing any more
            wanted = min(len(known) + dice.randrange(1, OBJECTS // ROUNDS), OBJECTS)
            _wait_for_progress(daemon, database, wanted)
        if number % 5 == 2:  # some of them while searches compute vectors too
            # where nothing was missing any more, nothing was waited for
            daemon.wait_for_log("serving")
            asyncio.run(_killed_while_asked(daemon, dice.randrange(4)))
        else:
            daemon.send(signal.SIGKILL)
        daemon.exit_code()
        after = _vectors_left(database, tmp_path / "copy")
        assert known.items() <= after.items(), "a committed vector was lost or computed again"
        # what is committed is loaded, so that it is never computed again
        read = re.search(r"vectors read .*vectors=(\d+)", daemon.log)
        assert read is None or int(read[1]) == len(known)
        known = after
    daemon.start()
    computed = asyncio.run(_finish(daemon, OBJECTS - len(known)))
    assert daemon.stop() == 0
    final = _vectors(database)
    assert known.items() <= final.items()
    # The last round computed what was missing and no more: every kill cost only what was in
    # flight, one batch, since each round began with exactly the vectors that were committed.
    assert computed == OBJECTS - len(known)
    assert known
    _agree(daemon, database, tiny_model)


async def _killed_while_asked(daemon: Running, questions: int) -> None:
    """Ask some questions that need vectors of their own, and kill the daemon during the last."""
    async with calling(daemon.bus) as caller:
        for word in WORDS[:questions]:
            assert await search(caller, "hybrid", f"{word} {questions}")
        last = asyncio.create_task(search(caller, "hybrid", WORDS[questions]))
        await asyncio.sleep(0)
        daemon.send(signal.SIGKILL)
        await cancel([last])


async def _finish(daemon: Running, missing: int) -> int:
    """Wait until all have vectors, and give how many texts this run computed.

    On a busy machine a kill comes late, and nothing may be missing.
    """
    async with calling(daemon.bus) as caller:
        await caller.vectorized()
    daemon.wait_for_log(r"vectorized .*computed=[1-9]" if missing else "vectorized")
    return sum(int(n) for n in re.findall(r"vectorized .*computed=(\d+)", daemon.log))


def _agree(daemon: Running, database: Path, model: Path) -> None:
    """Check that each object has exactly its vector, the one that is computed now."""
    with closing(sqlite3.connect(database)) as reader:
        rows = reader.execute(
            "SELECT o.text, v.data FROM objects o JOIN vectors v ON v.text_digest = o.text_digest"
        ).fetchall()
        assert reader.execute("SELECT count(*) FROM objects").fetchone()[0] == OBJECTS
        assert reader.execute("SELECT count(*) FROM vectors").fetchone()[0] == OBJECTS
        assert reader.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    reader.close()
    assert len(rows) == OBJECTS
    settings = config.load(
        {"OP_DBUS_MODEL": str(model), "OP_DBUS_STATE_DIR": str(daemon.state_dir)}
    )

    async def fresh() -> np.ndarray:
        loaded = folder.load_model(LEVELS["medium"], settings)
        async with open_embedder(loaded, settings) as embedder:
            return (await embedder.embed([text for text, _ in rows])).vectors

    stored = np.frombuffer(b"".join(data for _, data in rows), "<f4").reshape(OBJECTS, -1)
    np.testing.assert_allclose(stored, asyncio.run(fresh()), atol=1e-5)
