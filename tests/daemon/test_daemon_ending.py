"""How a daemon ends: when it is told to, in every phase, and without its bus."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from harness.running import (
    STATE_PATH,
    Bus,
    Caller,
    Make,
    ask,
    many,
    run_program,
    search,
    state_file,
)

from opdbus.bus.transport.connection import RemoteError


@pytest.mark.parametrize("phase", ["starting", "state file read", "model proven"])
def test_sigterm_ends_it_in_every_phase(daemons: Make, tmp_path: Path, phase: str) -> None:
    """End soon with exit code 0, be it loading, building its graph or vectorizing."""
    file = many(tmp_path / "state.json", 4000)
    daemon = daemons(STATE_FILE=file, BATCH_TOKENS=32)
    if phase != "model proven":  # have it build the graph meanwhile
        (daemon.state_dir / "graphs").rename(daemon.state_dir / "elsewhere")
    with daemon:
        daemon.wait_for_log(phase)
        assert daemon.stop() == 0, daemon.log
    assert "Traceback" not in daemon.log
    assert "never retrieved" not in daemon.log


def test_sigterm_right_at_the_start_is_no_failure() -> None:
    """End with exit code 0 also while the daemon is still importing."""
    program = (
        "import os, signal, sys, threading\n"
        "from opdbus.cli import main, status\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'opdbus.daemon':\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['daemon']\n"
        "main()\n"
    )
    done = run_program([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, "")


def test_callers_are_answered_when_it_ends(daemons: Make) -> None:
    """Answer a call that still waits for the model with ShuttingDown."""
    daemon = daemons()
    (daemon.state_dir / "graphs").rename(daemon.state_dir / "elsewhere")

    async def work(caller: Caller) -> None:
        await caller._until_owned()
        waiting = [asyncio.ensure_future(search(caller, "vector")) for _ in range(5)]
        await asyncio.sleep(0)  # they are sent first
        # answered after those have come, and long before a model is built
        await caller.call(STATE_PATH, "org.freedesktop.DBus.Peer.Ping", "")
        daemon.send(signal.SIGTERM)
        for call in waiting:
            with pytest.raises(RemoteError) as caught:
                await call
            assert caught.value.name == "org.opdbus.Error.ShuttingDown"

    with daemon:
        ask(daemon, work)
        assert daemon.exit_code() == 0


def test_a_lost_bus_ends_it_with_nothing_lost(daemons: Make, tmp_path: Path) -> None:
    """Say so and exit 1 when the bus dies; have everything at the next start."""
    file = state_file(tmp_path / "state.json", {"a": "network", "b": "mail"})
    bus = Bus()
    daemon = daemons(bus=bus.address, STATE_FILE=file, VECTOR_LEVEL="none")

    async def publish(caller: Caller) -> None:
        await caller.vectorized()
        await caller.ask("Publish", "test", [("p", "k", "n", {"description": "disk"})], {})

    async def after(caller: Caller) -> None:
        await caller.vectorized()
        assert await caller.read("Count") == 3

    with daemon:
        ask(daemon, publish)
        bus.kill()
        assert daemon.exit_code() == 1
        assert "the connection to the message bus was lost" in daemon.log
        assert "Traceback" not in daemon.log
        again = Bus()
        daemon.bus = again.address
        daemon.start()
        ask(daemon, after)
        daemon.stop()
        again.kill()
