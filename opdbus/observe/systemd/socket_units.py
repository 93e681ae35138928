"""Queries to PID 1 for the socket units of ports and the descriptions of units."""

from collections.abc import Collection
from typing import Final

from opdbus.observe.systemd import pid1

_PROTOCOLS: Final = {"Stream": "tcp", "Datagram": "udp"}


async def socket_units() -> dict[str, str]:
    """Return active socket units by port, such as `tcp [::]:22`; raise Absent or LostSource."""
    found: dict[str, str] = {}
    async with pid1.connected() as manager:
        for unit in await manager.active(["*.socket"]):
            values = await manager.properties(unit, f"{pid1.NAME}.Socket")
            for kind, address in values.get("Listen", []):
                found[f"{_PROTOCOLS.get(kind, kind)} {address}"] = unit.name
    return found


async def descriptions(units: Collection[str]) -> dict[str, str]:
    """Return the descriptions of the loaded units; raise Absent or LostSource."""
    async with pid1.connected() as manager:
        return {unit.name: unit.description for unit in await manager.units_of(units)}
