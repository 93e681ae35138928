"""Who may do what: on a bus that lets everybody in, and by the table alone."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from authority import authority
from running import (
    HISTORY,
    HISTORY_PATH,
    OBJECT,
    PATIENCE_SECONDS,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Running,
    calling,
)
from users import ANOTHER, GROUP, MEMBER, NOBODY, User, answers, as_user, asking

from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.authorization.authorizer import MOST_ASKED, Authorizer
from opdbus.bus.authorization.log_limit import MOST_A_USER, MOST_USERS, LogLimit
from opdbus.bus.authorization.polkit import Verdict
from opdbus.bus.names import ACTIONS, JOB, LOG_CONTROL
from opdbus.bus.service import contract
from opdbus.bus.service.dispatch import Dispatcher
from opdbus.bus.service.node import Node
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.values import split
from opdbus.errors import AccessDenied, LimitsExceeded

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
from opdbus.cli import main, reading
sys.argv[0] = "op-dbus"
"""


class Bus:
    """A bus daemon without polkit that vouches for whom the test says, and counts the questions."""

    def __init__(self, **credentials: Any) -> None:
        self.credentials = credentials
        self.asked = 0

    async def ask_bus(self, member: str, _signature: str, name: str, *_: Any) -> list[Any]:
        """Answer GetConnectionCredentials, and that there is no polkit."""
        if member == "GetNameOwner":
            raise RemoteError("org.freedesktop.DBus.Error.NameHasNoOwner", "none")
        if member == "StartServiceByName":
            raise RemoteError("org.freedesktop.DBus.Error.ServiceUnknown", "none")
        assert member == "GetConnectionCredentials"
        self.asked += 1
        if name == ":gone":
            raise RemoteError("org.freedesktop.DBus.Error.NameHasNoOwner", "gone")
        return [self.credentials]

    async def subscribe(self, _rule: str) -> None:
        """Send no signal."""


def _group(_name: str) -> int:
    return GROUP


def _authorizer(bus: Bus, group: Callable[[str], int] = _group) -> Authorizer:
    return Authorizer(bus, group=group)  # type: ignore[arg-type] -- all of it that is used


def _allowed(bus: Bus, sender: str = ":1.1", group: Callable[[str], int] = _group) -> set[str]:
    authorizer = _authorizer(bus, group)

    async def ask() -> set[str]:
        allowed = set()
        for action in (*ACTIONS, "", "unheard-of"):
            try:
                await authorizer.require(sender, action)
            except AccessDenied:
                continue
            allowed.add(action)
        return allowed

    return asyncio.run(ask())


def test_root_may_do_everything_that_has_a_name() -> None:
    """Allow root every action, and nobody an action that is not in the table."""
    assert _allowed(Bus(UnixUserID=0, UnixGroupIDs=[0])) == set(ACTIONS)


def test_the_daemons_own_user_is_as_root() -> None:
    """Allow the user that the daemon runs as, so that a session bus is of use."""
    assert _allowed(Bus(UnixUserID=os.geteuid(), UnixGroupIDs=[])) == set(ACTIONS)


def test_a_stranger_may_do_nothing() -> None:
    """Deny by default."""
    assert _allowed(Bus(UnixUserID=NOBODY.uid, UnixGroupIDs=[NOBODY.uid])) == set()


def test_the_group_may_use_but_not_manage() -> None:
    """Allow the group what needs no administrator."""
    member = Bus(UnixUserID=MEMBER.uid, UnixGroupIDs=[MEMBER.uid, GROUP])
    assert _allowed(member) == {"read", "vectorize", "publish"}


def test_without_the_group_nobody_is_in_it() -> None:
    """Deny where the system has no such group."""

    def missing(name: str) -> int:
        raise KeyError(name)

    assert _allowed(Bus(UnixUserID=MEMBER.uid, UnixGroupIDs=[GROUP]), group=missing) == set()


def test_who_gave_up_its_groups_is_in_none() -> None:
    """Believe the bus that a process has no groups, whatever the database says of its user."""
    everybody = os.getgroups() or [os.getgid()]
    no_groups = Bus(UnixUserID=NOBODY.uid, UnixGroupIDs=[])
    assert _allowed(no_groups, group=lambda _: everybody[0]) == set()


def test_who_cannot_be_vouched_for_may_do_nothing() -> None:
    """Deny where the bus does not know the caller, or not its user."""
    assert _allowed(Bus()) == set()
    assert _allowed(Bus(UnixUserID=0), ":gone") == set()


