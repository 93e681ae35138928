"""The engine as a library: `opdbus.Embedder`, where there is no bus and no daemon."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog

from opdbus import config
from opdbus.engine.embedder import open_embedder
from opdbus.engine.host import HERE
from opdbus.engine.providers import candidates
from opdbus.errors import ConfigError, OpDbusError, ShuttingDown
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self, TypeVar

    from numpy.typing import NDArray

    from opdbus.engine.chain import Fallback, Proven
    from opdbus.engine.embedder import Embedder as Engine
    from opdbus.engine.proof import Proof

    T = TypeVar("T")

# Texts of a stream that are on their way together: enough of each length to fill batches with.
_WINDOW: Final = 2048
_WINDOWS: Final = 2
# Few, so that a single text never waits long for a thread of the tokenizer's.
_TOKENIZED_AT_ONCE: Final = 256


class Embedder:
    """A model on the first provider of a chain on which it can be proven.

    Use it as a context, `with` or `async with`; its methods may be called from any thread. Every
    argument is as the setting OP_DBUS_<NAME> of the same name, and those that are not given have
    that setting's default; the environment is not read. Raises ConfigError for bad values.
    """

    def __init__(self, level: str = "medium", provider: str = "cpu", **settings: object) -> None:
        given = {"vector_level": level, "execution_provider": provider}
        given |= {name: str(value) for name, value in settings.items() if value is not None}
        unknown = ", ".join(given.keys() - config.BY_KEY.keys())
        if unknown:
            raise ConfigError(f"there is no setting {unknown}; see `op-dbus config`")
        home = {name: os.environ[name] for name in _HOMES if name in os.environ}
        self._config = config.load(home, given)
        if self._config.vector_level == "none":
            raise ConfigError("the level none has no model: give low, medium or high")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Engine | None = None

    @staticmethod
    def is_available(provider: str = "cpu", device: str = "0") -> bool:
        """Tell whether a provider of this name or chain could be used here; opens no model."""
        given = {"execution_provider": provider, "gpu_device": device}
        wanted = config.load({}, given)
        for row in candidates(wanted.execution_provider.names, HERE):
            try:
                row.require(wanted.gpu_device)
            except OpDbusError:
                continue
            return True
        return False

    # opening and closing

    def open(self) -> Self:
        """Load the model and prove it; raises ModelError and ProviderError."""
        if self._loop is not None:
            return self
        if not structlog.is_configured():
            # standard output belongs to the program that uses us
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_live, args=(self._loop,), name="op-dbus", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._enter())
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """Let running batches finish, and free the model; whatever still waits is told so."""
        if self._loop is not None and self._engine is not None:
            self._engine = None
            self._wait(self._opening.__aexit__(None, None, None))
            self._end()
            # the program may end now, and take the runtime away from under a thread that is left
            self._thread.join()

    def __enter__(self) -> Self:
        """Open."""
        return self.open()

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Open."""
        return await asyncio.to_thread(self.open)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close."""
        await asyncio.to_thread(self.close)

    # embedding

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Give the vectors of texts: (texts, dimension), float32 of length 1."""
        return self._wait(self._embed(texts))

    async def embed_async(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Give the vectors of texts, without blocking the caller's event loop."""
        return await asyncio.wrap_future(self._submit(self._embed(texts)))

    def stream(self, texts: Iterable[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of any number of texts in order, some thousand at a time.

        Memory does not grow with their number; single texts of other threads go before them.
        """
        windows = self._windows(iter(texts))
        try:
            while (window := self._wait(_next(windows))) is not None:
                yield window
        finally:
            self._wait(windows.aclose())

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if len(texts) <= _WINDOW:
            return (await self._opened.embed(texts)).vectors
        parts = [part async for part in self._windows(iter(texts))]
        return np.concatenate(parts)

    async def _windows(self, texts: Iterator[str]) -> AsyncGenerator[NDArray[np.float32]]:
        flying: deque[asyncio.Task[NDArray[np.float32]]] = deque()
        try:
            while window := list(islice(texts, _WINDOW)):
                if len(flying) == _WINDOWS:
                    yield await flying.popleft()
                flying.append(asyncio.create_task(self._window(window)))
            while flying:
                yield await flying.popleft()
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _window(self, texts: Sequence[str]) -> NDArray[np.float32]:
        engine, rows = self._opened, []
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            rows += await engine.tokenize(texts[start : start + _TOKENIZED_AT_ONCE])
        return await engine.scheduler.embed(rows, bulk=True)

    # what it is

    @property
    def device(self) -> str:
        """The hardware that was proven to run the model."""
        return self._proven.hardware

    @property
    def provider(self) -> str:
        """The provider that was proven to run the model."""
        return self._proven.provider.name

    @property
    def precision(self) -> str:
        """The precision of the matrix products: fp32, fp16, bf16 or int8."""
        return self.proof.precision

    @property
    def proof(self) -> Proof:
        """What was seen when the model was put to the test."""
        return self._proven.proof

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The providers that were asked for and passed over, each with the reason."""
        return self._proven.fallbacks

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self._opened.dimension

    @property
    def max_tokens(self) -> int:
        """The tokens past which texts are cut."""
        return self._opened.model.shape.max_tokens

    @property
    def engine(self) -> Engine:
        """The engine itself, which lives on an event loop of its own."""
        return self._opened

    @property
    def _proven(self) -> Proven:
        return self._opened.proven

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ShuttingDown("the Embedder is not open: use it in a `with` block")
        return self._engine

    # its event loop

    async def _enter(self) -> None:
        level = LEVELS[self._config.vector_level]
        model = await asyncio.to_thread(folder.load, level, self._config)
        self._opening = open_embedder(model, self._config)
        self._engine = await self._opening.__aenter__()

    def _end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._submit(work).result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop is None:
            work.close()
            raise ShuttingDown("the Embedder is not open: use it in a `with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


# Where data lies by default depends on these, as for every other program of the user.
_HOMES: Final = ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def _live(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped; the body of its thread."""
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _next(windows: AsyncGenerator[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    return await anext(windows, None)
