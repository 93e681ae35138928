"""Connections that have not logged in yet: where all places are taken, one gives way."""

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from opdbus.platform import tasks

log = structlog.get_logger()

# Addresses of one customer of a provider.
_IPV6_PREFIX: Final = 64
# Between two warnings that connections gave way.
_WARNING_SECONDS: Final = 60.0


@dataclass(eq=False, slots=True)
class PendingLogin:
    """A connection until its login; it is silent until its first byte."""

    network: str
    began: float
    is_silent: bool = True
    task: asyncio.Task[None] | None = None


class PendingLogins:
    """At most so many connections at a time; each keeps its place for `kept_seconds` at least.

    Clients of op-dbus and of PostgreSQL speak first, so that silent ones give way to them, and the
    network with the most connections to others. So nobody without credentials keeps hosts out.
    """

    def __init__(
        self, most: int, kept_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._pending: set[PendingLogin] = set()
        self._has_place = asyncio.Event()
        self._warned_at = -_WARNING_SECONDS

    async def make_place(self) -> None:
        """Wait until there is a place, which one that has kept its own long enough leaves."""
        while len(self._pending) >= self._most:
            self._has_place.clear()
            first = self._least()
            rest = first.began + self._kept_seconds - self._clock()
            if rest > 0:
                async with tasks.at_most(rest):
                    await self._has_place.wait()
                continue
            self.end(first)
            if first.task:
                first.task.cancel()
            if self._clock() - self._warned_at >= _WARNING_SECONDS:
                self._warned_at = self._clock()
                log.warning("too many connections without a login", network=first.network)

    def start(
        self, address: str, login: Callable[[PendingLogin], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Start a login as a task, in a place that there is."""
        pending = PendingLogin(network_of(address), self._clock())
        pending.task = asyncio.create_task(login(pending))
        pending.task.add_done_callback(lambda _: self.end(pending))
        self._pending.add(pending)
        return pending.task

    def end(self, login: PendingLogin) -> None:
        """Note that a connection has logged in, or has ended."""
        self._pending.discard(login)
        self._has_place.set()

    def _least(self) -> PendingLogin:
        """Return the oldest silent login, else the oldest of the network that has the most."""
        silent = [each for each in self._pending if each.is_silent]
        if not silent:
            counts = Counter(each.network for each in self._pending)
            most = max(counts.values())
            silent = [each for each in self._pending if counts[each.network] == most]
        return min(silent, key=lambda each: each.began)


def network_of(address: str) -> str:
    """Return what one client may have for itself: an IPv4 address, or a /64 of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False))
