"""Observers that run on a booted host: what they show of objects, line by line as it changes.

`python -m system.watched systemd` runs an observer and prints each object that changes.
"""

import asyncio
import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.observing import observed

from opdbus.observe.selection import OURS
from system.host import PATIENCE_SECONDS, Host

_ROOT = Path(__file__).parents[2]
# where boot.sh shows it
_INSIDE = Path("/mnt/code")


class Watched:
    """The objects that a host's observer has, as they are and as they change."""

    def __init__(self, descriptor: int) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        # every change, in order
        self.changes: list[str] = []
        self._descriptor = descriptor
        self._rest = b""

    def until(self, name: str, **values: object) -> dict[str, Any]:
        """Wait until an object has these values, and give it; without any, until it is gone.

        None is the value of a field that it has not got.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while not self._is(name, values):
            assert time.monotonic() < end, f"{name} is {self.objects.get(name)}, not {values}"
            self._listen(1.0)
        return self.objects.get(name, {})

    def until_there(self, names: set[str]) -> None:
        """Wait until all of these objects are there: they come in any order."""
        end = time.monotonic() + PATIENCE_SECONDS
        while missing := names - self.objects.keys():
            assert time.monotonic() < end, f"there is no {sorted(missing)}"
            self._listen(1.0)

    def _is(self, name: str, values: dict[str, object]) -> bool:
        if not values or name not in self.objects:
            return not values and name not in self.objects
        shown = self.objects[name]
        return all(shown.get(key) == value for key, value in values.items())

    def _listen(self, seconds: float) -> None:
        if select.select([self._descriptor], [], [], seconds)[0]:
            more = os.read(self._descriptor, 1 << 20)
            assert more, "the observer has ended"
            *lines, self._rest = (self._rest + more).split(b"\n")
            # others are of the log
            for line in filter(lambda line: line.startswith(b'["'), lines):
                name, properties = json.loads(line)
                self.changes.append(name)
                if properties is None:
                    del self.objects[name]
                else:
                    self.objects[name] = properties


@contextmanager
def watched(host: Host, observer: str) -> Iterator[Watched]:
    """Run an observer on a host."""
    with host.running(*command("system.watched", observer)) as process:
        assert process.stdout
        yield Watched(process.stdout.fileno())


def command(module: str, *words: str) -> list[str]:
    """Give the command that runs a module of the tests, or of the program, inside a host."""
    paths = f"PYTHONPATH={_INSIDE}:{_INSIDE / 'tests'}"
    python = Path(sys.executable)
    if python.is_relative_to(_ROOT):
        python = _INSIDE / python.relative_to(_ROOT)
    return ["env", paths, str(python), "-m", module, *words]


async def _print_changes(observer: str) -> None:
    known: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (ours,) = (each for each in OURS if each.name == observer)
        moving = frozenset[str]().union(*ours.volatile.values())
        async with observed(Path(folder), ours) as host:
            while True:
                # before: what changes while the objects are read is printed the next time
                generation = host.memory.generation
                now = {}
                for name in host.names:
                    with suppress(KeyError):  # it has gone meanwhile
                        now[name] = _lasting(await host.properties(name), moving)
                for name in now.keys() | known.keys():
                    if now.get(name) != known.get(name):
                        sys.stdout.write(json.dumps([name, now.get(name)]) + "\n")
                sys.stdout.flush()
                known = now
                await host.until(lambda before=generation: host.memory.generation != before)


def _lasting(properties: dict[str, Any], moving: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if key not in moving}


if __name__ == "__main__":
    asyncio.run(_print_changes(*sys.argv[1:]))
