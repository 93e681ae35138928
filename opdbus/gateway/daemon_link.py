"""Connection of the gateway to the daemon, made again after the bus was lost."""

import asyncio
from contextlib import suppress
from typing import Self

from opdbus.client import Client
from opdbus.errors import BusError


class DaemonLink:
    """One shared connection to the daemon; as a context, it disconnects at the end.

    Connecting is left to the first request, so that the gateway starts without a bus.
    """

    def __init__(self, bus: str) -> None:
        self.bus = bus
        # set when the gateway ends, which ends its streams
        self.is_ending = asyncio.Event()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Disconnect."""
        if self._client:
            with suppress(BusError):
                await self._client.__aexit__()

    async def client(self) -> Client:
        """Return the connected client; raises BusError without a bus."""
        if self._client and self._client.is_connected:
            return self._client
        async with self._connecting:
            if not (self._client and self._client.is_connected):
                self._client = await self.connect()
            return self._client

    async def connect(self) -> Client:
        """Return a client with a connection of its own, for signals; the caller leaves it."""
        client = Client(self.bus)
        await client.__aenter__()
        # a gateway has no user who could type a password
        client.ask_no_user()
        return client
