"""Fields that change all the time: they are proposed as volatile, and their changes coalesced."""

import asyncio
import itertools
from pathlib import Path

from harness.observing import Clock, Host, observed

from opdbus.observe.core.changes_per_hour import PER_HOUR, ChangesPerHour
from opdbus.observe.core.report import Key, Observer, Report

HOUR = 3600.0


class Lamps:
    """An observer whose objects a test reports."""

    def __init__(self) -> None:
        self.report = Report()
        self.started = asyncio.Event()
        self._marks = map(str, itertools.count())

    async def observe(self, report: Report) -> None:
        """Wait for the test."""
        self.report = report
        self.started.set()
        await asyncio.Event().wait()

    @property
    def observer(self) -> Observer:
        """The observer."""
        return Observer("lamps", "house", self.observe)

    async def put(self, host: Host, name: str, **properties: object) -> None:
        """Report a lamp, and wait until that is taken."""
        self.report.put("lamp", name, properties)
        await host.until(lambda: not self.report.news.is_set())
        # taken, and prepared: what comes next is another report
        self.report.put("mark", mark := next(self._marks), {})
        await host.until_shown(f"house/mark/{mark}")


def noted(counter: ChangesPerHour, clock: Clock, times: int, *names: str) -> None:
    """Let `mtu` of some interfaces change so many times, evenly within an hour."""
    for _ in range(times):
        for name in names:
            counter.note(Key("interface", name), ["mtu"])
        clock.now += HOUR / (times + 1)


def test_more_than_twelve_changes_in_an_hour() -> None:
    """Twelve changes an hour are not noisy, and thirteen are, until the hour has passed."""
    clock = Clock()
    counter = ChangesPerHour(clock)
    noted(counter, clock, PER_HOUR, "eth0")
    assert not counter.noisy_fields("interface", 1)
    clock.now += HOUR
    noted(counter, clock, PER_HOUR + 1, "eth0")
    assert counter.noisy_fields("interface", 1) == {"mtu"}
    assert not counter.noisy_fields("address", 1)
    clock.now += HOUR
    assert not counter.noisy_fields("interface", 1)


def test_most_objects_of_a_kind() -> None:
    """A field is noisy when it is so in more than half of the objects of its kind."""
    clock = Clock()
    counter = ChangesPerHour(clock)
    noted(counter, clock, PER_HOUR + 1, "eth0", "eth1")
    assert not counter.noisy_fields("interface", 4)
    assert counter.noisy_fields("interface", 3) == {"mtu"}
    counter.forget({Key("interface", "eth1")})
    assert not counter.noisy_fields("interface", 3)


def test_memory_is_bounded() -> None:
    """However many objects change, no more are counted; those that are at rest make room."""
    clock = Clock()
    counter = ChangesPerHour(clock)
    for number in range(60_000):
        counter.note(Key("flow", str(number)), ["packets"])
    clock.now += 2 * HOUR
    noted(counter, clock, PER_HOUR + 1, "eth0")
    assert counter.noisy_fields("interface", 1) == {"mtu"}


def test_a_proposal_has_no_secret_and_few_names() -> None:
    """What is proposed is shown in a status: of many fields some are named, none with a secret."""
    clock = Clock()
    counter = ChangesPerHour(clock)
    for field in ("token=hunter2-PLANTED", *map(str, range(50))):
        for _ in range(PER_HOUR + 1):
            counter.note(Key("lamp", "desk"), [field])
    text = counter.proposal("house", lambda _: 1)
    assert "PLANTED" not in text
    assert "and 48 more" in text


async def test_changes_are_coalesced_and_counted(tmp_path: Path) -> None:
    """What changes all the time is written once a minute, and the status proposes what to do."""
    clock, lamps = Clock(), Lamps()
    counter = ChangesPerHour(clock)
    async with observed(tmp_path, lamps.observer, changes=lambda: counter) as host:
        await lamps.started.wait()
        for watts in range(PER_HOUR + 2):
            await lamps.put(host, "desk", colour="red", watts=watts)
        await host.until_shown("house/lamp/desk", watts=PER_HOUR + 1)
        await lamps.put(host, "desk", colour="red", watts=100)
        await lamps.put(host, "desk", colour="red", watts=101)
        assert (await host.properties("house/lamp/desk"))["watts"] == PER_HOUR + 1
        assert "house/lamp:watts: more than 12 changes an hour, of which 2" in host.status.detail
        assert host.status.detail.endswith("set OP_DBUS_VOLATILE=house/lamp:watts")
        # another field is news, and takes the rest along
        await lamps.put(host, "desk", colour="blue", watts=102)
        await host.until_shown("house/lamp/desk", colour="blue", watts=102)
        await lamps.put(host, "desk", colour="blue", watts=103)
        clock.now += 61
        lamps.report.put("mark", "last", {})
        await host.until_shown("house/lamp/desk", watts=103)
        clock.now += HOUR
        assert host.status.detail == ""


async def test_pending_changes_are_written_without_another_report(tmp_path: Path) -> None:
    """After the last change its value is written, though nothing more is reported."""
    lamps = Lamps()
    counter = ChangesPerHour(coalesce_seconds=0.5)
    async with observed(tmp_path, lamps.observer, changes=lambda: counter) as host:
        await lamps.started.wait()
        for watts in range(PER_HOUR + 2):
            await lamps.put(host, "desk", watts=watts)
        lamps.report.put("lamp", "desk", {"watts": 100})
        await host.until_shown("house/lamp/desk", watts=100)


async def test_what_is_back_as_it_was_is_not_written(tmp_path: Path) -> None:
    """A value that returned within the minute is no change, and one that is gone stays gone."""
    clock, lamps = Clock(), Lamps()
    counter = ChangesPerHour(clock)
    async with observed(tmp_path, lamps.observer, changes=lambda: counter) as host:
        await lamps.started.wait()
        for watts in range(PER_HOUR + 2):
            await lamps.put(host, "desk", watts=watts)
        (updated,) = [e.updated_at for e in host.memory.catalogue if e.identity.name == "desk"]
        await lamps.put(host, "desk", watts=100)
        await lamps.put(host, "desk", watts=PER_HOUR + 1)
        clock.now += 61
        lamps.report.put("mark", "last", {})
        await host.until_shown("house/mark/last")
        (after,) = [e.updated_at for e in host.memory.catalogue if e.identity.name == "desk"]
        assert after == updated
        await lamps.put(host, "desk", watts=100)
        lamps.report.gone("lamp", "desk")
        await host.until(lambda: "house/lamp/desk" not in host.names)
        clock.now += 61
        await lamps.put(host, "hall", watts=1)
        assert "house/lamp/desk" not in host.names
