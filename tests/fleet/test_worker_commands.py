"""Commands of workers, as processes: they say what they did, and may be killed at any moment."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import TYPE_CHECKING

import pytest
from harness.fleet_workers import (
    computed,
    count_computed,
    run_command,
    start_command,
    states,
    sync,
    with_model,
    work,
)
from harness.fleets import facts, history

from opdbus.fleet import fleet_level, vector_store

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from harness.fleets import FleetDatabase

    from opdbus.config import Config

_TEXTS = 6000
_KILLED = 3


def test_commands_of_workers(database: FleetDatabase, tmp_path: Path) -> None:
    """Bring a level, compute, say the progress, verify a host."""
    host = database.add("web1")
    # the rows are of 1970
    database.run(lambda each: each.execute("UPDATE opdbus.fleet SET keep_days = 100000"))

    async def send() -> None:
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host, 1, 3), None)
            await uplink.send(history(3), states(20), 0)

    asyncio.run(send())

    def run(*arguments: str) -> tuple[int, str, str]:
        return run_command(database, tmp_path, *arguments, VECTOR_LEVEL="static")

    assert run("level")[1].startswith("no level yet")
    code, _, error = run("worker", "--once")
    assert (code, json.loads(error.splitlines()[-1])["texts"]) == (0, 20)
    assert json.loads(run("level", "--json")[1]) == {
        "serving": "static",
        "wanted": "static",
        "done": 20,
        "total": 20,
    }
    assert "20 of 20 texts" in run("level")[1]
    code, out, _ = run("verify", host)
    assert code == 0
    assert "epoch 1, since " in out
    assert "3 rows, 1 to 3; the first rows that came" in out
    assert "nothing wrong was found: rows follow each other; values" in out
    # a checkpoint is made of the last row of a batch
    assert "no checkpoint" not in out
    database.fetch("DELETE FROM opdbus.checkpoint")
    assert "no checkpoint vouches for its rows yet" in run("verify", host)[1]
    database.run(lambda each: each.execute("UPDATE opdbus.change SET name = 'x' WHERE seq = 2"))
    code, out, _ = run("verify", host)
    assert (code, "WRONG: epoch 1, row 2 of 1970-01-01 00:00:02Z, app/service/x: " in out) == (
        1,
        True,
    )
    found = json.loads(run("verify", host, "--json")[1])
    assert (found["ok"], found["findings"][0]["seq"], found["epochs"][0]["rows"]) == (False, 2, 3)
    assert run("level", "none")[0] == 2
    code, _, error = run("verify", "web9")
    assert (code, error) == (
        1,
        "op-dbus: the fleet has no host web9: `op-dbus fleet hosts` names all\n",
    )


def test_a_worker_ends_when_it_is_told_to(database: FleetDatabase, tmp_path: Path) -> None:
    """End by SIGTERM with exit code 0, and with what it computed stored."""
    with start_command(database, tmp_path, "worker", VECTOR_LEVEL="static") as process:
        _wait(database, "SELECT wanted IS NOT NULL FROM opdbus.fleet")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.fleet
def test_three_workers_of_which_one_is_killed(
    database: FleetDatabase, tmp_path: Path, static: Config, settings: Config
) -> None:
    """Change the level of thousands of texts: nothing is computed twice beyond killed batches."""
    work(database, static)
    sync(database, static, database.add("web1"), states(_TEXTS))
    work(database, static)
    with_model(database, settings, fleet_level.want)
    logs, begun = [], 0

    def start() -> subprocess.Popen[str]:
        nonlocal begun
        begun += 1
        home = tmp_path / str(begun)
        home.mkdir()
        return start_command(
            database,
            home,
            *("worker", "--once", "--threads", "1"),
            # each batch takes about a second, so that a kill hits one
            MODEL=settings.model,
            PRECISION="fp32",
            LOG_LEVEL="debug",
        )

    workers = [start() for _ in range(3)]
    done = "SELECT count(*) FROM opdbus.vector WHERE numerics = (SELECT wanted FROM opdbus.fleet)"
    for number in range(_KILLED):
        goal = _TEXTS * (number + 1) // (_KILLED + 2)
        _wait(database, f"SELECT ({done}) >= {goal}")
        victim = workers.pop(number % len(workers))
        victim.kill()
        logs.append(victim.communicate()[1])
        workers.append(start())
    for process in workers:
        logs.append(process.communicate(timeout=300)[1])
        assert process.returncode == 0
    assert database.run(fleet_level.read_progress) == ("medium", "medium", _TEXTS, _TEXTS)
    assert computed(database, settings)
    total = sum(map(count_computed, logs))
    print(f"{total} computed for {_TEXTS} texts, {_KILLED} workers killed")
    assert _TEXTS <= total <= _TEXTS + _KILLED * vector_store.BATCH


@pytest.mark.fleet
def test_a_database_that_goes_away_is_waited_for(
    database: FleetDatabase, tmp_path: Path, static: Config
) -> None:
    """Go on after all sessions were ended, as by a restart of the server."""
    work(database, static)
    with start_command(database, tmp_path, "worker", VECTOR_LEVEL="static") as process:
        _wait(
            database,
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = 'opdbus_admin'"
            " AND pid <> pg_backend_pid() AND application_name = 'op-dbus'",
        )
        database.run(
            lambda each: each.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'op-dbus' AND pid <> pg_backend_pid()"
            )
        )
        sync(database, static, database.add("web1"), states(50))
        _wait(database, "SELECT count(*) = 50 FROM opdbus.vector")
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 0, out + error
    assert '"database away"' in error


def _wait(database: FleetDatabase, sql: str) -> None:
    """Wait until a query says so."""
    end = time.monotonic() + 100
    while database.fetch(sql) != [(True,)]:
        assert time.monotonic() < end, sql
        time.sleep(0.05)
