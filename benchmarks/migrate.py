"""Starts of this program on databases of earlier commits: how long, how large, and equal to new.

`make COMMIT FOLDER --objects N` checks a commit out into a temporary folder, and has its own code
store objects in FOLDER. `dump FOLDER` prints its database as SQL, for tests/data/old. `measure
COMMIT...` makes databases of so many objects, kills today's program ten times while it migrates
each, and compares the end with a database built afresh: objects, texts, words, history's chain, and
answers with their scores. The figures are JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.extend(str(Path(__file__).parent / part) for part in (".", "../tests"))
import sizes
from harness.running import ROOT_PATH, STATE, STATE_PATH, VECTORIZER, Bus, Caller, Running

from opdbus.bench.machine import describe
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.errors import OpDbusError
from opdbus.history.verify import verify
from opdbus.index.database.database import connect_to_read
from opdbus.index.database.records import written_by
from opdbus.index.storage.migration import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parent.parent
COMMITS: Final = ("9b7201f", "0018d2d", "ae6f312", "f936244")
KILLS: Final = 10
SEED: Final = 34
# Stores objects, a tenth of which change once, by the code of an older commit and its names.
_STORE: Final = """
import asyncio, itertools, json, sys
from pathlib import Path
from opdbus.index.memory import Memory
from opdbus.index.quota import Quota, Usage
from opdbus.state.object import Identity, StateObject

def objects():
    for line in sys.stdin:
        *named, properties = json.loads(line)
        yield StateObject(Identity("publish:sizes", *named), properties)

async def store(path):
    items = objects()
    async with Memory(path, usage=Usage(Quota(1 << 30, 1 << 40))) as memory:
        while part := list(itertools.islice(items, 1000)):
            first = [StateObject(one.identity, {"description": "as it was"}) for one in part[::10]]
            await memory.publish(first, 1000)
            await memory.publish(part, 1000)

asyncio.run(store(Path(sys.argv[1])))
"""
_SHADOWS: Final = ("_data", "_idx", "_docsize", "_config", "_content")
_PING_SECONDS: Final = 0.02
_SEARCH_SECONDS: Final = 1.0
_LIMITS: Final = {"PUBLISH_OBJECTS": 1 << 30, "PUBLISH_BYTES": "1T", "VECTOR_LEVEL": "none"}


def make(commit: str, folder: Path, count: int) -> None:
    """Have the code of a commit store so many objects in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps([*one.identity[1:], dict(one.properties)]) for one in sizes.objects(count)]
    with tempfile.TemporaryDirectory() as code:
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, "opdbus"], check=True, stdout=subprocess.PIPE
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(code, filter="data")
        subprocess.run(
            [sys.executable, "-c", _STORE, folder / "memory.db"],
            check=True,
            cwd=code,
            env=os.environ | {"PYTHONPATH": code},
            input="\n".join(lines),
            text=True,
        )


def provide(commit: str, folder: Path, count: int, made: Path | None) -> None:
    """Copy the database of a commit where it was made already, and make it where not."""
    if made and (made / commit).exists():
        shutil.copytree(made / commit, folder)
    else:
        make(commit, folder, count)


def dump(folder: Path) -> Iterator[str]:
    """Yield SQL that makes a database of op-dbus again: its tables for full text are rebuilt."""
    with contextlib.closing(sqlite3.connect(folder / "memory.db")) as database:
        rows = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        words = [name for kind, name, sql in rows if kind == "table" and "USING fts5" in sql]
        shadows = {name + end for name in words for end in _SHADOWS}
        tables = [row for row in rows if row[0] == "table" and row[1] not in shadows]
        for pragma in ("application_id", "user_version"):
            yield f"PRAGMA {pragma} = {database.execute(f'PRAGMA {pragma}').fetchone()[0]};"
        for _, name, sql in tables:
            if name != "sqlite_sequence":
                yield f"{sql};"
        for _, name, _ in tables:
            if name not in words:
                yield from _inserts(database, name)
        for kind, _, sql in rows:
            if kind in {"index", "trigger"} and sql:
                yield f"{sql};"
        for name in words:
            yield f"INSERT INTO {name} ({name}) VALUES ('rebuild');"  # noqa: S608 -- its own names


def _inserts(database: sqlite3.Connection, table: str) -> Iterator[str]:
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    quoted = " || ', ' || ".join(f"quote({column})" for column in columns)
    for (values,) in database.execute(f"SELECT {quoted} FROM {table}"):  # noqa: S608 -- its own names
        yield f"INSERT INTO {table} VALUES ({values});"  # noqa: S608 -- its own names


def age(folder: Path) -> None:
    """Have a database be one of another version, also if today's is the same as its own."""
    with contextlib.closing(sqlite3.connect(folder / "memory.db")) as database, database:
        older = written_by().replace("text ", "text 0")
        database.execute(
            "UPDATE facts SET value = ? WHERE name = ? AND value = ?",
            (older, WRITTEN, written_by()),
        )


