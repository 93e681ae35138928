"""A large state file is read by a child process, and comes to the same as in the daemon itself."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.running import Running, calling, replace
from test_child import _child, _children, _ends, _watched

from opdbus.errors import StateFileError
from opdbus.index.database import record_process
from opdbus.index.state_store.events import Changed
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.state_store.state_store import StateStore
from opdbus.models.child import ChildFailed
from opdbus.state.file import StateFile, signature

MODULE = "opdbus.index.database.record_process"
# More than the pipe from the child holds.
MANY = 6_000
NEVER = 1 << 40


def _content(count: int = 50) -> dict[str, Any]:
    """Make a state with secrets, names that repeat and that are missing, and claims."""
    units = {
        f"job-{n}.service": {
            "description": f"job number {n} of the night",
            "environment": [f"DB_PASSWORD=hunter{n}", "LANG=C"],
            "properties": {"ExecStart": f"/usr/bin/job --token abc{n}def{n} --number {n}"},
        }
        for n in range(count)
    }
    rules = [{"port": 22, "action": "accept"}, {"name": "a", "port": 1}, {"name": "a", "port": 2}]
    plugins = {"systemd": {"units": units, "exclusive": True}, "firewall": {"rules": rules}}
    return {"version": 1, "plugins": plugins}


def _written(path: Path, content: dict[str, Any]) -> Path:
    replace(path, json.dumps(content))
    return path


async def _loaded(folder: Path, path: Path, large: int) -> tuple[Any, ...]:
    """Load a file, edit one object, load it again; give what is known, and what was told."""
    told = list[Any]()
    async with StateStore(folder / "memory.db", clock=lambda: 1e9) as memory:
        memory.notify = told.append
        declared = StateFileLoader(path, memory, large=large)
        _written(path, content := _content())
        await declared.load()
        content["plugins"]["systemd"]["units"]["job-7.service"]["description"] = "another"
        _written(path, content)
        await declared.load()
        entries = sorted(memory.catalogue, key=lambda entry: entry.identity)
        contents = await memory.content(entries)
        # ids are given in the order of the file
        return entries, contents, told


def test_it_comes_to_the_same(tmp_path: Path) -> None:
    """Store the same objects, tell the same, and find the same one changed at the next read."""
    path = tmp_path / "state.json"
    here, there = (asyncio.run(_loaded(tmp_path / str(n), path, n)) for n in (NEVER, 0))
    assert here == there
    changes = [event.changes for event in there[-1] if isinstance(event, Changed)]
    assert [len(one) for one in changes] == [53, 1]
    assert "hunter" not in repr(there)


def test_a_file_that_is_known_is_read_to_be_compared(tmp_path: Path) -> None:
    """Receive no object of a file that an earlier run has read, and those that change after it."""
    path = _written(tmp_path / "state.json", content := _content())
    file = StateFile(path)
    present, found = record_process.stream(file, signature(path))
    assert [*found] == []
    assert len(present) == 53
    content["plugins"]["systemd"]["units"]["job-7.service"]["description"] = "another"
    _, found = record_process.stream(StateFile(_written(path, content)), "another")
    assert len([*found]) == 53
    assert [one.identity.name for one in file.read()[1]] == ["job-7.service"]


def test_a_child_that_ends_before_is_no_loss(tmp_path: Path) -> None:
    """Read in this process what a child that is killed has not sent."""
    path = _written(tmp_path / "state.json", _content(MANY))
    file = StateFile(path)
    present, found = record_process.stream(file)
    first = next(found)
    (pid,) = (pid for pid, module in _children(os.getpid()).items() if module == MODULE)
    os.kill(pid, signal.SIGKILL)
    identities = {first.identity, *(one.identity for one in found)}
    assert identities == StateFile(path).read()[0]
    assert present == identities
    assert file.read()[1] == []


def test_it_ends_when_nobody_reads_on(tmp_path: Path) -> None:
    """End the child when what it sends is not wanted any more."""
    _, found = record_process.stream(StateFile(_written(tmp_path / "s.json", _content(MANY))))
    next(found)
    (pid,) = (pid for pid, module in _children(os.getpid()).items() if module == MODULE)
    with _watched(pid) as pidfd:
        del found
        assert _ends(pidfd)


def test_a_bad_file_is_refused_with_its_place(tmp_path: Path) -> None:
    """Refuse a large file with the sentence of a small one, and take the next good one."""
    path = tmp_path / "state.json"
    path.write_text('{"version": 1,\n "plugins": {"a": [}}')
    with pytest.raises(ChildFailed, match="ended with code 1"):
        record_process.stream(StateFile(path))

    async def work() -> None:
        async with StateStore(tmp_path / "memory.db") as memory:
            declared = StateFileLoader(path, memory, large=0)
            with pytest.raises(StateFileError, match=r"line 2 column 20 .*nothing is declared"):
                await declared.load()
            _written(path, _content())
            await declared.load()
            assert len(memory.catalogue) == 53

    asyncio.run(work())


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_ends_with_the_daemon(daemons: Callable[..., Running], tmp_path: Path, end: str) -> None:
    """Leave no child behind, whether the daemon is stopped or killed, and lose nothing."""
    path = _written(tmp_path / "s.json", content := _content(MANY))
    # what makes the file large says nothing
    path.write_text(json.dumps(content) + " " * (4 << 20))
    daemon = daemons(STATE_FILE=path, VECTOR_LEVEL="none")
    with daemon.start(), _watched(_child(daemon, MODULE)) as apart:
        signal.pidfd_send_signal(apart, signal.SIGSTOP)
        if end == "stop":
            assert daemon.stop() == 0
            assert "Traceback" not in daemon.log
        else:
            daemon.kill()
        signal.pidfd_send_signal(apart, signal.SIGCONT)
        assert _ends(apart)
    with daemon.start():
        asyncio.run(_until_all_are_there(daemon))


async def _until_all_are_there(daemon: Running) -> None:
    async with calling(daemon.bus) as caller:
        await caller.ready()
        await caller.until(lambda: caller.read("Count"), MANY + 3)
