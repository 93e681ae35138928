"""Who may do what: on a bus that lets everybody in, and by the table alone."""

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from running import (
    OBJECT,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Running,
    as_other_user,
    calling,
)

from opdbus.bus import authorization, contract
from opdbus.bus.authorization import ACTIONS, Authorizer
from opdbus.bus.connection import RemoteError, split
from opdbus.errors import AccessDenied

OBJECT_PATH = "/org/opdbus/state/systemd/unit/sshd_2eservice"
PATHS = {VECTORIZER: ROOT_PATH, STATE: STATE_PATH, OBJECT: OBJECT_PATH}
_SAMPLES: dict[str, Any] = {
    "h": "a file",
    "s": "x",
    "as": ["x"],
    "u": 1,
    "o": OBJECT_PATH,
    "ao": [OBJECT_PATH],
}
_PROPERTIES = "org.freedesktop.DBus.Properties"
# run as another user: each line is a call, each answer the name of its error
# a user that is neither root nor whoever runs the tests
STRANGER = 65534 if os.geteuid() != 65534 else 65533

_STRANGER = """
import asyncio, json, sys
from opdbus.bus.connection import Connection, RemoteError

async def ask():
    async with Connection(sys.argv[1]) as connection:
        for line in sys.stdin:
            try:
                call = json.loads(line)
                with open("/dev/null") as file:
                    call = [file if value == "a file" else value for value in call]
                    await connection.call("org.opdbus", *call)
                print("allowed", flush=True)
            except RemoteError as error:
                print(error.name, flush=True)

def main():
    asyncio.run(ask())
"""
_COMMAND = """
import asyncio, json, sys, opdbus.client
from opdbus.cli import commands, main
sys.argv[0] = "op-dbus"
"""


class Bus:
    """A bus daemon that vouches for whom the test says, and counts how often it is asked."""

    def __init__(self, **credentials: Any) -> None:
        self.credentials = credentials
        self.asked = 0

    async def ask_bus(self, member: str, _signature: str, name: str) -> list[Any]:
        """Answer GetConnectionCredentials."""
        assert member == "GetConnectionCredentials"
        self.asked += 1
        if name == ":gone":
            raise RemoteError("org.freedesktop.DBus.Error.NameHasNoOwner", "gone")
        return [self.credentials]


def _allowed(bus: Bus, sender: str = ":1.1") -> set[str]:
    authorizer = Authorizer(bus)  # type: ignore[arg-type] -- all of it that is used
    allowed = set()
    for action in (*ACTIONS, "", "unheard-of"):
        try:
            asyncio.run(authorizer.require(sender, action))
        except AccessDenied:
            continue
        allowed.add(action)
    return allowed


def test_root_may_do_everything_that_has_a_name() -> None:
    """Allow root every action, and nobody an action that is not in the table."""
    assert _allowed(Bus(UnixUserID=0, UnixGroupIDs=[0])) == set(ACTIONS)


def test_the_daemons_own_user_is_as_root() -> None:
    """Allow the user that the daemon runs as, so that a session bus is of use."""
    assert _allowed(Bus(UnixUserID=os.geteuid(), UnixGroupIDs=[])) == set(ACTIONS)


def test_a_stranger_may_do_nothing() -> None:
    """Deny by default."""
    assert _allowed(Bus(UnixUserID=STRANGER, UnixGroupIDs=[STRANGER])) == set()


def test_who_cannot_be_vouched_for_may_do_nothing() -> None:
    """Deny where the bus does not know the caller, or not its user."""
    assert _allowed(Bus()) == set()
    assert _allowed(Bus(UnixUserID=0), ":gone") == set()


def test_the_bus_is_asked_once_for_each_connection() -> None:
    """Remember a connection's user until the connection is forgotten."""
    bus = Bus(UnixUserID=0, UnixGroupIDs=[])
    authorizer = Authorizer(bus)  # type: ignore[arg-type] -- all of it that is used

    async def ask() -> None:
        for sender in (":1.1", ":1.1", ":1.2"):
            await authorizer.require(sender, "read")
        authorizer.forget(":1.1")
        await authorizer.require(":1.1", "read")

    asyncio.run(ask())
    assert bus.asked == 3


def test_groups_are_looked_up_once_and_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve the group once for each connection, on a thread."""
    threads = []

    def look_up(_name: str) -> Any:
        threads.append(threading.current_thread())
        return SimpleNamespace(gr_gid=77)

    monkeypatch.setattr(authorization, "getgrnam", look_up)
    authorizer = Authorizer(Bus(UnixUserID=STRANGER, UnixGroupIDs=[77]))  # type: ignore[arg-type] -- all of it that is used

    async def ask() -> None:
        for _ in range(3):
            await authorizer.require(":1.1", "read")

    asyncio.run(ask())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def _calls() -> list[tuple[str, list[Any]]]:
    """Give every method and property of the XML as a call with arguments of the right types."""
    found = []
    for name, path in PATHS.items():
        interface = contract.interface(name)
        for method in interface.methods.values():
            body = [_SAMPLES.get(s, [] if s[:2] == "a(" else {}) for s in split(method.inputs)]
            call = [path, f"{name}.{method.name}", method.inputs, *body]
            found.append((f"{name}.{method.name}", call))
        found += [
            (f"{name}.{prop}", [path, f"{_PROPERTIES}.Get", "ss", name, prop])
            for prop in interface.properties
        ]
        found.append((f"all of {name}", [path, f"{_PROPERTIES}.GetAll", "s", name]))
    introspect = "org.freedesktop.DBus.Introspectable.Introspect"
    trees = (STATE_PATH, f"{STATE_PATH}/systemd", OBJECT_PATH)
    found += [(f"Introspect {path}", [path, introspect, ""]) for path in trees]
    # nor may a stranger tell what is there from what is not
    found.append(("what is not there", [f"{OBJECT_PATH}x", f"{OBJECT}.GetVector", "a{sv}", {}]))
    found.append(("a method that is not there", [OBJECT_PATH, f"{OBJECT}.Nothing", ""]))
    return found


def _as_stranger(bus: str, calls: list[list[Any]]) -> list[str]:
    lines = "".join(f"{json.dumps(call)}\n" for call in calls)
    done = subprocess.run(
        as_other_user(_STRANGER, bus),
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_stranger_is_denied_every_method_and_property(daemons: Callable[..., Running]) -> None:
    """Answer AccessDenied to another user for all that the XML has, though the bus lets it in."""
    with daemons() as daemon:

        async def wait() -> None:
            async with calling(daemon.bus) as caller:
                await caller.vectorized()

        asyncio.run(wait())
        calls = _calls()
        answers = _as_stranger(daemon.bus, [call for _, call in calls])
        free = [[ROOT_PATH, "org.freedesktop.DBus.Peer.Ping", ""]]
        assert _as_stranger(daemon.bus, free) == ["allowed"]
    denied = "org.freedesktop.DBus.Error.AccessDenied"
    assert {name: a for (name, _), a in zip(calls, answers, strict=True) if a != denied} == {}


def test_the_command_line_says_who_may(daemons: Callable[..., Running]) -> None:
    """Exit 5 with one sentence where the caller is not allowed."""
    with daemons() as daemon:

        async def wait() -> None:
            async with calling(daemon.bus) as caller:
                await caller.ready()

        asyncio.run(wait())
        done = subprocess.run(
            as_other_user(_COMMAND, "--bus", daemon.bus, "status"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("op-dbus: uid 65534 may not read here: it must be root or")
    assert done.stderr.count("\n") == 1
