"""What is broadcast: counts for anybody, names for those that may read, contents for nobody."""

import asyncio
import grp
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from conftest import ROOT
from harness.running import Bus, Caller, Running, calling, replace
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
        await caller.ask("Publish", "t", objects, {})
        await caller.vectorized()
    await caller.signal("DriftDetected")
    await caller.ask("Search", CANARY, 5, {})
    (text,) = await caller.ask("Get", "/org/opdbus/state/systemd/unit/a", {})
    assert CANARY in text
    _file(file, {"description": f"other {CANARY}3"})
    await caller.signal(
        "Changed", lambda body: ["/org/opdbus/state/systemd/unit/a", "changed"] in body[1]
    )
    for broken in (f'{{"description": {CANARY}}}', f'{{"description": "{CANARY}', f'"{CANARY}"'):
        await _refused(caller, partial(_file, file, broken))
    await _refused(caller, partial(replace, file, f'{{"version": "{CANARY}"}}'))
    await caller.ask("Withdraw", ["/org/opdbus/state/test/thing/b"], {})
    await caller.signal(
        "Changed", lambda body: ["/org/opdbus/state/test/thing/b", "removed"] in body[1]
    )


async def _refused(caller: Caller, write: Callable[[], object]) -> None:
    """Write a bad state file, and wait until everybody is told that it was refused."""
    before = await caller.read("LastError")
    caller.signals.clear()
    write()
    await caller.signal("PropertiesChanged", lambda body: body[1:] == [{}, ["LastError"]])
    assert await caller.read("LastError") != before


def test_what_is_broadcast_and_to_whom(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """No signal holds a value of a state object, whatever is done to it.

    The installed policy lets a stranger hear counts, and the group which objects change too.
    """

    async def listen(daemon: Running, file: Path) -> list[Message]:
        async with _listening(daemon.bus) as heard, calling(daemon.bus) as caller:
            daemon.start()
            await _live(caller, file)
        return heard

    # for a group that this machine has
    shipped = (ROOT / "etc" / "dbus-1" / "org.opdbus.conf").read_text(encoding="utf-8")
    bus = Bus(service=shipped.replace('group="op-dbus"', f'group="{SOME_GROUP.gr_name}"'))
    file = _file(tmp_path / "state.json", UNIT | {"description": "silent"})
    daemon = daemons(bus=bus.address, STATE_FILE=file, DRIFT_THRESHOLD="info")
    stranger, member = (as_user(user, HEARS, bus.address) for user in (NOBODY, MEMBER))
    with hearing(*stranger) as by_stranger, hearing(*member) as by_member:
        heard = asyncio.run(listen(daemon, file))
        told, known = by_stranger(), by_member()
    daemon.kill()
    bus.kill()
    names = {"Changed", "DriftDetected"}
    assert {message.member for message in heard} >= names | {"Vectorized", "Recorded"}
    assert [message.member for message in heard if CANARY in repr(message.body)] == []
    counts = {"Vectorized", "PropertiesChanged", "ProviderChanged", "Recorded"}
    assert {member for member, _ in told} == counts
    assert [body for _, body in told if "/org/opdbus/state/" in body] == []
    assert {member for member, _ in known} == counts | names
