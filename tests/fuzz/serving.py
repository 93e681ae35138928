"""A daemon on a private bus, ready to be fuzzed or attacked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.broker import BUSES
from harness.running import STATE, STATE_PATH, Running
from harness.tiny import write_tiny_model

from fuzz.wire import Wire

EXAMPLE = Path(__file__).parents[2] / "state.example.json"


@contextmanager
def serving(
    folder: Path,
    *,
    medium: bool,
    state: bytes = b"",
    starter: Sequence[str] = (),
    bus_kind: str = "dbus-daemon",
    **settings: object,
) -> Iterator[Running]:
    """Run a daemon on a bus of its own, with a tiny model or the medium one."""
    model = {} if medium else {"MODEL": write_tiny_model(folder / "tiny"), "PRECISION": "fp32"}
    file = folder / "state.json"
    file.write_bytes(state or EXAMPLE.read_bytes())
    bus = BUSES[bus_kind]()
    try:
        daemon = Running(
            folder, bus.address, STATE_FILE=file, LOG_LEVEL="info", **model, **settings
        )
        daemon.starter = tuple(starter)
        with daemon:
            daemon.wait_for_log("model proven")
            daemon.wait_for_log("state file read")
            yield daemon
    finally:
        bus.kill()


def wait_until_vectorized(daemon: Running) -> None:
    """Wait until a daemon that has read its state file has a vector of every object."""
    with Wire(daemon.bus) as wire:
        wire.subscribe("type='signal',sender='org.opdbus',member='Vectorized'")
        get = "org.freedesktop.DBus.Properties.Get"
        while wire.call(STATE_PATH, get, "ss", STATE, "Pending").body()[0].value:
            wire.receive()
