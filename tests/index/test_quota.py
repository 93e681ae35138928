"""Publishers keep so much and no more; what is whose, nobody else changes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.running import (
    Caller,
    Make,
    ask,
    search,
    state_file,
    work_of,
)

from opdbus.bus.transport.connection import RemoteError
from opdbus.errors import AccessDenied, LimitsExceeded
from opdbus.index.database.quota import Quota, Usage
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, Identity, ObjectId, StateObject

ONE, OTHER, ROOT = 1000, 1001, 0
ROOMY = 1 << 30
OF_ALL = Quota(100, ROOMY)


def unit(name: str, text: str = "network", source: str = "publish:probe") -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity(source, "systemd", "unit", name), {"description": text})


def units(count: int, text: str = "network", first: int = 0) -> list[StateObject]:
    """Make objects of different names."""
    return [unit(f"u{n}", text) for n in range(first, first + count)]


def object_ids(items: list[StateObject]) -> list[ObjectId]:
    """Give what objects are about."""
    return [item.identity.object_id for item in items]


def run(
    folder: Path,
    *works: Callable[[StateStore], Any],
    of_each: Quota,
    of_all: Quota | None = OF_ALL,
) -> None:
    """Do each work with the same memory, opened anew."""

    async def one(work: Callable[[StateStore], Awaitable[Any]]) -> None:
        usage = Usage(of_each, of_all)
        async with StateStore(folder / "memory.db", usage=usage) as memory:
            await work(memory)

    for work in works:
        asyncio.run(one(work))


def test_a_user_keeps_so_many_objects(tmp_path: Path) -> None:
    """Take objects up to the limit, refuse a call past it whole, and count after a restart too."""

    async def fill(memory: StateStore) -> None:
        await memory.publish(units(8), ONE)
        with pytest.raises(LimitsExceeded, match=r"uid 1000 would keep 11 .* 10: .*withdraw"):
            await memory.publish(units(3, first=8), ONE)
        assert len(memory.catalogue) == 8
        await memory.publish(units(2, first=8), ONE)

    async def again(memory: StateStore) -> None:
        with pytest.raises(LimitsExceeded):
            await memory.publish([unit("one too many")], ONE)
        await memory.publish(units(10, "changed"), ONE)
        await memory.publish([unit("of another", source="publish:other")], OTHER)
        await memory.withdraw(object_ids(units(4)), ONE)
        await memory.publish(units(4, first=50), ONE)
        with pytest.raises(LimitsExceeded):
            await memory.publish([unit("one too many")], ONE)

    run(tmp_path, fill, again, of_each=Quota(10, ROOMY))


@work_of(run, "tmp_path", of_each=Quota(2, ROOMY), of_all=None)
async def test_all_users_together_have_four_times_as_much(memory: StateStore) -> None:
    """Give all users four times what one has, and name the setting that gives more."""
    for user in range(4):
        await memory.publish(units(2, first=2 * user), user)
    with pytest.raises(LimitsExceeded, match=r"all publishers .* OP_DBUS_PUBLISH_OBJECTS$"):
        await memory.publish(units(1, first=8), 4)


@work_of(run, "tmp_path", of_each=Quota(10, ROOMY))
async def test_what_passes_frees_its_room(memory: StateStore) -> None:
    """Count what lives as long as a connection, and no longer than it lives."""
    await memory.publish(units(10), ONE, holder=":1.1")
    with pytest.raises(LimitsExceeded):
        await memory.publish([unit("more")], ONE)
    await memory.release(":1.1")
    await memory.publish(units(10), ONE)


@work_of(run, "tmp_path", of_each=Quota(10, ROOMY), of_all=Quota(10, ROOMY))
async def test_a_file_declares_without_limit(memory: StateStore) -> None:
    """Count nothing that the state file declares."""
    declared = [unit(f"d{n}", source=FILE) for n in range(50)]
    await memory.replace(FILE, {item.identity for item in declared}, declared)
    await memory.publish(units(10), ROOT)


@work_of(run, "tmp_path", of_each=Quota(10, ROOMY))
async def test_root_changes_and_does_not_take_away(memory: StateStore) -> None:
    """Let root change another's object, which stays the other's, in ownership and in room."""
    await memory.publish(units(10), ONE)
    await memory.publish(units(10, "by root"), ROOT)
    assert {entry.owner for entry in memory.catalogue} == {ONE}
    await memory.publish(units(1, "mine again"), ONE)
    with pytest.raises(AccessDenied):
        await memory.publish(units(1, "stolen"), OTHER)
    await memory.publish(units(10, first=20), ROOT)


def of_kinds(count: int, first: int = 0) -> list[StateObject]:
    """Make objects of so many kinds, one of each."""
    return [
        StateObject(Identity("publish:probe", "lab", f"kind{n}", "sshd"), {"text": "network"})
        for n in range(first, first + count)
    ]


def test_names_of_plugins_and_kinds_are_limited_and_reclaimed(tmp_path: Path) -> None:
    """Refuse more of them than the limit, for one and for all; take new ones for those withdrawn.

    The names that were used are none of the daemon's any more, and after a restart it counts those
    that objects have.
    """
    limit = Quota(ROOMY, ROOMY, 10)

    async def fill(memory: StateStore) -> None:
        await memory.publish(of_kinds(10), ONE)
        with pytest.raises(LimitsExceeded, match=r"keep 11 publishers, plugins and kinds, .* 10"):
            await memory.publish(of_kinds(1, first=10), ONE)
        # more objects of the same kinds are no more names
        await memory.publish([unit("a")], OTHER)
        with pytest.raises(LimitsExceeded, match="all publishers together would keep 16"):
            await memory.publish(of_kinds(5, first=20), OTHER)
        for first in range(10, 60, 10):
            await memory.withdraw(object_ids(of_kinds(10, first=first - 10)), ONE)
            await memory.publish(of_kinds(10, first=first), ONE)
        assert len(memory.catalogue.kinds) == 11
        assert len(memory.catalogue.view.source_kinds) <= 22

    async def again(memory: StateStore) -> None:
        with pytest.raises(LimitsExceeded):
            await memory.publish(of_kinds(1), ONE)
        assert len(memory.catalogue.kinds) == 11
        assert len(memory.catalogue.named("sshd")) == 10
        await memory.withdraw(object_ids(of_kinds(10, first=50)), ONE)
        assert (memory.catalogue.kinds, memory.catalogue.named("sshd")) == (
            {("systemd", "unit")},
            [],
        )
        assert dict(memory.catalogue.sources) == {"publish:probe": 1}

    run(tmp_path, fill, again, of_each=limit, of_all=Quota(ROOMY, ROOMY, 15))


@work_of(run, "tmp_path", of_each=Quota(ROOMY, ROOMY, 10))
async def test_publishers_are_limited_as_kinds_are(memory: StateStore) -> None:
    """Refuse one publisher more, though all publish objects of one kind."""
    for number in range(10):
        await memory.publish([unit("a", source=f"publish:probe{number}")], ONE)
    with pytest.raises(LimitsExceeded, match=r"keep 11 publishers, plugins and kinds, .* 10"):
        await memory.publish([unit("a", source="publish:probe10")], ONE)


def test_very_many_names_are_refused_on_the_bus(daemons: Make, tmp_path: Path) -> None:
    """Say what the limit is and what to do, take nothing, and serve on."""

    async def publish(caller: Caller, first: int, count: int) -> None:
        numbers = range(first, first + count)
        objects = [(f"lab{n}", f"kind{n}", f"n{n}", {"text": "mail"}) for n in numbers]
        await caller.ask("Publish", "probe", objects, {})

    async def work(caller: Caller) -> None:
        await caller.ready()
        await publish(caller, 0, 990)
        with pytest.raises(RemoteError, match=r"would keep 1001 publishers, plugins and kinds"):
            await publish(caller, 990, 11)
        assert await search(caller, "lexical", "n17")
        assert await caller.read("Count") == 990

    with daemons(VECTOR_LEVEL="none", STATE_FILE=state_file(tmp_path / "none.json", {})) as daemon:
        ask(daemon, work)
