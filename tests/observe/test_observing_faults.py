"""Observers and their writer where something fails: nothing is lost, untrue, or without bound."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.observing import PATIENCE, Source, observed

from opdbus.bus.transport import connection
from opdbus.errors import StoreError
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.core import observation_diff, report
from opdbus.observe.core.report import MAX_OBJECTS, Absent, LostSource, Observer, Report
from opdbus.observe.core.system_bus import Service
from opdbus.observe.supervisor import Supervisor
from opdbus.platform.tasks import cancel


async def test_room_that_is_freed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing past the limit keeps what is known; once one fits, the status says no more."""
    assert report.MAX_OBJECTS == 20_000
    monkeypatch.setattr(report, "MAX_OBJECTS", most := 2000)
    source = Source()
    source.lamps = {f"lamp {n}": {} for n in range(most + 1)}
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: len(host.names) == most)
        assert "more than 2,000 objects" in host.status.detail
        generation = host.memory.generation
        names = host.names
        source.lamps["lamp 3"] = {"colour": "red"}
        source.change(**dict(reversed(source.lamps.items())))
        await host.until_shown("house/lamp/lamp 3", colour="red")
        assert (host.memory.generation, host.names) == (generation + 1, names)
        del source.lamps["lamp 7"]
        source.change(**source.lamps)
        await host.until(lambda: f"house/lamp/lamp {most}" in host.names)
        assert host.status.detail == ""


async def test_what_was_too_large_is_back_once_it_is_not(tmp_path: Path) -> None:
    """What cannot be kept as it is now, or is too long a name, is not shown; then it is back."""
    source = Source()
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk", colour="red")
        source.change(desk={"colour": "x" * (300 << 10)}, hall={})
        await host.until(lambda: host.names == {"house/lamp/hall"})
        assert "desk" in host.status.detail
        source.change(**{"x" * 10_000: {}}, hall={})
        await host.until(lambda: "more than 8,192 characters" in host.status.detail)
        source.change(desk={"colour": "blue"})
        await host.until_shown("house/lamp/desk", colour="blue")
        assert host.status.detail == ""