@pytest.mark.parametrize(
    ("uid", "verdict", "action", "sentence"),
    [
        (65534, Verdict.UNDECIDED, "publish",
         ("nobody (uid 65534) may not publish here: run `usermod -aG op-dbus nobody` as root, then"
         " log in again")),
        (4321, Verdict.UNDECIDED, "read",
         "uid 4321 may not read here: run `usermod -aG op-dbus NAME` as root, then log in again"),
        (65534, Verdict.UNDECIDED, "manage",
         "nobody (uid 65534) may not manage here: call as root, for example with sudo"),
        (65534, Verdict.CHALLENGE, "manage",
         ("nobody (uid 65534) may not manage here without authenticating (polkit action"
         " org.opdbus.manage): call as root, for example with sudo; or call from a session that has"
         " an authentication agent, such as pkttyagent")),
        (65534, Verdict.NO, "read",
         ("nobody (uid 65534) may not read here: polkit refused org.opdbus.read: call as root, or"
         " have an administrator allow it by a rule in /etc/polkit-1/rules.d")),
    ],
)  # fmt: skip
def test_a_refusal_names_the_cure(uid: int, verdict: Verdict, action: str, sentence: str) -> None:
    """Name the user and say what would let it do what it may not."""

    class Polkit:
        async def check(self, _sender: str, _action: str) -> Verdict:
            return verdict

    bus: Any = Bus(UnixUserID=uid, UnixGroupIDs=[])
    authorizer = Authorizer(bus, Polkit(), _group)  # type: ignore[arg-type] -- all that is used
    with pytest.raises(AccessDenied) as caught:
        asyncio.run(authorizer.require(":1.1", action))
    assert str(caught.value) == sentence


def test_the_bus_is_asked_once_for_each_connection() -> None:
    """Remember a connection's user until the connection is forgotten, and ask for many at once."""
    bus = Bus(UnixUserID=0, UnixGroupIDs=[])

    async def ask() -> None:
        authorizer = _authorizer(bus)
        first = [authorizer.require(sender, "read") for sender in (":1.1", ":1.1", ":1.2")]
        await asyncio.gather(*first)
        await authorizer.require(":1.1", "read")
        authorizer.forget(":1.1")
        await authorizer.require(":1.1", "read")

    asyncio.run(ask())
    assert bus.asked == 3


def test_groups_are_looked_up_once_and_off_the_loop() -> None:
    """Resolve the group once for each connection, on a thread."""
    threads = []

    def look_up(_name: str) -> int:
        threads.append(threading.current_thread())
        return GROUP

    async def ask() -> None:
        authorizer = _authorizer(Bus(UnixUserID=MEMBER.uid, UnixGroupIDs=[GROUP]), look_up)
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


async def _ready(daemon: Running) -> None:
    async with calling(daemon.bus) as caller:
        await caller.vectorized()


def _ask(user: User, bus: str, calls: list[list[Any]], *flags: str) -> list[str]:
    return answers(user, bus, [["org.opdbus", *call] for call in calls], *flags)


@pytest.mark.parametrize("user", [NOBODY, ANOTHER], ids=["nobody", "another"])
def test_a_stranger_is_denied_every_method_and_property(
    daemons: Callable[..., Running], user: User
) -> None:
    """Answer AccessDenied to another user for all that the XML has, though the bus lets it in."""
    with daemons() as daemon:
        asyncio.run(_ready(daemon))
        calls = _calls()
        found = _ask(user, daemon.bus, [call for _, call in calls])
        free = [
            [ROOT_PATH, "org.freedesktop.DBus.Peer.Ping", ""],
            ["/elsewhere", "org.freedesktop.DBus.Peer.Ping", ""],
            [ROOT_PATH, _INTROSPECT, ""],
        ]
        assert _ask(user, daemon.bus, free) == ["allowed"] * len(free)
    named = zip((name for name, _ in calls), found, strict=True)
    assert {name: answer for name, answer in named if answer != _DENIED} == {}


def test_polkit_decides_for_everybody_else(daemons: Callable[..., Running]) -> None:
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

    async def check() -> None:
        await _ready(daemon)
        async with authority(daemon.bus) as polkit:
            polkit.change(read="yes", vectorize="no", publish="yes", manage="challenge")
            assert await ask() == ["allowed", _DENIED, "allowed", _ASKS, _ASKS]
            polkit.asked_user = "yes"
            assert await ask("-i") == ["allowed", _DENIED, "allowed", "allowed", "allowed"]
            polkit.asked_user = "no"
            assert await ask("-i") == ["allowed", _DENIED, "allowed", _DENIED, _DENIED]
            polkit.change(read="no", vectorize="yes")
            assert await ask() == [_DENIED, "allowed", _DENIED, _DENIED, _DENIED]

    with daemons() as daemon:
        asyncio.run(check())


def test_a_caller_that_leaves_is_not_asked_any_more(daemons: Callable[..., Running]) -> None:
    """Take the question for a password back when the connection that it was for ends."""

    async def check() -> None:
        await _ready(daemon)
        async with authority(daemon.bus) as polkit:
            polkit.change(manage="challenge")
            polkit.asked_user = "hang"
            with asking(NOBODY, daemon.bus, "-i") as client:
                assert client.stdin
                client.stdin.write(
                    f'["org.opdbus", "{ROOT_PATH}", "{VECTORIZER}.Reload", "a{{sv}}", {{}}]\n'
                )
                client.stdin.flush()
                await polkit.seen(2)
                client.kill()
            await polkit.seen(2, cancelled=1)
            assert polkit.cancelled == [polkit.calls[1][4]]

    with daemons() as daemon:
        asyncio.run(check())


