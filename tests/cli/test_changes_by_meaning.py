"""Changes by meaning, asked of a daemon: about, before_event and Nearest of History1."""

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from harness.commands import run
from harness.running import (
    HISTORY,
    HISTORY_PATH,
    Caller,
    Running,
    calling,
    state_file,
)

from opdbus.bus.transport.connection import RemoteError

UNIT = "/org/opdbus/state/systemd/unit/web_2eservice"


@pytest.fixture(scope="module")
def served(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Run a daemon whose web server was upgraded, and failed twice."""
    file = state_file(tmp_path_factory.mktemp("state") / "state.json", {})
    daemon = shared_daemons(STATE_FILE=file).start()

    async def work() -> None:
        async with calling(daemon.bus) as caller:
            await caller.ready()
            for state in ("active", "failed", "active"):
                await publish(caller, "systemd", "unit", "web.service", active_state=state)
            await publish(caller, "packages", "package", "web", version="1")
            await publish(caller, "packages", "package", "web", version="2")
            await publish(caller, "systemd", "unit", "web.service", active_state="failed")
            await caller.until(embedded, wanted=True)

    async def embedded() -> bool:
        """Return whether all sentences have vectors, without which words alone decide."""
        database = f"file:{daemon.state_dir}/memory.db?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as reader:
            return bool(reader.execute("SELECT min(engine) FROM sentences").fetchone()[0])

    asyncio.run(work())
    return daemon


async def publish(caller: Caller, plugin: str, kind: str, name: str, **fields: object) -> None:
    """Publish an object."""
    objects = [(plugin, kind, name, fields)]
    await caller.ask("Publish", "t", objects, {})


async def ask(caller: Caller, method: str, limit: int = 10, **wanted: Any) -> list[Any]:
    """Call Changes or Nearest."""
    (rows,) = await caller.call(HISTORY_PATH, f"{HISTORY}.{method}", "a{sv}u", wanted, limit)
    return rows


async def test_changes_are_found_by_what_they_are_about(served: Running) -> None:
    """Give the newest change of each sentence, with their number and a score, best first."""
    async with calling(served.bus) as caller:
        rows = await ask(caller, "Changes", about="which packages were upgraded?")
        assert (rows[0]["name"], rows[0]["seq"], rows[0]["count"]) == ("web", 5, 1)
        # of what only happened, nothing is given in which it did not
        assert len(rows) == 1
        assert rows[0]["fields"] == [["version", '"1"', '"2"']]
        web = await ask(caller, "Changes", about="web server")
        assert len(web) > 1
        assert web[0]["score"] >= web[1]["score"]
        failed = await ask(caller, "Changes", 1, about="web failed", kind="unit")
        assert [(row["seq"], row["count"]) for row in failed] == [(6, 2)]
        early = await ask(caller, "Changes", 1, about="web failed", below=6)
        assert [(row["seq"], row["count"]) for row in early] == [(2, 1)]


async def test_what_came_before_an_event_is_given(served: Running) -> None:
    """Give what changed before an event that is said in words, and which row that is."""
    async with calling(served.bus) as caller:
        rows = await ask(caller, "Changes", before_event="web.service failed")
        assert {row["event"] for row in rows} == {6}
        assert {row["seq"] for row in rows[:2]} == {4, 5}
        assert await ask(caller, "Changes", before_event="web.service failed", within=1) == []


@pytest.mark.parametrize("like", [{"seq": 6}, {"object": UNIT}])
async def test_it_is_known_whether_it_has_happened_before(
    served: Running, like: dict[str, Any]
) -> None:
    """Give past changes like a row or an object's newest, and what followed from each."""
    async with calling(served.bus) as caller:
        (found, after), *_ = await ask(caller, "Nearest", 1, **like)
        assert found["seq"] == 2
        assert [row["seq"] for row in after] == [3, 4, 5, 6]
        # neither a start nor an upgrade is like a failure
        assert [found["seq"] for found, _ in await ask(caller, "Nearest", **like)] == [2]


BAD = [
    ("Changes", {"about": " "}, "by about or by before_event"),
    ("Changes", {"about": "a", "before_event": "b"}, "by about or by before_event"),
    ("Changes", {"within": 5}, "by about or by before_event"),
    ("Changes", {"before_event": "b", "within": 0}, "at least 1"),
    ("Changes", {"about": 1}, "'about' must be of type string"),
    ("Nearest", {}, "one of seq, object, about"),
    ("Nearest", {"seq": 1, "about": "a"}, "one of seq, object, about"),
    ("Nearest", {"seq": 99}, "there is no row 99 of history: rows 1 to 6 are kept"),
    ("Nearest", {"object": UNIT + "x"}, "history has no change of systemd/unit/web.servicex"),
]


async def test_bad_questions_are_refused(served: Running) -> None:
    """Say what is wrong with a question."""
    async with calling(served.bus) as caller:
        for method, wanted, reason in BAD:
            with pytest.raises(RemoteError, match=reason):
                await ask(caller, method, **wanted)


def command(daemon: Running, *words: str) -> Any:
    """Run `op-dbus changes`."""
    return run(daemon, "changes", *words, TZ="UTC", COLUMNS="200")


def test_the_command_tells_what_answers_best(served: Running) -> None:
    """Print the best answer first, how often it happened, and JSON for programs."""
    told = command(served, "--about", "web failed", "--kind", "unit", "-n", "1")
    assert (told.returncode, told.stdout.count("\n")) == (0, 1)
    assert "web.service failed" in told.stdout
    assert told.stdout.endswith(" [one of 2 such changes]\n")
    told = command(served, "--about", "which packages were upgraded?", "--json")
    row = json.loads(told.stdout.splitlines()[0])
    assert (row["seq"], row["count"], row["format_version"]) == (5, 1, "1.0")
    assert row["fields"] == [{"path": "version", "before": "1", "after": "2"}]


BEFORE = ("--before", "web.service failed")


def test_the_command_tells_what_came_before_an_event(served: Running) -> None:
    """Take words for an event and anything else for a time, and say which event was taken."""
    told = command(served, "--before", "web.service failed")
    event, heading, *rows = told.stdout.splitlines()
    assert re.match(r"\w{3} \d\d [\d:]{8}  web\.service failed: active -> failed", event)
    assert event.endswith(" [row 6]")
    assert heading.startswith("what may have led to this")
    assert "web" in rows[0]
    told = command(served, "--before", "web.service failed", "--within", "1h", "--json")
    assert {json.loads(line)["event"] for line in told.stdout.splitlines()} == {6}
    assert "more: --limit N gives more" in command(served, *BEFORE, "--limit", "1").stderr
    assert "more: --limit" not in command(served, *BEFORE, "--limit", "99").stderr
    assert "is no time" in (command(served, "--before", "noonish")).stderr


@pytest.mark.parametrize("state", ["restarted", "was reloaded", "was masked"])
def test_the_command_says_what_never_happened(served: Running, state: str) -> None:
    """Name the object and since when nothing happened to it; a name of nothing is an error."""
    told = command(served, "--before", f"web.service {state}")
    assert (told.returncode, told.stdout) == (12, "")
    happened = state.replace("was", "been")
    assert f"web.service has not {happened} in the history (since 20" in told.stderr
    asked = run(served, "ask", f"why was web.service {state.rsplit(maxsplit=1)[-1]}?")
    assert asked.stdout.startswith("changes: op-dbus changes --before")
    assert f"web.service has not {happened} in the history (since 20" in asked.stderr
    unknown = run(served, "ask", "why did frobd fail?")
    assert (unknown.returncode, "no object named frobd" in unknown.stderr) == (1, True)


@pytest.mark.parametrize("like", ["6", "web.service", "the web server failed once more"])
def test_the_command_tells_whether_it_has_happened_before(served: Running, like: str) -> None:
    """Take a row, an object or words, and print what was like it with what followed."""
    told = command(served, "--like", like, "--json", "--kind", "unit")
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert 2 in {row["seq"] for row in rows} or like.startswith("the")
    assert all(each["fields"] is not None for row in rows for each in row["followed"])
    told = command(served, "--like", like, "--kind", "unit")
    lines = told.stdout.splitlines()
    assert any(line.startswith("          +0:") for line in lines)
    # what is compared comes first, and each change once
    assert lines[0].endswith(" [row 6]") or like.startswith("the")
    upgrade = [line for line in lines if "package web upgraded" in line]
    assert len(upgrade) == 1


def test_the_command_shows_what_nothing_was_like(served: Running) -> None:
    """Show the change that is meant, also where nothing like it is known."""
    for like in ("6", "web.service"):
        told = command(served, "--like", like, "--kind", "interface")
        assert told.stdout.endswith(" [row 6]\n")
        assert told.stderr == "nothing like it is known to have happened\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--about", "a", "--like", "b"), "give one of them"),
        (("--about", "a", "--watch"), "neither watched nor put together"),
        (("--about", " "), "--about needs words"),
        (("--like", "nobody"), "there is no object nobody"),
        (("--like", "77"), "there is no row 77"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    served: Running, words: tuple[str, ...], reason: str
) -> None:
    """Say what is wrong with a question."""
    told = command(served, *words)
    assert told.returncode != 0
    assert reason in told.stderr
