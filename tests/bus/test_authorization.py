"""What each user may do, on a bus that lets everybody in."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from harness.authority import authority
from harness.running import (
    HISTORY,
    HISTORY_PATH,
    OBJECT,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Caller,
    Running,
    ask,
    run_program,
)
from harness.users import GROUP, MEMBER, NOBODY, User, answers, as_user, asking

from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.authorization.authorizer import Authorizer
from opdbus.bus.names import JOB, LOG_CONTROL
from opdbus.bus.service import contract
from opdbus.bus.service.contract import Node
from opdbus.bus.service.dispatch import Dispatcher
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.values import split

OBJECT_PATH = "/org/opdbus/state/systemd/unit/sshd_2eservice"
JOB_PATH = "/org/opdbus/job/1"
PATHS = {
    VECTORIZER: ROOT_PATH,
    STATE: STATE_PATH,
    OBJECT: OBJECT_PATH,
    JOB: JOB_PATH,
    HISTORY: HISTORY_PATH,
    LOG_CONTROL: "/org/freedesktop/LogControl1",
}
_SAMPLES: dict[str, Any] = {
    "h": "a file",
    "s": "x",
    "as": ["x"],
    "u": 1,
    "t": 1,
    "o": OBJECT_PATH,
    "ao": [OBJECT_PATH],
}
_PROPERTIES = "org.freedesktop.DBus.Properties"
_INTROSPECT = "org.freedesktop.DBus.Introspectable.Introspect"
_DENIED = "AccessDenied"
_ASKS = "InteractiveAuthorizationRequired"
_COMMAND = """
import asyncio, json, sys, opdbus.client
from opdbus.cli import main, modules, top
modules()
sys.argv[0] = "op-dbus"
"""


def _calls() -> list[tuple[str, list[Any]]]:
    """Give every method and property of the XML as a call with arguments of the right types."""
    found = []
    for name, path in PATHS.items():
        interface = contract.interface(name)
        for method in interface.methods.values():
            body = [_SAMPLES.get(s, [] if s[:2] == "a(" else {}) for s in split(method.inputs)]
            call = [path, f"{name}.{method.name}", method.inputs, *body]
            found.append((f"{name}.{method.name}", call))
        for prop in interface.properties:
            found += [
                (f"{name}.{prop}", [path, f"{_PROPERTIES}.Get", "ss", name, prop]),
                (f"Set {name}.{prop}", [path, f"{_PROPERTIES}.Set", "ssv", name, prop, "x"]),
            ]
        found.append((f"all of {name}", [path, f"{_PROPERTIES}.GetAll", "s", name]))
    trees = (STATE_PATH, f"{STATE_PATH}/systemd", OBJECT_PATH, "/org/opdbus/job", JOB_PATH)
    found += [(f"Introspect {path}", [path, _INTROSPECT, ""]) for path in trees]
    # nor may a stranger tell what is there from what is not
    found += [
        ("what is not there", [f"{OBJECT_PATH}x", f"{OBJECT}.GetVector", "a{sv}", {}]),
        ("a method that is not there", [OBJECT_PATH, f"{OBJECT}.Nothing", ""]),
        ("an interface that is not there", [OBJECT_PATH, "org.example.Some.Thing", ""]),
        ("arguments that do not fit", [OBJECT_PATH, f"{OBJECT}.GetVector", "s", "x"]),
        ("no interface", [STATE_PATH, ".Search", "sua{sv}", "x", 1, {}]),
        ("no interface, all", [STATE_PATH, ".GetAll", "s", STATE]),
        ("the tree of no object", [f"{OBJECT_PATH}x", _INTROSPECT, ""]),
        ("a tree elsewhere", ["/elsewhere", _INTROSPECT, ""]),
    ]
    return found


def test_the_calls_are_of_every_interface() -> None:
    """Leave no interface of the package out of what strangers are tested with."""
    assert set(PATHS) == {interface.name for interface in contract.interfaces()}


def _ask(user: User, bus: str, calls: list[list[Any]], *flags: str) -> list[str]:
    return answers(user, bus, [["org.opdbus", *call] for call in calls], *flags)


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running]) -> Running:
    """Run a daemon of which these tests change nothing."""
    return shared_daemons().start().vectorized()


def test_a_stranger_is_denied_every_method_and_property(daemon: Running) -> None:
    """Answer AccessDenied to another user for all that the XML has, though the bus lets it in."""
    calls = _calls()
    found = _ask(NOBODY, daemon.bus, [call for _, call in calls])
    free = [
        [ROOT_PATH, "org.freedesktop.DBus.Peer.Ping", ""],
        ["/elsewhere", "org.freedesktop.DBus.Peer.Ping", ""],
        [ROOT_PATH, _INTROSPECT, ""],
    ]
    assert _ask(NOBODY, daemon.bus, free) == ["allowed"] * len(free)
    named = zip((name for name, _ in calls), found, strict=True)
    assert {name: answer for name, answer in named if answer != _DENIED} == {}


async def test_polkit_decides_for_everybody_else(daemon: Running) -> None:
    """Allow, deny and challenge a real daemon's callers as polkit's rules are at that moment."""
    calls = [
        [STATE_PATH, f"{STATE}.List", "a{sv}uu", {}, 0, 1],
        [ROOT_PATH, f"{VECTORIZER}.CountTokens", "asa{sv}", ["x"], {}],
        [STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "test", [], {}],
        [ROOT_PATH, f"{VECTORIZER}.Reload", "a{sv}", {}],
        [PATHS[LOG_CONTROL], f"{_PROPERTIES}.Set", "ssv", LOG_CONTROL, "LogLevel", "info"],
    ]

    async def ask(*flags: str) -> list[str]:
        return await asyncio.to_thread(_ask, NOBODY, daemon.bus, calls, *flags)

    async with authority(daemon.bus) as polkit:
        polkit.change(read="yes", vectorize="no", publish="yes", manage="challenge")
        assert await ask() == ["allowed", _DENIED, "allowed", _ASKS, _ASKS]
        polkit.asked_user = "yes"
        assert await ask("-i") == ["allowed", _DENIED, "allowed", "allowed", "allowed"]
        polkit.asked_user = "no"
        assert await ask("-i") == ["allowed", _DENIED, "allowed", _DENIED, _DENIED]
        polkit.change(read="no", vectorize="yes")
        assert await ask() == [_DENIED, "allowed", _DENIED, _DENIED, _DENIED]


async def test_a_caller_that_leaves_is_not_asked_any_more(daemon: Running) -> None:
    """Take the question for a password back when the connection that it was for ends."""
    call = f'["org.opdbus", "{ROOT_PATH}", "{VECTORIZER}.Reload", "a{{sv}}", {{}}]'
    async with authority(daemon.bus) as polkit:
        polkit.change(manage="challenge")
        polkit.asked_user = "hang"
        with asking(NOBODY, daemon.bus, "-i") as client:
            print(call, file=client.stdin, flush=True)
            await polkit.seen(2)
            client.kill()
        await polkit.seen(2, cancelled=1)
        assert polkit.cancelled == [polkit.calls[1][4]]


class _State:
    """State1, of which only the list is asked for."""

    info = contract.interface(STATE)

    async def list_(self, *_: Any) -> tuple[int, list[Any]]:
        """Give no objects."""
        return 0, []

    async def properties(self) -> Mapping[str, Any]:
        """Give none."""
        return {}


async def test_the_bus_tells_the_groups_of_a_caller(bus_address: str) -> None:
    """Take the groups of a caller from the kernel, by way of the bus."""
    async with Connection(bus_address) as connection:
        authorizer = Authorizer(connection, gid_of=lambda _: GROUP)
        node = Node((_State(),), list)
        dispatcher = Dispatcher(connection, authorizer, {"/it": node}.get, RunningCalls())
        connection.on_call = dispatcher.take
        call = [connection.name, "/it", f"{STATE}.List", "a{sv}uu", {}, 0, 1]
        users = (MEMBER, MEMBER._replace(groups=()), NOBODY)
        assert [await asyncio.to_thread(answers, u, bus_address, [call]) for u in users] == [
            ["allowed"],
            [_DENIED],
            [_DENIED],
        ]


def test_the_command_line_says_which_users_may(daemons: Callable[..., Running]) -> None:
    """Exit 5 with one sentence where the caller is not allowed, and tell the operator so.

    Few refusals of a user are logged in a minute: the daemon is this test's own.
    """
    with daemons(VECTOR_LEVEL="none") as daemon:
        ask(daemon, Caller.ready)
        done = _status(daemon)
        line = daemon.wait_for_log(r".*access denied.*")[0]
    assert f"uid={NOBODY.uid}" in line
    assert f"method={VECTORIZER}.Status" in line
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        "op-dbus: nobody (uid 65534) may not read here: run `usermod -aG op-dbus nobody` as root,"
        " then log in again\n"
    )


async def test_the_command_line_has_a_password_asked_for(daemon: Running) -> None:
    """Let polkit ask whoever sits at the terminal, and exit 5 where nobody can be asked."""
    async with authority(daemon.bus) as polkit:
        polkit.change(read="challenge")
        refused = await asyncio.to_thread(_status, daemon)
        polkit.asked_user = "yes"
        allowed = await asyncio.to_thread(_status, daemon)
    assert refused.returncode == 5
    assert refused.stderr.startswith(
        "op-dbus: nobody (uid 65534) may not read here without authenticating"
    )
    assert allowed.returncode == 0, allowed.stderr


def _status(daemon: Running) -> subprocess.CompletedProcess[str]:
    return run_program(as_user(NOBODY, _COMMAND, "--bus", daemon.bus, "status"))
