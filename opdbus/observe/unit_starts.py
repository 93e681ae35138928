"""Which services were started while op-dbus was not running."""

import os
from collections.abc import Mapping

from opdbus.bus.transport.values import Plain


class Starts:
    """Remembers when services were started last, and when op-dbus ended before, by PID 1's clock.

    Where op-dbus is no unit, or has not run since boot, nothing is known.
    """

    def __init__(self) -> None:
        self._started: dict[str, int] = {}
        self._ended = 0

    def has_read(self, unit: str, properties: Mapping[str, Plain]) -> None:
        """Take the properties of a unit that is loaded."""
        started, ended = (
            properties.get(f"Active{name}TimestampMonotonic") for name in ("Enter", "Exit")
        )
        if isinstance(started, int) and unit.endswith(".service"):
            self._started[unit] = started
        if properties.get("MainPID") == os.getpid() and isinstance(ended, int):
            self._ended = ended

    def since_last_run(self) -> list[str]:
        """Return the services that were started, or started again, since op-dbus had ended."""
        return [unit for unit, at in self._started.items() if at > self._ended > 0]
