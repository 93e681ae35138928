"""What changed, asked of a daemon: History1 on the bus, and `op-dbus changes`."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from harness.commands import run
from harness.running import (
    HISTORY,
    HISTORY_PATH,
    STATE,
    STATE_PATH,
    Caller,
    Running,
    calling,
    environment,
    state_file,
)  # fmt: skip

from opdbus.bus.transport.connection import RemoteError
from opdbus.platform.tasks import end_child

UNIT = "/org/opdbus/state/systemd/unit/a_2eservice"


def told(daemon: Running) -> Running:
    """Start a daemon, and tell it of two units."""

    async def work() -> None:
        async with calling(daemon.bus) as caller:
            await caller.ready()
            await publish(caller, ("a.service", {"state": "active", "port": 1}), ("b", {}))
            await publish(caller, ("a.service", {"state": "failed", "limits": {"cpu": 2}}))

    daemon.start()
    asyncio.run(work())
    return daemon


@pytest.fixture(scope="module")
def served(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Run a daemon with three changes, to which no test adds any."""
    return told(shared_daemons(STATE_FILE=state_file(tmp_path_factory.mktemp("a") / "s.json", {})))


@pytest.fixture
def daemon(daemons: Callable[..., Running], tmp_path: Path) -> Running:
    """Run a daemon with three changes for a single test."""
    return told(daemons(STATE_FILE=state_file(tmp_path / "state.json", {}), VECTOR_LEVEL="none"))


async def publish(caller: Caller, *units: tuple[str, dict[str, Any]]) -> None:
    """Publish units."""
    objects = [("systemd", "unit", name, properties) for name, properties in units]
    await caller.ask("Publish", "t", objects, {})


async def changes(caller: Caller, limit: int = 10, **wanted: Any) -> list[dict[str, Any]]:
    """Ask what changed."""
    (rows,) = await caller.ask("Changes", wanted, limit)
    return rows


async def test_changes_are_given_with_all_that_is_known(served: Running) -> None:
    """Give each change with its fields before and after, the newest first."""
    async with calling(served.bus) as caller:
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
        assert await caller.read("Rows") == 3
        assert await caller.read("First") == 1


BAD = [
    ({"since": -1}, 1, "since must be from 0"),
    ({"before": 1 << 63}, 1, "before must be from 0"),
    ({"since": "yesterday"}, 1, "'since' must be of type integer"),
    ({"what": "exploded"}, 1, "there are appeared, changed"),
    ({"order": "random"}, 1, "one of newest, oldest, not"),
    ({"plugin": "systmd"}, 1, "there is no plugin 'systmd'; there are cron, .*, systemd, "),
    ({"kind": "unti"}, 1, "there is no kind 'unti'; there are account, .* unit"),
    ({"kind": "unti", "plugin": "systemd"}, 1, "kind 'unti' of systemd; there are unit$"),
    ({"kind": "unti", "about": "a"}, 1, "there is no kind 'unti'"),
    ({"cause": "aptt:2026"}, 1, "no cause begins with 'aptt:2026'; causes begin with apt, boot"),
    ({"where": "state"}, 1, "no condition"),
    ({"object": "/org/opdbus"}, 1, "not the path of a state object"),
    ({"unknown": True}, 1, "there is no option 'unknown'"),
    ({}, 0, "limit must be from 1 to 10000"),
    ({}, (1 << 32) - 1, "limit must be from 1 to 10000"),
]


async def test_a_publisher_is_a_cause(daemon: Running) -> None:
    """Give the bus name and the user of a program that published or withdrew something."""
    async with calling(daemon.bus) as caller:
        await publish(caller, ("c", {}))
        await caller.ask("Withdraw", [UNIT], {})
        cause = f"bus:{caller.connection.name} uid {os.getuid()}"
        assert [row["cause"] for row in await changes(caller, after=3)] == [cause] * 2


async def test_bad_filters_are_refused(served: Running) -> None:
    """Say what is wrong with a filter, and go on serving."""
    async with calling(served.bus) as caller:
        for wanted, limit, said in BAD:
            with pytest.raises(RemoteError, match=said):
                await changes(caller, limit, **wanted)
        assert len(await changes(caller)) == 3


async def test_new_rows_are_signalled(daemon: Running) -> None:
    """Tell the number of the newest row."""
    async with calling(daemon.bus) as caller:
        await publish(caller, ("b", {"number": 1}), ("c", {}))
        assert await caller.signal("Recorded", lambda body: body == [5]) == [5]


def test_json_is_one_object_a_line(served: Running) -> None:
    """Print each change as JSON, the newest last, and the format in the first line."""
    printed = command(served, "changes", "--since", "today", "--json")
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


async def test_an_object_is_given_as_it_was(daemon: Running) -> None:
    """Take changes back, also those of an object that is gone, and say where that cannot be."""
    async with calling(daemon.bus) as caller:
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


