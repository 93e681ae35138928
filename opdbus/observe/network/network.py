"""Observer of interfaces, addresses and routes, through rtnetlink."""

import asyncio
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import in_thread, text_of
from opdbus.observe.core.netlink import (
    ANSWER_SECONDS,
    MAX_MESSAGES,
    ROUTE,
    ROUTE_GROUPS,
    Channel,
    Message,
)
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.kernel.uevents import CAUSE
from opdbus.observe.network import rtnetlink
from opdbus.observe.network.rtnetlink import Properties
from opdbus.platform.lines import split_lines

_UNIT: Final = "op-dbus-route.socket"
# Nobody queries the full table of a router.
_MAX_ROUTES: Final = 2_000
_MOST_REST_SECONDS: Final = 60.0
_LEFT_OUT: Final = f"there are more than {_MAX_ROUTES:,} routes: the rest is left out"
_DATABASE: Final = ("E:ID_VENDOR_FROM_DATABASE", "E:ID_MODEL_FROM_DATABASE")


@dataclass(frozen=True, slots=True)
class Network:
    """Observer of the network; lists everything again after each message of the kernel.

    Messages are not applied one by one: the kernel sends none for some changes, such as IPv4 routes
    that go with their interface. `udev` is the folder of udev's device database.
    """

    passed: socket.socket | None = None
    udev: Path = Path("/run/udev/data")
    patience: float = ANSWER_SECONDS

    async def observe(self, report: Report) -> None:
        """Follow the host's network."""
        with Channel(self.passed, ROUTE, ROUTE_GROUPS, _UNIT, self.patience) as channel:
            allowance = Allowance(most=_MOST_REST_SECONDS)
            while True:
                started = time.monotonic()
                channel.is_stale = False
                await self._list(channel, report)
                rest = allowance.rest(time.monotonic() - started)
                await asyncio.sleep(_MOST_REST_SECONDS if report.note else rest)
                await channel.wait_for_change()

    async def _list(self, channel: Channel, report: Report) -> None:
        found = [await channel.dump(*request) for request in rtnetlink.REQUESTS]
        # thousands of routes take a tenth of a second
        skipped = Skipped()
        listed = await in_thread(partial(self._read, skipped, *found))
        report.skip("route", skipped)
        routes = listed["route"]
        is_cut = len(routes) > _MAX_ROUTES or len(found[-1]) >= MAX_MESSAGES
        report.busy(_LEFT_OUT if is_cut else "")
        listed["route"] = dict(list(routes.items())[:_MAX_ROUTES])
        cause = CAUSE if report.has_listed("interface") else ""
        for kind, objects in listed.items():
            report.replace(kind, objects, cause)

    def _read(
        self,
        skipped: Skipped,
        links: list[Message],
        addresses: list[Message],
        routes: list[Message],
    ) -> dict[str, dict[str, Properties]]:
        """Return objects by kind and name, with at most one route more than the limit."""
        found = rtnetlink.Links.read(links)
        have = list(rtnetlink.read_addresses(addresses, found, skipped))
        interfaces = found.properties(have)
        for index in found.hardware:
            if name := hardware_name(self.udev / f"n{index}"):
                interfaces[index].setdefault("description", name)
        return {
            "interface": {found.name(index): values for index, values in interfaces.items()},
            "address": {address.name: address.properties for address in have},
            "route": rtnetlink.read_routes(routes, found, most=_MAX_ROUTES + 1, skipped=skipped),
        }


def hardware_name(file: Path) -> str:
    """Return vendor and model in a file of udev's device database; empty if it has none."""
    found = dict(line.partition("=")[::2] for line in split_lines(text_of(file)))
    return " ".join(found[key] for key in _DATABASE if key in found)


def observer(passed: socket.socket | None) -> Observer:
    """Return the observer; `passed` is the netlink socket that systemd passed."""
    return Observer("network", "net", Network(passed).observe)
