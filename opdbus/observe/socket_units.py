"""What process 1 knows of ports: the socket units of those it opened, what units are for."""

from collections.abc import Collection
from contextlib import suppress
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.observe.system_bus import Service

PID1: Final = "org.freedesktop.systemd1"
PATH: Final = "/org/freedesktop/systemd1"
_PROTOCOLS: Final = {"Stream": "tcp", "Datagram": "udp"}


async def socket_units() -> dict[str, str]:
    """Return the units of ports such as `tcp [::]:22`; raises Absent and LostSource."""
    found: dict[str, str] = {}
    async with Service(PID1) as pid1:
        member, wanted = f"{PID1}.Manager.ListUnitsByPatterns", (["active"], ["*.socket"])
        (rows,) = await pid1.call(PATH, member, "asas", *wanted)
        for unit, *_, path, _, _, _ in rows:
            with suppress(RemoteError):  # it has left meanwhile
                values = await pid1.properties(path, f"{PID1}.Socket")
                for kind, address in values.get("Listen", []):
                    found[f"{_PROTOCOLS.get(kind, kind)} {address}"] = unit
    return found


async def descriptions(units: Collection[str]) -> dict[str, str]:
    """Return what those of some units are for that are loaded; raises Absent and LostSource."""
    async with Service(PID1) as pid1:
        member = f"{PID1}.Manager.ListUnitsByPatterns"
        (rows,) = await pid1.call(PATH, member, "asas", [], sorted(units))
        return {str(unit): str(description) for unit, description, *_ in rows}
