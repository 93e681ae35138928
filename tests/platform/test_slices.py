"""Much is worked on in parts, between which others run."""

import asyncio
import time

import pytest

from opdbus.platform.slices import each


@pytest.mark.parametrize(("count", "turns"), [(0, 0), (100, 0), (101, 1), (1000, 9)])
def test_others_run_while_many_items_are_worked_on(count: int, turns: int) -> None:
    """Give what is made of all items, in order, and let others run between a hundred each."""
    taken = 0

    async def others() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(0)
            taken += 1

    async def work() -> list[int]:
        beside = asyncio.create_task(others())
        found = await each(abs, [-n for n in range(count)])
        beside.cancel()
        return found

    assert asyncio.run(work()) == [*range(count)]
    assert max(0, taken) <= turns <= taken + 1


def test_others_run_between_items_that_take_long() -> None:
    """Let others run after each item that takes as long as a hundred usual ones."""
    order: list[str] = []

    def work(name: str) -> None:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        order.append(name)

    async def others() -> None:
        for _ in range(2):
            order.append("other")
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(each(work, ["first", "second", "third"]), others())

    asyncio.run(both())
    assert order == ["first", "other", "second", "other", "third"]
