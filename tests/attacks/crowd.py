"""A service with an ObjectManager whose objects change a thousand times a second, a program."""

import asyncio
import json
import random
import sys
from typing import Any

from harness.observing import FakeService

from opdbus.bus.transport.connection import Connection

NAME, TOP = "org.example.Crowd", "/org/example/Crowd"
PLUGIN = "crowd"
_LAMP = f"{NAME}.Lamp"
_MANAGER = "org.freedesktop.DBus.ObjectManager"
_CHANGED = "org.freedesktop.DBus.Properties.PropertiesChanged"
# Changes of one object, then it is removed and another one added.
_LIFE = 200
_TICK_SECONDS = 0.02
_COLOURS = "red green blue white yellow orange violet brown".split()


class Crowd:
    """Lamps that are changed, and how often that was."""

    def __init__(self, service: FakeService, objects: int) -> None:
        self._service = service
        self._random = random.Random(7)  # noqa: S311 -- the same load each time
        self._next = 0
        self.changes = 0
        self.lamps: dict[str, dict[str, Any]] = {}
        for _ in range(objects):
            self._new()
        self.is_listed = asyncio.Event()
        service.answers[f"{_MANAGER}.GetManagedObjects"] = self._list

    def change(self) -> None:
        """Change something, and say so."""
        self.changes += 1
        if self.changes % _LIFE == 0:
            path = self._new()
            lamps = {_LAMP: self.lamps[path]}
            self._service.signal(TOP, f"{_MANAGER}.InterfacesAdded", "oa{sa{sv}}", path, lamps)
            return
        path = self._random.choice(tuple(self.lamps))
        if self.changes % _LIFE == _LIFE // 2:
            del self.lamps[path]
            self._service.signal(TOP, f"{_MANAGER}.InterfacesRemoved", "oas", path, [_LAMP])
            return
        lamp = self.lamps[path]
        new = self._other(lamp)
        lamp |= new
        self._service.signal(path, _CHANGED, "sa{sv}as", _LAMP, new, [])

    async def run(self, rate: float, seconds: float) -> float:
        """Change so often each second, for so long; gives how long it took."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while (passed := min(clock() - began, seconds)) < seconds or self.changes < rate * seconds:
            while self.changes < rate * passed:
                self.change()
            await self._service.connection.wait_flushed()
            await asyncio.sleep(_TICK_SECONDS)  # the rhythm is the load
        return round(clock() - began, 1)

    @property
    def state(self) -> dict[str, list[Any]]:
        """The colour and the level of each lamp, by its name."""
        return {lamp["Name"]: [lamp["Colour"], lamp["Level"]] for lamp in self.lamps.values()}

    def _other(self, lamp: dict[str, Any]) -> dict[str, Any]:
        """Give a property with another value than it has."""
        if self._random.random() < 0.5:
            colours = [colour for colour in _COLOURS if colour != lamp["Colour"]]
            return {"Colour": self._random.choice(colours)}
        return {"Level": (lamp["Level"] + self._random.randint(1, 98)) % 100}

    def _new(self) -> str:
        self._next += 1
        path = f"{TOP}/lamps/lamp{self._next}"
        description = f"lamp {self._next} over the desk of room {self._next % 97}"
        lamp = {"Name": f"lamp{self._next}", "Description": description, "Colour": "red"}
        self.lamps[path] = {**lamp, "Level": self._next % 100}
        return path

    def _list(self, _path: str) -> tuple[str, list[Any]]:
        self.is_listed.set()
        return "a{oa{sa{sv}}}", [{path: {_LAMP: lamp} for path, lamp in self.lamps.items()}]


async def main(address: str, objects: int, rate: float, seconds: float) -> None:
    """Serve; when a line comes, change for so long, print what is then, and serve on."""
    async with Connection(address) as connection:
        crowd = Crowd(FakeService(connection), objects)
        await connection.own(NAME)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        took = await crowd.run(rate, seconds)
        print(
            json.dumps({"changes": crowd.changes, "lamps": crowd.state, "took": took}), flush=True
        )
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])))
