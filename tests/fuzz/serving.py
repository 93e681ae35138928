"""A daemon on a private bus, ready to be fuzzed or attacked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running import Bus, Running
from tiny import write_tiny_model

EXAMPLE = Path(__file__).parents[2] / "state.example.json"


@contextmanager
def serving(
    folder: Path, *, medium: bool, state: bytes = b"", bus: Bus | None = None
) -> Iterator[Running]:
    """Run a daemon on a bus of its own, with a tiny model or the medium one."""
    model = {} if medium else {"MODEL": write_tiny_model(folder / "tiny"), "PRECISION": "fp32"}
    file = folder / "state.json"
    file.write_bytes(state or EXAMPLE.read_bytes())
    bus = Bus()
    try:
        with Running(folder, bus.address, STATE_FILE=file, LOG_LEVEL="info", **model) as daemon:
            daemon.wait_for_log("model proven")
            daemon.wait_for_log("state file read")
            yield daemon
    finally:
        bus.kill()
