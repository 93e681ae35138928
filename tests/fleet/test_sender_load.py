"""A host with 20,000 objects and a week of backlog: memory of the sender stays bounded."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.running import calling, state_file

from opdbus.client import Client

pytest.importorskip("asyncpg")

from harness.fleet_hosts import FleetHost, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.fleets import FleetDatabase
    from harness.running import Running

pytestmark = pytest.mark.fleet

OBJECTS = 20_000
MOST_MIB = 160.0


async def test_memory_is_bounded(
    daemons: Callable[..., Running], database: FleetDatabase, tmp_path: Path
) -> None:
    """Send 20,000 objects and 60,000 rows, the database and the sender within their limits."""
    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {}), VECTOR_LEVEL="none").start()
    name = await asyncio.to_thread(database.add, "web1")
    host = FleetHost(daemon, database, name)
    log = tmp_path / "sender.log"
    async with calling(daemon.bus) as caller, Client(daemon.bus) as client:
        await caller.ready()
        for day in range(3):
            rows = [
                ("lab", "box", f"box number {n}", {"day": day, "note": f"{n} " * 40})
                for n in range(OBJECTS)
            ]
            await client.publish("test", rows)
        last = await client.last_row()
        assert last >= 3 * OBJECTS
        begun = time.monotonic()
        process = host.process(log)
        try:

            async def compared() -> bool:
                return await host.fetch("SELECT compared_at IS NOT NULL FROM opdbus.host") == [
                    (True,)
                ]

            async def sent() -> bool:
                return await host.fetch("SELECT seq >= $1, backlog FROM opdbus.host", last) == [
                    (True, 0)
                ]

            await until(compared, wanted=True)
            states = time.monotonic() - begun
            await until(sent, wanted=True)
            assert await host.differences(client) == {}
            peak = _peak(process.pid)
            print(f"states {states:.1f} s, all {time.monotonic() - begun:.1f} s, {peak:.0f} MiB")
            assert peak < MOST_MIB, log.read_text()
        finally:
            process.kill()
            process.wait()


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+)", status)
    assert match
    return int(match[1]) / 1024
