"""Log level and target of the daemon on the bus, for systemctl."""

from collections.abc import Mapping

from opdbus.bus import names
from opdbus.bus.service import contract
from opdbus.bus.service.node import Caller
from opdbus.bus.transport.values import Plain
from opdbus.log import Log
from opdbus.platform.journal import IDENTIFIER


class LogControlInterface:
    """org.freedesktop.LogControl1, see org.freedesktop.LogControl1(5)."""

    info = contract.interface(names.LOG_CONTROL)

    def __init__(self, log: Log) -> None:
        self._log = log

    async def set_log_level(self, _caller: Caller, level: str) -> None:
        """Set the least level of log lines."""
        self._log.set_level(level)

    async def set_log_target(self, _caller: Caller, target: str) -> None:
        """Set the target of log lines."""
        self._log.set_target(target)

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        return {
            "LogLevel": self._log.level,
            "LogTarget": self._log.target,
            "SyslogIdentifier": IDENTIFIER,
        }
