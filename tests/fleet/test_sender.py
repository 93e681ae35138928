"""The sender with a real daemon and a real database: the database equals the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from harness.running import calling, replace

from opdbus.client import Client

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fleet_hosts import FleetHost
    from harness.fleets import FleetDatabase
    from harness.running import Running

BOXES = [("lab", "box", f"n{n}", {"number": n, "size": "large"}) for n in range(40)]
DECLARED = {"version": 1, "plugins": {"lab": {"boxes": {"n1": {"number": 7}, "gone": {"a": 1}}}}}

# Texts of objects without a vector that a host offered.
LACKING = (
    "SELECT count(*) FROM opdbus.object JOIN opdbus.content ON content.digest = object.content"
    " LEFT JOIN opdbus.offered_vector AS offered ON offered.digest = content.text"
    " WHERE offered.digest IS NULL"
)


@pytest.fixture
def host(database: FleetDatabase, daemons: Callable[..., Running], tmp_path: Path) -> FleetHost:
    """Start a daemon that is the host web1 of a fleet."""
    from harness.fleet_hosts import FleetHost

    file = replace(tmp_path / "state.json", json.dumps(DECLARED))
    daemon = daemons(STATE_FILE=file).start()
    return FleetHost(daemon, database, database.add("web1"))


async def test_first_synchronization_and_changes(host: FleetHost) -> None:
    """Send all objects, history, drift and vectors; then what changes and what goes."""
    async with calling(host.daemon.bus) as caller, Client(host.daemon.bus) as client:
        await caller.ready()
        await client.publish("test", BOXES)
        await caller.vectorized()
        async with host.sending():
            await host.until_equal(client)
            await client.publish("test", [("lab", "box", "n1", {"number": 100})])
            await client.publish("test", [("lab", "box", "new", {"text": "a\\u0000b"})])
            await client.withdraw(["/org/opdbus/state/lab/box/n2"])
            await host.until_equal(client)
            await caller.vectorized()
            await host.until_answer(LACKING, (0,))
        counts = await host.fetch("SELECT backlog, conflict, epoch FROM opdbus.host")
        assert counts == [(0, None, 1)]
