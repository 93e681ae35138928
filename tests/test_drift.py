"""Drift as a daemon tells of it: once, across restarts, with its history and in pages."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from drifting import Checked, checking
from observing import in_loop

from opdbus.bus.service.node import Caller
from opdbus.bus.service.options import MAX_LIMIT
from opdbus.bus.service.state import StateInterface
from opdbus.config import load
from opdbus.drift.tracker import Tracker
from opdbus.errors import InvalidArgs, StateFileError
from opdbus.index.declared import Declared
from opdbus.index.events import Claimed, Listed
from opdbus.index.finder import Finder
from opdbus.index.health import Health
from opdbus.index.memory import Memory
from opdbus.index.object_vectors import ObjectVectors
from opdbus.observe.supervisor import Supervisor
from opdbus.serving.serving import Serving
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity, StateObject, Thing


def _state(memory: Memory, tmp_path: Path) -> StateInterface:
    vectors = ObjectVectors(memory, Serving(load({})))
    declared = Declared(tmp_path / "state.json", memory)
    health, observers = Health(vectors, declared), Supervisor((), memory)
    return StateInterface(vectors, Finder(vectors), declared, health, observers, Tracker(memory))


def _drifts(tmp_path: Path, wanted: dict[str, Any]) -> Any:
    async def work() -> Any:
        async with Memory(tmp_path / "memory.db") as memory:
            return await _state(memory, tmp_path).drift_report(Caller(":1.1", 0), wanted)

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", 0),
        ("limit", -1),
        ("limit", MAX_LIMIT + 1),
        ("limit", "5"),
        ("limit", True),
        ("offset", -1),
        ("offset", 1.5),
        ("ofset", 1),
        ("source", "file"),
        ("kind", 7),
        ("severity", "worst"),
        ("class", "healed"),
    ],
)
def test_wrong_pages_of_drifts_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    """Refuse, by its name, an option that is out of bounds, of another type, or unknown."""
    with pytest.raises(InvalidArgs, match=key):
        _drifts(tmp_path, {key: value})


def test_pages_of_drifts_may_begin_anywhere(tmp_path: Path) -> None:
    """Accept the bounds of a page, and give nothing where there is nothing."""
    for wanted in ({}, {"limit": 1}, {"limit": MAX_LIMIT, "offset": 0}, {"offset": 1 << 31}):
        assert _drifts(tmp_path, dict(wanted)) == []


RUNNING = {"systemd/unit/a.service": {"active_state": "active", "unit_file_state": "enabled"}}
STOPPED = {"systemd/unit/a.service": {"active_state": "inactive", "unit_file_state": "enabled"}}
DECLARED = {"systemd": {"units": {"a": {"active_state": "active"}, "b": {"enabled": True}}}}
NAME = "systemd/unit/a"


async def _history(checked: Checked) -> list[tuple[str, ...]]:
    query = "SELECT what, name, cause, fields FROM history WHERE source = 'file' ORDER BY seq"
    rows = await checked.memory.archive.read(lambda store: list(store._database.execute(query)))
    return [row for row in rows if row[0] in {"drift", "intended", "healed"}]


@in_loop
async def test_what_cannot_be_compared_harms_nothing(tmp_path: Path) -> None:
    """Go on where a program published what no observer would."""
    async with checking(tmp_path) as checked:
        interface = {"name": "a", "ipv4": {"address": ["192.0.2.1/24"], "dhcp": True}}
        plugins = {"net": {"interfaces": [interface]}, **DECLARED}
        await checked.declare(plugins, tmp_path)
        odd = {"net/interface/a": {"addresses": ["x"]}, "net/address/x on a": {"dynamic": 7}}
        await checked.observe({**odd, **STOPPED}, [])
        await checked.until(1010.0)
        assert ["drift", NAME] in checked.crossings


def test_a_crossing_is_told_once_across_restarts(tmp_path: Path) -> None:
    """Tell of drift once, also to a daemon that was restarted, and of its end; keep both."""

    async def first() -> None:
        async with checking(tmp_path) as checked:
            await checked.declare(DECLARED, tmp_path)
            await checked.observe(STOPPED, ["systemd/unit"])
            await checked.until(1010.0)
            missing = ["drift", "systemd/unit/b"]
            assert sorted(checked.crossings) == [["drift", NAME], missing]

    async def second() -> None:
        async with checking(tmp_path) as checked:
            assert sorted(checked.fields) == [NAME, "systemd/unit/b"]
            await checked.declare(DECLARED, tmp_path)
            await checked.until(1010.0)
            # what nobody has listed yet is not missing, nor is it there
            await checked.observe(STOPPED, ["systemd/unit"])
            await checked.until(1020.0)
            assert checked.crossings == []
            assert checked.fields[NAME] == [["active_state", "active", "inactive", "error"]]
            await checked.observe(RUNNING, [])
            await checked.until(1030.0)
            assert checked.crossings == [["healed", NAME]]
            changed = '[[["active_state"],["active"],["inactive"]]]'
            rows = await _history(checked)
            assert ("drift", "a", "", changed) in rows
            assert rows[-1] == ("healed", "a", "", changed)

    asyncio.run(first())
    asyncio.run(second())


@in_loop
async def test_what_was_just_declared_is_intended(tmp_path: Path) -> None:
    """A declaration that has changed is intended for ten minutes, and drift then."""
    async with checking(tmp_path) as checked:
        checked.memory._clock = lambda: checked.clock.now + 4e9
        await checked.observe(STOPPED, ["systemd/unit"])
        # the first time is no change
        await checked.declare({"systemd": {"units": {"a": {"enabled": False}}}}, tmp_path)
        await checked.until(1010.0)
        assert checked.crossings == [["drift", NAME]]
        await checked.observe(STOPPED, ["systemd/unit"])
        await checked.declare({"systemd": {"units": {"a": {"state": "active"}}}}, tmp_path)
        await checked.until(1500.0)
        assert checked.crossings[1:] == [["intended", NAME]]
        await checked.until(1700.0)
        assert checked.crossings[2:] == [["drift", NAME]]
        assert [row[:3] for row in await _history(checked)] == [
            ("drift", "a", ""),
            ("intended", "a", "state file"),
            ("healed", "a", ""),
            ("drift", "a", ""),
        ]


@in_loop
async def test_what_follows_a_declaration_slowly_is_intended(tmp_path: Path) -> None:
    """A declared package that takes long to be installed is intended until that is done."""
    async with checking(tmp_path) as checked:
        checked.memory._clock = lambda: checked.clock.now + 4e9
        package = "packagekit/package/b"
        await checked.declare(DECLARED, tmp_path)
        await checked.observe({"packages/package/a": {"status": "installed"}}, ["packages/package"])
        await checked.until(1010.0)
        wanted = {"b": {"ensure": "installed", "version": "2"}}
        await checked.declare({**DECLARED, "packagekit": {"packages": wanted}}, tmp_path)
        await checked.until(1020.0)
        assert checked.crossings == [["intended", package]]
        for status, version in (("unpacked", "1"), ("half-configured", "1")):
            observed = {"packages/package/b": {"status": status, "version": version}}
            await checked.observe(observed, [])
            await checked.until(checked.clock.now + 10)
        assert {crossing[0] for crossing in checked.crossings} == {"intended"}
        observed = {"packages/package/b": {"status": "installed", "version": "1"}}
        await checked.observe(observed, [])
        await checked.until(checked.clock.now + 10)
        assert checked.crossings[-1] == ["drift", package]
        assert checked.fields == {package: [["version", "2", "1", "warning"]]}


@in_loop
async def test_what_is_gone_with_its_source_is_no_drift(tmp_path: Path) -> None:
    """Count nothing as missing whose observer or publisher has left."""
    async with checking(tmp_path) as checked:
        await checked.declare({**DECLARED, "p": {"things": {"c": {}, "d": {}}}}, tmp_path)
        both = {**RUNNING, "systemd/unit/b.service": {"unit_file_state": "enabled"}}
        await checked.observe(both, ["systemd/unit"])
        told = [StateObject(Identity("publish:x", "p", "thing", n), {}) for n in "cd"]
        await checked.memory.publish(told, 0, holder=":1.5")
        await checked.until(1010.0)
        checked.memory.notify(Listed("live:test", frozenset()))
        gone = {Identity("live:systemd", *name.split("/")) for name in both}
        await checked.memory.observe([], gone, {})
        await checked.memory.release(":1.5")
        await checked.until(1030.0)
        assert checked.crossings == []


@in_loop
async def test_what_a_program_withdraws_of_several_is_missing(tmp_path: Path) -> None:
    """Count what was published and withdrawn, not what nobody ever published."""
    async with checking(tmp_path) as checked:
        await checked.declare({"p": {"things": {"c": {}, "d": {}, "e": {}}}}, tmp_path)
        told = [StateObject(Identity("publish:x", "p", "thing", n), {}) for n in "cd"]
        await checked.memory.publish(told, 0)
        await checked.until(1010.0)
        assert checked.crossings == []
        await checked.memory.withdraw([Thing("p", "thing", "c")], 0)
        await checked.until(1020.0)
        assert checked.crossings == [["drift", "p/thing/c"]]


@in_loop
async def test_a_claim_that_is_given_up_heals(tmp_path: Path) -> None:
    """What was not declared where all had to be is as declared once the file claims it no more."""
    async with checking(tmp_path) as checked:
        await checked.declare({"systemd": {"exclusive": True, "units": []}}, tmp_path)
        await checked.observe(RUNNING, ["systemd/unit"])
        await checked.until(1010.0)
        name = "systemd/unit/a.service"
        assert checked.fields == {name: [["presence", "not declared", "present", "warning"]]}
        checked.memory.notify(Claimed(frozenset()))
        await checked.until(1020.0)
        assert checked.crossings == [["drift", name], ["healed", name]]


@pytest.mark.parametrize("claim", ["yes", 1, None, ["units", "typo"], [1], {"a": 1}])
def test_a_claim_that_makes_no_sense_is_refused(tmp_path: Path, claim: Any) -> None:
    """Refuse an `exclusive` that is neither a boolean nor names of lists beside it."""
    path = tmp_path / "state.json"
    path.write_text(
        json.dumps({"version": 1, "plugins": {"systemd": {"exclusive": claim, "units": {}}}})
    )
    with pytest.raises(StateFileError, match=r"\$\.plugins\.systemd\.exclusive.*keys beside it"):
        StateFile(path).read()


def test_a_claim_is_no_object(tmp_path: Path) -> None:
    """Make no settings of what only claims kinds."""
    path = tmp_path / "state.json"
    path.write_text('{"version": 1, "plugins": {"systemd": {"exclusive": true, "units": []}}}')
    file = StateFile(path)
    assert file.read() == (set(), [])
    assert file.claims == {("systemd", "unit")}


@in_loop
async def test_many_declared_objects_hold_the_loop_shortly(tmp_path: Path) -> None:
    """Look at few things at a time, whatever number is declared."""
    async with checking(tmp_path) as checked:
        items = [StateObject(Identity(FILE, "p", "k", f"n{n}"), {"a": n}) for n in range(1000)]
        await checked.memory.replace(FILE, {item.identity for item in items}, items)
        seen = [StateObject(i.identity._replace(source="publish:x"), {"a": 7}) for i in items]
        await checked.memory.publish(seen, 0)
        turns = 0
        while await checked.tracker.work():
            turns += 1
        assert turns >= 5
        await checked.until(1010.0)
        assert len(checked.tracker.counted) == 999
