"""Observer of facts about the host: name, time, language, distribution, kernel and hardware."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import in_thread
from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host import host_facts, machine_facts
from opdbus.observe.host.host_facts import Facts
from opdbus.observe.systemd import pid1
from opdbus.observe.systemd.pid1 import Pid1
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.watch import changes

# Services that synchronize the clock; at most one of them runs.
_CLOCKS: Final = tuple(
    f"{name}.service"
    for name in "systemd-timesyncd chrony chronyd ntpsec ntpd ntp openntpd".split()
)
# Several files written within this time are one change.
_SETTLE_SECONDS: Final = 0.2
# The interval of attempts to reach systemd.
_RETRY_SECONDS: Final = 60.0


class _Told(NamedTuple):
    """Virtualization and time service as systemd reports them; None if unknown, "" for none."""

    virtualization: str | None = None
    clock: str | None = None


@dataclass(frozen=True, slots=True)
class HostItself:
    """Observer of the host through files and systemd; activates no other service."""

    root: Path = Path("/")

    async def observe(self, report: Report) -> None:
        """Report all facts after each change of a file or of the time service."""
        while True:
            try:
                async with Pid1() as systemd:
                    report.busy("")
                    await self._with(systemd, report)
            except Absent as error:
                report.busy(f"what only systemd knows is not observed: {error}")
                async with at_most(_RETRY_SECONDS):
                    await self._follow_files(report, None)

    async def _with(self, systemd: Pid1, report: Report) -> None:
        ended = pid1.of_manager("JobRemoved")
        await systemd.subscribe(*(f"{ended},arg2='{name}'" for name in _CLOCKS))
        await until_first_ends(
            self._follow_files(report, systemd), self._follow_clock(report, systemd)
        )

    async def _follow_files(self, report: Report, systemd: Pid1 | None) -> None:
        files = [self.root / name for name in host_facts.FILES]
        async for _ in changes(*files, settle=_SETTLE_SECONDS):
            await self._tell(report, systemd)

    async def _follow_clock(self, report: Report, systemd: Pid1) -> None:
        async for _ in systemd.bursts():
            await self._tell(report, systemd)

    async def _tell(self, report: Report, systemd: Pid1 | None) -> None:
        told = await _ask(systemd) if systemd else _Told()
        skipped = Skipped()
        report.replace("fact", await in_thread(partial(self._facts, told, skipped)))
        report.skip("fact", skipped)

    def _facts(self, told: _Told, skipped: Skipped) -> dict[str, Facts]:
        return {
            "hostname": host_facts.hostname(self.root, skipped),
            "time": host_facts.time(self.root, told.clock, skipped),
            "locale": host_facts.locale(self.root, skipped),
            "os": host_facts.system(self.root, skipped),
            "kernel": machine_facts.kernel(self.root, skipped),
            "hardware": machine_facts.hardware(self.root, told.virtualization, skipped),
        }


async def _ask(systemd: Pid1) -> _Told:
    """Query systemd; the query loads no units."""
    values = await systemd.own_properties()
    clocks = await systemd.active(_CLOCKS)
    return _Told(str(values.get("Virtualization", "")), clocks[0].name if clocks else "")


OBSERVER: Final = Observer("host", "system", HostItself().observe)
