"""What each user may do, by the table alone."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS
from harness.users import ANOTHER, GROUP, MEMBER, NOBODY

from opdbus.bus.admission.accounting import MOST_A_USER, MOST_USERS, LogLimit
from opdbus.bus.authorization.authorizer import MOST_ASKED, Authorizer
from opdbus.bus.authorization.polkit import Verdict
from opdbus.bus.names import ACTIONS
from opdbus.bus.transport.connection import RemoteError
from opdbus.errors import AccessDenied, LimitsExceeded


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


def _group(name: str) -> int:
    return {"op-dbus": GROUP, "op-dbus-read": GROUP + 1}[name]


def _authorizer(bus: Bus, group: Callable[[str], int] = _group) -> Authorizer:
    return Authorizer(bus, gid_of=group)  # type: ignore[arg-type] -- all of it that is used


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


@pytest.mark.parametrize(
    ("credentials", "allowed"),
    [
        ({"UnixUserID": 0, "UnixGroupIDs": [0]}, ACTIONS),
        # so that a session bus is of use
        ({"UnixUserID": os.geteuid(), "UnixGroupIDs": []}, ACTIONS),
        ({"UnixUserID": NOBODY.uid, "UnixGroupIDs": [NOBODY.uid]}, ()),
        # what needs no administrator
        (
            {"UnixUserID": MEMBER.uid, "UnixGroupIDs": [MEMBER.uid, GROUP]},
            ("read", "vectorize", "publish"),
        ),
        # such as the gateway
        (
            {"UnixUserID": MEMBER.uid, "UnixGroupIDs": [MEMBER.uid, GROUP + 1]},
            ("read", "vectorize"),
        ),
        # a caller whom the bus does not know
        ({}, ()),
    ],
    ids=["root", "own user", "stranger", "group", "readers", "unknown"],
)
def test_each_user_may_do_what_the_table_says(
    credentials: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    """Allow root and our own user all actions, the group some, others and other actions none."""
    assert _allowed(Bus(**credentials)) == set(allowed)


def test_without_the_group_nobody_is_in_it() -> None:
    """Deny where the system has no such group."""

    def missing(name: str) -> int:
        raise KeyError(name)

    assert _allowed(Bus(UnixUserID=MEMBER.uid, UnixGroupIDs=[GROUP]), group=missing) == set()


def test_a_caller_that_left_may_do_nothing() -> None:
    """Deny where the bus does not know the connection any more."""
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


class _Hesitant:
    """A polkit whose users never type a password."""

    async def check(self, _sender: str, _action: str) -> Verdict:
        """Want a password."""
        return Verdict.CHALLENGE

    async def ask_user(self, _sender: str, _action: str) -> Verdict:
        """Wait for it."""
        await asyncio.Event().wait()
        raise AssertionError


async def test_one_user_is_asked_for_few_passwords_at_a_time() -> None:
    """Refuse more questions of one user than it can answer; each that is taken back makes room."""
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
