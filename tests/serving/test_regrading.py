"""Grading again: an engine that is slower in use than graded, and a choice that was not certain."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from opdbus.engine.embedder import Embedder
from opdbus.engine.gate import TEXT_TOKENS, Grade, Report
from opdbus.errors import ProviderError
from opdbus.serving.level import Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SOON = 10.0
CPU = "cpu:onnxruntime"


def report(chosen: str, *, is_certain: bool = True) -> Report:
    """Make a report in which every precision makes 100 texts a second."""
    grades = [
        Grade(provider=CPU, precision=each, texts_per_second=100.0) for each in ("int8", "fp32")
    ]
    return Report(CPU, "CPU", {}, grades, chosen, 1.5, is_certain=is_certain)


class Queue:
    """A scheduler of a certain rate."""

    texts, fault = 0, ""

    def __init__(self, texts_per_second: float) -> None:
        self.rate = texts_per_second * TEXT_TOKENS
        self.is_reset = asyncio.Event()

    async def lost(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    def reset_rate(self) -> None:
        """Begin anew."""
        self.rate = 0.0
        self.is_reset.set()


class Gate:
    """Opens what the gate chose last, and notes each time that it grades again."""

    def __init__(self, first: Report, *later: Report | ProviderError, rate: float = 0.0) -> None:
        self.report = first
        self.later = [*later]
        self.rate = rate
        self.graded = 0
        self.opened: list[Embedder] = []
        self.is_graded = asyncio.Event()
        self.is_replaced = asyncio.Event()

    async def regrade(self) -> Report:
        """Give the next report, or fail."""
        self.graded += 1
        self.is_graded.set()
        if isinstance(found := self.later.pop(0), ProviderError):
            raise found
        self.report = found
        return found

    def follow(self, level: Level) -> None:
        """Note that another engine serves than the first."""
        if level.phase.embedder not in {None, self.opened[0]}:
            self.is_replaced.set()

    @asynccontextmanager
    async def open(self, *_args: object, **_named: object) -> AsyncIterator[Embedder]:
        """Open the engine that is chosen now."""
        proven: Any = SimpleNamespace(
            provider=SimpleNamespace(name=CPU),
            proof=SimpleNamespace(precision=self.report.chosen),
            fallbacks=(),
            report=self.report,
            regrade=self.regrade,
            is_provisional=False,
        )
        nothing: Any = None
        queue: Any = Queue(self.rate)
        self.opened.append(Embedder(nothing, proven, nothing, queue))
        yield self.opened[-1]
        self.opened[-1].close()


def live(work: Callable[[Gate, Level], Awaitable[None]], gate: Callable[[], Gate]) -> None:
    """Run work with a level that looks at its engine every millisecond."""

    async def both() -> None:
        opener, settings = gate(), SimpleNamespace()
        level = Level(
            "medium",
            settings,  # type: ignore[arg-type]  # the opener does not read it
            opener.open,
            retries_forever=True,
            graded=True,
            retry_seconds=(0.001,),
            on_phase=opener.follow,
        )
        async with asyncio.timeout(SOON):
            await level.embedder()
            await work(opener, level)
            await level.close(drain=False)

    asyncio.run(both())


async def looks(level: Level, count: int = 20) -> None:
    """Let the level look at its engine some times."""
    assert level.phase.embedder
    await asyncio.sleep(0.001 * count)


def test_a_slow_engine_is_replaced() -> None:
    """Grade an engine again that is 20% slower than graded, and serve with what is then chosen."""

    async def work(gate: Gate, level: Level) -> None:
        await gate.is_graded.wait()
        await gate.is_replaced.wait()
        assert (await level.embedder()).precision == "fp32"
        assert len(gate.opened) == 2

    live(work, lambda: Gate(report("int8"), report("fp32"), rate=79))


@pytest.mark.parametrize("later", [report("int8"), ProviderError("out of memory")])
def test_a_slow_engine_that_stays(later: Report | ProviderError) -> None:
    """Keep an engine that is chosen again, or cannot be graded, and compare it with itself."""

    async def work(gate: Gate, level: Level) -> None:
        await gate.is_graded.wait()
        (engine,) = gate.opened
        if not isinstance(later, ProviderError):
            queue: Any = engine.scheduler
            await queue.is_reset.wait()
            # other processes still take what they took
            queue.rate = 79.0 * TEXT_TOKENS
            assert not engine.is_slow
        assert await level.embedder() is engine

    live(work, lambda: Gate(report("int8"), later, *[report("int8")] * 100, rate=79))


@pytest.mark.parametrize("rate", [0.0, 81.0, 200.0])
def test_an_engine_of_the_graded_speed(rate: float) -> None:
    """Grade nothing again where the rate in use is unknown, or is about the graded one."""

    async def work(gate: Gate, level: Level) -> None:
        await looks(level)
        assert gate.graded == 0

    live(work, lambda: Gate(report("int8"), rate=rate))


def test_an_uncertain_choice() -> None:
    """Grade once more where speeds could not be told apart, when the engine has nothing to do."""

    async def work(gate: Gate, level: Level) -> None:
        await gate.is_graded.wait()
        await looks(level)
        assert gate.graded == 1

    unsure = report("int8", is_certain=False)
    live(work, lambda: Gate(unsure, unsure))
