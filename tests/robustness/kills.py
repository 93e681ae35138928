"""kill -9 at 50 random moments while objects are published, changed, withdrawn and indexed.

After each kill the database must hold what was acknowledged, a call that was not answered whole or
not at all, and every vector that was there. In the end answers and files must be those of a daemon
that has only the database. `--objects` come in besides those of `--filled`. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from harness.running import Bus, Running

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.history.verify import verify
from opdbus.index.database.database import connect_to_read
from opdbus.index.vectors.quantized_rows import SignQuantizedVectors
from opdbus.platform.tasks import cancel
from opdbus.state import publish
from opdbus.state.object import digest
from robustness.harness import finish, parser

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import sizes
from million import settled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opdbus.state.object import StateObject

_BATCH: Final = 1000
_CHANGED: Final = 200
_WITHDRAWN: Final = 40
# How many are killed while they start.
_STARTING: Final = 0.25
_SOURCE: Final = "publish:sizes"
_HITS: Final = 50
# What is not made of the database: itself, and what is built of the model.
_KEPT: Final = ("memory.db", "memory.db-wal", "memory.db-shm", "memory.lock", "graphs", "gates")
_UNLIMITED: Final = {"PUBLISH_OBJECTS": 1 << 30, "PUBLISH_BYTES": "1T", "HISTORY_ROWS": 1 << 30}


class Load:
    """What one client published: what was acknowledged, and what may be stored besides."""

    def __init__(self, count: int, seed: int, filled: Path, seconds: float) -> None:
        self.seconds = seconds
        self.dice = random.Random(seed)  # noqa: S311 -- no secret
        # what each object is stored as, by plugin, kind and name
        self.known = stored(filled) if filled.exists() else {}
        self.unanswered: dict[tuple[str, ...], int | None] = {}
        self.calls = 0
        self.starting = 0
        self._left = sizes.objects(count, first=len(self.known))
        self._object_ids = [*self.known]
        self._revision = 0

    async def run(self, client: Client) -> None:
        """Publish, change and withdraw until the daemon is gone."""
        while True:
            new = list(islice(self._left, _BATCH))
            self._object_ids += [one.identity[1:] for one in new]
            await self._publish(client, new)
            await self._publish(client, [self._changed() for _ in range(_CHANGED)])
            await self._withdraw(client)

    async def _publish(self, client: Client, objects: list[StateObject]) -> None:
        if objects:
            self.unanswered = {one.identity[1:]: hash(one.json()) for one in objects}
            rows = [(*one.identity[1:], dict(one.properties)) for one in objects]
            await client.publish(_SOURCE.removeprefix(publish.PUBLISHED), rows)
            self._answered()

    async def _withdraw(self, client: Client) -> None:
        there = self.dice.sample([*islice(self.known, 10 * _WITHDRAWN)], _WITHDRAWN)
        self.unanswered = dict.fromkeys(there)
        await client.withdraw([paths.of(*object_id) for object_id in there])
        self._answered()

    def _answered(self) -> None:
        self.calls += 1
        self.believe()

    def believe(self) -> None:
        """Take what was not answered as done."""
        for object_id, stored in self.unanswered.items():
            self.known.pop(object_id, None)
            if stored is not None:
                self.known[object_id] = stored
        self.unanswered = {}

    def _changed(self) -> StateObject:
        """Make another state of an object, which may have been withdrawn."""
        self._revision += 1
        object_id = self.dice.choice(self._object_ids)
        text = f"{self.dice.choice(sizes.ROLES)} {self.dice.choice(sizes.PLACES)}"
        values = {"description": f"{text} {self._revision % 5000}", "revision": self._revision}
        return publish.make_object(_SOURCE, *object_id, values)


async def round_of(daemon: Running, load: Load, state: Mapping[bytes, int]) -> dict[bytes, int]:
    """Start a daemon, look at what the last one left, and kill it at a random moment.

    `state` counts the vectors of each text that were there the last time; returns those now.
    """
    daemon.start()
    if load.dice.random() < _STARTING:
        load.starting += 1
        await asyncio.sleep(load.dice.uniform(0, load.seconds))
        daemon.send(signal.SIGKILL)
        daemon.exit_code()
        return dict(state)
    await sizes.until_serving(daemon.bus)
    now = await asyncio.to_thread(check, daemon.state_dir / "memory.db", load, state)
    async with Client(daemon.bus) as client, Client(daemon.bus) as other:
        tasks = [asyncio.create_task(load.run(client)), asyncio.create_task(_search(other))]
        done, _ = await asyncio.wait(
            tasks, timeout=load.dice.uniform(0, load.seconds), return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
        daemon.send(signal.SIGKILL)
        daemon.exit_code()
        await asyncio.wait(tasks[:1], timeout=10)
        await cancel(tasks)
    return now


async def _search(client: Client) -> None:
    """Ask all the time, so that what searches keep is made while it is killed."""
    while True:
        for question in sizes.QUESTIONS:
            try:
                await client.search(question, 10, {"where": "revision>3"})
            except OpDbusError:
                await asyncio.sleep(0.1)


def stored(database: Path) -> dict[tuple[str, ...], int]:
    """Give what each published object is stored as; what was declared went with its file."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reader:
        query = "SELECT plugin, kind, name, properties FROM objects WHERE source = ?"
        rows = reader.execute(query, (_SOURCE,))
        return {row[:3]: hash(row[3]) for row in rows}


