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
    """Tell the number of the newest row, once for many changes within a moment."""

    async def work(caller: Caller, _daemon: Running) -> None:
        caller.signals.clear()
        await asyncio.gather(*(publish(caller, ("b", {"number": n})) for n in range(30)))
        assert await caller.signal("Recorded", lambda body: body == [33]) == [33]
        assert len([name for _, name, _ in caller.signals if name == "Recorded"]) < 30

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
