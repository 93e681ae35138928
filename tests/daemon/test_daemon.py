"""The daemon's whole life, as a child process on a private bus."""

import asyncio
import json
import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest
from harness.commands import run
from harness.running import (
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Caller,
    Make,
    ask,
    many,
    replace,
    search,
    state_file,
)

from opdbus.bus.transport.connection import RemoteError
from opdbus.platform.tasks import end_child

BAD = "{ not json"


def path_of(name: str) -> str:
    """Give the path of a unit."""
    return f"/org/opdbus/state/systemd/unit/{name}"


# a whole life


def test_life(daemons: Make, tmp_path: Path) -> None:
    """Load, be ready, follow the file, start again with nothing to compute, end with 0."""
    file = state_file(tmp_path / "state.json", {"a": "network", "b": "mail"})
    daemon = daemons(STATE_FILE=file)

    async def first(caller: Caller) -> None:
        await caller.vectorized()
        state_file(file, {"a": "network", "b": "disk", "c": "time"})
        changed = await caller.signal("Changed", lambda body: body[0] == 2)
        assert sorted(changed[1]) == [[path_of("b"), "changed"], [path_of("c"), "added"]]
        assert await caller.signal("Vectorized", lambda b: b[0] == 2) == [2, "medium", 2, 1]
        state_file(file, {"b": "disk", "c": "time"})
        changed = await caller.signal("Changed", lambda body: body[0] == 3)
        assert changed[1] == [[path_of("a"), "removed"]]

    async def second(caller: Caller) -> None:
        # who listens first misses nothing
        daemon.start()
        await caller.vectorized()
        assert await caller.signal("Vectorized") == [3, "medium", 0, 2]
        states = [
            body[1]["State"]
            for _, name, body in caller.signals
            if name == "PropertiesChanged" and "State" in body[1]
        ]
        assert states[-1:] == ["ready"]

    with daemon:
        ask(daemon, first)
        assert daemon.stop() == 0
        ask(daemon, second)
        daemon.wait_for_log("vectors=2")
        assert daemon.stop() == 0
    assert "stopped" in daemon.log
    assert "Traceback" not in daemon.logs()


# the state file


def test_a_bad_edit_keeps_the_last_good_state(daemons: Make, tmp_path: Path) -> None:
    """Keep serving, set LastError and say so, be degraded, and recover with the next good file."""
    file = state_file(tmp_path / "state.json", {"a": "network"})

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        replace(file, BAD)
        await caller.signal("PropertiesChanged", lambda body: body[2] == ["LastError"])
        assert "line 1 column 3" in await caller.read("LastError")
        await caller.ready("degraded")
        assert await caller.read("Count") == 1
        with pytest.raises(RemoteError) as caught:
            await caller.ask("Reload", {})
        assert caught.value.name == "org.opdbus.Error.StateFile"
        caller.signals.clear()
        state_file(file, {"a": "network", "b": "mail"})
        await caller.signal("PropertiesChanged", lambda body: body[2] == ["LastError"])
        assert await caller.read("LastError") == ""
        await caller.ready("ready")
        assert await caller.read("Count") == 2

    with daemons(STATE_FILE=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)
        assert "state file refused" in daemon.log


@pytest.mark.parametrize("wrong", ["bad", "missing"])
def test_a_bad_file_at_start_serves_what_was_stored(
    daemons: Make, tmp_path: Path, wrong: str
) -> None:
    """Serve the stored state, say why in LastError, and take in a good file when it comes."""
    (tmp_path / "here").mkdir()
    file = state_file(tmp_path / "here" / "state.json", {"a": "network"})
    daemon = daemons(STATE_FILE=file, VECTOR_LEVEL="none")
    said: list[str] = []

    async def serving(caller: Caller) -> None:
        assert await caller.ready("degraded") == "degraded"
        assert await caller.read("Count") == 1
        error = await caller.read("LastError")
        assert str(file) in error
        assert ("line 1" if wrong == "bad" else "No such file") in error
        assert await caller.read("StateFileError") == error
        said.append(error)

    async def mended(caller: Caller) -> None:
        state_file(file, {"b": "mail", "c": "disk"})
        await caller.signal("Changed")
        await caller.ready("ready")
        assert await caller.read("Count") == 2

    with daemon:
        ask(daemon, Caller.vectorized)
        daemon.stop()
        if wrong == "bad":
            replace(file, BAD)
        else:
            file.unlink()
        daemon.start()
        ask(daemon, serving)
        left_out = "not observed: systemd/unit a: OP_DBUS_OBSERVE leaves out the observer systemd"
        assert run(daemon, "drift").stderr == f"op-dbus: {said[0]}\n{left_out}\n"
        finding, _, advice = said[0].partition("; ")
        doctor = " ".join(run(daemon, "doctor").stdout.split())
        assert f"wrong state file: {finding} {advice}" in doctor
        ask(daemon, mended)


