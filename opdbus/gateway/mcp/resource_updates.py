"""Signals that resources changed, to clients of both eras, while any of them listens."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_REQUEST, EmptyResult, SubscribeRequestParams, UnsubscribeRequestParams

from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.mcp.object_resources import CHANGES, DRIFT, STATUS, uri_of

# Rows that are read after a signal; of more, all that listen are told to read again.
_MOST_ROWS: Final = 200
# Addresses that a client of 2025 may subscribe to.
_MOST_ADDRESSES: Final = 256
_DRIFT_CHANGES: Final = frozenset({"drift", "healed", "intended", "undeclared"})


class ResourceUpdates(InMemorySubscriptionBus):
    """Reads new rows of history while a client listens, and publishes the addresses they change.

    Clients of 2026 listen on streams; those of 2025 subscribe to single addresses.
    """

    def __init__(self, link: DaemonLink) -> None:
        super().__init__()
        self._link = link
        self._listeners_count = 0
        self._addresses: dict[Connection, set[str]] = {}
        self._reading: asyncio.Task[None] | None = None

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add the listener of a stream."""
        leave = super().subscribe(listener)
        self._listeners_count += 1
        self._begin()
        is_left = False

        def unsubscribe() -> None:
            nonlocal is_left
            leave()
            self._listeners_count -= not is_left
            is_left = True
            self._end()

        return unsubscribe

    async def add_address(
        self, context: ServerRequestContext[Any, Any], params: SubscribeRequestParams
    ) -> EmptyResult:
        """Serve `resources/subscribe`."""
        connection = _connection_of(context)
        if connection not in self._addresses:
            self._addresses[connection] = set()
            connection.exit_stack.callback(self._forget, connection)
        if len(self._addresses[connection]) >= _MOST_ADDRESSES:
            raise MCPError(
                INVALID_REQUEST, f"at most {_MOST_ADDRESSES} resources may be subscribed to"
            )
        self._addresses[connection].add(str(params.uri))
        self._begin()
        return EmptyResult()

    async def remove_address(
        self, context: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """Serve `resources/unsubscribe`."""
        self._addresses.get(_connection_of(context), set()).discard(str(params.uri))
        return EmptyResult()

    def _forget(self, connection: Connection) -> None:
        self._addresses.pop(connection, None)
        self._end()

    def _begin(self) -> None:
        if not self._reading or self._reading.done():
            self._reading = asyncio.create_task(self._read())

    def _end(self) -> None:
        if self._reading and not self._listeners_count and not self._addresses:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        """Publish what changes, also after the bus or the daemon was away."""
        last = 0
        async with aclosing(self._link.follow()) as bursts:
            async for client in bursts:
                with suppress(OpDbusError):
                    # a call would start a service that was stopped
                    if client and await client.is_served():
                        last = await self._publish_after(client, last)

    async def _publish_after(self, client: Client, last: int) -> int:
        newest = await client.last_row()
        if not last or newest <= last:
            return newest
        rows = await client.changes({"after": last, "order": "oldest"}, _MOST_ROWS + 1)
        found = {CHANGES, STATUS, *(uri_of(row["object"]) for row in rows)}
        if len(rows) > _MOST_ROWS:
            found |= {uri for listed in self._addresses.values() for uri in listed}
        if any(row["what"] in _DRIFT_CHANGES for row in rows):
            found.add(DRIFT)
        await self._notify(sorted(found))
        return newest

    async def _notify(self, addresses: Iterable[str]) -> None:
        for uri in addresses:
            await self.publish(ResourceUpdated(uri))
            for connection, listed in [*self._addresses.items()]:
                if uri in listed:
                    await connection.send_resource_updated(uri)


def _connection_of(context: ServerRequestContext[Any, Any]) -> Connection:
    return context.session._connection
