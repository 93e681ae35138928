"""What changed, asked of a daemon: History1 on the bus, and `op-dbus changes`."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from running import HISTORY, HISTORY_PATH, STATE, STATE_PATH, Caller, Running, calling, state_file

from opdbus.bus.transport.connection import RemoteError

UNIT = "/org/opdbus/state/systemd/unit/a_2eservice"


@pytest.fixture
def served(daemons: Callable[..., Running], tmp_path: Path) -> Callable[..., Any]:
    """Run something with a client of a daemon that was told of two units."""

    def run(work: Callable[[Caller, Running], Awaitable[Any]]) -> Any:
        async def live() -> Any:
            daemon = daemons(STATE_FILE=state_file(tmp_path / "state.json", {}))
            async with calling(daemon.bus) as caller:
                daemon.start()
                await caller.ready()
                await publish(caller, ("a.service", {"state": "active", "port": 1}), ("b", {}))
                await publish(caller, ("a.service", {"state": "failed", "limits": {"cpu": 2}}))
                return await work(caller, daemon)

        return asyncio.run(live())

    return run


async def publish(caller: Caller, *units: tuple[str, dict[str, Any]]) -> None:
    """Publish units."""
    objects = [("systemd", "unit", name, properties) for name, properties in units]
    await caller.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", objects, {})


async def changes(caller: Caller, limit: int = 10, **wanted: Any) -> list[dict[str, Any]]:
    """Ask what changed."""
    (rows,) = await caller.call(HISTORY_PATH, f"{HISTORY}.Changes", "a{sv}u", wanted, limit)
    return rows


def test_changes_are_given_with_all_that_is_known(served: Callable[..., Any]) -> None:
    """Give each change with its fields before and after, the newest first."""

    async def work(caller: Caller, _daemon: Running) -> None:
        newest, second, first = await changes(caller)
        # known once both texts have vectors
        newest.pop("moved", None)
        assert {**newest, "at": 0, "boot": ""} == {
            "seq": 3,
            "at": 0,
            "boot": "",
            "object": UNIT,
            "plugin": "systemd",
            "kind": "unit",
            "name": "a.service",
            "source": "publish:t",
            "what": "changed",
            "cause": newest["cause"],
            "fields": [
                ["limits", "", '{"cpu":2}'],
                ["port", "1", ""],
                ["state", '"active"', '"failed"'],
            ],
            "folded": 0,
            "sentence": newest["sentence"],
        }
        assert "active to failed" in newest["sentence"]
        assert [row["what"] for row in (first, second)] == ["appeared"] * 2
        assert [row["seq"] for row in await changes(caller, order="oldest", after=1)] == [2, 3]
        assert [row["seq"] for row in await changes(caller, object=UNIT, limit=1)] == [3]
        assert [row["seq"] for row in await changes(caller, where="after.limits.cpu>1")] == [3]
        assert await changes(caller, since=newest["at"] + 1) == []
        assert await caller.get(HISTORY_PATH, HISTORY, "Rows") == 3
        assert await caller.get(HISTORY_PATH, HISTORY, "First") == 1

    served(work)


BAD = [
    ({"since": -1}, 1, "'since' must be from 0"),
    ({"before": 1 << 63}, 1, "'before' must be from 0"),
    ({"since": "yesterday"}, 1, "'since' must be of type integer"),
    ({"what": "exploded"}, 1, "there are appeared, changed"),
    ({"order": "random"}, 1, "newest or oldest"),
    ({"where": "state"}, 1, "no condition"),
    ({"object": "/org/opdbus"}, 1, "not the path of a state object"),
    ({"unknown": True}, 1, "there is no option 'unknown'"),
    ({}, 0, "limit must be from 1 to 10000"),
    ({}, (1 << 32) - 1, "limit must be from 1 to 10000"),
]


def test_bad_filters_are_refused(served: Callable[..., Any]) -> None:
    """Say what is wrong with a filter, and go on serving."""

    async def work(caller: Caller, _daemon: Running) -> None:
        for wanted, limit, said in BAD:
            with pytest.raises(RemoteError, match=said):
                await changes(caller, limit, **wanted)
        assert len(await changes(caller)) == 3

    served(work)


def test_new_rows_are_signalled(served: Callable[..., Any]) -> None:
    """Tell the number of the newest row."""

    async def work(caller: Caller, _daemon: Running) -> None:
        await publish(caller, ("b", {"number": 1}), ("c", {}))
        assert await caller.signal("Recorded", lambda body: body == [5]) == [5]

    served(work)


def test_json_is_one_object_a_line(served: Callable[..., Any]) -> None:
    """Print each change as JSON, the newest last, and the format in the first line."""

    async def work(_caller: Caller, daemon: Running) -> Any:
        return await asyncio.to_thread(daemon.cli, "changes", "--since", "today", "--json")

    printed = served(work)
    assert printed.returncode == 0, printed.stderr
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [row["seq"] for row in rows] == [1, 2, 3]
    assert [row.get("format_version") for row in rows] == ["1.0", None, None]
    assert rows[-1]["fields"][:2] == [
        {"path": "limits", "after": {"cpu": 2}},
        {"path": "port", "before": 1},
    ]


async def object_at(caller: Caller, at: int, path: str = UNIT) -> Any:
    """Ask what an object was, and give what was observed."""
    asked = (HISTORY_PATH, f"{HISTORY}.ObjectAt", "ota{sv}", path, at, {})
    (text,) = await caller.call(*asked)
    return json.loads(text)


def test_an_object_is_given_as_it_was(served: Callable[..., Any]) -> None:
    """Take changes back, also those of an object that is gone, and say where that cannot be."""

    async def work(caller: Caller, _daemon: Running) -> None:
        changed, _, appeared = await changes(caller)
        before, after = {"state": "active", "port": 1}, {"state": "failed", "limits": {"cpu": 2}}
        assert await object_at(caller, changed["at"] - 1) == {
            "plugin": "systemd",
            "kind": "unit",
            "name": "a.service",
            "source": "publish:t",
            "declared": None,
            "observed": before,
        }
        assert (await object_at(caller, changed["at"]))["observed"] == after
        assert (await object_at(caller, (1 << 64) - 1))["observed"] == after
        with pytest.raises(RemoteError, match=r"history begins at \d{4}-") as refused:
            await object_at(caller, appeared["at"] - 1)
        assert refused.value.name == "org.opdbus.Error.NotKept"
        with pytest.raises(RemoteError, match="there is no object systemd/unit/x, and history"):
            await object_at(caller, changed["at"], "/org/opdbus/state/systemd/unit/x")
        await publish(caller, ("late", {}))
        (late,) = await changes(caller, 1)
        with pytest.raises(RemoteError, match=r"was not there at .*: it appeared at") as refused:
            await object_at(caller, late["at"] - 1, late["object"])
        assert refused.value.name == "org.freedesktop.DBus.Error.UnknownObject"

    served(work)


def test_erased_values_are_not_guessed(served: Callable[..., Any]) -> None:
    """Say which values are not kept, of an object that was withdrawn."""

    async def work(caller: Caller, _daemon: Running) -> None:
        (at,) = [row["at"] for row in await changes(caller, 1)]
        await caller.call(STATE_PATH, f"{STATE}.Withdraw", "aoa{sv}", [UNIT], {})
        with pytest.raises(
            RemoteError, match=r"a\.service was .* no values are kept of it"
        ) as refused:
            await object_at(caller, at)
        assert refused.value.name == "org.opdbus.Error.NotKept"
        with pytest.raises(RemoteError, match=r"was not there at .*: it left at"):
            await object_at(caller, (1 << 63) - 1)
        rows, _ = await caller.call(STATE_PATH, f"{STATE}.Resolve", "sa{sv}", "a", {"past": True})
        assert [row[0] for row in rows] == [UNIT]
        rows, _ = await caller.call(STATE_PATH, f"{STATE}.Resolve", "sa{sv}", "a", {})
        assert rows == []

    served(work)
