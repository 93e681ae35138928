"""Observers under the supervisor: what they report is what the memory has."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from harness.observing import Source, observed, rows

from opdbus.errors import ConfigError
from opdbus.history.change import Cause
from opdbus.observe import selection
from opdbus.observe.core.report import Absent, LostSource, Observer, Report
from opdbus.state.object import Identity, StateObject


@pytest.fixture
def source() -> Source:
    """Give a source of one lamp."""
    return Source()


async def test_an_object_from_before_is_gone_when_it_is_not_listed(
    tmp_path: Path, source: Source
) -> None:
    """After a restart the first listing removes what went meanwhile, and stores nothing again."""
    source.lamps["hall"] = {"colour": "blue"}
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/hall", colour="blue")
    del source.lamps["hall"]
    async with observed(tmp_path, source.observer) as host:
        generation = host.memory.generation
        await host.until(lambda: host.names == {"house/lamp/desk"})
        assert host.memory.generation == generation + 1


async def test_an_earlier_listing_may_have_been_empty(tmp_path: Path, source: Source) -> None:
    """What comes while op-dbus is not running to a source that had nothing was not there before."""
    lamps, source.lamps = source.lamps, {}
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: host.status.state == "up")
    source.lamps = lamps
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk", colour="red")
    assert rows(tmp_path, "desk") == [("appeared", "start", 0)]


async def test_what_is_read_at_intervals_may_have_changed_before_the_stop(
    tmp_path: Path, source: Source
) -> None:
    """Blame no time when op-dbus was not running for a change that was perhaps only not read."""
    observer = replace(source.observer, polled=frozenset({"lamp"}))
    async with observed(tmp_path, observer) as host:
        await host.until_shown("house/lamp/desk", colour="red")
    source.lamps = {"hall": {"colour": "blue"}}
    async with observed(tmp_path, observer) as host:
        await host.until(lambda: host.names == {"house/lamp/hall"})
        source.lamps["hall"] = {"colour": "green"}
        source.news.set()
        await host.until_shown("house/lamp/hall", colour="green")
    assert [row[:2] for row in rows(tmp_path, "desk")] == [
        ("appeared", "first"),
        ("gone", "start:unread"),
    ]
    assert [row[:2] for row in rows(tmp_path, "hall")] == [
        ("appeared", "start:unread"),
        ("changed", ""),
    ]


async def test_only_a_unit_that_is_there_is_to_be_enabled(tmp_path: Path) -> None:
    """The journal's status names the unit to enable, or that this host has none."""
    unlisted, listed = asyncio.Event(), asyncio.Event()

    async def observe(report: Report) -> None:
        report.put("unit", "a.service", {})
        await unlisted.wait()
        report.replace("unit", {"a.service": {}})
        await listed.wait()
        report.put("unit", "op-dbus-journal.service", {})
        await asyncio.Event().wait()

    async with observed(tmp_path, Observer("systemd", "systemd", observe)) as host:

        def detail() -> str:
            return host.supervisor.statuses[-1].detail

        await host.until(lambda: host.status.state == "up")
        assert detail() == "who did what, and why units failed, is unknown"
        unlisted.set()
        await host.until(lambda: detail().endswith("this host has no op-dbus-journal.service"))
        listed.set()
        await host.until(lambda: detail().endswith("`systemctl enable --now op-dbus-journal`"))
        for note in ("", "2 lines of sudo not understood; the last: x : X=?"):
            identity = Identity("publish:journal.reader", "journal", "reader", "op-dbus-journal")
            await host.memory.publish([StateObject(identity, {"unread": note})], 0, cause="")
            await host.until(lambda: detail() == note)  # noqa: B023 -- at once
            assert host.supervisor.statuses[-1].state == "up"


