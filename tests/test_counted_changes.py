"""Each change of an observed object is a row of history, or counted in one."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.index.memory import Memory
from opdbus.observe.changes_per_hour import PER_HOUR, ChangesPerHour
from opdbus.observe.report import Observer, Report
from opdbus.observe.writer import Writer

FOLD_SECONDS = 10.0
CAUSE = "bus:org.example.House"
# A lamp gets a state (None: it is gone), what was reported is written (""), or a second passes.
STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["red", "green", None]))
    | st.just(("", "write"))
    | st.just(("", "second")),
    max_size=40,
)


class House:
    """Lamps that are reported, a clock that is set, and how often a lamp changed."""

    def __init__(self, memory: Memory) -> None:
        self.now = 0.0
        self.changes = 0
        self.lamps: dict[str, str] = {}
        observer = Observer("house", "house", lambda _: asyncio.sleep(0))
        self._report = Report()
        counting = ChangesPerHour(lambda: self.now, FOLD_SECONDS)
        self._writer = Writer(observer, self._report, memory, counting)

    async def do(self, lamp: str, what: str | None) -> None:
        """Do one step."""
        if not lamp:
            self.now += what == "second"
            if what == "write":
                await self._writer.write()
        elif what is None:
            self.changes += self.lamps.pop(lamp, None) is not None
            self._report.gone("lamp", lamp, CAUSE)
        else:
            self.changes += self.lamps.get(lamp) != what
            self.lamps[lamp] = what
            self._report.put("lamp", lamp, {"colour": what}, CAUSE)

    async def be_restless(self) -> None:
        """Change the lamps more often than an hour may have."""
        for number in range(PER_HOUR + 2):
            for lamp in "ab":
                await self.do(lamp, ("red", "green")[number % 2])
            await self.do("", "write")


@pytest.mark.parametrize("is_restless", [True, False])
def test_no_change_is_lost(is_restless: bool) -> None:  # noqa: FBT001 -- pytest passes it by name
    """Whatever is merged, folded, undone or gone meanwhile, the rows stand for all changes."""

    async def work(folder: Path, steps: list[tuple[str, str | None]]) -> None:
        async with Memory(folder / "memory.db") as memory:
            house = House(memory)
            if is_restless:
                await house.be_restless()
            for step in (*steps, ("", "write")):
                await house.do(*step)
            house.now += FOLD_SECONDS
            await house.do("", "write")
            shown = {entry.identity.name for entry in memory.catalogue}
        with closing(sqlite3.connect(folder / "memory.db")) as reader:
            counted = "SELECT total(1 + folded), count(*) FROM history WHERE cause = ?"
            changes, rows = reader.execute(counted, [CAUSE]).fetchone()
            (all_rows,) = reader.execute("SELECT count(*) FROM history").fetchone()
        assert (changes, rows) == (house.changes, all_rows)
        assert shown == house.lamps.keys()

    @settings(max_examples=60)
    @given(STEPS)
    def run(steps: list[tuple[str, str | None]]) -> None:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(work(Path(name), steps))

    run()
