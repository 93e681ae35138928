"""Children of the daemon: never left behind, and ended by nobody but it."""

import asyncio
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness.running import PATIENCE_SECONDS, Running, calling, run_program, state_file
from test_bulk_daemon import MANY, _job

from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.models import build, child, folder
from opdbus.models.level_table import LEVELS


def _children(pid: int) -> dict[int, str]:
    """Give the processes that a process started, with the modules that they run."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended
            for number in (task / "children").read_text().split():
                words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
                found[int(number)] = words[3] if len(words) > 3 else ""
    return found


def _child(daemon: Running, module: str) -> int:
    """Wait until a daemon runs a module, and give the process."""
    daemon.wait_for_log("serving")
    end = select.poll()
    for _ in range(int(PATIENCE_SECONDS * 100)):
        for pid, running in _children(daemon.pid).items():
            if running == module:
                return pid
        end.poll(10)  # nothing tells of a child
    raise AssertionError(daemon.log)


def _ends(pidfd: int) -> bool:
    """Wait for the end of a process."""
    return bool(select.select([pidfd], [], [], PATIENCE_SECONDS)[0])


@contextmanager
def _watched(pid: int) -> Iterator[int]:
    """Give what tells of the end of a process, which is killed in any case."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@contextmanager
def _building(daemon: Running) -> Iterator[int]:
    """Start a daemon that has to build its graph, and keep it from ever being done."""
    graphs = daemon.state_dir / "graphs"
    for path in graphs.glob("*/*"):
        path.unlink()
    with (graphs / build.LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with daemon.start():
            pid = _child(daemon, "opdbus.models.build")
            with _watched(pid) as pidfd:
                yield pidfd


def test_sigterm_while_the_graph_is_built(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """End soon with code 0, and take the child along."""
    with _building(daemon := daemons(STATE_FILE=state_file(tmp_path / "s.json", {}))) as built:
        assert daemon.stop() == 0
        assert _ends(built)
        assert "Traceback" not in daemon.log


def test_a_child_ends_with_a_daemon_that_is_killed(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """Leave no process behind that builds for nobody."""
    with _building(daemon := daemons(STATE_FILE=state_file(tmp_path / "s.json", {}))) as built:
        daemon.kill()
        assert _ends(built)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_of_us_is_no_fault(
    daemons: Callable[..., Running], tmp_path: Path, number: signal.Signals
) -> None:
    """End with code 0 where the service manager, or a terminal, tells the child first."""
    with _building(daemon := daemons(STATE_FILE=state_file(tmp_path / "s.json", {}))) as built:
        status = Path(f"/proc/{_child(daemon, 'opdbus.models.build')}/status")
        # it follows as soon as it runs our code
        waiting = select.poll()
        while not _ignores(status, number):
            waiting.poll(10)
        signal.pidfd_send_signal(built, number)
        assert daemon.stop(number) == 0
        assert _ends(built)


def _ignores(status: Path, number: signal.Signals) -> bool:
    (mask,) = (line for line in status.read_text().splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


def test_sigterm_while_precisions_are_graded(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """End soon with code 0 whatever the child that grades is at, even stopped."""
    daemon = daemons(
        STATE_FILE=state_file(tmp_path / "s.json", {}),
        EXECUTION_PROVIDER="cpu:onnxruntime",
        PRECISION="auto",
    )
    with daemon.start(), _watched(_child(daemon, "opdbus.engine.grading")) as graded:
        signal.pidfd_send_signal(graded, signal.SIGSTOP)
        assert daemon.stop() == 0
        assert _ends(graded)
        assert "Traceback" not in daemon.log


def test_a_grading_without_a_parent_ends(tiny_model: Path, tmp_path: Path) -> None:
    """End a child that grades when whoever started it is gone."""
    os.mkfifo(tmp_path / "proof")  # nobody ever writes it: the child waits there
    model = folder.read_model(tiny_model, LEVELS["medium"])
    request = {
        "tokenizer": str(model.tokenizer),
        "max_tokens": model.shape.max_tokens,
        "proof": str(tmp_path / "proof"),
        "graphs": {},
    }
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus.engine.grading", json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as grading:
        assert grading.stdin
        try:
            grading.stdin.close()
            assert grading.wait(PATIENCE_SECONDS) == 1
        finally:
            grading.kill()


def test_sigterm_during_bulk(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """End soon with code 0 in the middle of a bulk call, whose caller is told."""
    daemon = daemons(STATE_FILE=state_file(tmp_path / "s.json", {}))

    async def work() -> None:
        async with Client(daemon.bus) as client, calling(daemon.bus) as caller:
            await caller.ready()
            call = asyncio.create_task(client.vectorize_bulk(MANY))
            await _job(caller)
            assert await asyncio.to_thread(daemon.stop) == 0
            with pytest.raises(OpDbusError):
                await call

    with daemon.start():
        asyncio.run(work())
        assert "Traceback" not in daemon.log


@pytest.mark.parametrize("room", [0, 3])
def test_a_child_that_cannot_be_started_is_a_sentence(room: int) -> None:
    """Say so where the system refuses what a process needs, at whichever step."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_free() + room, before[1]))
        try:
            await child.run("opdbus.models.build")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    with pytest.raises(child.ChildFailed, match="cannot start a process for it: Too many open"):
        asyncio.run(work())


def _free() -> int:
    """Give the lowest number that the next file would have."""
    with Path(os.devnull).open() as file:
        return file.fileno()


async def test_cancelled_again_and_again_leaves_no_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever is cancelled while the killed child ends waits for that, too."""
    (tmp_path / "sleeping.py").write_text("import time; time.sleep(1e6)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def started() -> list[int]:
        return [pid for pid in _children(os.getpid()) if Path(f"/proc/{pid}").exists()]

    before = set(started())
    running = asyncio.create_task(child.run("sleeping"))
    for _ in range(1000):  # turns of the event loop, in one of which it is started
        await asyncio.sleep(0)
        if set(started()) - before:
            break
    assert set(started()) - before
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert not set(started()) - before


def test_a_child_that_goes_second_leaves_the_processor_to_others() -> None:
    """Have a lower priority than before, unless it is the lowest already."""
    code = (
        "import os; from opdbus.models import child; before = os.nice(0); child.go_second();"
        " print(before, os.nice(0))"
    )
    done = run_program([sys.executable, "-c", code], check=True)
    before, after = map(int, done.stdout.split())
    assert after > before or before == 19
