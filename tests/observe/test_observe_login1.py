"""The observer of logind, on a fake one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.observing import FakeService, fake_service, observed

from opdbus.observe.dbus import login1

MANAGER = "org.freedesktop.login1.Manager"
PATH = "/org/freedesktop/login1"
SESSION = f"{PATH}/session/_33"


@asynccontextmanager
async def logind(bus: str) -> AsyncIterator[FakeService]:
    """Serve one session of alice."""
    async with fake_service(bus, "org.freedesktop.login1") as service:
        sessions = [["3", 1001, "alice", "seat0", SESSION]]
        service.answers = {
            f"{MANAGER}.ListSessions": lambda _: ("a(susso)", [sessions]),
            f"{MANAGER}.ListUsers": lambda _: ("a(uso)", [[[1001, "alice", f"{PATH}/user/_1001"]]]),
            f"{MANAGER}.ListSeats": lambda _: ("a(so)", [[]]),
            f"{MANAGER}.ListInhibitors": lambda _: (
                "a(ssssuu)",
                [[["sleep", "NetworkManager", "turns networks off", "delay", 0, 812]]],
            ),
        }
        service.properties = {
            SESSION: {"Name": "alice", "State": "active", "Remote": False, "IdleHint": False},
            f"{PATH}/user/_1001": {"Name": "alice", "State": "active"},
        }
        yield service


async def test_a_change_reaches_the_object(tmp_path: Path, system_bus: str) -> None:
    """Sessions, users and what holds the host awake are objects, which being idle changes not."""
    async with logind(system_bus) as service, observed(tmp_path, login1.OBSERVER) as host:
        await host.until_shown("login1/session/3", user="alice", state="active", remote=False)
        await host.until_shown("login1/user/alice", state="active")
        await host.until_shown("login1/inhibitor/NetworkManager sleep", why="turns networks off")
        await host.until_shown("login1/session/3", idle=False)
        generation = host.memory.generation
        service.changed(SESSION, "org.freedesktop.login1.Session", IdleHint=True)
        await host.until_shown("login1/session/3", idle=True)
        assert host.memory.generation == generation
        service.changed(SESSION, "org.freedesktop.login1.Session", LockedHint=True)
        await host.until_shown("login1/session/3", locked=True)


async def test_a_logind_that_leaves_takes_its_objects_along(
    tmp_path: Path, system_bus: str
) -> None:
    """Without logind there are no sessions, and the status says why; with it they are back."""
    async with observed(tmp_path, login1.OBSERVER) as host:
        async with logind(system_bus):
            await host.until_shown("login1/session/3")
        await host.until(lambda: host.status.state == "absent")
        assert host.names == set()
        assert host.status.detail == "org.freedesktop.login1 is not on the system bus"
        async with logind(system_bus):
            await host.until_shown("login1/session/3")


async def test_signals_of_others_are_not_believed(tmp_path: Path, system_bus: str) -> None:
    """A signal that another client sends to us in logind's name asks logind nothing."""
    async with (
        logind(system_bus) as service,
        observed(tmp_path, login1.OBSERVER) as host,
        fake_service(system_bus, "org.example.Liar") as liar,
    ):
        await host.until_shown("login1/session/3")
        asked = len(service.calls)
        liar.signal(PATH, f"{MANAGER}.SessionNew", "so", "4", SESSION)
        service.changed(SESSION, "org.freedesktop.login1.Session", LockedHint=True)
        await host.until_shown("login1/session/3", locked=True)
        listings = [c for c in service.calls[asked:] if c[1].endswith("ListSessions")]
        assert len(listings) == 1


async def test_inhibitors_of_one_program(tmp_path: Path, system_bus: str) -> None:
    """Of several with one name all are known, and the name is the same when one ends."""
    first = ["sleep", "NetworkManager", "turns networks off", "delay", 0, 812]
    other = ["sleep", "NetworkManager", "an update runs", "block", 0, 900]
    name = "login1/inhibitor/NetworkManager sleep"
    async with logind(system_bus) as service, observed(tmp_path, login1.OBSERVER) as host:
        held = [first, other]
        service.answers[f"{MANAGER}.ListInhibitors"] = lambda _: ("a(ssssuu)", [held])
        service.changed(SESSION, "org.freedesktop.login1.Session", LockedHint=True)
        why = "an update runs; turns networks off"
        await host.until_shown(name, why=why, mode="block; delay", uid=0, pid="812; 900")
        held.remove(first)
        service.changed(SESSION, "org.freedesktop.login1.Session", LockedHint=False)
        await host.until_shown(name, why="an update runs", mode="block", uid=0, pid=900)
        assert not [each for each in host.names if "inhibitor" in each and each != name]