def measure(commits: Sequence[str], count: int, folder: Path, made: Path | None) -> dict[str, Any]:
    """Migrate databases of some commits under kills, and give what that cost.

    Those that `make` left in folders of a folder, one of each commit, are not made again.
    Raises ValueError where the end is not as a database built afresh.
    """
    fresh = folder / "fresh" / "state"
    provide("HEAD", fresh, count, made)
    expected = content(folder / "fresh")
    rows = []
    for commit in commits:
        place = folder / commit
        provide(commit, place / "state", count, made)
        age(place / "state")
        shutil.copytree(place, folder / f"{commit}-killed")
        row = {"commit": commit, **migrated(place)}
        row |= killed(folder / f"{commit}-killed", row["all migrated s"] - row["READY s"])
        for one in (place, folder / f"{commit}-killed"):
            found = content(one)
            for part, value in expected.items():
                if found[part] != value:
                    raise ValueError(f"{one.name}: {part} is not as built afresh")
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return {"machine": asdict(describe()), "objects": count, "rows": rows}


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Running]:
    """Give a daemon with a folder and a bus of its own, which is not started."""
    (folder / "none.json").write_text('{"version": 1, "plugins": {}}')
    bus = Bus()
    try:
        yield Running(folder, bus.address, STATE_FILE=folder / "none.json", **_LIMITS)
    finally:
        bus.kill()


def migrated(folder: Path) -> dict[str, Any]:
    """Start once, until all is done, and give seconds, memory, and how long a call took at most."""
    with placed(folder) as daemon:
        began = time.perf_counter()
        with daemon:
            figures = asyncio.run(_follow(daemon, began))
            figures["peak MiB"] = _peak(daemon.pid)
            sizes.stop(daemon)
    return figures


async def _follow(daemon: Running, began: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    longest, asked, searches, due = 0.0, 0.0, 0, 0.0
    async with Connection(daemon.bus) as connection:
        caller, state = Caller(connection), ""
        while state != "ready":
            await asyncio.sleep(_PING_SECONDS)
            sent = time.perf_counter()
            try:
                state = await caller.get(ROOT_PATH, VECTORIZER, "State")
            except (OpDbusError, RemoteError):
                continue
            figures.setdefault("READY s", round(sent - began, 2))
            longest = max(longest, time.perf_counter() - sent)
            if time.perf_counter() > due:
                sent = time.perf_counter()
                if not await _search(connection, sizes.QUESTIONS[1]):
                    raise ValueError("nothing is found while objects are migrated")
                asked, searches = max(asked, time.perf_counter() - sent), searches + 1
                due = time.perf_counter() + _SEARCH_SECONDS
    return {
        **figures,
        "all migrated s": round(time.perf_counter() - began, 2),
        "longest status ms": round(1000 * longest, 1),
        "longest search ms": round(1000 * asked, 1),
        "searches meanwhile": searches,
    }


async def _search(connection: Connection, question: str) -> list[Any]:
    found = await connection.call(
        "org.opdbus", STATE_PATH, f"{STATE}.Search", "sua{sv}", question, 10, {}
    )
    hits: list[Any] = found[0]
    return hits


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def killed(folder: Path, seconds: float) -> dict[str, Any]:
    """Kill the program at random moments while it migrates, and start it a last time."""
    chance, lefts = random.Random(SEED), []  # noqa: S311 -- no secret
    with placed(folder) as daemon:
        for _ in range(KILLS):
            with daemon.start():
                # "migrated", where the kills before were late
                daemon.wait_for_log("migrat|serving")
                time.sleep(chance.random() * seconds / KILLS)
                daemon.kill()
            lefts.append(_left(folder))
        with daemon.start():
            asyncio.run(sizes.until_serving(daemon.bus))
            sizes.stop(daemon)
    return {"left after each kill": lefts}


def _left(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "state" / "memory.db")) as database:
        row = database.execute("SELECT value FROM facts WHERE name = 'migration'").fetchone()
    if row is None:
        return -1
    _, _, rendered, last, _ = json.loads(row[0])
    return int(last - rendered)


def content(folder: Path) -> dict[str, Any]:
    """Give what a folder's database holds, and what a daemon with it answers."""
    path = folder / "state" / "memory.db"
    columns = "source, plugin, kind, name, owner, properties, text, words, fingerprint, traits"
    with contextlib.closing(sqlite3.connect(path)) as database:
        query = f"SELECT {columns}, hex(text_digest) FROM objects ORDER BY 1, 2, 3, 4"  # noqa: S608 -- our own names
        rows = database.execute(query).fetchall()
        # raises where words and objects disagree
        check = "INSERT INTO lexicon (lexicon, rank) VALUES ('integrity-check', 1)"
        database.execute(check)
        written = database.execute("SELECT value FROM facts WHERE name = ?", (WRITTEN,)).fetchone()
    with contextlib.closing(connect_to_read(path)) as database:
        problems = verify(database, ()).problems
    with placed(folder) as daemon, daemon:
        answers = asyncio.run(_answers(daemon))
        sizes.stop(daemon)
    return {"objects": rows, "written": written, "problems": problems, "answers": answers}


async def _answers(daemon: Running) -> list[Any]:
    await sizes.until_serving(daemon.bus)
    async with Connection(daemon.bus) as connection:
        found = [await _search(connection, question) for question in sizes.QUESTIONS]
    return [[_rounded(hit) for hit in hits] for hits in found]


def _rounded(hit: Sequence[Any]) -> list[Any]:
    return [round(part, 4) if isinstance(part, float) else str(part) for part in hit]


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("make", "dump", "measure"))
    parser.add_argument("which", nargs="*")
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--made", type=Path)
    given = parser.parse_args()
    if given.work == "make":
        make(given.which[0], Path(given.which[1]), given.objects)
    elif given.work == "dump":
        sys.stdout.writelines(f"{line}\n" for line in dump(Path(given.which[0])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(given.which or COMMITS, given.objects, Path(folder), given.made)
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
