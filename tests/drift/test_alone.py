"""Declared objects of kinds without any observed object: registered together, compared later."""

from pathlib import Path

from harness.drifting import checking

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
