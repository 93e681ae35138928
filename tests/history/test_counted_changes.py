"""Each change of an observed object is a row of history, or counted in one."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from harness.observing import rows
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.history.change import Cause
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.core.changes_per_hour import COALESCE_RUNS_SECONDS, PER_HOUR, ChangesPerHour
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.core.report_writer import Writer

FOLD_SECONDS = 10.0
TICKS = 200
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

    def __init__(self, memory: StateStore) -> None:
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

    async def know(self, lamp: str, **facts: str) -> None:
        """Know more of a lamp than before."""
        seen = Cause(ignored_fields=frozenset(facts))
        self._report.put("lamp", lamp, {"colour": self.lamps[lamp], **facts}, seen)

    async def run(self, times: int, cause: str = "job:7 start by a.timer") -> None:
        """Have a lamp do what leaves it as it was, every 20 s."""
        for _ in range(times):
            self.now += 20
            self._report.put("lamp", "a", {"colour": "red"}, Cause(cause, is_event=True))
            await self._writer.write()

    async def change_noisily(self) -> None:
        """Change the lamps more often than an hour may have."""
        for number in range(PER_HOUR + 2):
            for lamp in "ab":
                await self.do(lamp, ("red", "green")[number % 2])
            await self.do("", "write")


@pytest.mark.parametrize("is_noisy", [True, False])
def test_no_change_is_lost(is_noisy: bool) -> None:  # noqa: FBT001 -- pytest passes it by name
    """Whatever is merged, coalesced, undone or gone meanwhile, the rows stand for all changes."""

    async def work(folder: Path, steps: list[tuple[str, str | None]]) -> None:
        async with StateStore(folder / "memory.db") as memory:
            house = House(memory)
            if is_noisy:
                await house.change_noisily()
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

    @settings(max_examples=30)
    @given(STEPS)
    def run(steps: list[tuple[str, str | None]]) -> None:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(work(Path(name), steps))

    run()


async def test_what_is_seen_later_is_not_counted(tmp_path: Path) -> None:
    """What is known of a lamp only as it changed, before or after, is shown, and no change."""
    async with StateStore(tmp_path / "memory.db") as memory:
        house = House(memory)
        await house.do("a", "red")
        await house.do("", "write")
        await house.do("a", "green")
        await house.know("a", maker="Tidy")
        await house.do("", "write")
        (entry,) = memory.catalogue
        found = memory.merge_properties([entry], await memory.content([entry]))
        assert found == {"colour": "green", "maker": "Tidy"}
        await house.do("b", "red")
        await house.do("", "write")
        await house.know("b", maker="Tidy")
        await house.do("b", "green")
        await house.do("", "write")
    assert rows(tmp_path, "a")[1:] == rows(tmp_path, "b")[1:] == [("changed", CAUSE, 0)]


async def test_what_a_timer_runs_all_the_time(tmp_path: Path) -> None:
    """Of runs every 20 s, the first of an hour are rows, and later ones counted in a few."""
    async with StateStore(tmp_path / "memory.db") as memory:
        house = House(memory)
        await house.do("a", "red")
        await house.do("", "write")
        await house.run(TICKS)
        # the last ones are not lost where the timer stops, and whoever starts the unit is told
        house.now += COALESCE_RUNS_SECONDS
        await house.do("", "write")
        await house.run(1, "job:1 start")
    found = [(cause, folded) for _, cause, folded in rows(tmp_path, "a")[1:]]
    assert [folded for _, folded in found[: PER_HOUR + 1]] == [0] * (PER_HOUR + 1)
    assert len(found) < PER_HOUR + 1 + TICKS * 20 / COALESCE_RUNS_SECONDS + 3
    assert sum(1 + folded for _, folded in found) == TICKS + 1
    assert found[-1] == ("job:1 start", 0)


async def test_a_run_that_fails_is_not_counted_with_others(tmp_path: Path) -> None:
    """Counted runs are a row before what else happens: no failure stands for a success."""
    run, failed = "job:7 start by a.timer", "job:8 start by a.timer, failed"
    async with StateStore(tmp_path / "memory.db") as memory:
        house = House(memory)
        await house.do("a", "red")
        await house.do("", "write")
        await house.run(PER_HOUR + 4)
        await house.run(5, failed)
        await house.run(2)
        await house.do("a", "green")
        await house.do("", "write")
        await house.do("a", "red")
        await house.do("", "write")
        await house.run(3)
        await house.do("a", None)
        await house.do("", "write")
    assert rows(tmp_path, "a")[PER_HOUR + 2 :] == [
        ("event", run, 2),
        ("event", failed, 4),
        ("event", run, 1),
        ("changed", CAUSE, 0),
        ("changed", CAUSE, 0),
        ("event", run, 2),
        ("gone", CAUSE, 0),
    ]
