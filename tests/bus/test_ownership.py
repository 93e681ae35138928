"""Two users on one bus: what is published is its publisher's, and goes or stays as was said."""

import asyncio
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from harness.authority import authority
from harness.running import STATE, STATE_PATH, Caller, Running, calling, state_file
from harness.users import ANOTHER, NOBODY, User, answers

from opdbus.bus.transport.connection import RemoteError

PATH = f"{STATE_PATH}/systemd/unit/a"
DENIED = "AccessDenied"
Make = Callable[..., Running]


def publishing(text: str, source: str = "app", **options: Any) -> list[Any]:
    """Give the call that publishes one unit."""
    objects = [("systemd", "unit", "a", {"description": text})]
    return [STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", source, objects, options]


WITHDRAWING = [STATE_PATH, f"{STATE}.Withdraw", "aoa{sv}", [PATH], {}]


async def answer(daemon: Running, user: User, call: list[Any]) -> str:
    """Make a call as a user."""
    (found,) = await asyncio.to_thread(answers, user, daemon.bus, [["org.opdbus", *call]])
    return found


async def seen(caller: Caller) -> tuple[Any, Any]:
    """Give what is declared and what is observed of the unit."""
    (text,) = await caller.ask("Get", PATH, {})
    values = json.loads(text)
    return tuple((values[key] or {}).get("description") for key in ("declared", "observed"))


def ask(daemon: Running, work: Callable[[Caller], Any]) -> None:
    """Do work as root, on a bus whose polkit lets everybody publish."""

    async def both() -> None:
        async with calling(daemon.bus) as caller, authority(daemon.bus) as polkit:
            await caller.ready("ready", "degraded")
            polkit.change(publish="yes", read="yes")
            await work(caller)

    with daemon:
        asyncio.run(both())


def test_only_the_owner_and_root_change_and_withdraw(daemons: Make, tmp_path: Path) -> None:
    """Refuse another user that publishes or withdraws what is not its own, after a restart too."""

    async def first(caller: Caller) -> None:
        assert await answer(daemon, NOBODY, publishing("nobody's")) == "allowed"
        await strangers(caller, "nobody's")
        await caller.call(*publishing("root's"))
        assert await seen(caller) == (None, "root's")
        # root changed it, and took nothing away
        await strangers(caller, "root's")

    async def strangers(caller: Caller, text: str) -> None:
        assert await answer(daemon, ANOTHER, publishing("another's")) == DENIED
        assert await answer(daemon, ANOTHER, WITHDRAWING) == DENIED
        assert await seen(caller) == (None, text)

    async def second(caller: Caller) -> None:
        await strangers(caller, "root's")
        assert await answer(daemon, NOBODY, publishing("nobody's again")) == "allowed"
        # what another says of the same thing is another's to withdraw
        assert await answer(daemon, ANOTHER, publishing("seen by another", "other")) == "allowed"
        assert await answer(daemon, ANOTHER, WITHDRAWING) == "allowed"
        assert await seen(caller) == (None, "nobody's again")
        assert await caller.call(*WITHDRAWING) == [1]
        assert await answer(daemon, NOBODY, WITHDRAWING) == "UnknownObject"

    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {}), VECTOR_LEVEL="none")
    ask(daemon, first)
    daemon.start()
    ask(daemon, second)


def test_a_publisher_describes_its_objects(daemons: Make, tmp_path: Path) -> None:
    """Make the text of the properties that a publisher names, after a restart too."""

    async def text(caller: Caller) -> Any:
        return await caller.get(PATH, "org.opdbus.Object1", "Text")

    async def first(caller: Caller) -> None:
        fields = {"description": "a", "state": "broken", "keep": {"days": 3}}
        objects = [("systemd", "unit", "a", fields)]
        call = [STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "app", objects]
        assert await caller.call(*call, {}) == [[PATH]]
        assert ": a" in await text(caller)
        await caller.call(*call, {"describe": ["keep", "state"]})
        assert (await text(caller)).endswith("; keep days 3, state broken")
        for wrong in (["stat"], "state", [3]):
            with pytest.raises(RemoteError, match="describe"):
                await caller.call(*call, {"describe": wrong})

    async def second(caller: Caller) -> None:
        assert (await text(caller)).endswith("; keep days 3, state broken")

    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {}), VECTOR_LEVEL="none")
    ask(daemon, first)
    daemon.start()
    ask(daemon, second)


@pytest.mark.parametrize("source", ["file", "app"])
def test_what_the_file_declares_stays_as_it_is(daemons: Make, tmp_path: Path, source: str) -> None:
    """Put what is published beside what is declared, for root as well, whatever the source."""

    async def work(caller: Caller) -> None:
        assert await answer(daemon, NOBODY, publishing("observed", source)) == "allowed"
        assert await seen(caller) == ("declared", "observed")
        await caller.call(*publishing("by root", source))
        assert await seen(caller) == ("declared", "by root")
        assert await answer(daemon, NOBODY, WITHDRAWING) == "allowed"
        assert await answer(daemon, NOBODY, WITHDRAWING) == DENIED
        with pytest.raises(RemoteError, match="the state file declares it"):
            await caller.call(*WITHDRAWING)
        assert await seen(caller) == ("declared", None)

    file = state_file(tmp_path / "s.json", {"a": "declared"})
    daemon = daemons(STATE_FILE=file, VECTOR_LEVEL="none")
    ask(daemon, work)


def test_nothing_of_a_connection_survives_a_restart(daemons: Make, tmp_path: Path) -> None:
    """Forget at a start what was to live as long as a connection, though that still lives."""

    async def work(caller: Caller) -> None:
        async with calling(daemon.bus) as holder:
            await holder.call(*publishing("goes", lifetime="connection"))
            await caller.call(*publishing("stays", "other"))
            daemon.kill()
            daemon.start()
            await caller.ready("degraded", "ready")
            assert await seen(caller) == (None, "stays")
            assert await caller.call(*WITHDRAWING) == [1]
            with pytest.raises(RemoteError, match="there is no object"):
                await seen(caller)

    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {}), VECTOR_LEVEL="none")
    ask(daemon, work)


def test_a_publisher_that_leaves_halfway_leaves_nothing(daemons: Make, tmp_path: Path) -> None:
    """Withdraw also what is still being published when its connection leaves."""
    objects = [("p", "k", f"n{n}", {"description": f"disk {n}"}) for n in range(2000)]
    member, signature = publishing("")[1:3]
    options = {"lifetime": "connection"}

    async def work(caller: Caller) -> None:
        for count, turns in product((1, 100, 2000), range(5)):
            async with calling(daemon.bus) as leaver:
                some = objects[:count]
                call = leaver.call(STATE_PATH, member, signature, "app", some, options)
                publish = asyncio.create_task(call)
                for _ in range(turns):
                    await leaver.connection.ask_bus("GetId")
            publish.cancel()
            await asyncio.gather(publish, return_exceptions=True)
        # after this came back, theirs has been done or dropped
        await caller.call(*publishing("stays"))
        await caller.until(lambda: caller.read("Count"), 1)
        assert await seen(caller) == (None, "stays")

    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {}), VECTOR_LEVEL="none")
    ask(daemon, work)