def check(database: Path, load: Load, before: Mapping[bytes, int]) -> dict[bytes, int]:
    """Compare what is stored with what was acknowledged, and count the vectors of each text."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reader:
        there = stored(database)
        if there != load.known:
            load.believe()
        load.unanswered = {}
        differ = there.items() ^ load.known.items()
        assert not differ, f"acknowledged and stored differ: {sorted(differ)[:4]}"
        # the index has them all: the vectors themselves would be read from the disk
        now = dict(reader.execute("SELECT text_digest, count(*) FROM vectors GROUP BY text_digest"))
        lost = {text for text, count in before.items() if now.get(text, 0) < count}
        used = {row[0] for row in reader.execute("SELECT text_digest FROM objects")}
        assert not lost & used, "a committed vector was lost"
    return now


def examine(state_dir: Path, copy: Path) -> dict[str, Any]:
    """Look at the files of a daemon that has ended: all of them must agree."""
    database = state_dir / "memory.db"
    with closing(sqlite3.connect(database)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        reader.execute("INSERT INTO lexicon (lexicon, rank) VALUES ('integrity-check', 1)")
        [texts] = reader.execute("SELECT count(DISTINCT text_digest) FROM objects").fetchone()
    with closing(connect_to_read(database)) as history:
        report = verify(history, [])
    assert report.problems == []
    found = {"texts": texts, "rows of history": report.rows}
    counts = [
        (len(vectors := _vectors(database, file)), file and _same_vectors(file, vectors, copy))
        for file in [*(state_dir / "vectors").glob("*.rows")] or [None]
    ]
    assert max(counts)[0] == texts, "an object has no vector"
    return found | {"vectors in files, of each engine": [count for _, count in counts if count]}


def _vectors(database: Path, file: Path | None) -> dict[bytes, np.ndarray]:
    """Give the vectors of texts that objects have, by the engine that a file belongs to, or any."""
    engine = file and bytes.fromhex(file.stem)
    with closing(sqlite3.connect(database)) as reader:
        query = "SELECT key, text_digest, data FROM vectors JOIN objects USING (text_digest)"
        return {
            text: np.frombuffer(data, "<f4")
            for key, text, data in reader.execute(query)
            if not engine or key == digest(text, key=engine)
        }


def _same_vectors(file: Path, vectors: Mapping[bytes, np.ndarray], copy: Path) -> int:
    """Compare a file of vectors with the database, and what a copy gives."""
    dimension = len(next(iter(vectors.values())))
    sealed = SignQuantizedVectors(file, dimension)
    shutil.copy(file, copy)
    fresh = SignQuantizedVectors(copy, dimension)
    digests = sealed.take_recovered_digests()
    assert digests == fresh.take_recovered_digests()
    query = next(iter(vectors.values()))
    signs = sealed.products()(query), fresh.products()(query)
    assert np.array_equal(*signs), "signs are not of the vectors"
    rows = {digest: row for row, digest in enumerate(digests)}
    assert vectors.keys() <= rows.keys(), "a vector is not in the file"
    for part in (list(islice(iter(vectors), n, n + 4096)) for n in range(0, len(vectors), 4096)):
        there = sealed.take(np.array([rows[digest] for digest in part]))
        np.testing.assert_allclose(there, np.stack([vectors[d] for d in part]), atol=2e-3)
    return len(rows)


async def answers(daemon: Running) -> list[dict[str, float]]:
    """Give the score of each hit that is surely one."""
    found = []
    async with Client(daemon.bus) as client:
        for question in sizes.QUESTIONS:
            for options in ({}, {"where": "revision>100"}, {"plugin": "net"}):
                for mode in ("hybrid", "vector", "lexical"):
                    asked = {**options, "mode": mode, "all": True}
                    hits = await client.search(question, _HITS, asked)
                    scores = {hit[0]: round(float(hit[1]), 3) for hit in hits}
                    # of equal ones at the end, which come is nobody's promise
                    last = min(scores.values(), default=0.0) if len(scores) == _HITS else -1.0
                    found.append({path: score for path, score in scores.items() if score > last})
    return found


def derived_anew(daemon: Running) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Ask with the files as they were left, and again with nothing but the database."""
    found = []
    for _ in range(2):
        with daemon.start():
            asyncio.run(sizes.until_all_have_vectors(daemon.bus))
            # until words are looked for in memory, the database finds some of many
            settled(daemon)
            found.append(asyncio.run(answers(daemon)))
            sizes.stop(daemon)
        for path in daemon.state_dir.iterdir():
            if path.name not in _KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found[0], found[1]


