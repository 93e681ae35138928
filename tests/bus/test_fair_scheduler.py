"""Turns: which work runs, which waits, and which comes next."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.running import work_of

from opdbus.bus.admission.fair_scheduler import FairQueue, FairScheduler

LONG = 1000.0


class Works:
    """Works that note their order, each of which lasts until it is told to end."""

    def __init__(self, lease: float) -> None:
        self.turns = FairScheduler(lease, clock=lambda: self.now)
        self.order: list[str] = []
        self.now = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, name: str, uid: int = 1, sender: str = "") -> asyncio.Task[None]:
        """Begin a work; without a sender it has a connection of its own."""
        self._ends[name] = asyncio.Event()
        task = asyncio.create_task(self._work(name, uid, sender or name))
        self._tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def _work(self, name: str, uid: int, sender: str) -> None:
        async with self.turns.turn(uid, sender):
            self.order.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        """End works, one after the other, each after a second."""
        for name in names:
            self.now += 1
            self._ends[name].set()
            for _ in range(3):
                await asyncio.sleep(0)

    async def finish(self) -> list[str]:
        """End all works, and give the order in which they began."""
        for event in self._ends.values():
            event.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self.order


def run(work: Callable[[Works], Awaitable[None]], lease: float = LONG) -> None:
    """Do works that take turns."""

    async def all_of_it() -> None:
        works = Works(lease)
        await work(works)
        await works.finish()
        # nothing is held for anyone
        await works.begin("last", uid=9)
        assert works.order[-1] == "last"
        await works.finish()

    asyncio.run(all_of_it())


@work_of(run)
async def test_one_works_at_a_time(works: Works) -> None:
    """Begin the next work when the one before it has ended, in order where all are equal."""
    for name in "abc":
        await works.begin(name)
    assert works.order == ["a"]
    await works.end("a")
    assert works.order == ["a", "b"]
    assert await works.finish() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("many", "one"), [({"uid": 1}, {"uid": 2}), ({"sender": ":1.1"}, {"sender": ":1.2"})]
)
@work_of(run)
async def test_who_had_less_goes_first(
    works: Works, many: dict[str, Any], one: dict[str, Any]
) -> None:
    """Let one call of a user, or of a connection of the same user, pass the many of another."""
    for number in range(6):
        await works.begin(f"many-{number}", **many)
    await works.begin("one", **one)
    await works.end("many-0")
    assert works.order == ["many-0", "one"]


@work_of(run)
async def test_a_user_that_asks_for_much_is_not_put_off_by_small_calls(works: Works) -> None:
    """Share the time among users, of whom one waits for many answers and others for few each."""
    for number in range(20):
        await works.begin(f"much-{number}", uid=1, sender=":1.1")
    for uid in (2, 3):
        for number in range(3):
            await works.begin(f"little-{uid}-{number}", uid=uid)
    for _ in range(18):
        name = works.order[-1]
        if name.startswith("little"):
            # as soon as one is answered its caller asks again
            await works.begin(f"{name}+", uid=int(name.split("-")[1]))
        await works.end(name)
    served = Counter(name.split("-")[0] for name in works.order)
    assert served["much"] >= 6


def test_a_user_that_comes_late_has_no_arrears() -> None:
    """Count what users have had from when they came, or they would shut the others out."""
    shares = FairQueue()
    shares.add("old")
    for _ in range(100):
        assert shares.find_least_served(["old"]) == "old"
        shares.charge("old", 1.0)
    shares.add("new")
    served = []
    for _ in range(10):
        served.append(shares.find_least_served(["old", "new"]))
        shares.charge(served[-1], 1.0)
    assert Counter(served) == {"old": 5, "new": 5}


@work_of(run, lease=0.01)
async def test_each_turn_has_a_lease_of_its_own(works: Works) -> None:
    """A turn that begins while the lease of another one runs ends by itself, too."""
    await works.begin("short")
    await works.end("short")
    first = await works.begin("first")
    async with asyncio.timeout(5), works.turns.turn(2, ":1.2"):
        assert not first.done()


@work_of(run)
async def test_a_turn_given_up_is_over_once(works: Works) -> None:
    """Let exactly one other work for a turn that is given up, and not another at its end."""
    async with works.turns.turn(7, ":1.7") as turn:
        for name in "abc":
            await works.begin(name)
        turn.release()
        await asyncio.sleep(0)
        turn.release()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert works.order == ["a"]


@pytest.mark.parametrize("which", ["waiting", "chosen", "working"])
@work_of(run)
async def test_a_work_that_leaves_holds_nobody_up(works: Works, which: str) -> None:
    """Pass the turn on, whether the caller left while waiting, when just chosen, or at work."""
    first = await works.begin("first")
    second = await works.begin("second")
    await works.begin("third")
    if which == "working":
        first.cancel()
        second.cancel()
    elif which == "waiting":
        second.cancel()
        await asyncio.sleep(0)
        await works.end("first")
    else:
        works._ends["first"].set()
        await asyncio.sleep(0)
        second.cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    assert works.order[-1] == "third"
    assert "second" not in works.order


@work_of(run)
async def test_a_crowd_is_told_from_a_few(works: Works) -> None:
    """Call a user with many calls a crowd, over all connections, until they are answered."""
    for number in range(9):
        await works.begin(f"{number}", uid=1)
    async with asyncio.timeout(5):
        await works.begin("few", uid=2)
    assert works.turns.turn(1, "x").is_one_of_many
    assert not works.turns.turn(2, "y").is_one_of_many
    await works.finish()
    assert not works.turns.turn(1, "x").is_one_of_many
