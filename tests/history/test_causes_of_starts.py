"""Why objects are other than they were stored: the first run, a later one, a reboot, a source."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.observing import Host, Source, observed, rows

from opdbus.observe.core.report import Absent, LostSource

RED, BLUE = {"colour": "red"}, {"colour": "blue"}


@asynccontextmanager
async def running(folder: Path, source: Source, boot: str = "b1") -> AsyncIterator[Host]:
    """Observe lamps in a run of the program, in a run of the host."""
    async with observed(folder, source.observer, boot=boot) as host:
        await host.until(lambda: host.status.state == "up")
        yield host


def causes(folder: Path, name: str) -> list[tuple[str, str]]:
    """Give what happened to a lamp, and why."""
    return [(what, cause) for what, cause, _ in rows(folder, name)]


async def test_what_changed_while_nothing_looked(tmp_path: Path) -> None:
    """Tell the first listing, what changed since the last run, and what since the last boot."""
    source = Source()
    source.lamps = {"desk": RED, "hall": RED}
    async with running(tmp_path, source):
        pass
    assert causes(tmp_path, "desk") == causes(tmp_path, "hall") == [("appeared", "first")]
    source.lamps = {"desk": BLUE, "attic": RED}
    async with running(tmp_path, source) as host:
        assert causes(tmp_path, "desk")[1:] == [("changed", "start")]
        assert causes(tmp_path, "hall")[1:] == [("gone", "start")]
        assert causes(tmp_path, "attic") == [("appeared", "start")]
        source.change(desk=RED, attic=RED)
        await host.until(lambda: len(causes(tmp_path, "desk")) == 3)
        assert causes(tmp_path, "desk")[2:] == [("changed", "")]
    source.lamps = {"desk": BLUE, "attic": RED}
    async with running(tmp_path, source, "b2"):
        assert causes(tmp_path, "desk")[3:] == [("changed", "boot")]
        assert len(causes(tmp_path, "attic")) == 1


async def test_a_source_that_was_lost(tmp_path: Path) -> None:
    """What changed while a source was lost has no cause; what left and came with it says so."""
    source = Source()
    source.lamps = {"desk": RED, "hall": RED}
    async with running(tmp_path, source) as host:
        source.fault = LostSource("the bus is gone")
        source.news.set()
        await host.until(lambda: host.status.state == "failed")
        source.lamps, source.fault = {"desk": BLUE, "hall": RED}, None
        await host.until(lambda: len(causes(tmp_path, "desk")) == 2)
        assert causes(tmp_path, "desk")[1:] == [("changed", "")]
        assert len(causes(tmp_path, "hall")) == 1
        source.fault = Absent("no lamps here")
        source.news.set()
        await host.until(lambda: len(causes(tmp_path, "hall")) == 2)
        source.fault = None
        await host.until(lambda: len(causes(tmp_path, "hall")) == 3)
        assert causes(tmp_path, "hall")[1:] == [("gone", "source"), ("appeared", "source")]