def run(daemon: Running, load: Load, kills: int) -> dict[str, Any]:
    """Kill a daemon again and again, and examine what is left."""
    vectors: dict[bytes, int] = {}
    began = time.perf_counter()
    counts = []
    for number in range(kills):
        vectors = asyncio.run(round_of(daemon, load, vectors))
        counts.append((len(load.known), sum(vectors.values())))
        print(f"kill {number + 1}: {counts[-1]}", file=sys.stderr, flush=True)
    with daemon.start():
        asyncio.run(sizes.until_all_have_vectors(daemon.bus))
        check(daemon.state_dir / "memory.db", load, vectors)
        sizes.stop(daemon)
    found = examine(daemon.state_dir, daemon.folder / "copy.rows")
    left, anew = derived_anew(daemon)
    assert left == anew, [(a, b) for a, b in zip(left, anew, strict=True) if a != b][:1]
    return {
        "kills": kills,
        "kills while it started": load.starting,
        "objects": len(load.known),
        "calls acknowledged": load.calls,
        "objects and vectors at each kill": counts,
        "answers compared": len(anew),
        "hits compared": sum(map(len, anew)),
        **found,
        "seconds": round(time.perf_counter() - began),
    }


def main() -> int:
    """Print what was found, and give the exit code."""
    reading = parser(__doc__)
    reading.add_argument("--objects", type=int, default=100_000, help="new ones")
    reading.add_argument("--kills", type=int, default=50)
    reading.add_argument("--seconds", type=float, default=4.0, help="at most between two kills")
    reading.add_argument("--seed", type=int, default=15)
    reading.add_argument("--filled", type=Path, help="begin with a copy of a folder of million.py")
    given = reading.parse_args()
    bus = Bus()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            level = "static"
            if given.filled:
                shutil.copytree(given.filled / "state", folder / "state")
                level = json.loads((given.filled / "fill.json").read_text())["level"]
            (folder / "none.json").write_text('{"version": 1, "plugins": {}}')
            settings = {"STATE_FILE": folder / "none.json", "VECTOR_LEVEL": level}
            daemon = Running(folder, bus.address, LOG_LEVEL="warning", **settings, **_UNLIMITED)
            try:
                database = daemon.state_dir / "memory.db"
                load = Load(given.objects, given.seed, database, given.seconds)
                found = run(daemon, load, given.kills)
            finally:
                daemon.kill()
    finally:
        bus.kill()
    return finish(given, found, [])


if __name__ == "__main__":
    sys.exit(main())
