"""Observer of open ports and of the units and users that own them, through sock_diag."""

import asyncio
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from opdbus.history import jobs
from opdbus.observe.core.file_reading import in_thread
from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.core.netlink import DIAG, Channel, ListRefused, Message, attributes, number
from opdbus.observe.core.recent_causes import FOLLOWS_SECONDS
from opdbus.observe.core.report import Absent, LostSource, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.core.system_bus import BURST_SECONDS
from opdbus.observe.packages.documents import ServiceNames
from opdbus.observe.systemd import pid1
from opdbus.observe.systemd.control_groups import ControlGroups
from opdbus.observe.systemd.pid1 import descriptions, socket_units
from opdbus.platform.accounts import user_name
from opdbus.platform.tasks import at_most, pauses, until_first_ends
from opdbus.state.object import Json

_UNIT: Final = "op-dbus-diag.socket"
_SOCK_DIAG_BY_FAMILY: Final = 20
# See inet_diag_req_v2 (family, protocol, states) and inet_diag_msg (family, port, address,
# interface, user) in linux/inet_diag.h.
_REQUEST: Final = struct.Struct("=BBxxI48x")
_ANSWER: Final = struct.Struct("=BxxxHxx16s16xI8x12xI4x")
_CONTROL_GROUP: Final = 21
_INIT: Final = "init.scope"
# The index of `lo` in every network.
_LOOPBACK: Final = 1
_LISTENING, _UNCONNECTED = 10, 7
_STATES: Final = {
    "tcp": (socket.IPPROTO_TCP, _LISTENING),
    "udp": (socket.IPPROTO_UDP, _UNCONNECTED),
}
_ADDRESS_BYTES: Final = {int(socket.AF_INET): 4, int(socket.AF_INET6): 16}
# The kernel reports no events for ports. Programs open theirs soon after their unit has changed.
_SECONDS: Final = (0.5, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
_RETRY_SECONDS: Final = (1.0, 5.0, 60.0)
_EXPOSED_WORDS: Final = {
    "all addresses": "open to other machines",
    "local only": "for this machine only",
    "one address": "open at this address",
    "one interface": "open at this interface",
}


class _Listener(NamedTuple):
    """A socket that waits for connections or datagrams, perhaps at one interface only."""

    protocol: str
    address: str
    port: int
    uid: int
    group: int
    device: int = 0
    interface: str = ""

    @property
    def name(self) -> str:
        """Return protocol, address, interface and port, which several sockets may share."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol} {address}{self.scope}:{self.port}"

    @property
    def scope(self) -> str:
        """Return the interface as ss(8) shows it; empty if the socket is bound to none."""
        return f"%{self.interface}" if self.interface else ""

    @property
    def exposure(self) -> str:
        """Return who can reach the port, judged by its address and interface."""
        ip = ipaddress.ip_address(self.address)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        if ip.is_loopback or self.device == _LOOPBACK:
            return "local only"
        if not ip.is_unspecified:
            return "one address"
        return "one interface" if self.device else "all addresses"


@dataclass(frozen=True, slots=True)
class Sockets:
    """Observer of ports; lists them every minute, and soon after a unit has changed."""

    passed: socket.socket | None = None
    groups: ControlGroups = field(default_factory=ControlGroups)
    services: ServiceNames = field(default_factory=ServiceNames)
    seconds: Sequence[float] = _SECONDS
    # the longest time that ports stay open after a unit is reported to end
    ending_seconds: float = 5.0
    # socket units of the ports that process 1 opened, by the name of the port
    opened_by_pid1: LookupCache[str, str] = field(default_factory=lambda: LookupCache(_INIT))
    # units by the name of the port, as of the last listing
    units: dict[str, list[str]] = field(default_factory=dict)
    # the time of the last listing, by time.monotonic()
    listed_at: list[float] = field(default_factory=lambda: [0.0])
    # descriptions of the units that have ports
    purposes: LookupCache[str, str] = field(default_factory=lambda: LookupCache(""))

    async def observe(self, report: Report) -> None:
        """Follow the host's ports."""
        changed = asyncio.Event()

        async def list_often() -> None:
            with Channel(self.passed, DIAG, 0, _UNIT) as channel:
                delays = pauses(self.seconds)
                while True:
                    await self._list(channel, report)
                    async with at_most(next(delays)):
                        await changed.wait()
                    if changed.is_set():
                        changed.clear()
                        delays = pauses(self.seconds)
                        # at most twice a second, however fast units change
                        await asyncio.sleep(next(delays))

        await until_first_ends(list_often(), _follow_units(changed, self.purposes))

    async def _list(self, channel: Channel, report: Report) -> None:
        found: list[_Listener] = []
        refused, skipped = set(), Skipped()
        for protocol, (protocol_number, state) in _STATES.items():
            for family in _ADDRESS_BYTES:
                request = _REQUEST.pack(family, protocol_number, 1 << state)
                try:
                    answers = await channel.dump(_SOCK_DIAG_BY_FAMILY, request)
                except ListRefused as error:
                    refused.add(f"{protocol} ports are not listed: {error}")
                else:
                    found += [
                        one._replace(interface=channel.interface(one.device))
                        for one in read_listeners(protocol, answers, skipped)
                    ]
        report.busy("; ".join(sorted(refused)))
        report.skip("listener", skipped)
        named = await in_thread(lambda: self._by_name(found))
        report.skip("service", self.services.skipped)
        # where cgroups filter packets, the kernel reports the socket unit's cgroup itself
        opened = {name: values for name, values in named.items() if values.get("unit") == _INIT}
        if self.opened_by_pid1.lacks(opened):
            units: Mapping[str, str] = {}
            # also where the service that answers is not systemd
            with suppress(Absent, LostSource, ValueError, TypeError):
                units = await socket_units()
            self.opened_by_pid1.learn(opened, units)
        for name, values in opened.items():
            values["unit"] = self.opened_by_pid1[name]
        await self._describe(named)
        if named.keys() != report.names("listener"):
            # signals that PID 1 sent before this listing have arrived after this time
            await asyncio.sleep(2 * BURST_SECONDS)
        self._explain(report, named)
        report.replace("listener", named)

    def _explain(self, report: Report, named: Mapping[str, dict[str, Json]]) -> None:
        """Report changes of ports with the changes of their units as their causes."""
        units, now = _units(named), time.monotonic()
        # a unit that ended before the last listing did not close ports that were open then
        since = min(FOLLOWS_SECONDS, now - self.listed_at[0] + self.ending_seconds)
        for name in report.names("listener") - named.keys():
            why = report.causes.of_ports(self.units.get(name, ()), since, but=jobs.BEGINS)
            report.gone("listener", name, why)
        known = report.names("listener")
        for name, values in named.items() if report.has_listed("listener") else ():
            but = frozenset[str]() if name in known else jobs.ENDS
            report.put("listener", name, values, report.causes.of_ports(units[name], but=but))
        self.units.clear()
        self.units.update(units)
        self.listed_at[0] = now

    async def _describe(self, named: Mapping[str, dict[str, Json]]) -> None:
        """Add a description to each port; process 1 is queried only for new units."""
        units = _units(named)
        wanted = {unit for several in units.values() for unit in several if unit}
        if self.purposes.lacks(wanted):
            with suppress(Absent, LostSource):
                self.purposes.learn(wanted, await descriptions(wanted))
        for name, values in named.items():
            purpose = _join(self.purposes.get(unit, "") for unit in units[name])
            usual = values.pop("usual")
            words = [purpose or usual, _EXPOSED_WORDS[values["exposed"]]]
            values["description"] = ", ".join(filter(None, words))

    def _by_name(self, found: Sequence[_Listener]) -> dict[str, dict[str, Json]]:
        """Return the properties of listeners by name; sockets that share a name are joined."""
        units = self.groups.units({one.group for one in found})
        services = self.services.find({(one.port, one.protocol) for one in found})
        users = {one.uid: user_name(one.uid) for one in found}
        by_name: dict[str, list[_Listener]] = {}
        for one in found:
            by_name.setdefault(one.name, []).append(one)
        named: dict[str, dict[str, Json]] = {}
        for name, sharing in by_name.items():
            first = sharing[0]
            service, comment = services[first.port, first.protocol]
            values: dict[str, Json] = {
                "protocol": first.protocol,
                "address": first.address + first.scope,
                "interface": first.interface,
                "family": "ipv6" if ":" in first.address else "ipv4",
                "port": first.port,
                "state": "listening",
                "exposed": first.exposure,
                "user": _join(users[one.uid] for one in sharing),
                "unit": _join(units[one.group] for one in sharing),
                "service": service,
            }
            named[name] = {key: value for key, value in values.items() if value != ""}
            named[name]["usual"] = f"{service}: {comment}" if comment else service
        return named


def observer(passed: socket.socket | None) -> Observer:
    """Return the observer; `passed` is the sock_diag socket that systemd passed."""
    return Observer("sockets", "net", Sockets(passed).observe, polled=frozenset({"listener"}))


async def _follow_units(changed: asyncio.Event, purposes: LookupCache[str, str]) -> None:
    """Set `changed` after each change of a unit; retry while systemd cannot be reached.

    `purposes` is cleared after a reload, which may change the descriptions of units.
    """
    delays = pauses(_RETRY_SECONDS)
    while True:
        with suppress(Absent, LostSource):
            async with pid1.Pid1() as manager:
                await manager.subscribe(pid1.UNIT_CHANGED, pid1.of_manager("Reloading"))
                delays = pauses(_RETRY_SECONDS)
                # changes before the subscription were not reported
                purposes.clear()
                changed.set()
                async for burst in manager.bursts():
                    if any(signal.body == [False] for signal in burst):
                        purposes.clear()
                    changed.set()
        await asyncio.sleep(next(delays))


def read_listeners(
    protocol: str, answers: Iterable[Message], skipped: Skipped | None = None
) -> Iterator[_Listener]:
    """Yield the sockets that have a port."""
    for message in answers:
        if message.type != _SOCK_DIAG_BY_FAMILY or len(message.body) < _ANSWER.size:
            if skipped:
                skipped.row(f"message {message.type} of the kernel on {protocol} ports")
            continue
        family, port, address, device, uid = _ANSWER.unpack_from(message.body)
        length = _ADDRESS_BYTES.get(family)
        if not length and skipped:
            skipped.row(f"{protocol} port of family {family}")
        if length and port:
            group = number(attributes(message.body, _ANSWER.size).get(_CONTROL_GROUP))
            where = str(ipaddress.ip_address(address[:length]))
            yield _Listener(protocol, where, socket.ntohs(port), uid, group, device)


def _units(named: Mapping[str, dict[str, Json]]) -> dict[str, list[str]]:
    return {name: str(values.get("unit", "")).split(", ") for name, values in named.items()}


def _join(words: Iterable[str]) -> str:
    return ", ".join(sorted(filter(None, set(words))))
