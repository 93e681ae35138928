"""History of a booted host: the rows that its observers make, line by line as they are written.

`python -m system.recorded` runs the observers of what a host has for itself, and prints each row.
"""

import asyncio
import json
import os
import select
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from opdbus.index.state_store.events import Event, Recorded
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.core.report import Observer
from opdbus.observe.selection import select_observers
from opdbus.observe.supervisor import Supervisor
from opdbus.observe.systemd import unit_observer
from opdbus.settings.parsing import AUTO
from system.host import PATIENCE_SECONDS, Host

# What follows from a change has followed by then: the slowest sources take three seconds.
_QUIET_SECONDS = 4.0
# What other hosts on this machine share, which are tested at the same time.
_SHARED = {"devices", "filesystems"}
_ROOT = Path(__file__).parents[2]
# where boot.sh shows it
_INSIDE = Path("/mnt/code")
_COLUMNS = "seq at source kind name what cause fields folded".split()
Row = dict[str, Any]


class History:
    """The rows of a host's history since the last look."""

    def __init__(self, descriptor: int) -> None:
        self.rows: list[Row] = []
        self._descriptor = descriptor
        self._rest = b""

    def until(self, name: str, what: str) -> Row:
        """Wait for something to happen to an object, and give the row."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            for row in self.rows:
                if (row["name"], row["what"]) == (name, what):
                    return row
            assert time.monotonic() < end, f"no row of {name}: {self.rows}"
            self._listen(1.0)

    def news(self, count: int = 1, quiet: float = 1.0) -> list[Row]:
        """Wait for so many rows, and give them with those that follow, until there are none.

        That is so after some seconds: of a busy host all that is to come has to be counted.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while len(self.rows) < count:
            assert time.monotonic() < end, f"of {count} rows there are {self.rows}"
            self._listen(1.0)
        return self.settled(quiet)

    def settled(self, quiet: float = _QUIET_SECONDS) -> list[Row]:
        """Give the rows since the last look, after some seconds without any."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self._listen(quiet):
            assert time.monotonic() < end, f"it never settles: {self.rows[-5:]}"
        rows, self.rows = self.rows, []
        return rows

    def _listen(self, seconds: float) -> bool:
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        more = os.read(self._descriptor, 1 << 20)
        assert more, "the observers have ended"
        *lines, self._rest = (self._rest + more).split(b"\n")
        # others are of the log
        self.rows += [json.loads(line) for line in lines if line.startswith(b'{"seq"')]
        return True


def fields(row: Row) -> dict[str, tuple[Any, Any]]:
    """Give the fields of a row with the values before and after, None for none."""
    return {
        ".".join(path): (next(iter(old), None), next(iter(new), None))
        for path, old, new in row["fields"]
    }


@contextmanager
def recorded(host: Host) -> Iterator[History]:
    """Run observers on a host, and wait until they have listed what there is."""
    with host.running(*command("system.recorded")) as process:
        assert process.stdout
        history = History(process.stdout.fileno())
        history.until("", "ready")
        history.settled()
        yield history


def command(module: str) -> list[str]:
    """Give the command that runs a module of the tests inside a host."""
    python = Path(sys.executable)
    if python.is_relative_to(_ROOT):
        python = _INSIDE / python.relative_to(_ROOT)
    paths = f"PYTHONPATH={_INSIDE}:{_INSIDE / 'tests'}"
    return ["env", paths, str(python), "-m", module]


async def _print_rows() -> None:
    observers = [o for o in select_observers((AUTO,), {}) if o.name not in _SHARED]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        news = asyncio.Event()

        def hear(event: Event) -> None:
            if isinstance(event, Recorded):
                news.set()

        async with StateStore(path, hear, boot="this") as memory:
            supervisor = Supervisor([*map(_hasty, observers)], memory)
            task = asyncio.create_task(supervisor.run())
            # unit files are listed later than the rest
            units = {unit_observer.OBSERVER.plugin}
            while supervisor.starting or supervisor.awaited(units, units):  # noqa: ASYNC110 -- none says so
                await asyncio.sleep(0.05)
            ready: Row = {"seq": 0, "name": "", "what": "ready", "fields": []}
            sys.stdout.write(json.dumps(ready) + "\n")
            with closing(sqlite3.connect(path)) as reader:
                last = 0
                while not task.done():
                    await news.wait()
                    news.clear()
                    last = _print_since(reader, last)


def _hasty(observer: Observer) -> Observer:
    """Have unit files listed soon: they are listed later than the rest, and not again."""
    if observer is not unit_observer.OBSERVER:
        return observer
    options = unit_observer.Options(files_after=1.0)
    return replace(observer, observe=partial(unit_observer.observe, options=options))


def _print_since(reader: sqlite3.Connection, last: int) -> int:
    columns = ", ".join(_COLUMNS)
    question = f"SELECT {columns} FROM history WHERE seq > ? AND cause <> 'first' ORDER BY seq"  # noqa: S608 -- of constants
    for values in reader.execute(question, (last,)):
        row = dict(zip(_COLUMNS, values, strict=True))
        sys.stdout.write(json.dumps(row | {"fields": json.loads(row["fields"])}) + "\n")
        last = row["seq"]
    sys.stdout.flush()
    return last


if __name__ == "__main__":
    asyncio.run(_print_rows())
