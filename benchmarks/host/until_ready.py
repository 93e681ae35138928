"""Waits until every observer has listed and every object has its vector; runs inside the host."""

import asyncio

from opdbus.bus.names import STATE, VECTORIZER
from opdbus.bus.paths import ROOT
from opdbus.bus.paths import STATE as PATH
from opdbus.bus.transport.connection import Connection

_GET = "org.freedesktop.DBus.Properties.Get"


async def main() -> None:
    """Ask ten times a second."""
    async with Connection("system") as connection:

        async def get(path: str, interface: str, name: str) -> object:
            (value,) = await connection.call("org.opdbus", path, _GET, "ss", interface, name)
            return value

        async def is_ready() -> bool:
            observers = await get(PATH, STATE, "Observers")
            return (
                isinstance(observers, list)
                and not any(row[1] == "starting" for row in observers)
                and await get(ROOT, VECTORIZER, "State") in {"ready", "degraded"}
                and await get(PATH, STATE, "Pending") == 0
            )

        while not await is_ready():  # noqa: ASYNC110 -- not everything that changes says so
            await asyncio.sleep(0.1)


asyncio.run(main())