def test_sighup_and_reload_read_the_file_again(daemons: Make, tmp_path: Path) -> None:
    """Read the file again on SIGHUP and on Reload, which returns when it is taken in."""
    file = state_file(tmp_path / "state.json", {"a": "network"})

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        daemon.send(signal.SIGHUP)
        # other lines may come in between
        daemon.wait_for_log(r"(?s)reloading.*settings read.*state file read.*changed=0")
        state_file(file, {"a": "network", "b": "mail"})
        await caller.ask("Reload", {})
        assert await caller.read("Count") == 2

    with daemons(STATE_FILE=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)


# what cannot be


def test_a_second_daemon_is_refused(daemons: Make) -> None:
    """Refuse a bus that is served and a folder that is in use, each with one sentence."""
    with daemons("one", VECTOR_LEVEL="none") as first:
        ask(first, Caller.ready)
        with daemons("two", bus=first.bus, VECTOR_LEVEL="none") as second:
            assert second.exit_code() == 4
            assert "org.opdbus is owned already: another op-dbus serves this bus" in second.log
            assert "Traceback" not in second.log
        third = daemons("three", VECTOR_LEVEL="none")
        third.state_dir = first.state_dir
        with third:
            assert third.exit_code() == 1
            assert "another op-dbus uses the database" in third.log
        ask(first, Caller.ready)


