"""What the host itself is: its name, time, language, distribution, kernel and hardware."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.bus.transport.connection import RemoteError
from opdbus.observe import host_facts, machine_facts
from opdbus.observe.host_facts import Facts
from opdbus.observe.reading import in_thread
from opdbus.observe.report import Absent, Observer, Report
from opdbus.observe.system_bus import Service
from opdbus.state.watch import changes
from opdbus.tasks import until_first_ends

_SYSTEMD: Final = "org.freedesktop.systemd1"
_PATH: Final = "/org/freedesktop/systemd1"
_MANAGER: Final = f"{_SYSTEMD}.Manager"
# Services that set the clock by the network; at most one of them runs.
_CLOCKS: Final = tuple(
    f"{name}.service"
    for name in "systemd-timesyncd chrony chronyd ntpsec ntpd ntp openntpd".split()
)
# What writes several files does it within this time.
_SETTLE_SECONDS: Final = 0.2
# Without systemd, before it is looked for again.
_RETRY_SECONDS: Final = 60.0


class _Told(NamedTuple):
    """What systemd knows: the hypervisor or container, and who sets the clock; None if unknown."""

    virtualization: str | None = None
    clock: str | None = None


@dataclass(frozen=True, slots=True)
class HostItself:
    """Observes the host through its files and through systemd; starts no other service for it."""

    root: Path = Path("/")

    async def observe(self, report: Report) -> None:
        """Report all facts, and again when a file or who sets the clock changes."""
        while True:
            try:
                async with Service(_SYSTEMD) as systemd:
                    report.busy("")
                    await self._with(systemd, report)
            except Absent as error:
                report.busy(f"what only systemd knows is not observed: {error}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await self._follow_files(report, None)

    async def _with(self, systemd: Service, report: Report) -> None:
        with suppress(RemoteError):  # it sends signals to us already
            await systemd.call(_PATH, f"{_MANAGER}.Subscribe")
        for name in _CLOCKS:
            await systemd.follow(f"interface='{_MANAGER}',member='JobRemoved',arg2='{name}'")
        await until_first_ends(
            self._follow_files(report, systemd), self._follow_clock(report, systemd)
        )

    async def _follow_files(self, report: Report, systemd: Service | None) -> None:
        files = [self.root / name for name in host_facts.FILES]
        async for _ in changes(*files, settle=_SETTLE_SECONDS):
            await self._tell(report, systemd)

    async def _follow_clock(self, report: Report, systemd: Service) -> None:
        async for _ in systemd.bursts():
            await self._tell(report, systemd)

    async def _tell(self, report: Report, systemd: Service | None) -> None:
        told = await _ask(systemd) if systemd else _Told()
        report.replace("fact", await in_thread(partial(self._facts, told)))

    def _facts(self, told: _Told) -> dict[str, Facts]:
        return {
            "hostname": host_facts.hostname(self.root),
            "time": host_facts.time(self.root, told.clock),
            "locale": host_facts.locale(self.root),
            "os": host_facts.system(self.root),
            "kernel": machine_facts.kernel(self.root),
            "hardware": machine_facts.hardware(self.root, told.virtualization),
        }


async def _ask(systemd: Service) -> _Told:
    """Ask systemd; units that it does not know are not loaded for it."""
    values = await systemd.properties(_PATH, _MANAGER)
    (rows,) = await systemd.call(
        _PATH, f"{_MANAGER}.ListUnitsByPatterns", "asas", ["active"], list(_CLOCKS)
    )
    return _Told(str(values.get("Virtualization", "")), str(rows[0][0]) if rows else "")


OBSERVER: Final = Observer("host", "system", HostItself().observe)