async def test_a_past_state_names_the_source_of_its_values(daemon: Running) -> None:
    """Name the source of what was observed, and the file only where nothing was.

    A declared object has the observed values of its other name.
    """
    declared = {"a.service": "A", "d.service": "D", "e": "E"}
    async with calling(daemon.bus) as caller:
        state_file(Path(daemon.settings["OP_DBUS_STATE_FILE"]), declared)
        await caller.signal("Recorded", lambda body: body == [6])
        await publish(caller, ("e.service", {"port": 2}))
        for name in ("e", "e.service"):
            path = UNIT.replace("a_2eservice", name.replace(".", "_2e"))
            one = await object_at(caller, (1 << 63) - 1, path)
            assert (one["declared"], one["observed"]) == ({"description": "E"}, {"port": 2})
        both = await object_at(caller, (1 << 63) - 1)
        assert (both["source"], both["declared"]) == ("publish:t", {"description": "A"})
        alone = await object_at(caller, (1 << 63) - 1, UNIT.replace("a_2e", "d_2e"))
        assert (alone["source"], alone["observed"]) == ("file", None)


async def test_erased_values_are_not_guessed(daemon: Running) -> None:
    """Say which values are not kept, of an object that was withdrawn."""
    async with calling(daemon.bus) as caller:
        (at,) = [row["at"] for row in await changes(caller, 1)]
        await caller.ask("Withdraw", [UNIT], {})
        with pytest.raises(
            RemoteError, match=r"a\.service was .* no values are kept of it"
        ) as refused:
            await object_at(caller, at)
        assert refused.value.name == "org.opdbus.Error.NotKept"
        with pytest.raises(RemoteError, match=r"was not there at .*: it left at"):
            await object_at(caller, (1 << 63) - 1)
        rows, _ = await caller.ask("Resolve", "a", {"past": True})
        assert [row[0] for row in rows] == [UNIT]
        rows, _ = await caller.ask("Resolve", "a", {})
        assert rows == []


async def test_what_is_connected_is_told(daemon: Running) -> None:
    """Tell the changes of a unit, its triggers, ports, files and package, and of nothing else."""
    objects = [
        ("systemd", "unit", "web.service", {"package": "web", "triggered_by": ["web.socket"]}),
        ("systemd", "unit", "web.socket", {"triggers": ["web.service"]}),
        ("systemd", "unit", "web-clean.service", {"package": "web"}),
        ("systemd", "unit", "web.service.d", {"package": "other"}),
        ("packages", "package", "web", {"version": "1"}),
        ("net", "listener", "tcp 80", {"unit": "web.service, a.service"}),
        ("net", "listener", "tcp 81", {"unit": "old-web.service"}),
        ("files", "file", "/etc/web.conf", {"package": "web"}),
    ]
    async with calling(daemon.bus) as caller:
        asked = (STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", objects, {})
        paths, *_ = await caller.call(*asked)
        rows = await changes(caller, 50, around=paths[0], after=3)
        assert sorted(row["name"] for row in rows) == [
            "/etc/web.conf",
            "tcp 80",
            "web",
            "web-clean.service",
            "web.service",
            "web.socket",
        ]
        assert [row["name"] for row in await changes(caller, around=paths[5])] == [
            "tcp 80",
            "web.service",
            "a.service",
            "a.service",
        ]
        assert await changes(caller, around=paths[0], object=UNIT) == []


def command(daemon: Running, *words: str) -> Any:
    """Run `op-dbus`."""
    return run(daemon, *words, TZ="UTC", COLUMNS="80")


def test_changes_are_told_to_people(served: Running) -> None:
    """Tell the newest changes last, one a line, or put together by cause."""
    told = command(served, "changes")
    assert [line[17:].split(" (")[0] for line in told.stdout.splitlines()] == [
        "a.service published",
        "b published",
        'a.service changed: limits none -> {"cpu": 2}, port 1 -> none, state active -> failed',
    ]
    told = command(served, "changes", "-n", "2", "--by", "cause")
    heading, *lines = told.stdout.splitlines()
    assert heading[17:].startswith("by ")
    assert heading.endswith(": at least 2 changes")
    # each line has its own time, below the last one of the heading
    assert [(line[:15] <= heading[:15], line[15:].split(":")[0]) for line in lines] == [
        (True, f"{'':4}b published"),
        (True, f"{'':4}a.service changed"),
    ]
    assert "--by cause " in command(served, "changes", "--help").stdout
    assert told.stderr == "the newest 2 changes: -n N gives more\n"
    told = command(served, "changes", "--before", "-1h")
    assert (told.stdout, told.returncode) == ("", 0)
    assert told.stderr == "nothing is known to have changed\n"


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("--since=2h --before=tomorrow --within=2d", 3),
        ("--since=2h --before=tomorrow --within=1s", 0),
        ("--since=2h --before=1h --within=5h", 0),
        ("--since=2h --before=+1h --within=3h", 3),
        # 1M is a month, as in systemd.time(7)
        ("--since=1M --within=1M", 3),
        ("--since=1M --within=1m", 0),
    ],
)
def test_changes_between_two_times(served: Running, words: str, count: int) -> None:
    """Of --since and --within before --before the later one holds; all three may be given."""
    done = command(served, "changes", *words.split())
    assert (done.returncode, len(done.stdout.splitlines())) == (0, count)