@pytest.mark.parametrize(
    ("settings", "code", "sentences"),
    [
        ({"EXECUTION_PROVIDER": "cuda"}, 3, [r"cuda cannot run: .*;"]),
        ({"VECTOR_LEVEL": "huge", "BATCH_TOKENS": "-1"}, 2,
         ["OP_DBUS_VECTOR_LEVEL='huge'", "OP_DBUS_BATCH_TOKENS='-1'"]),
        ({"BUS": "unix:path=/nonexistent"}, 4, ["cannot reach the message bus unix:path=/nonex"]),
        ({"STATE_DIR": "/proc/nowhere"}, 1, ["cannot open the database /proc/nowhere/memory.db"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_an_exit_code(
    daemons: Make, settings: dict[str, str], code: int, sentences: list[str]
) -> None:
    """Exit with the code of design.md, and say all that is wrong without a traceback."""
    if "cuda" in settings.values() and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    daemon = daemons(**settings)
    daemon.bus = settings.get("BUS", daemon.bus)
    with daemon:
        assert daemon.exit_code() == code, daemon.log
    for sentence in sentences:
        assert re.search(sentence, daemon.log), daemon.log
    assert "Traceback" not in daemon.log


def test_level_none_searches_words(daemons: Make) -> None:
    """Be ready without a model: words are searched, vector methods say NoModel at once."""

    async def work(caller: Caller) -> None:
        await caller.ready("ready")
        assert await search(caller, "lexical")
        assert await search(caller, "hybrid") == await search(caller, "lexical")
        assert await caller.read("Pending") == 0
        some = path_of("sshd_2eservice")
        calls = [
            (ROOT_PATH, f"{VECTORIZER}.Vectorize", "sa{sv}", "x", {}),
            (ROOT_PATH, f"{VECTORIZER}.VectorizeMany", "asa{sv}", ["x"], {}),
            (ROOT_PATH, f"{VECTORIZER}.CountTokens", "asa{sv}", ["x"], {}),
            (ROOT_PATH, f"{VECTORIZER}.SetProvider", "ssa{sv}", "cpu", "", {}),
            (STATE_PATH, f"{STATE}.Search", "sua{sv}", "x", 1, {"mode": "vector"}),
            (STATE_PATH, f"{STATE}.Similar", "oua{sv}", some, 1, {}),
            (STATE_PATH, f"{STATE}.Vector", "oa{sv}", some, {}),
            (some, "org.opdbus.Object1.GetVector", "a{sv}", {}),
            (some, "org.opdbus.Object1.Similar", "ua{sv}", 1, {}),
        ]
        for call in calls:
            with pytest.raises(RemoteError) as caught:
                await caller.call(*call)
            assert caught.value.name == "org.opdbus.Error.NoModel", call

    with daemons(VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)
        assert daemon.stop() == 0


def test_the_files_are_the_daemons_alone(daemons: Make, tmp_path: Path) -> None:
    """Give nobody else a look into database, write-ahead log and lock, whatever the umask."""
    daemon = daemons(VECTOR_LEVEL="none")
    daemon.state_dir = tmp_path / "made" / "by the daemon"
    before = os.umask(0)
    try:
        daemon.start()
    finally:
        os.umask(before)
    with daemon:
        ask(daemon, Caller.ready)
        assert stat.S_IMODE(daemon.state_dir.stat().st_mode) == 0o700
        files = [file for file in daemon.state_dir.iterdir() if file.is_file()]
        assert {"memory.db", "memory.db-wal"} <= {file.name for file in files}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


# callers that leave


_PUBLISHER = """
import asyncio, sys
from opdbus.bus.transport.connection import Connection

async def main():
    async with Connection(sys.argv[1]) as connection:
        await connection.call("org.opdbus", "/org/opdbus/state", "org.opdbus.State1.Publish",
            "sa(sssa{sv})a{sv}", "test", [("p", "k", "n", {"description": "disk"})],
            {"lifetime": "connection"})
        print("published", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_objects_vanish_with_their_publisher(daemons: Make) -> None:
    """Remove what lives as long as a connection when its process ends, also by kill -9."""

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        publisher = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PUBLISHER, daemon.bus, stdout=asyncio.subprocess.PIPE
        )
        assert publisher.stdout
        assert await publisher.stdout.readline() == b"published\n"
        await caller.signal("Changed", lambda b: b[1] == [[f"{STATE_PATH}/p/k/n", "added"]])
        await end_child(publisher)
        await caller.signal("Changed", lambda b: b[1] == [[f"{STATE_PATH}/p/k/n", "removed"]])

    with daemons(VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)


# size


def test_thousands_of_objects_are_served(daemons: Make, tmp_path: Path) -> None:
    """List, find and introspect among 2,000 objects, each by its path."""
    file = many(tmp_path / "state.json", 2000)

    async def work(caller: Caller) -> None:
        await caller.ready()
        await caller.until(lambda: caller.read("Count"), 2000)
        introspect = "org.freedesktop.DBus.Introspectable.Introspect"
        text = (await caller.call(f"{STATE_PATH}/systemd/unit", introspect))[0]
        assert text.count("<node name=") == 500
        got = (await caller.ask("Get", path_of("u1999"), {}))[0]
        assert json.loads(got)["name"] == "u1999"
        total, page = await caller.ask("List", {}, 1990, 100)
        assert (total, len(page)) == (2000, 10)
        changes = [body[1] for _, name, body in caller.signals if name == "Changed"]
        assert max(map(len, changes), default=0) <= 500

    with daemons(STATE_FILE=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)


def test_very_long_names_do_not_end_the_connection(daemons: Make, tmp_path: Path) -> None:
    """Tell of objects with names of 40 kB each, and serve on."""
    file = state_file(tmp_path / "state.json", {"é" * 20_000 + str(n): "mail" for n in range(60)})

    async def work(caller: Caller) -> None:
        await caller.ready()
        assert await caller.read("Count") == 60

    with daemons(STATE_FILE=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)
        listed = run(daemon, "list", "--json")
        assert json.loads(listed.stdout)["total"] == 60, listed.stderr
