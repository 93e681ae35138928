"""The engine as a library, without a bus or a daemon: `opdbus.Embedder`."""

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus import config
from opdbus.config import Config
from opdbus.engine.embedder import Embedder as Engine
from opdbus.engine.opening import open_embedder
from opdbus.engine.proof import Proof
from opdbus.engine.provider_chain import Fallback, ProvenSessions, require_provider
from opdbus.errors import (
    CallerError,
    ConfigError,
    InvalidArgs,
    OpDbusError,
    ProviderError,
    ShuttingDown,
    Truncated,
)
from opdbus.models import folder
from opdbus.models.level_table import LEVELS

T = TypeVar("T")

# While one window of a stream runs, the next is tokenized.
_WINDOWS: Final = 2
# Default folders of data depend on these variables; no other one is read.
_HOMES: Final = ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
_NOT_OPEN: Final = "the Embedder is not open: use it in a `with` block"


class Embedder:
    """A model on the first execution provider of a chain that passes its proof.

    Use it in `with` or `async with`. Its methods may be called from any thread, but not from a
    process that was forked after it was opened. Each argument is the setting OP_DBUS_<NAME> of the
    same name and has its default; the environment is not read. Raises ConfigError for bad values.

    A text longer than `max_tokens` is cut there. With `truncate=False` such a text raises Truncated
    instead; `count_tokens` returns the lengths.
    """

    def __init__(self, level: str = "medium", provider: str = "cpu", **settings: object) -> None:
        self._config = _read_settings(
            {"vector_level": level, "execution_provider": provider, **settings}
        )
        if self._config.vector_level == "none":
            raise ConfigError("the level none has no model: give static, low, medium or high")
        # held while work is handed to the loop, so that none arrives after its end
        self._handing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._engine: Engine | None = None

    @staticmethod
    def is_available(provider: str = "cpu", device: str = "0") -> bool:
        """Return whether a provider or chain could be used here; opens no model."""
        wanted = _read_settings({"execution_provider": provider, "gpu_device": device})
        try:
            require_provider(wanted)
        except ProviderError:
            return False
        return True

    def open(self) -> Self:
        """Load the model and prove it; raises ModelError and ProviderError."""
        self._require_same_process()
        if self._thread is not None:
            return self
        if not structlog.is_configured():
            # standard output belongs to the calling program
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        self._pid, self._has_begun, is_open = os.getpid(), threading.Event(), Future[None]()
        self._thread = threading.Thread(
            target=self._live, args=(is_open,), name="op-dbus", daemon=True
        )
        self._thread.start()
        try:
            is_open.result()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Finish running batches, fail queued ones with ShuttingDown, and free the model."""
        if self._is_forked:
            return
        with self._handing:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._has_begun.wait()
            # the loop is closed already if opening failed
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._life.cancel)
            # the program may end now and unload the runtime: no thread may use it then
            thread.join()

    def __enter__(self) -> Self:
        """Load the model and prove it, as `open` does."""
        return self.open()

    def __exit__(self, *_: object) -> None:
        """Free the model, as `close` does."""
        self.close()

    async def __aenter__(self) -> Self:
        """Load the model and prove it, without blocking the caller's event loop."""
        return await asyncio.to_thread(self.open)

    async def __aexit__(self, *_error: object) -> None:
        """Free the model, without blocking the caller's event loop."""
        await asyncio.to_thread(self.close)

    def embed(self, texts: Iterable[str], *, truncate: bool = True) -> NDArray[np.float32]:
        """Return the vectors of texts: (texts, dimension), float32 of length 1."""
        return _result(self._submit(self._embed(_list_texts(texts), truncate=truncate)))

    async def embed_async(
        self, texts: Iterable[str], *, truncate: bool = True
    ) -> NDArray[np.float32]:
        """Return the vectors of texts, without blocking the caller's event loop."""
        work = self._embed(_list_texts(texts), truncate=truncate)
        return await asyncio.wrap_future(self._submit(work))

    def stream(
        self, texts: Iterable[str], *, truncate: bool = True
    ) -> Generator[NDArray[np.float32], None, None]:
        """Yield the vectors of any number of texts in order, some thousand at a time.

        Memory use does not grow with their number; single texts from other threads are served
        first. The iterator of texts runs in the thread that reads the stream.
        """
        return self._stream(_iterate_texts(texts), truncate=truncate)

    def count_tokens(self, texts: Iterable[str]) -> list[int]:
        """Return the number of tokens of each text; those above `max_tokens` would be cut."""
        return _result(self._submit(self._opened.count_tokens(_list_texts(texts))))

    def _stream(
        self, texts: Iterator[str], *, truncate: bool
    ) -> Generator[NDArray[np.float32], None, None]:
        running: deque[Future[NDArray[np.float32]]] = deque()
        first = 0
        try:
            while window := list(islice(texts, self._opened.window)):
                _check_texts(window, first)
                if len(running) == _WINDOWS:
                    yield _result(running.popleft())
                running.append(self._submit(self._bulk(window, first, truncate=truncate)))
                first += len(window)
            while running:
                yield _result(running.popleft())
        finally:
            for future in running:
                future.cancel()

    @property
    def device(self) -> str:
        """Return the hardware that passed the proof."""
        return self._proven.hardware

    @property
    def provider(self) -> str:
        """Return the execution provider that passed the proof."""
        return self._proven.provider.name

    @property
    def precision(self) -> str:
        """Return the precision of the matrix products: fp32, fp16, bf16 or int8."""
        return self.proof.precision

    @property
    def proof(self) -> Proof:
        """Return the measurements of the proof: nodes, precision, deviation."""
        return self._proven.proof

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """Return the providers of the chain that were passed over, each with the reason."""
        return self._proven.fallbacks

    @property
    def dimension(self) -> int:
        """Return the length of every vector."""
        return self._opened.dimension

    @property
    def max_tokens(self) -> int:
        """Return the number of tokens to which texts are cut."""
        return self._opened.model.shape.max_tokens

    @property
    def engine(self) -> Engine:
        """Return the engine, which lives on an event loop of its own."""
        return self._opened

    @property
    def _proven(self) -> ProvenSessions:
        return self._opened.proven

    async def _embed(self, texts: Sequence[str], *, truncate: bool) -> NDArray[np.float32]:
        window = self._opened.window
        if len(texts) <= window:
            return (await self._opened.embed(texts, truncate=truncate)).vectors
        free = asyncio.Semaphore(_WINDOWS)

        async def part(first: int) -> NDArray[np.float32]:
            async with free:
                return await self._bulk(texts[first : first + window], first, truncate=truncate)

        parts = [asyncio.create_task(part(first)) for first in range(0, len(texts), window)]
        try:
            return np.concatenate(await asyncio.gather(*parts))
        finally:
            for task in parts:
                task.cancel()

    async def _bulk(
        self, texts: Sequence[str], first: int, *, truncate: bool
    ) -> NDArray[np.float32]:
        engine = self._opened
        rows = await engine.tokenize(texts)
        if not truncate and rows.truncated.any():
            cut = int(rows.truncated.argmax())
            raise Truncated(
                f"text number {first + cut}, counted from 0, is longer than the {self.max_tokens}"
                " tokens that the model reads: shorten it, or allow `truncate`"
            )
        return await engine.run(rows)

    def _live(self, is_open: Future[None]) -> None:
        """Hold the engine open until `close`; runs in the Embedder's thread."""
        try:
            asyncio.run(self._serve(is_open))
        except BaseException as error:
            if not is_open.done():
                is_open.set_exception(error)
            elif not isinstance(error, asyncio.CancelledError):
                raise

    async def _serve(self, is_open: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        [self._life] = asyncio.all_tasks()
        self._has_begun.set()
        level = LEVELS[self._config.vector_level]
        model = await asyncio.to_thread(folder.load_model, level, self._config)
        try:
            async with open_embedder(model, self._config) as self._engine:
                is_open.set_result(None)
                # until cancelled
                await self._loop.create_future()
        finally:
            engine, self._engine = self._engine, None
            # waiting calls end with ShuttingDown
            await asyncio.gather(*asyncio.all_tasks() - {self._life}, return_exceptions=True)
            if engine:
                # a runtime that computes while the program ends may crash it
                await asyncio.to_thread(engine.scheduler.join)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self._require_same_process()
            with self._handing:
                if self._thread is None:
                    raise ShuttingDown(_NOT_OPEN)
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except OpDbusError:
            work.close()
            raise

    def _require_same_process(self) -> None:
        if self._is_forked:
            raise CallerError(
                "this Embedder belongs to the process that this one was forked from, where its"
                " threads stayed: make another one here"
            )

    @property
    def _is_forked(self) -> bool:
        """Return whether this process was forked from the one that opened the Embedder."""
        return self._thread is not None and self._pid != os.getpid()

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ShuttingDown(_NOT_OPEN)
        return self._engine


def _result(future: Future[T]) -> T:
    """Wait for a result; cancel the work if the wait is interrupted, as by Ctrl-C."""
    try:
        return future.result()
    finally:
        future.cancel()


def _read_settings(given: Mapping[str, object]) -> Config:
    """Return settings from arguments; raises ConfigError with all bad values in one message.

    Of the environment, only the variables of home folders are read.
    """
    texts = {key: str(value) for key, value in given.items() if value is not None}
    if unknown := ", ".join(texts.keys() - config.BY_KEY.keys()):
        raise ConfigError(f"there is no setting {unknown}; see `op-dbus config`")
    homes = {name: os.environ[name] for name in _HOMES if name in os.environ}
    return config.load(homes, texts, source=config.ARGUMENT)


def _list_texts(texts: Iterable[str]) -> list[str]:
    """Return all texts of an iterable; raises InvalidArgs if one is not a valid text."""
    found = list(_iterate_texts(texts))
    _check_texts(found)
    return found


def _iterate_texts(texts: Iterable[str]) -> Iterator[str]:
    """Return an iterator over texts; raises InvalidArgs if they are not an iterable."""
    if not isinstance(texts, str | bytes):
        # the caller's own generator runs outside this block: its errors are the caller's
        with suppress(TypeError):
            return iter(texts)
    raise InvalidArgs(
        f"texts must be a list of str or another iterable of them, not {type(texts).__name__}:"
        " write [text] for a single text"
    )


def _check_texts(texts: Sequence[str], first: int = 0) -> None:
    """Raise InvalidArgs if a text is not valid; errors count from the number `first`."""
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise InvalidArgs(f"text number {number}, counted from 0, is {kind}, not str")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgs(
                    f"text number {number}, counted from 0, is not Unicode: its character"
                    f" {error.start} is a lone surrogate"
                ) from None