class _Hesitant:
    """A polkit whose users never type a password."""

    async def check(self, _sender: str, _action: str) -> Verdict:
        """Want a password."""
        return Verdict.CHALLENGE

    async def ask_user(self, _sender: str, _action: str) -> Verdict:
        """Wait for it."""
        await asyncio.Event().wait()
        raise AssertionError


def test_one_user_is_asked_for_few_passwords_at_a_time() -> None:
    """Refuse more questions of one user than it can answer; each that is taken back makes room."""

    async def check() -> None:
        bus, polkit = Bus(UnixUserID=ANOTHER.uid, UnixGroupIDs=[]), _Hesitant()
        authorizer = Authorizer(bus, polkit, _group)  # type: ignore[arg-type] -- all that is used

        def ask(number: int) -> asyncio.Task[Any]:
            asked = authorizer.require(f":1.{number}", "manage", interactive=True)
            return asyncio.create_task(asked)

        for _ in range(2):
            waiting = {ask(number) for number in range(MOST_ASKED + 1)}
            async with asyncio.timeout(PATIENCE_SECONDS):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [type(task.exception()) for task in done] == [LimitsExceeded]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(check())


class _State:
    """State1, of which only the list is asked for."""

    info = contract.interface(STATE)

    async def list_(self, *_: Any) -> tuple[int, list[Any]]:
        """Give no objects."""
        return 0, []

    async def properties(self) -> Mapping[str, Any]:
        """Give none."""
        return {}


def test_the_bus_tells_who_is_in_the_group(bus_address: str) -> None:
    """Take the groups of a caller from the kernel, by way of the bus."""

    async def check() -> list[list[str]]:
        async with Connection(bus_address) as connection:
            authorizer = Authorizer(connection, group=_group)
            node = Node((_State(),), list)
            dispatcher = Dispatcher(connection, authorizer, {"/it": node}.get, RunningCalls())
            connection.on_call = dispatcher.take
            call = [connection.name, "/it", f"{STATE}.List", "a{sv}uu", {}, 0, 1]
            users = (MEMBER, MEMBER._replace(groups=()), NOBODY)
            return [await asyncio.to_thread(answers, u, bus_address, [call]) for u in users]

    assert asyncio.run(check()) == [["allowed"], [_DENIED], [_DENIED]]


def test_refusals_of_a_flood_are_counted_not_logged() -> None:
    """Log the first few refusals of each of the first few users a minute, and how many more."""
    now = 0.0
    limit = LogLimit(lambda: now)
    told = [limit.admit(1000) for _ in range(1000)]
    assert told == [0] * MOST_A_USER + [None] * (1000 - MOST_A_USER)
    told = [limit.admit(uid) for uid in range(2000, 3000)]
    rest = [0] * (MOST_USERS - 2) + [None] * (1001 - MOST_USERS)
    assert told == [1000 - MOST_A_USER, *rest]
    now = 60.0
    assert limit.admit(1000) == 1001 - MOST_USERS


def test_a_denied_call_is_in_the_log(daemons: Callable[..., Running]) -> None:
    """Tell the operator who was refused what."""
    with daemons() as daemon:
        asyncio.run(_ready(daemon))
        _ask(NOBODY, daemon.bus, [[ROOT_PATH, f"{VECTORIZER}.Reload", "a{sv}", {}]])
        line = daemon.wait_for_log(r".*access denied.*")[0]
    assert f"uid={NOBODY.uid}" in line
    assert f"method={VECTORIZER}.Reload" in line


def test_the_command_line_says_who_may(daemons: Callable[..., Running]) -> None:
    """Exit 5 with one sentence where the caller is not allowed."""
    with daemons() as daemon:
        asyncio.run(_ready(daemon))
        done = _status(daemon)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        "op-dbus: nobody (uid 65534) may not read here: run `usermod -aG op-dbus nobody` as root,"
        " then log in again\n"
    )


def test_the_command_line_has_a_password_asked_for(daemons: Callable[..., Running]) -> None:
    """Let polkit ask whoever sits at the terminal, and exit 5 where nobody can be asked."""

    async def check() -> tuple[subprocess.CompletedProcess[str], ...]:
        await _ready(daemon)
        async with authority(daemon.bus) as polkit:
            polkit.change(read="challenge")
            refused = await asyncio.to_thread(_status, daemon)
            polkit.asked_user = "yes"
            return refused, await asyncio.to_thread(_status, daemon)

    with daemons() as daemon:
        refused, allowed = asyncio.run(check())
    assert refused.returncode == 5
    assert refused.stderr.startswith(
        "op-dbus: nobody (uid 65534) may not read here without authenticating"
    )
    assert allowed.returncode == 0, allowed.stderr


def _status(daemon: Running) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        as_user(NOBODY, _COMMAND, "--bus", daemon.bus, "status"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
