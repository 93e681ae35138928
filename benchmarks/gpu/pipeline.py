"""From texts to vectors with tokenizing in processes: what is left when that limit goes.

One Python process tokenizes and hands around some hundred thousand short texts a second at most,
however many processors there are, for all its threads share one lock. Here processes tokenize, and
what they send is one array of ids for each length, so that nothing is done for single texts.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from kit import Run
    from numpy.typing import NDArray

    from opdbus.engine.tokenizer import Tokenizer
    from opdbus.models.folder import Model

    # for each length: the texts' numbers, and their ids (texts, length)
    Sorted = list[tuple[NDArray[np.int64], NDArray[np.int64]]]

_AHEAD = 2


class _Child:
    """The tokenizer of a process."""

    tokenizer: Tokenizer


def _open(path: Path, max_tokens: int) -> None:
    from opdbus.engine.tokenizer import Tokenizer

    # one processor each: there are as many processes as processors
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _Child.tokenizer = Tokenizer(path, max_tokens)


def _tokenize(texts: Sequence[str]) -> Sorted:
    by_length: dict[int, list[int]] = {}
    rows = _Child.tokenizer.encode(texts)
    for number, row in enumerate(rows):
        by_length.setdefault(len(row), []).append(number)
    return [
        (np.array(members), np.stack([rows[number].ids for number in members]))
        for members in by_length.values()
    ]


class Pipeline:
    """Processes that tokenize before threads that run the model."""

    def __init__(
        self, model: Model, runs: Sequence[Run], *, processes: int, tokens: int, window: int
    ) -> None:
        self._tokens = tokens
        self._window = window
        self._share = -(-window // processes)
        self._dimension = model.shape.hidden
        opened = (model.tokenizer, model.shape.max_tokens)
        self._pool = ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_open, initargs=opened
        )
        self._batches: SimpleQueue[object] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._live, args=(run,), daemon=True) for run in runs
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let processes and threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for _ in self._threads:
            self._batches.put(None)

    def stream(self, texts: Iterator[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of texts in order, a window at a time."""
        tokenizing: deque[tuple[int, list[Future[Sorted]]]] = deque()
        running: deque[_Window] = deque()
        while True:
            while len(tokenizing) <= _AHEAD:
                some = list(islice(texts, self._window))
                if not some:
                    break
                starts = range(0, len(some), self._share)
                parts = [some[start : start + self._share] for start in starts]
                futures = [self._pool.submit(_tokenize, part) for part in parts]
                tokenizing.append((len(some), futures))
            if tokenizing:
                size, futures = tokenizing.popleft()
                running.append(self._begin(size, [future.result() for future in futures]))
            if not running:
                return
            if len(running) > _AHEAD or not tokenizing:
                yield running.popleft().result()

    def _begin(self, size: int, parts: list[Sorted]) -> _Window:
        """Put what all parts have of each length together, and queue it in batches."""
        window = _Window(size, self._dimension)
        lengths: dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {}
        for number, part in enumerate(parts):
            for members, ids in part:
                lengths.setdefault(ids.shape[1], []).append((members + number * self._share, ids))
        for length, found in lengths.items():
            members = np.concatenate([one for one, _ in found])
            ids = np.concatenate([rows for _, rows in found])
            most = max(1, self._tokens // length)
            for start in range(0, len(ids), most):
                batch = (window, members[start : start + most], ids[start : start + most])
                window.expect()
                self._batches.put(batch)
        window.settle()
        return window

    def _live(self, run: Run) -> None:
        while (batch := self._batches.get()) is not None:
            window, members, ids = batch  # type: ignore[misc]
            try:
                window.put(members, run(ids))
            except Exception as error:  # noqa: BLE001 -- passed on to the waiting caller
                window.settle(error)


class _Window:
    """Texts that go through together; done when the last of their batches is."""

    def __init__(self, size: int, dimension: int) -> None:
        # the queueing of them all counts as one more
        self._left = 1
        self._vectors = np.empty((size, dimension), np.float32)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: Exception | None = None

    def expect(self) -> None:
        """Count one more batch."""
        with self._lock:
            self._left += 1

    def put(self, members: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Take the vectors of a batch."""
        self._vectors[members] = vectors
        self.settle()

    def settle(self, error: Exception | None = None) -> None:
        """Count a batch as done, well or not."""
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            if not self._left or self._error:
                self._done.set()

    def result(self) -> NDArray[np.float32]:
        """Wait for all vectors."""
        self._done.wait()
        if self._error:
            raise self._error
        return self._vectors
