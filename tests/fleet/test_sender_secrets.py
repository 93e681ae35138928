"""A host with secrets in all that it has: none of them reaches the fleet's database."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from attacks import planted
from attacks.leaks import secrets
from attacks.planted import FORMS, MARK
from attacks.scene import Attacker, attacking
from attacks.sources import SECRETS
from harness.running import PATIENCE_SECONDS, Bus, calling, replace

from opdbus.client import Client
from opdbus.state.secret_text import REDACTED

pytest.importorskip("asyncpg")

from harness.fleet_hosts import FleetHost

from opdbus.fleet import host_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.fleets import FleetDatabase
    from harness.running import Running

pytestmark = pytest.mark.fleet

TABLES = """
SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = 'opdbus' AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY relname
"""
# Plugins in whose objects there is a secret.
PLUGINS = {"systemd", "cron", "users", "kernel", "mounts", "packages", "lab"}


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Have a host with secrets, with fakes of PID 1 and logind."""
    for name, value in planted.install(tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    own = Bus()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", own.address)
    with attacking(own.address, SECRETS, [Attacker(program="attacks.sources")], 1000.0):
        yield own.address
    own.kill()


def boxes(turn: int) -> list[tuple[str, str, str, dict[str, object]]]:
    """Return objects with a secret of each form."""
    return [
        (
            "lab",
            "box",
            f"b{n}",
            {"note": form.format(f"{MARK}planted0123456789turn{turn}n{n}"), "turn": turn},
        )
        for n, form in enumerate(FORMS)
    ]


async def hiding_plugins(client: Client) -> set[str]:
    """Return the plugins whose objects show that secrets were hidden."""
    rows = [row async for row in host_reader.read_everything(client)]
    return {row.plugin for row in rows if row.body and REDACTED in row.body}


async def test_no_secret_reaches_the_database(
    bus: str, daemons: Callable[..., Running], database: FleetDatabase, tmp_path: Path
) -> None:
    """Find no secret in any table, of what is observed, published, declared, changed or drifts."""
    declared: dict[str, dict[str, object]] = {
        name: {"note": "plain", "turn": 9} for _, _, name, _ in boxes(0)
    }
    declared["secret"] = {"password": f"{MARK}declared", "note": FORMS[0].format(MARK)}
    file = replace(
        tmp_path / "state.json", json.dumps({"version": 1, "plugins": {"lab": {"boxes": declared}}})
    )
    daemon = daemons(bus=bus, OBSERVE=",".join(planted.NAMES), STATE_FILE=file).start()
    name = await asyncio.to_thread(database.add, "web1")
    host = FleetHost(daemon, database, name)
    async with calling(bus) as caller, Client(bus) as client, host.sending():
        await caller.ready()
        for turn in range(3):
            await client.publish("test", boxes(turn))
        end = time.monotonic() + PATIENCE_SECONDS
        while missing := PLUGINS - await hiding_plugins(client):
            assert time.monotonic() < end, f"nothing is hidden in {sorted(missing)}"
            await asyncio.sleep(0.2)
        await caller.vectorized()
        await host.until_answer("SELECT count(*) >= 5 FROM opdbus.drift", (True,))
        for (table,) in await host.fetch(TABLES):
            rows = await host.fetch(f'SELECT t::text FROM opdbus."{table}" AS t')  # noqa: S608
            found = secrets("\n".join(row for (row,) in rows), MARK)
            assert not found, (table, found)
    counts = "SELECT (SELECT count(*) FROM opdbus.object), (SELECT count(*) FROM opdbus.change)"
    ((objects, changes),) = await host.fetch(counts)
    assert objects > 100
    assert changes > objects
