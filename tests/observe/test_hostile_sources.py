"""Sources that hang, flood, lie or flicker stop nobody's searches, and show no secret.

Bounds are for a busy machine with two cores.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks.leaks import leaks
from attacks.planted import MARK, MIRRORED
from attacks.scene import Attacker, attack_again, attacking
from attacks.sources import BUSES, SANE, SECRET, SECRETS
from harness.observing import PATIENCE, Source, observed
from harness.running import Bus, Running, state_file

from opdbus.observe.core.file_reading import in_thread, read_at_most
from opdbus.observe.core.report import LostSource
from opdbus.observe.packages.dpkg import StatusFile

OBSERVED = ("systemd", "login1", "machined", MIRRORED)
SOURCES = [name for name in BUSES if name not in {SANE, SECRETS}]


@pytest.fixture(scope="module")
def system() -> Iterator[Bus]:
    """Run another bus as the system's, with sane fakes of all that is observed."""
    bus = Bus()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
        with attacking(bus.address, SANE, [Attacker(program="attacks.sources")], 1000.0):
            yield bus
    bus.kill()


@pytest.fixture(scope="module")
def daemon(system: Bus, shared_daemons: Callable[..., Running], tmp_path_factory: Any) -> Running:
    """Run a daemon that observes them, with all objects vectorized."""
    file = tmp_path_factory.mktemp("declared") / "state.json"
    state_file(file, {f"u{n}.service": f"mail {n}" for n in range(300)})
    assert system
    running = shared_daemons(STATE_FILE=file, LOG_LEVEL="info", OBSERVE=",".join(OBSERVED)).start()
    for event in (*(f"name={name} .*state=up" for name in OBSERVED), "model proven"):
        running.wait_for_log(event)
    running.wait_for_log("state file read")
    return running.vectorized()


@pytest.mark.parametrize("name", SOURCES)
def test_friend_is_served_while_a_source_attacks(daemon: Running, system: Bus, name: str) -> None:
    """While a source attacks, searches are answered, memory stays, and no secret is anywhere."""
    attackers = [Attacker(program="attacks.sources", target=system.address)]
    seen = attack_again(daemon, name, attackers, 1.5, settle=2.0)
    assert not seen.faults
    assert (seen.attacked.errors, seen.attacked.lost) == ({}, 0)
    assert seen.is_soon, seen
    assert seen.memory[1] < seen.memory[0] + 300, seen
    assert seen.files[-1] <= seen.files[0]
    assert leaks(daemon, MARK) == []


def test_a_daemon_ends_while_its_sources_hang(daemon: Running, system: Bus) -> None:
    """A source that never answers does not keep the daemon from ending in time."""
    assert daemon.stop() == 0
    daemon.start()
    with attacking(system.address, "hangs", [Attacker(program="attacks.sources")], 60.0):
        for name in OBSERVED:
            daemon.wait_for_log(f"name={name} .*did not answer.*state=failed")
        assert daemon.stop() == 0


@pytest.mark.parametrize("what", ["fifo", "device", "folder", "circle", "sparse", "missing"])
def test_what_is_no_file_does_not_hang(tmp_path: Path, what: str) -> None:
    """A status that is no file is refused at once, and of an endless one only a part is read."""
    path = tmp_path / "status"
    match what:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "circle":
            path.symlink_to(path)
        case "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 30)
    if what == "sparse":
        assert read_at_most(path, 1000) == (bytes(1000), True)
        assert StatusFile(path).read() == []
    else:
        with pytest.raises(OSError, match="Errno"):
            StatusFile(path).read()


async def test_readings_that_hang_have_a_bound() -> None:
    """When many readings of one function hang, no more are begun, and others are."""
    forever = threading.Event()
    for _ in range(16):
        with pytest.raises(LostSource, match="took more"):
            await in_thread(forever.wait, 0.01)
    with pytest.raises(LostSource, match="16 earlier readings"):
        await in_thread(forever.wait, PATIENCE)
    assert await in_thread(os.getpid) == os.getpid()
    forever.set()


async def test_a_reading_that_ended_in_time_counts(tmp_path: Path) -> None:
    """What was read counts, however late the event loop hears of it."""
    ended = threading.Event()

    def look() -> bool:
        found = tmp_path.exists()
        ended.set()
        return found

    reading = asyncio.create_task(in_thread(look, 0.05))
    await asyncio.sleep(0)
    assert ended.wait(PATIENCE)
    time.sleep(0.2)  # noqa: ASYNC251 -- what makes it late
    assert await reading


async def test_a_huge_value_is_refused_before_it_is_searched_for_secrets(tmp_path: Path) -> None:
    """A value of 50 MB costs no search for secrets, and the next object is stored at once."""
    source = Source()
    source.lamps["huge"] = {"text": f"password={SECRET} " * 2_000_000}
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")
        assert "more than 1048576 bytes" in host.status.detail
        assert host.names == {"house/lamp/desk"}


async def test_every_task_of_an_observer_ends_with_it(tmp_path: Path) -> None:
    """An observer that is stopped leaves no task behind."""
    before = asyncio.all_tasks()
    async with observed(tmp_path, Source().observer) as host:
        await host.until_shown("house/lamp/desk")
    assert asyncio.all_tasks() == before
