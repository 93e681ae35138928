"""A reboot of the host: an event with its time, and with who brought it about."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.observing import fake_service

from opdbus.history import acts
from opdbus.history.acts import Act
from opdbus.history.change import HOST, REBOOT
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes import history_reader
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.systemd import pid1
from opdbus.wording import change_words

AT = 1_800_000_000_000_000
MINUTE = 60_000_000


async def _reboots(folder: Path, *boots: str) -> list[Row]:
    """Return the reboots that are recorded when op-dbus starts in these runs of the host."""
    for boot in boots:
        store = StateStore(folder / "memory.db", boot=boot, booted_at=AT / 1e6)
        async with store as memory:
            rows = await history_reader.first_rows(memory, Filter(cause="boot"), 10)
    return [row for row in rows if row.cause == REBOOT]


async def test_a_reboot_is_an_event(tmp_path: Path) -> None:
    """A new run of the host is one event, at its time; the first and an unknown one are none."""
    assert await _reboots(tmp_path, "a" * 32) == []
    (row,) = await _reboots(tmp_path, "a" * 32, "", "b" * 32, "b" * 32)
    assert (row.identity, row.change_type, row.boot) == (HOST, "event", "b" * 32)
    assert row.at == min(AT, row.at) <= time.time() * 1e6
    assert "rebooted" in row.sentence
    change = {"plugin": "system", "kind": "fact", "name": "kernel", "what": "event", "by": ""}
    words = change_words.describe_change({**change, "cause": row.cause, "fields": []})
    assert (words.subject, words.verb) == ("this host", "was rebooted")


REBOOT_ROW = Row(9, AT, "b" * 32, HOST, "event", REBOOT, [], 0, None, "")


@pytest.mark.parametrize(
    ("command", "is_reboot"),
    [
        ("systemctl reboot", True),
        ("/usr/bin/systemctl --no-wall reboot", True),
        ("reboot", True),
        ("shutdown -r now", True),
        ("sh -c 'sync; shutdown -r +1'", True),
        ("systemctl isolate reboot.target", True),
        ("init 6", True),
        ("loginctl poweroff", True),
        ("systemctl kexec", True),
        ("shutdown -c", False),
        ("systemctl restart nginx", False),
        ("systemctl enable reboot-notice", False),
        ("cat reboot", False),
    ],
)
def test_who_rebooted(command: str, is_reboot: bool) -> None:  # noqa: FBT001 -- a column
    """A command that ends the run of the host explains the reboot, up to a quarter of an hour."""
    act = Act("bob", AT - 10 * MINUTE, "sudo", command, "/", 1)
    assert acts.explains(act, REBOOT_ROW) is is_reboot
    assert list(acts.timely([act], REBOOT_ROW)) == [act]
    late = Act("bob", AT - 16 * MINUTE, "sudo", command, "/", 1)
    assert list(acts.timely([late], REBOOT_ROW)) == []


@asynccontextmanager
async def _manager(address: str, **times: int) -> AsyncIterator[None]:
    async with fake_service(address, pid1.NAME) as service:
        service.properties["/org/freedesktop/systemd1"] = times
        yield


async def test_the_run_of_a_host(system_bus: str) -> None:
    """A host has the kernel's id of its run, a container one of its own; both begin with PID 1."""
    kernels = "f" * 32
    assert await pid1.find_boot(kernels) == (kernels, 0.0)
    async with _manager(system_bus, UserspaceTimestamp=AT, KernelTimestamp=AT - 5):
        assert await pid1.find_boot(kernels) == (kernels, AT / 1e6)
        # where a sandbox hides it
        hidden = await pid1.find_boot("")
        assert hidden == await pid1.find_boot("")
        assert len(hidden.id) == 32
    async with _manager(system_bus, UserspaceTimestamp=AT, KernelTimestamp=0):
        first = await pid1.find_boot(kernels)
        assert first == await pid1.find_boot(kernels)
        assert kernels != first.id != hidden.id
    async with _manager(system_bus, UserspaceTimestamp=AT + 1, KernelTimestamp=0):
        assert (await pid1.find_boot(kernels)).id != first.id
