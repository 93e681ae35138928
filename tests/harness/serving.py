"""A daemon on a private bus, with a tiny model or the real one: benchmarks use it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.broker import BUSES
from harness.running import Running
from harness.tiny import write_tiny_model

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
