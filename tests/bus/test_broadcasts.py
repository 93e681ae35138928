"""What is broadcast: counts for anybody, names for those that may read, contents for nobody."""

import asyncio
import grp
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from harness.running import STATE, STATE_PATH, Bus, Caller, Running, calling, replace
from harness.users import HEARS, NOBODY, User, as_user, hearing

from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.library import Message

CANARY = "yellowfeather"
# of Debian's; the service's own group need not be on the machine that runs the tests
SOME_GROUP = grp.getgrgid(1)
MEMBER = User(2, (SOME_GROUP.gr_gid,))
UNIT = {"description": f"sings {CANARY}", "environment": {"SONG": f"{CANARY}2"}}


def _file(path: Path, unit: Any) -> Path:
    text = unit if isinstance(unit, str) else json.dumps(unit)
    return replace(
        path, f'{{"version": 1, "plugins": {{"systemd": {{"units": {{"a": {text}}}}}}}}}'
    )


@asynccontextmanager
async def _listening(bus: str) -> AsyncIterator[list[Message]]:
    """Hear every signal of the bus, whoever it is for."""
    async with Connection(bus) as connection:
        heard: list[Message] = []
        connection.on_signal = heard.append
        await connection.subscribe("type='signal',eavesdrop='true'")
        yield heard
        # the bus sends what it has for us before this answer
        await connection.ask_bus("GetId")


async def _live(caller: Caller, file: Path) -> None:
    """Have things published, changed, found, searched, declared wrongly, and withdrawn."""
    await caller.vectorized()
    for number in range(2):
        unit = {**UNIT, "number": number}
        objects = [("systemd", "unit", "a", unit), ("test", "thing", "b", unit)]
        await caller.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", objects, {})
        await caller.vectorized()
    await caller.signal("DriftDetected")
    await caller.call(STATE_PATH, f"{STATE}.Search", "sua{sv}", CANARY, 5, {})
    (text,) = await caller.call(
        STATE_PATH, f"{STATE}.Get", "oa{sv}", "/org/opdbus/state/systemd/unit/a", {}
    )
    assert CANARY in text
    _file(file, {"description": f"other {CANARY}3"})
    await caller.signal(
        "Changed", lambda body: ["/org/opdbus/state/systemd/unit/a", "changed"] in body[1]
    )
    for broken in (f'{{"description": {CANARY}}}', f'{{"description": "{CANARY}', f'"{CANARY}"'):
        await _refused(caller, partial(_file, file, broken))
    await _refused(caller, partial(replace, file, f'{{"version": "{CANARY}"}}'))
    await caller.call(
        STATE_PATH, f"{STATE}.Withdraw", "aoa{sv}", ["/org/opdbus/state/test/thing/b"], {}
    )
    await caller.signal(
        "Changed", lambda body: ["/org/opdbus/state/test/thing/b", "removed"] in body[1]
    )


async def _refused(caller: Caller, write: Callable[[], object]) -> None:
    """Write a bad state file, and wait until everybody is told that it was refused."""
    before = await caller.get(STATE_PATH, STATE, "LastError")
    caller.signals.clear()
    write()
    await caller.signal("PropertiesChanged", lambda body: body[1:] == [{}, ["LastError"]])
    assert await caller.get(STATE_PATH, STATE, "LastError") != before


def test_no_content_is_broadcast(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Send no signal that holds a value of a state object, whatever is done to it."""

    async def listen(daemon: Running, file: Path) -> list[Message]:
        async with _listening(daemon.bus) as heard, calling(daemon.bus) as caller:
            daemon.start()
            await _live(caller, file)
        return heard

    file = _file(tmp_path / "state.json", UNIT | {"description": "silent"})
    heard = asyncio.run(listen(daemons(STATE_FILE=file, DRIFT_THRESHOLD="info"), file))
    members = {message.member for message in heard}
    expected = {"Changed", "Vectorized", "DriftDetected", "PropertiesChanged", "Recorded"}
    assert expected <= members
    assert [message.member for message in heard if CANARY in repr(message.body)] == []


@pytest.fixture
def guarded() -> Iterator[str]:
    """Run a bus with the policy that is installed, for a group that this machine has."""
    shipped = (ROOT / "etc" / "dbus-1" / "org.opdbus.conf").read_text(encoding="utf-8")
    bus = Bus(service=shipped.replace('group="op-dbus"', f'group="{SOME_GROUP.gr_name}"'))
    yield bus.address
    bus.kill()


def test_names_reach_only_users_that_may_read(
    daemons: Callable[..., Running], guarded: str, tmp_path: Path
) -> None:
    """The installed policy lets a stranger hear counts, and the group which objects change."""

    async def live(daemon: Running, file: Path) -> None:
        async with calling(daemon.bus) as caller:
            daemon.start()
            await _live(caller, file)

    file = _file(tmp_path / "state.json", UNIT | {"description": "silent"})
    daemon = daemons(bus=guarded, STATE_FILE=file, DRIFT_THRESHOLD="info")
    stranger, member = (as_user(user, HEARS, guarded) for user in (NOBODY, MEMBER))
    with hearing(*stranger) as by_stranger, hearing(*member) as by_member:
        asyncio.run(live(daemon, file))
        told, known = by_stranger(), by_member()
    counts = {"Vectorized", "PropertiesChanged", "ProviderChanged", "Recorded"}
    assert {member for member, _ in told} == counts
    assert [body for _, body in told if "/org/opdbus/state/" in body] == []
    assert {member for member, _ in told} | {"Changed", "DriftDetected"} == {m for m, _ in known}
