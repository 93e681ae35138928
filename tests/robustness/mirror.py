"""What a mirrored service that changes 1,000 times a second does to searches and to history.

Starts a private system bus with such a service, another bus that is served, and the daemon with
the real model and thousands of objects. A friend searches meanwhile. Ends with 1 where the final
state differs from the service's, changes are missing in history, objects wait for vectors 60
seconds later, or a search took longer than 100 ms at the 99th percentile.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.crowd import NAME, PLUGIN
from attacks.scene import TESTS, Times, befriend, times_of
from fuzz.serving import serving, wait_until_vectorized
from fuzz.wire import Wire
from harness.running import STATE, STATE_PATH, Bus

from robustness.harness import finish, parser, state

if TYPE_CHECKING:
    import argparse

    from harness.running import Running

_SEARCH_MS = 100.0
_BACKLOG_SECONDS = 60.0
_POLL_SECONDS = 0.5


class Load:
    """The service, a program that waits for a line to begin."""

    def __init__(self, address: str, objects: int, rate: int, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attacks.crowd", address, str(objects), str(rate), str(seconds)],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def begin(self) -> None:
        """Begin to change."""
        self._tell()

    def end(self) -> dict[str, Any]:
        """Wait until all changes are sent; gives how many they were, and the final state."""
        found: dict[str, Any] = json.loads(self._read())
        return found

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def _tell(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def loaded(system: Bus, *arguments: Any) -> Iterator[Load]:
    """Run the service on a bus."""
    load = Load(system.address, *arguments)
    try:
        yield load
    finally:
        load.close()


def stored(daemon: Running) -> tuple[dict[str, list[Any]], int]:
    """Read the lamps that are stored, and how many changes the rows of history stand for."""
    with closing(sqlite3.connect(daemon.state_dir / "memory.db")) as reader:
        found = reader.execute("SELECT name, properties FROM objects WHERE plugin = ?", [PLUGIN])
        lamps = {name: json.loads(values) for name, values in found}
        counted = "SELECT count(*), total(folded) FROM history WHERE plugin = ? AND cause = ?"
        rows, folded = reader.execute(counted, [PLUGIN, f"bus:{NAME}"]).fetchone()
    return {n: [v["colour"], v.get("level")] for n, v in lamps.items()}, rows, int(folded)


def pending(daemon: Running) -> int:
    """Count the objects that wait for their vectors."""
    with Wire(daemon.bus) as wire:
        get = "org.freedesktop.DBus.Properties.Get"
        count: int = wire.call(STATE_PATH, get, "ss", STATE, "Pending").body()[0].value
        return count


def until_settled(daemon: Running, sent: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Wait until all that was sent is stored and has vectors; gives what is then."""
    began = time.monotonic()
    while True:
        lamps, rows, folded = stored(daemon)
        found = {
            "is the final state": lamps == sent["lamps"],
            "rows": rows,
            "folded": folded,
            "pending": pending(daemon),
            "settled after": round(time.monotonic() - began, 1),
        }
        is_whole = lamps == sent["lamps"] and rows + folded == sent["changes"]
        if (is_whole and not found["pending"]) or time.monotonic() - began > seconds:
            return found
        time.sleep(_POLL_SECONDS)  # no signal tells that all is stored


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure searches without the load and with it, and what is stored in the end."""
    system = Bus()
    os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = system.address
    content = json.dumps(state(given.objects)).encode()
    settings = {"state": content, "OBSERVE": NAME}
    try:
        with (
            loaded(system, given.mirrored, given.rate, given.seconds) as load,
            serving(folder, medium=not given.tiny, **settings) as daemon,
        ):
            daemon.wait_for_log(f"name={NAME} .*state=up")
            wait_until_vectorized(daemon)
            quiet = search(daemon, given.seconds / 4)
            load.begin()
            meanwhile = search(daemon, given.seconds)
            sent = load.end()
            settled = until_settled(daemon, sent, _BACKLOG_SECONDS + 5)
    finally:
        system.kill()
    facts = {"sent": sent["changes"], "took": sent["took"]}
    return {**facts, **settled, "quiet": quiet, "meanwhile": meanwhile}


def search(daemon: Running, seconds: float) -> dict[str, float]:
    """Search for so long, and give milliseconds."""
    times: Times = times_of(befriend(daemon.bus, seconds), seconds)
    assert not times.errors, times
    return {"searches": times.count, "p50": times.p50, "p99": times.p99, "worst": times.worst}


def main() -> int:
    """Print what was seen, and give the exit code."""
    reading = parser(__doc__, objects=2_000)
    reading.add_argument("--mirrored", type=int, default=1_000, help="objects of the service")
    reading.add_argument("--rate", type=int, default=1_000, help="changes each second")
    reading.add_argument("--seconds", type=float, default=60.0)
    given = reading.parse_args()
    with tempfile.TemporaryDirectory(prefix="op-dbus-mirror-") as folder:
        found = measure(given, Path(folder))
    failures = []
    if not found["is the final state"]:
        failures.append("the final state is not that of the service")
    if found["rows"] + found["folded"] != found["sent"]:
        failures.append(f"{found['rows']} rows and {found['folded']} folded of {found['sent']}")
    if found["pending"] or found["settled after"] > _BACKLOG_SECONDS:
        failures.append(f"the backlog is there after {found['settled after']} s")
    if found["meanwhile"]["p99"] > _SEARCH_MS:
        failures.append(f"a search took {found['meanwhile']['p99']} ms")
    facts = {name: getattr(given, name) for name in ("objects", "mirrored", "rate", "seconds")}
    facts["model"] = "tiny" if given.tiny else "medium"
    return finish(given, {**facts, **found}, failures)


if __name__ == "__main__":
    sys.exit(main())
