"""A memory and what drifts in it, at times that a test chooses."""

import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.observing import Clock
from opdbus.drift.tracker import Tracker
from opdbus.drift.transition_filter import DriftTransition
from opdbus.history.change import Cause
from opdbus.index.state_store.events import Claimed, Listed
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity, StateObject

NO_WHY = Cause()


class Checked:
    """A memory and what drifts in it, at times that a test chooses."""

    def __init__(self, memory: StateStore, clock: Clock) -> None:
        self.memory = memory
        self.clock = clock
        self.transitions: list[list[str]] = []
        # declared long ago
        self.tracker = Tracker(memory, self._take, clock, wall=clock.wall)
        memory.notify = self.tracker.on_event

    def _take(self, transition: DriftTransition) -> None:
        what = transition.after.what if transition.after else "healed"
        self.transitions.append([what, "/".join(transition.object_id)])

    async def declare(self, plugins: dict[str, Any], folder: Path) -> None:
        """Take in what a state file declares."""
        path = folder / "state.json"
        path.write_text(json.dumps({"version": 1, "plugins": plugins}))
        file = StateFile(path)
        present, objects = file.read()
        await self.memory.replace(FILE, present, objects)
        self.memory.notify(Claimed(file.claims))

    async def observe(
        self, objects: dict[str, dict[str, Any]], listed: Iterable[str], why: Cause = NO_WHY
    ) -> None:
        """Take in what an observer saw."""
        sorts = frozenset((plugin, kind) for plugin, kind in (one.split("/") for one in listed))
        items = [
            StateObject(Identity(f"live:{name.split('/')[0]}", *name.split("/", 2)), properties)
            for name, properties in objects.items()
        ]
        await self.memory.observe(items, set(), {}, lambda _: why)
        if sorts:
            self.memory.notify(Listed("live:test", sorts))

    async def until(self, now: float) -> None:
        """Let the time pass."""
        while await self.tracker.work():
            pass
        while self.clock.now < now:
            self.clock.now = min(self.clock.now + 0.5, now)
            while await self.tracker.work():
                pass

    @property
    def fields(self) -> dict[str, list[list[Any]]]:
        """What is counted, by the names of things."""
        return {
            "/".join(object_id): [
                [field.name, field.declared, field.observed, field.severity.word]
                for field in drifted.fields
            ]
            for object_id, drifted in self.tracker.transitions.counted.items()
        }


@asynccontextmanager
async def checking(folder: Path, *, is_new: bool = False) -> AsyncIterator[Checked]:
    """Have a memory whose time a test chooses; what is declared is new then, or of long ago."""
    clock = Clock()
    wall = clock.wall if is_new else time.time
    async with StateStore(folder / "memory.db", clock=wall) as memory:
        checked = Checked(memory, clock)
        await checked.tracker.begin()
        yield checked
