"""Connections that have not logged in yet: bounded, in all and for one network."""

import asyncio
import ipaddress
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

# A login takes a fraction of this; who has had it may lose the place to a new connection.
_FAIR_SECONDS: Final = 1.0
# Addresses of one customer of a provider.
_IPV6_PREFIX: Final = 64


class _Pending(NamedTuple):
    network: str
    began: float


class PendingLogins:
    """Tasks that log connections in, oldest first; one that takes long makes room for a new one.

    `most` bounds them in all, `of_network` those of one IPv4 address or IPv6 network of 64 bits, so
    that nobody who opens connections and says nothing keeps others out.
    """

    def __init__(
        self, most: int, of_network: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._of_network = of_network
        self._clock = clock
        self._pending: dict[asyncio.Task[None], _Pending] = {}

    def start(
        self, address: str, login: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None] | None:
        """Start a login as a task; return None if there is no place for it."""
        network = _network(address)
        same = [task for task, each in self._pending.items() if each.network == network]
        if len(same) >= self._of_network:
            if not self._evict(same[0]):
                return None
        elif len(self._pending) >= self._most and not self._evict(next(iter(self._pending))):
            return None
        task = asyncio.create_task(login())
        self._pending[task] = _Pending(network, self._clock())
        task.add_done_callback(self.end)
        return task

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """Note that a task has logged its connection in, or has ended."""
        if task:
            self._pending.pop(task, None)

    def _evict(self, task: asyncio.Task[None]) -> bool:
        """Cancel a login that has had its time; return False if it has not."""
        if self._clock() - self._pending[task].began < _FAIR_SECONDS:
            return False
        self.end(task)
        task.cancel()
        return True


def _network(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False))
