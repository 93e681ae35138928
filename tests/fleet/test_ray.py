"""The vectors of a fleet by the real Ray, with two actors on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.fleet_workers import computed, states, sync, with_model, work

from opdbus.fleet import fleet_level, vector_store

if TYPE_CHECKING:
    from harness.fleets import FleetDatabase

    from opdbus.config import Config

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(
        not importlib.util.find_spec("ray"), reason="ray is not installed: the extra `ray` has it"
    ),
    # of Ray's own threads and files
    pytest.mark.filterwarnings("ignore"),
]
_TEXTS = 3000
_COMPUTED = "SELECT count(*) FROM opdbus.vector WHERE numerics = (SELECT wanted FROM opdbus.fleet)"
# Counts vectors that came to be stored, also those of transactions that a kill undid.
_COUNT_ATTEMPTS = """
CREATE SEQUENCE opdbus.attempts;
CREATE FUNCTION opdbus.count_attempt() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM nextval('opdbus.attempts');
  RETURN NEW;
END $$;
CREATE TRIGGER attempts BEFORE INSERT ON opdbus.vector FOR EACH ROW
  EXECUTE FUNCTION opdbus.count_attempt()
"""


def test_another_level_by_ray(database: FleetDatabase, static: Config, settings: Config) -> None:
    """Change the level by two actors: all vectors are there once, and serve."""
    from opdbus.fleet.ray_embed import RayRun

    host = database.add("web1")
    work(database, static)
    sync(database, static, host, states(_TEXTS))
    work(database, static)
    with_model(database, settings, fleet_level.want)
    run = RayRun(settings, database.server.url, database.server.password, actors=2)
    assert run.embed() == _TEXTS
    assert database.run(fleet_level.read_progress) == ("medium", "medium", _TEXTS, _TEXTS)
    assert computed(database, settings)
    # nothing is left, and a second run says so
    assert run.embed() == 0


def test_an_actor_that_is_killed(database: FleetDatabase, static: Config, settings: Config) -> None:
    """Have the batches of a killed actor computed by another one."""
    from opdbus.fleet.ray_embed import RayRun

    host = database.add("web1")
    work(database, static)
    sync(database, static, host, states(2 * _TEXTS))
    work(database, static)
    with_model(database, settings, fleet_level.want)
    database.run(lambda each: each.execute(_COUNT_ATTEMPTS))
    killed: list[int] = []

    def kill() -> None:
        while database.fetch(_COMPUTED) == [(0,)]:
            time.sleep(0.01)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                number = int(path.parent.name)
                if b"ray::MapWorker" in path.read_bytes() and _is_ours(number) and not killed:
                    killed.append(number)
                    os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    run = RayRun(settings, database.server.url, database.server.password, actors=2)
    assert run.embed() <= 2 * _TEXTS
    assert killed
    progress = database.run(fleet_level.read_progress)
    assert progress == ("medium", "medium", 2 * _TEXTS, 2 * _TEXTS)
    ((attempts,),) = database.fetch("SELECT last_value FROM opdbus.attempts")
    print(f"{attempts} stored for {2 * _TEXTS} texts, one actor killed")
    assert 2 * _TEXTS <= attempts <= 2 * _TEXTS + vector_store.BATCH


def _is_ours(process: int) -> bool:
    """Return whether this process started another one, or its parent."""
    while process > 1 and process != os.getpid():
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(fields[1])
    return process > 1