async def test_all_objects_together_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of one listing that are too large together are left out, those of others not."""
    monkeypatch.setattr(observation_diff, "_MAX_BYTES", 1 << 20)
    source = Source()
    source.lamps = {f"lamp {n}": {"text": "x" * 10_000} for n in range(200)}
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: bool(host.names))
        assert 100 <= len(host.names) < 110
        assert "more than 1 MiB" in host.status.detail
        source.change(desk={})
        await host.until(lambda: host.names == {"house/lamp/desk"})
        assert host.status.detail == ""


async def test_names_that_differ_only_in_a_secret_are_two_objects(tmp_path: Path) -> None:
    """Show both of two objects whose names differ only in a secret, and the secret of neither."""
    source = Source()
    source.lamps = {"password=one1": {"colour": "red"}, "password=two2": {"colour": "blue"}}
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: len(host.names) == 2)
        colours = {(await host.properties(name))["colour"] for name in host.names}
        assert colours == {"red", "blue"}
        assert not any("one1" in name or "two2" in name for name in host.names)
        source.change(**{"password=two2": {"colour": "blue"}})
        await host.until(lambda: len(host.names) == 1)
        source.change()
        await host.until(lambda: not host.names)


async def test_a_name_that_is_shown_of_another_is_left_out(tmp_path: Path) -> None:
    """Leave out an object called as another one is shown without its secret, until that is gone."""
    source = Source()
    source.lamps = {"password=one1": {"colour": "red"}}
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: len(host.names) == 1)
        (shown,) = host.names
        copy = {shown.removeprefix("house/lamp/"): {"colour": "blue"}}
        source.change(**source.lamps, **copy)
        await host.until(lambda: "its name equals that of another lamp" in host.status.detail)
        assert await host.properties(shown) == {"colour": "red"}
        source.change(**copy)
        await host.until_shown(shown, colour="blue")
        await host.until(lambda: host.status.detail == "")


async def test_a_full_disk_is_said_and_forgotten(tmp_path: Path) -> None:
    """While nothing can be stored the status says why; nothing that came meanwhile is lost."""
    source = Source()
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")
        write, host.memory.archive.write = host.memory.archive.write, _full  # type: ignore[method-assign]
        source.change(desk={"colour": "green"}, hall={})
        await host.until(lambda: "the disk is full" in host.status.detail)
        source.change(hall={"colour": "white"})
        host.memory.archive.write = write  # type: ignore[method-assign]
        await host.until_shown("house/lamp/hall", colour="white")
        assert host.names == {"house/lamp/hall"}
        await host.until(lambda: host.status.detail == "")


async def _full(*_: object) -> Any:
    raise StoreError("the disk is full")


async def test_what_is_being_written_when_a_source_is_lost_is_known(tmp_path: Path) -> None:
    """An object whose write outlives its observer is removed by the next listing without it."""
    source, slow = Source(), asyncio.Event()
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")
        # what follows the first listing is written, too
        await host.until(lambda: host.status.state == "up")
        write = host.memory.archive.write

        async def write_slowly(work: Any) -> Any:
            await slow.wait()
            return await write(work)

        host.memory.archive.write = write_slowly  # type: ignore[method-assign]
        source.change(desk={"colour": "red", "watts": 3}, hall={})
        await host.until(host.memory._one_writer.locked)
        source.fault = LostSource("it began anew")
        source.news.set()
        await host.until(lambda: host.status.state == "failed")
        source.lamps, source.fault = {"desk": {"colour": "red"}}, None
        await host.until(lambda: source.runs > 1)
        slow.set()
        await host.until(lambda: host.status.state == "up")
        assert host.names == {"house/lamp/desk"}


async def test_an_observer_that_fails_as_it_ends_ends(tmp_path: Path) -> None:
    """Whatever an observer raises when it is cancelled, the program can end."""

    async def observe(_report: Report) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("a defect")

    async with StateStore(tmp_path / "memory.db") as memory:
        supervisor = Supervisor([Observer("bad", "bad", observe)], memory)
        task = asyncio.create_task(supervisor.run())
        for _ in range(10):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE):
            await cancel([task])


async def test_a_status_is_one_short_line_without_secrets(tmp_path: Path) -> None:
    """What a fault or an observer says may quote its source: it is cleaned before it is shown."""
    source = Source()
    source.fault = ValueError(f"password=hunter2-PLANTED\n\x1b[31m\u202e\udce9{'x' * 100_000}")
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: host.status.state == "failed")
        source.report.busy("token=hunter2-PLANTED\n" * 1000)
        detail = host.status.detail
        assert "hunter2" not in detail
        assert detail.isprintable()
        assert detail.encode()
        assert len(detail) < 2000


def test_reports_that_cannot_be_written_have_a_bound() -> None:
    """A source that makes and removes objects without end has to be listed again."""
    report = Report()
    for n in range(MAX_OBJECTS):
        report.gone("lamp", str(n))
    assert not report.take().kinds
    with pytest.raises(LostSource):
        _flicker(report)


def _flicker(report: Report) -> None:
    for n in range(3 * MAX_OBJECTS):
        report.put("lamp", str(n), {})
        report.gone("lamp", str(n))


async def test_a_bus_that_never_answers_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt to reach a bus that lets everybody in and says nothing leaves nothing open."""
    ended = asyncio.Queue[None]()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"OK 00\r\n", b"AGREE_UNIX_FD\r\n"):
            await reader.readline()
            writer.write(answer)
        await reader.read()
        writer.close()
        ended.put_nowait(None)

    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.2)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    server = await asyncio.start_unix_server(greet, tmp_path / "bus")
    with pytest.raises(Absent, match="cannot reach the message bus"):
        await Service("org.example.Any").__aenter__()
    async with asyncio.timeout(PATIENCE):
        await ended.get()
    server.close()
