"""kill -9 at any moment while much changes: objects, vectors and history agree, nothing is lost.

`OP_DBUS_TEST_KILLS` is the number of kills: `make test-all` does 50.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness.running import STATE, STATE_PATH, Caller, Running, calling, state_file
from test_kill import _vectors_left

from opdbus.bus.transport.connection import RemoteError
from opdbus.history.change import from_json, undone
from opdbus.history.verify import verify
from opdbus.index.database.database import connect_to_read

KILLS = int(os.environ.get("OP_DBUS_TEST_KILLS", "4"))
NAMES = [f"u{number}.service" for number in range(40)]
SOURCE = "publish:load"
WORDS = "network mail disk user time login backup service host rule".split()


class Load:
    """What one client published: each state that was acknowledged, and those that may be stored."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311 -- the same in every run
        # in order, with None for an object that was not there
        self.known: dict[str, list[dict[str, Any] | None]] = defaultdict(lambda: [None])
        self.unanswered: dict[str, dict[str, Any]] = {}
        self.count = 0

    async def run(self, caller: Caller) -> None:
        """Publish until the daemon is killed."""
        while True:
            batch = {name: self._state() for name in self._dice.sample(NAMES, 10)}
            self.unanswered = batch
            objects = [("systemd", "unit", name, state) for name, state in batch.items()]
            method = STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}"
            await caller.call(*method, SOURCE.removeprefix("publish:"), objects, {})
            self._believe(batch)

    def settle(self, stored: dict[str, dict[str, Any]]) -> None:
        """Compare what is stored after a kill; a batch that was not answered is there or not."""
        batch, self.unanswered = self.unanswered, {}
        last = {name: states[-1] for name, states in self.known.items() if states[-1]}
        if stored != last:
            self._believe(batch)
            last = {name: states[-1] for name, states in self.known.items() if states[-1]}
        assert stored == last, "something acknowledged was lost, or half of something was kept"

    def _believe(self, batch: dict[str, dict[str, Any]]) -> None:
        self.unanswered = {}
        for name, state in batch.items():
            self.known[name].append(state)

    def _state(self) -> dict[str, Any]:
        self.count += 1
        words = " ".join(self._dice.sample(WORDS, 3))
        more = {"port": self._dice.randrange(9)} if self._dice.random() < 0.5 else {}
        return {"number": self.count, "description": words, **more}


async def kill(daemon: Running, load: Load, seconds: float) -> None:
    """Have the daemon killed at a moment of the load."""
    async with calling(daemon.bus) as caller:
        daemon.start()
        await caller.ready("ready", "loading", "degraded", "preparing")
        task = asyncio.create_task(load.run(caller))
        await asyncio.wait([task], timeout=seconds)
        daemon.send(signal.SIGKILL)
        with pytest.raises(RemoteError, match=r"without replying|not provided|no owner"):
            await task
    daemon.exit_code()


def stored(reader: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    """Read all published objects."""
    rows = reader.execute("SELECT name, properties FROM objects WHERE source = ?", (SOURCE,))
    return {name: json.loads(properties) for name, properties in rows}


def replay(reader: sqlite3.Connection, load: Load) -> None:
    """Undo history from what is stored, and meet each state that there was, in its order."""
    states: dict[str, dict[str, Any]] = stored(reader)
    met: dict[str, list[Any]] = defaultdict(list)
    rows = "SELECT name, what, fields FROM history WHERE source = ? ORDER BY seq DESC"
    for name, what, fields in reader.execute(rows, (SOURCE,)):
        met[name].append(states[name])
        states[name] = undone(states[name], from_json(json.loads(fields)))
        if what == "appeared":
            assert states.pop(name) == {}
            met[name].append(None)
    assert states == {}
    assert {name: found[::-1] for name, found in met.items()} == load.known


def test_nothing_acknowledged_is_lost(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Keep objects and history together through kills, with a chain that holds."""
    dice, load = random.Random(11), Load(12)  # noqa: S311 -- the same moments in every run
    daemon = daemons(STATE_FILE=state_file(tmp_path / "state.json", {}), LOG_LEVEL="info")
    database, copy = daemon.state_dir / "memory.db", tmp_path / "copy"
    for _ in range(KILLS):
        asyncio.run(kill(daemon, load, dice.uniform(0.0, 1.0)))
        _vectors_left(database, copy)
        with closing(sqlite3.connect(copy / database.name)) as reader:
            load.settle(stored(reader))
            replay(reader, load)
        with closing(connect_to_read(copy / database.name)) as reader:
            report = verify(reader, [])
        assert report.problems == []
        assert report.rows == sum(len(states) - 1 for states in load.known.values())
    assert load.count > KILLS
    daemon.settings |= {"OP_DBUS_LOG_LEVEL": "debug"}
    # it is logged once vectors that nothing has any more are pruned
    daemon.start().wait_for_log(r"\bvectorized +computed")
    assert daemon.stop() == 0
    with closing(sqlite3.connect(database)) as reader:
        replay(reader, load)
        others = ("objects", "vectors"), ("vectors", "objects")
        counting = "SELECT count(*) FROM {} WHERE text_digest NOT IN (SELECT text_digest FROM {})"
        assert [reader.execute(counting.format(*pair)).fetchone()[0] for pair in others] == [0, 0]
        assert reader.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