BAD_WORDS = [
    (["changes", "--since", "next week"], "'next week' is no time: a time is now, today"),
    (["changes", "--since", "tomorrow"], "tomorrow is yet to come: give a time that is past"),
    (["changes", "--within", "soon"], "'soon' is no span of time"),
    (["changes", "--since=1h", "--before=2h"], "--before 2h is earlier than --since 1h"),
    (["changes", "--watch", "--by", "cause"], "without --by and --before"),
    (["changes", "--what", "exploded"], "there are appeared, changed"),
    (["changes", "--where", "state"], "is no condition"),
    (["changes", "--where", "after.stat=1"], "no row of history has a field after.stat; did you"),
    (
        ["changes", "--about", "failures", "--where", "nosuch=1"],
        "no row of history has a field nos",
    ),
    (["changes", "-n", "0"], "-n 0 asks for no changes"),
    (["changes", "-n", "99999999999"], "is not a number from 0 to"),
    (["history", "a", "--at", "25:00"], "is no time"),
    (["changes", "--kind", "port"], "there is no kind 'port'; do you mean listener? There are"),
    (["changes", "--plugin", "systmd"], "there is no plugin 'systmd'; there are"),
    (["drift", "--kind", "unti"], "there is no kind 'unti'; there are"),
    (["search", "a", "--plugin", "systmd"], "there is no plugin 'systmd'; there are"),
    (["similar", "a.service", "--kind", "unti"], "there is no kind 'unti'; there are"),
    (["list", "--plugin", "systemd", "--kind", "unti"], "no kind 'unti' of systemd"),
    (["fields", "--plugin", "systmd"], "there is no plugin 'systmd'; there are"),
    (["search", " "], "the question is empty"),
    (["changes", "--since", "2999-01-01"], "2999-01-01 is yet to come"),
    (["history", "a", "--at", "2999-01-01"], "2999-01-01 is yet to come"),
    (["history", "nosuch"], "there is no object nosuch"),
    (["history", "a", "--at", "1970-01-02"], "history begins at"),
]


def test_bad_words_are_refused(served: Running) -> None:
    """Say what is wrong and what is accepted, in one line."""
    for words, said in BAD_WORDS:
        told = run(served, *words)
        assert told.returncode in {1, 2}, words
        assert said in told.stderr
        assert told.stderr.count("\n") == 1


async def test_an_object_has_a_history(daemon: Running) -> None:
    """Tell the changes of one object, and show it as it was, although it is gone."""
    async with calling(daemon.bus) as caller:
        (at,) = [row["at"] for row in await changes(caller, 1)]
        told = daemon.cli("history", "a")
        assert len(told.stdout.splitlines()) == 2
        when = f"{datetime.fromtimestamp((at - 1) / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        told = daemon.cli("history", "a", "--at", when, "--json")
        assert json.loads(told.stdout)["observed"] == {"port": 1, "state": "active"}
        await caller.ask("Withdraw", [UNIT], {})
        told = daemon.cli("history", "show", "a.service", "--json")
        assert [json.loads(line)["what"] for line in told.stdout.splitlines()] == [
            "appeared",
            "changed",
            "gone",
        ]
        told = daemon.cli("history", "a", "--at", "now")
        assert "was not there at" in told.stderr


async def test_changes_are_told_as_they_come(daemon: Running) -> None:
    """Go on with each new change, also after op-dbus was started again."""
    async with calling(daemon.bus) as caller:
        watching = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "opdbus", "changes", "--watch", "--json", "-n", "1"),
            env=environment(daemon.bus, daemon.state_dir, daemon.settings),
            stdout=asyncio.subprocess.PIPE,
        )
        assert watching.stdout
        try:
            first = json.loads(await watching.stdout.readline())
            assert (first["seq"], first["format_version"]) == (3, "1.0")
            await publish(caller, ("c", {}))
            assert json.loads(await watching.stdout.readline())["seq"] == 4
            await asyncio.to_thread(daemon.stop)
            daemon.start()
            await caller.ready()
            await publish(caller, ("d", {}))
            line = json.loads(await watching.stdout.readline())
            assert (line["seq"], line["name"], "format_version" in line) == (5, "d", False)
        finally:
            await end_child(watching)


async def test_large_changes_come_in_parts(daemon: Running) -> None:
    """Refuse more than 1 MiB at a time, and give a client all by asking for less."""
    async with calling(daemon.bus) as caller:
        for number in range(12):
            await publish(caller, ("big", {"text": f"{number} {'long words ' * 10_000}"}))
        with pytest.raises(RemoteError, match="ask for fewer at a time") as refused:
            await changes(caller, 100)
        assert refused.value.name == "org.freedesktop.DBus.Error.LimitsExceeded"
        assert len(await changes(caller, 2)) == 2
        told = daemon.cli("changes", "--json")
        assert [json.loads(line)["seq"] for line in told.stdout.splitlines()] == [*range(1, 16)]
        told = daemon.cli("changes", "-n", "4")
        assert "big changed at least 4 times (by " in told.stdout.splitlines()[-1]
