"""A daemon that sends to a fleet's database, and the comparison of both."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from harness.fleets import FleetDatabase
from harness.running import PATIENCE_SECONDS, Running
from opdbus.client import Client
from opdbus.fleet import host_reader
from opdbus.fleet.sender import Pace, Sender
from opdbus.fleet.uplink import Uplink
from opdbus.platform.tasks import cancel

FAST = Pace(
    gather=0.02, linger=30, keep_alive=0.5, drift=0.1, first_retry=0.05, longest_retry=0.5,
    refused=0.3,
)  # fmt: skip


@dataclass
class FleetHost:
    """A daemon, its name in a fleet, and how to connect."""

    daemon: Running
    database: FleetDatabase
    name: str
    url: str = ""

    def uplink(self) -> Uplink:
        """Return a connection, by the given URL instead of the database's own."""
        own = self.database.url(self.name)
        return Uplink(self.url or own, self.database.passwords[self.name])

    def sender(self, pace: Pace = FAST) -> Sender:
        """Return a sender of this host."""
        return Sender(self.daemon.bus, self.uplink, pace=pace)

    @asynccontextmanager
    async def sending(self, pace: Pace = FAST) -> AsyncIterator[Sender]:
        """Run a sender meanwhile."""
        sender = self.sender(pace)
        task = asyncio.create_task(sender.run())
        try:
            yield sender
        finally:
            await cancel([task])

    async def fetch(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        return await asyncio.to_thread(self.database.fetch, sql, *arguments)

    async def differences(self, client: Client) -> dict[str, Any]:
        """Return in what the database and the daemon differ: digests, drift, history."""
        found: dict[str, Any] = {}
        own = {name: digest async for name, digest in host_reader.read_digests(client)}
        rows = await self.fetch(
            "SELECT plugin, kind, object.name, content FROM opdbus.object JOIN opdbus.host"
            " USING (host) WHERE host.name = $1",
            self.name,
        )
        stored = {tuple(name): digest for *name, digest in rows}
        if wrong := {n for n in own.keys() | stored.keys() if own.get(n) != stored.get(n)}:
            found["objects"] = sorted(wrong)[:10], len(wrong)
        drift = sorted(await host_reader.read_drift(client))
        rows = await self.fetch(
            "SELECT plugin, kind, drift.name, class, severity, since, fields FROM opdbus.drift"
            " JOIN opdbus.host USING (host) WHERE host.name = $1",
            self.name,
        )
        if drift != (there := sorted([*row[:6], json.loads(row[6])] for row in rows)):
            found["drift"] = drift[:5], there[:5]
        found |= await self._history_differences(client)
        return found

    async def _history_differences(self, client: Client) -> dict[str, Any]:
        """Compare the rows of the newest epoch, and follow the chain from its beginning."""
        changes = await client.changes({"order": "oldest", "chain": True}, 100_000)
        own = [(row["seq"], row["hash"], row["sentence"]) for row in changes]
        rows = await self.fetch(
            "SELECT change.seq, encode(change.hash, 'hex'), sentence FROM opdbus.change"
            " JOIN opdbus.host USING (host, epoch) WHERE host.name = $1 ORDER BY change.seq",
            self.name,
        )
        if own != rows:
            return {"history": (own[:3], rows[:3], own[-3:], rows[-3:], len(own), len(rows))}
        before = bytes(32)
        for row in changes:
            expected = hashlib.sha256(b"\0" + before + row["chained"].encode()).digest()
            if (row["seq"] == 1 or before != bytes(32)) and expected.hex() != row["hash"]:
                return {"chain": row["seq"]}
            before = bytes.fromhex(row["hash"])
        return {}

    async def until_equal(self, client: Client) -> None:
        """Wait until the database equals the daemon."""
        await until(lambda: self.differences(client), {})

    async def until_answer(self, sql: str, *wanted: tuple[Any, ...]) -> None:
        """Wait until a query has these rows."""
        await until(lambda: self.fetch(sql), list(wanted))


async def until(ask: Callable[[], Awaitable[Any]], wanted: object) -> None:
    """Ask again and again until the answer is the wanted one; neither side has a signal for it."""
    found: Any = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (found := await ask()) != wanted:  # noqa: ASYNC110 -- no signal says it
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{found}, not {wanted}") from None
