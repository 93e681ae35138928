"""The vectors of a fleet by the real Ray, with two actors on this machine."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from harness.fleet_workers import computed, states, sync, with_model, work

from opdbus.fleet import fleet_level

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
