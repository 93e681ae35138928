"""Publishes the containers of podman, docker and incus, whose sockets only root may use.

op-dbus-containers.service runs it, apart from the daemon: access to the sockets equals root.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.platform.tasks import pauses
from opdbus.publishers.engines import ENGINES, Engine, Row

_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)
_ANSWER_SECONDS: Final = 30.0
# Events within this time lead to one listing.
_QUIET_SECONDS: Final = 0.1
_AT_ONCE: Final = 1 << 16


@asynccontextmanager
async def _asked(path: str, target: str) -> AsyncIterator[asyncio.StreamReader]:
    """Send a GET request and yield the body's reader; HTTP/1.0 sends it unchunked."""
    async with asyncio.timeout(_ANSWER_SECONDS) as limit:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            if (line := await reader.readline()).split()[1:2] != [b"200"]:
                raise ValueError(f"it answered {target} with {line!r}")
            while (await reader.readline()).strip():
                pass
            limit.reschedule(None)
            yield reader
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def follow(engine: Engine, bus: str) -> None:
    """Publish all containers, again after events, with the lifetime of the connection."""
    async with _asked(engine.path, engine.events) as events, Client(bus) as client:
        known: dict[str, Row] = {}
        while True:
            async with _asked(engine.path, engine.listed) as body:
                rows = json.loads(await asyncio.wait_for(body.read(), _ANSWER_SECONDS))
            found = dict(map(engine.read, rows["metadata"] if isinstance(rows, dict) else rows))
            new = [row for row in found.items() if row[1] != known.get(row[0])]
            object_ids = [(engine.name, "container", *row) for row in new]
            await client.publish(engine.name, object_ids, lifetime="connection")
            gone = known.keys() - found.keys()
            await client.withdraw([paths.of(engine.name, "container", name) for name in gone])
            known = found
            if not await events.read(_AT_ONCE):
                raise ConnectionError("it went away")
            await asyncio.sleep(_QUIET_SECONDS)


async def keep(engine: Engine, bus: str) -> None:
    """Follow an engine forever, also one that starts later; print why it cannot be followed."""
    delays, said = pauses(_RETRY_SECONDS), ""
    while True:
        began = time.monotonic()
        try:
            await follow(engine, bus)
        except (OSError, ValueError, LookupError, TypeError, OpDbusError) as error:
            reason = f"{engine.name} at {engine.path}: {error or type(error).__name__}"
        if reason != said:
            print(reason, file=sys.stderr, flush=True)  # noqa: T201 -- the journal has it
        if time.monotonic() - began > _RETRY_SECONDS[-1]:
            delays = pauses(_RETRY_SECONDS)
        said = reason
        await asyncio.sleep(next(delays))


async def main(engines: Sequence[Engine], bus: str = "system") -> None:
    """Follow all engines."""
    async with asyncio.TaskGroup() as group:
        for engine in engines:
            group.create_task(keep(engine, bus))


if __name__ == "__main__":
    # docker's socket may be a link to podman's: follow that once
    named = {Path(engine.path).resolve(): engine for engine in reversed(ENGINES)}
    asyncio.run(main(tuple(named.values())))
