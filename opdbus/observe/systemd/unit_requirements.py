"""Query to PID 1 for the units that a unit of any type requires."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from opdbus.observe.core.report import Absent, LostSource
from opdbus.observe.systemd import pid1

_REQUIREMENTS: Final = ("Requires", "Requisite", "BindsTo", "PartOf", "Wants", "Upholds")
# Nearly every unit requires some of these, which say nothing about it.
_COMMON: Final = (".target", ".slice")
_SECONDS: Final = 2.0


async def required_by(unit: str) -> Collection[str]:
    """Return the units that a loaded unit requires or wants; none where PID 1 does not answer."""
    with suppress(Absent, LostSource, TimeoutError):
        async with asyncio.timeout(_SECONDS), pid1.connected() as manager:
            for loaded in await manager.units_of([unit]):
                if loaded.name == unit:  # and is no pattern
                    values = await manager.properties(loaded, f"{pid1.NAME}.Unit")
                    found = {str(name) for key in _REQUIREMENTS for name in values.get(key) or ()}
                    return sorted(name for name in found if not name.endswith(_COMMON))
    return []
