"""Workers of a fleet's database for tests, and hosts that offer vectors."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from harness.fleets import FleetDatabase, facts, state_row, text_digest
from opdbus.config import Config
from opdbus.engine.opening import open_level
from opdbus.fleet import vector_store
from opdbus.fleet.uplink import StateRow
from opdbus.fleet.vector_store import Model
from opdbus.fleet.worker import Worker

# Objects of a batch.
_AT_ONCE = 2000


def states(count: int, mark: str = "shared") -> list[StateRow]:
    """Return objects with different texts."""
    return [
        state_row(f"{mark}{number}", f"service {mark} number {number} is active", port=number)
        for number in range(count)
    ]


def work(database: FleetDatabase, settings: Config, level: str = "") -> None:
    """Run a worker until nothing is left to do."""
    worker = Worker(settings, database.server.url, database.server.password, level)
    asyncio.run(worker.run(once=True))


def with_model(
    database: FleetDatabase, settings: Config, run: Callable[[Any, Model], Awaitable[Any]]
) -> Any:
    """Run a coroutine function with a prepared connection and an open engine."""

    async def open_and_run(connection: Any) -> Any:
        await vector_store.prepare(connection)
        async with open_level(settings, settings.vector_level) as engine:
            return await run(connection, await vector_store.register(connection, engine))

    return database.run(open_and_run)


def sync(
    database: FleetDatabase,
    settings: Config,
    host: str,
    rows: Sequence[StateRow],
    falsify: Callable[[int, np.ndarray], np.ndarray] | None = None,
    *,
    all_: bool = False,
) -> int:
    """Send objects and offer their vectors as a host with this model; return how many were taken.

    `falsify` changes the vector of a number. `all_`: also those that the database did not ask for.
    """

    async def run(_connection: Any, model: Model) -> int:
        async with database.uplink(host) as uplink:
            given = facts(host, numerics=model.engine.numerics)
            given = replace(given, level=model.engine.level, dimension=model.engine.dimension)
            await uplink.begin(given, None)
            lacking = []
            for start in range(0, len(rows), _AT_ONCE):
                lacking += await uplink.send([], rows[start : start + _AT_ONCE], 0)
            offered = rows if all_ else lacking
            vectors = await model.compute([_text(row) for row in offered])
            if falsify:
                vectors = np.array([falsify(*each) for each in enumerate(vectors)])
            return await uplink.offer_vectors(
                dict(zip(map(text_digest, offered), vectors.tolist(), strict=True))
            )

    return int(with_model(database, settings, run))


def _text(row: StateRow) -> str:
    return str(json.loads(row.body or "")["text"])


def computed(database: FleetDatabase, settings: Config) -> bool:
    """Return whether all stored vectors are those that an engine computes."""

    async def run(connection: Any, model: Model) -> bool:
        rows = await connection.fetch(
            "SELECT text, v FROM opdbus.vector JOIN opdbus.text USING (digest) WHERE numerics = $1",
            model.numerics,
        )
        own = await model.compute([row["text"] for row in rows])
        return all(row["v"] @ vector > 0.999 for row, vector in zip(rows, own, strict=True))

    return bool(with_model(database, settings, run))


def start_command(
    database: FleetDatabase,
    home: Path,
    *arguments: str,
    stderr: IO[str] | int = subprocess.PIPE,
    **settings: object,
) -> subprocess.Popen[str]:
    """Start `op-dbus fleet ...` with the superuser's login; settings are without their prefix."""
    password = home / "password"
    password.touch(mode=0o600)
    password.write_text(database.server.password)
    given = {
        "FLEET_DATABASE": database.server.url,
        "FLEET_PASSWORD_FILE": password,
        "STATE_DIR": home / "state",
        "LOG_FORMAT": "json",
        **settings,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "opdbus", "fleet", *arguments],
        env={"HOME": str(home), "PATH": os.environ["PATH"]}
        | {f"OP_DBUS_{name}": str(value) for name, value in given.items()},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def run_command(
    database: FleetDatabase, home: Path, *arguments: str, **settings: object
) -> tuple[int, str, str]:
    """Run `op-dbus fleet ...`; return its exit code and what it printed."""
    with start_command(database, home, *arguments, **settings) as process:
        out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def count_computed(log: str) -> int:
    """Return the number of vectors that a worker computed, by its log in JSON."""
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return sum(entry["texts"] for entry in entries if entry["event"] == "computed")
