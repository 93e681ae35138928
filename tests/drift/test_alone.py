"""Declared objects of kinds without any observed object: registered together, compared later."""

import time
from pathlib import Path

from harness.drifting import Checked, checking

from opdbus.drift.coverage import Coverage
from opdbus.drift.pairs import Pairs
from opdbus.state.object import Identity, ObjectId, StateObject

PLUGINS = {
    "systemd": {"units": {"a": {"active_state": "active"}, "b.service": {}}},
    "net": {"interfaces": {"eth0": {"type": "ethernet"}, "eth1": {}}},
    "sysctl": {"vm.swappiness": 10},
}


async def test_what_was_taken_together_is_compared_once_a_source_lists_it(tmp_path: Path) -> None:
    """A unit that was declared under its short name meets the observed one that comes later."""
    async with checking(tmp_path) as checked:
        await checked.declare(PLUGINS, tmp_path)
        await checked.until(1000.0)
        assert checked.fields == {}
        await checked.observe({"systemd/unit/a.service": {"active_state": "failed"}}, [])
        await checked.until(2000.0)
        assert [*checked.fields] == ["systemd/unit/a"]
        await checked.observe({}, ["systemd/unit"])
        await checked.until(3000.0)
        assert [*checked.fields] == ["systemd/unit/a", "systemd/unit/b.service"]
        await checked.declare({}, tmp_path)
        await checked.until(4000.0)
        assert checked.fields == {}


async def test_what_is_alone_is_known_to_be_missing_without_being_listed(tmp_path: Path) -> None:
    """All objects of such a kind are missing until they are compared or no longer declared."""
    async with checking(tmp_path) as checked:
        await checked.declare(PLUGINS, tmp_path)
        catalogue = checked.memory.catalogue
        coverage = Coverage(Pairs(catalogue), lambda: 5.0, catalogue)
        units = [ObjectId("systemd", "unit", name) for name in ("a", "b.service")]
        coverage.note_unobserved_kind(("systemd", "unit"))
        coverage.note(units[0], is_missing=True)
        assert sorted(coverage.all_missing()) == units
        assert coverage.plugins_to_list(set()) == {"systemd"}
        coverage.note(units[0], is_missing=False)
        assert [*coverage.all_missing()] == units[1:]
        coverage.note(units[0], is_missing=True)
        assert coverage.last_observed_at(units[0]) == 5.0
        coverage.note_unobserved_kind(("net", "interface"))
        found = [*coverage.missing(("net", "interface"))]
        assert sorted(object_id.name for object_id in found) == ["eth0", "eth1"]
        assert [*coverage.missing(("net", "interface"))] == []
        # tracked one by one once, and then none is observed again: each is still listed once
        for object_id in found:
            coverage.note(object_id, is_missing=True)
        coverage.note_unobserved_kind(("net", "interface"))
        missing = [*coverage.all_missing()]
        assert len(missing) == len(set(missing))
        await checked.declare({}, tmp_path)
        for object_id in (*units, *found):
            coverage.forget(object_id)
        assert [*coverage.all_missing()] == []
        assert coverage.plugins_to_list(set()) == set()


async def test_kinds_that_left_the_file_cost_nothing(tmp_path: Path) -> None:
    """Forget kinds, however many, once the file has no object of them, and do so fast."""
    async with checking(tmp_path) as checked:
        kinds = {f"p{number}": {"lamps": {"a": {}}} for number in range(1500)}
        await checked.declare({**kinds, "systemd": {"units": {"a": {}}}}, tmp_path)
        await checked.until(1001.0)
        assert len(checked.tracker.pairs.active) > 1500
        await checked.declare({"systemd": {"units": {"a": {}}}}, tmp_path)
        await checked.until(1002.0)
        began = time.thread_time()
        checked.tracker.awaits(lambda plugins, unlisted: [*plugins, *unlisted])
        assert time.thread_time() - began < 0.1
        assert ("systemd", "unit") in checked.tracker.pairs.active
        assert remembered(checked) < 100


async def test_kinds_that_publishers_name_are_forgotten(tmp_path: Path) -> None:
    """Remember no kind whose objects came and went, declared or not, while others are compared."""
    async with checking(tmp_path) as checked:
        await checked.observe({"systemd/unit/a": {"active_state": "failed"}}, ["systemd/unit"])
        for turn in range(2):
            kinds = {f"k{turn}_{number}": {"a": {}} for number in range(400)}
            await checked.declare({"lamp": kinds, "systemd": {"units": {"a": {}}}}, tmp_path)
            names = [f"{kind}{end}" for kind in [*kinds][:100] for end in ("", "x")]
            identities = [Identity("publish:p", "lamp", name, "a") for name in names]
            await checked.memory.publish([StateObject(one, {}) for one in identities], 0)
            await checked.until(checked.clock.now + 1)
            await checked.memory.withdraw([one.object_id for one in identities], 0)
            await checked.declare({"systemd": {"units": {"a": {}}}}, tmp_path)
            await checked.until(checked.clock.now + 1)
        checked.tracker.awaits(lambda plugins, unlisted: [*plugins, *unlisted])
        assert remembered(checked) < 600
        await checked.declare({"systemd": {"units": {"a": {"active_state": "active"}}}}, tmp_path)
        await checked.until(checked.clock.now + 10)
        assert [*checked.fields] == ["systemd/unit/a"]


def remembered(checked: Checked) -> int:
    """Count what drift has in memory of kinds and objects, without its bounded cache."""
    parts = (checked.tracker.pairs, checked.tracker._coverage, checked.tracker._records)
    held = [value for part in parts for name, value in vars(part).items() if name != "_sides"]
    return sum(len(value) for value in held if isinstance(value, dict | set | frozenset))
