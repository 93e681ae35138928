"""Signals of the daemon over connections that are made again after the bus was lost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import structlog

from opdbus.client import Client
from opdbus.errors import OpDbusError

log = structlog.get_logger()
T = TypeVar("T")

# Seconds before a bus that was lost is tried again.
_RETRY_SECONDS: Final = 1.0


async def connect_without_user(bus: str) -> Client:
    """Return a connected client that shows no password prompts; the caller leaves it."""
    client = Client(bus)
    await client.__aenter__()
    client.ask_no_user()
    return client


async def follow(
    connect: Callable[[], Awaitable[Client]],
    listen: Callable[[Client], AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[Client, T] | None, None]:
    """Yield a client with each burst of signals that `listen` yields of it, without an end.

    The first burst is yielded at once: from then on, nothing is missed. None is yielded after the
    bus was lost.
    """
    while True:
        try:
            client = await connect()
            try:
                async with aclosing(listen(client)) as bursts:
                    async for signals in bursts:
                        yield client, signals
            finally:
                await client.__aexit__()
        except OpDbusError as error:
            log.debug("changes cannot be followed", reason=str(error))
        yield None
        await asyncio.sleep(_RETRY_SECONDS)
