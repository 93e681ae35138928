"""A deterministic event loop and a fake runtime: what the state machine test of serving runs on."""

import asyncio
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from opdbus.config import Config
from opdbus.engine.batching import Rank
from opdbus.engine.embedder import Embedder
from opdbus.engine.provider_chain import Fallback
from opdbus.engine.tokenizer import Token, Tokens
from opdbus.errors import ProviderError, ProviderLost, ShuttingDown

DIMENSION = 4


class _Selector(selectors.SelectSelector):
    """Stops the loop where it would wait."""

    stop: Callable[[], None]

    def select(self, timeout: float | None = None) -> Any:
        """Look for what is ready, never wait for it."""
        if timeout is None or timeout > 0:
            self.stop()
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without threads and clock: the same calls give the same order of events."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.stop = self.stop

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, _executor: Executor | None, work: Callable[..., Any], *given: Any
    ) -> asyncio.Future[Any]:
        """Do a thread's work on the loop, a moment later."""
        future = self.create_future()

        def perform() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(work(*given))
            except Exception as error:  # noqa: BLE001 -- as a thread hands it on
                future.set_exception(error)

        self.call_soon(perform)
        return future

    def settle(self) -> None:
        """Run until nothing more happens unless time passes."""
        self.run_forever()

    def advance(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, and everything happen that is due."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self.settle()


class FakeScheduler:
    """A queue whose batches run when the test says so, on a provider that can be lost."""

    budget, lanes, depth, texts = 64, 1, 0, 0

    def __init__(self, numerics: str) -> None:
        self.numerics = numerics
        self.fault = ""
        self.is_closed = False
        self._lost = asyncio.Event()
        self._jobs: list[tuple[Tokens, asyncio.Future[np.ndarray]]] = []

    async def embed(self, rows: Tokens, _rank: Rank = Rank.FEW) -> np.ndarray:
        """Wait for the test to run the batch."""
        if self.is_closed:
            raise ShuttingDown
        if self.fault:
            raise ProviderLost(self.fault)
        job = asyncio.get_running_loop().create_future()
        self._jobs.append((rows, job))
        return await job

    async def lost(self) -> None:
        """Wait until the provider is lost."""
        await self._lost.wait()

    def run(self) -> None:
        """Run every batch that waits."""
        jobs, self._jobs = self._jobs, []
        for rows, job in jobs:
            if not job.done():
                numbers = rows.ids[rows.first].tolist()
                job.set_result(np.stack([vector(self.numerics, number) for number in numbers]))

    def lose(self) -> None:
        """Stop working in the middle of a run."""
        if not self.fault:
            self.fault = "the provider stopped working: unplugged"
            self._lost.set()
            self._fail(ProviderLost(self.fault))

    def close(self) -> None:
        """Refuse what waits."""
        self.is_closed = True
        self._fail(ShuttingDown())

    def _fail(self, error: Exception) -> None:
        jobs, self._jobs = self._jobs, []
        for _, job in jobs:
            if not job.done():
                job.set_exception(error)


class FakeTokenizer:
    """Numbers texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Give each text a row of one number."""
        numbers = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
        rows = np.arange(len(texts), dtype=np.intp)
        return Tokens(np.array(numbers), rows, np.ones_like(rows), np.zeros_like(rows, np.bool_))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count one token for each text."""
        return [1] * len(texts)

    def list_tokens(self, texts: Sequence[str]) -> list[list[Token]]:
        """Give each text as one token."""
        return [[(self.number(text), text, False, 0, len(text))] for text in texts]

    def number(self, text: str) -> int:
        """Return a text's number."""
        return self._numbers.setdefault(text, len(self._numbers))


def vector(numerics: str, number: int) -> np.ndarray:
    """Return the one right vector of a text in these numerics."""
    made = np.random.default_rng([number, *numerics.encode()]).normal(size=DIMENSION)
    return (made / np.linalg.norm(made)).astype(np.float32)


class FakeRuntime:
    """Opens engines when the test lets it, on providers that can die."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.dead: set[str] = set()
        self.gates: list[asyncio.Future[None]] = []
        # engines that are open, with what they were opened for
        self.open: dict[Embedder, Config] = {}
        self.attempts: Counter[str] = Counter()

    @asynccontextmanager
    async def open_engine(
        self, config: Config, level: str, lost: Sequence[Fallback] = (), *, graded: bool = True
    ) -> AsyncIterator[Embedder]:
        """Open an engine on the first provider that lives, once the test says so."""
        assert graded or level == config.vector_level
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        try:
            await gate
        finally:
            self.gates.remove(gate)
        embedder = self._made(config, level, lost)
        self.open[embedder] = config
        try:
            yield embedder
        finally:
            del self.open[embedder]
            embedder.scheduler.close()
            embedder.close()

    def _made(self, config: Config, level: str, lost: Sequence[Fallback]) -> Embedder:
        gone = {fallback.provider for fallback in lost}
        names = sorted(config.execution_provider.names, key=lambda name: name in gone)
        fallbacks = list(lost)
        for name in names:
            if name not in self.dead:
                break
            fallbacks.append(Fallback(name, "unplugged"))
        else:
            raise ProviderError("every provider is unplugged")
        numerics = f"{level} {'int8' if config.precision == 'int8' else 'float'}"
        model: Any = SimpleNamespace(
            level=level,
            name=level,
            numerics=lambda kind: f"{level} {kind}",
            shape=SimpleNamespace(hidden=DIMENSION, max_tokens=8),
        )
        proven: Any = SimpleNamespace(
            provider=SimpleNamespace(name=name),
            fallbacks=tuple(fallbacks),
            weight_bytes=10,
            proof=SimpleNamespace(precision=config.precision),
            is_provisional=False,
            report=None,
        )
        return Embedder(
            model, proven, cast("Any", self.tokenizer), cast("Any", FakeScheduler(numerics))
        )
