"""Connection of the gateway to the daemon, made again after the bus was lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Self

from opdbus.client import Client, following
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
        # connections that no request uses now
        self._idle: list[Client] = []

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Disconnect."""
        for client in (self._client, *self._idle):
            if client:
                with suppress(BusError):
                    await client.__aexit__()

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
        # a gateway has no user who could type a password
        return await following.connect_without_user(self.bus)

    async def follow(self) -> AsyncGenerator[Client | None, None]:
        """Yield a client when there may be new rows or the daemon began or ended, without an end.

        The first client is yielded at once: from then on, no row is missed. None is yielded after
        the bus was lost.
        """
        async with aclosing(following.follow(self.connect, Client.news)) as bursts:
            async for burst in bursts:
                yield burst and burst[0]

    @asynccontextmanager
    async def own_client(self) -> AsyncGenerator[Client, None]:
        """Give a client that nothing else uses; cancelling closes it, which ends its calls."""
        while self._idle:
            client = self._idle.pop()
            if client.is_connected:
                break
        else:
            client = await self.connect()
        try:
            yield client
        except asyncio.CancelledError:
            with suppress(BusError):
                await client.__aexit__()
            raise
        finally:
            if client.is_connected:
                self._idle.append(client)