async def test_a_volatile_field_is_shown_and_not_stored(tmp_path: Path, source: Source) -> None:
    """A field that moves changes no object and has no row; an event beside it is one row."""
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk", watts=3)
        generation = host.memory.generation
        source.change(desk={"colour": "red", "watts": 4})
        await host.until_shown("house/lamp/desk", watts=4)
        assert host.memory.generation == generation
        (entry,) = host.memory.catalogue
        content = (await host.memory.content([entry]))[entry.id]
        assert "watts" not in content.properties + content.text
        assert len(rows(tmp_path, "desk")) == 1
        event = Cause("job:7 restart", 2, is_event=True)
        source.report.put("lamp", "desk", {"colour": "red", "watts": 99}, event)
        await host.until_shown("house/lamp/desk", watts=99)
        assert rows(tmp_path, "desk")[1:] == [("event", "job:7 restart", 2)]
        for colour in ("blue", "green", "red"):
            source.report.put("lamp", "desk", {"colour": colour, "watts": 1}, "painter")
        await host.until_shown("house/lamp/desk", watts=1)
        # three changes: one row that stands for two more
        assert rows(tmp_path, "desk")[2:] == [("event", "painter", 2)]


async def test_objects_are_gone_with_their_source(tmp_path: Path, source: Source) -> None:
    """What a listing lacks is gone, as is all of an absent source until that is back."""
    async with observed(tmp_path, source.observer) as host:
        source.lamps["hall"] = {"colour": "blue"}
        source.news.set()
        await host.until_shown("house/lamp/hall", colour="blue")
        source.change(desk={"colour": "red", "watts": 3})
        await host.until(lambda: host.names == {"house/lamp/desk"})
        assert host.status[:3] == ("lamps", "up", 1)
        source.fault = Absent("there is no house")
        source.news.set()
        await host.until(lambda: host.status.state == "absent")
        assert not host.names
        assert host.status[2:] == (0, "there is no house")
        source.fault = None
        await host.until_shown("house/lamp/desk")


async def test_a_source_is_awaited_until_it_has_listed(tmp_path: Path, source: Source) -> None:
    """A source that has not listed yet is awaited, also while it fails; an absent one is not."""
    source.fault = LostSource("it is not up yet")
    async with observed(tmp_path, source.observer) as host:
        awaited = host.supervisor.awaited
        assert (awaited(["house", "other"]), awaited(["other"])) == (["lamps"], [])
        await host.until(lambda: host.status.state == "failed")
        assert awaited(["house"]) == ["lamps"]
        source.fault = Absent("there is no house")
        await host.until(lambda: host.status.state == "absent")
        assert awaited(["house"]) == []
        source.fault = None
        await host.until(lambda: host.status.state == "up")
        assert awaited(["house"]) == []


@pytest.mark.parametrize("fault", [LostSource("it went away"), RuntimeError("a defect")])
async def test_a_lost_source_is_listed_again(
    tmp_path: Path, source: Source, fault: Exception
) -> None:
    """Objects of an observer that failed stay as they were, until it has listed again."""
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")
        source.fault = fault
        source.news.set()
        await host.until(lambda: host.status.state == "failed" and str(fault) in host.status.detail)
        assert host.names == {"house/lamp/desk"}
        source.lamps, source.fault = {"hall": {}}, None
        await host.until(lambda: host.names == {"house/lamp/hall"})


async def test_one_fault_concerns_no_other(tmp_path: Path, source: Source) -> None:
    """An observer that fails again and again leaves the others alone."""

    async def fail(_report: Report) -> None:
        raise RuntimeError

    async with observed(tmp_path, Observer("bad", "bad", fail), source.observer) as host:
        await host.until(lambda: host.status.state == "failed")
        source.change(hall={})
        await host.until_shown("house/lamp/hall")
        assert source.runs == 1


async def test_observers_that_are_not_wanted_leave_nothing(tmp_path: Path, source: Source) -> None:
    """Objects of an observer that the setting no longer names are removed."""
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")

    async def wait(_report: Report) -> None:
        await asyncio.Event().wait()

    async with observed(tmp_path, Observer("other", "other", wait)) as host:
        await host.until(lambda: not host.names)


async def test_names_and_values_of_any_kind(tmp_path: Path, source: Source) -> None:
    """Odd bytes and names are stored as D-Bus can carry them; what is no JSON is left out."""
    source.lamps = {
        "caf\udce9\0": {"data": b"\xff\x00", "text": "\udce9", "\udce9": float("nan")},
        "x" * 5000: {},
        "": {"colour": "none"},
        "odd": {"when": object()},
    }
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: len(host.names) == len(source.lamps) - 1)
        shown = await host.properties(r"house/lamp/caf\udce9\x00")
        assert shown == {"data": "ff00", "text": "?", "?": "NaN"}
        assert max(map(len, host.names)) < 1100
        await host.until(lambda: "left out" in host.status.detail)


