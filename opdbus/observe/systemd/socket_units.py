"""What process 1 knows of ports: the socket units of those it opened, what units are for."""

from collections.abc import Collection
from typing import Final

from opdbus.observe.systemd import pid1

_PROTOCOLS: Final = {"Stream": "tcp", "Datagram": "udp"}


async def socket_units() -> dict[str, str]:
    """Return the units of ports such as `tcp [::]:22`; raises Absent and LostSource."""
    found: dict[str, str] = {}
    async with pid1.connected() as manager:
        for unit in await manager.active(["*.socket"]):
            values = await manager.properties(unit, f"{pid1.NAME}.Socket")
            for kind, address in values.get("Listen", []):
                found[f"{_PROTOCOLS.get(kind, kind)} {address}"] = unit.name
    return found


async def descriptions(units: Collection[str]) -> dict[str, str]:
    """Return what those of some units are for that are loaded; raises Absent and LostSource."""
    async with pid1.connected() as manager:
        return {unit.name: unit.description for unit in await manager.units_of(units)}