async def test_secrets_are_hidden(tmp_path: Path, source: Source) -> None:
    """A secret in a name, a field or a volatile field is hidden before anything is kept."""
    secret = "hunter2-PLANTED"
    source.lamps = {
        f"password={secret}": {
            "password": secret,
            "watts": f"token={secret}",
            "command": f"--password {secret}",
        }
    }
    async with observed(tmp_path, source.observer) as host:
        await host.until(lambda: bool(host.names))
        (name,) = host.names
        assert secret not in f"{name} {await host.properties(name)}"
    kept = [file.read_bytes() for file in tmp_path.iterdir()]  # noqa: ASYNC240 -- nothing else runs
    assert secret.encode() not in b"".join(kept)


def test_auto_is_all_of_ours() -> None:
    """`auto` brings every observer that ships with op-dbus; a misspelt name is an error."""
    names = [observer.name for observer in selection.select_observers(("auto",), {})]
    with_sockets = ["devices", "kernel", "network", "sockets"]
    assert names == [*(observer.name for observer in selection.OURS), *with_sockets]
    assert selection.select_observers((), {}) == []
    with pytest.raises(ConfigError, match="did you mean login1"):
        selection.select_observers(("login",), {})


async def test_an_administrator_calls_fields_volatile(tmp_path: Path, source: Source) -> None:
    """A field of the setting is shown and not stored, besides those of the observer."""
    fields = ("house/lamp:colour", "garden/lamp:shade")
    (mine,) = selection.add_volatile([source.observer], fields)
    assert mine.volatile == {"lamp": {"watts", "colour"}}
    async with observed(tmp_path, mine) as host:
        await host.until_shown("house/lamp/desk", watts=3, colour="red")
        generation = host.memory.generation
        source.change(desk={"colour": "blue", "watts": 3})
        await host.until_shown("house/lamp/desk", colour="blue")
        assert host.memory.generation == generation


async def test_an_end_is_no_cause_of_a_first_row(tmp_path: Path, source: Source) -> None:
    """What came and ended before it was written appeared for a reason that nobody knows."""
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")
        source.report.put("lamp", "hall", {"colour": "red"}, "job:7 start")
        source.report.put("lamp", "hall", {"colour": "none"}, "exit")
        await host.until_shown("house/lamp/hall", colour="none")
        source.report.put("lamp", "hall", {"colour": "red"}, "exit")
        await host.until_shown("house/lamp/hall", colour="red")
    assert rows(tmp_path, "hall") == [("appeared", "", 0), ("changed", "exit", 0)]


async def test_metrics_of_an_observer(tmp_path: Path, source: Source) -> None:
    """Count reports that differ and losses of the source; an absent one is neither up nor down."""
    async with observed(tmp_path, source.observer) as host:

        def of(name: str) -> Mapping[tuple[str, ...], object]:
            return {f.name: f.samples for f in host.supervisor.metrics()}[name]

        await host.until_shown("house/lamp/desk")
        await host.until(lambda: of("observer_up") == {("lamps",): 1})
        before = of("observer_events_total")["lamps",]
        assert (before, of("objects")["lamps",]) == (1, 1)
        source.change(desk={"colour": "blue"}, hall={"colour": "red"})
        await host.until_shown("house/lamp/hall")
        await host.until(lambda: of("observer_events_total") == {("lamps",): 3})
        assert of("observer_folded_total") == {("lamps",): 0}
        assert of("objects") == {("lamps",): 2, ("file",): 0, ("published",): 0}
        changes = {f.name: f.samples for f in host.memory.metrics()}["changes_total"]
        assert changes["changed", "unknown"] == 1
        source.fault = LostSource("it went away")
        source.news.set()
        await host.until(lambda: of("observer_up") == {("lamps",): 0})
        source.fault = None
        await host.until(lambda: of("observer_up") == {("lamps",): 1})
        assert of("observer_resyncs_total")["lamps",] == source.runs - 1 > 0
        source.fault = Absent("there is no house")
        source.news.set()
        await host.until(lambda: of("observer_up") == {})
