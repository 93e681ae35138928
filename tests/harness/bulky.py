"""What tests of bulk calls need: files of texts, engines in memory, open files counted."""

import asyncio
import gc
import json
import os
import select
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opdbus.bus.transport.descriptors import ELSEWHERE, IN_MEMORY, Descriptor

DIMENSION = 8


def lines(texts: Iterable[str]) -> bytes:
    """Give texts as JSON strings, one a line."""
    return b"".join(json.dumps(text, ensure_ascii=False).encode() + b"\n" for text in texts)


def in_memory(content: bytes) -> Descriptor:
    """Give a memfd of this content that stands at its end."""
    file = Descriptor(os.memfd_create("texts", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.write(file.fileno(), content)
    return file


def open_files(*, settled: bool = False) -> int:
    """Count the files that this process has open; first without what other tests left behind."""
    if settled:
        gc.collect()
        # what others sent is closed by threads, which nothing tells of: one may have taken the last
        # file and not have closed it yet
        pause, count, same = select.poll(), -1, 0
        while ELSEWHERE.waiting or IN_MEMORY.waiting or same < 10:
            now = open_files()
            count, same = now, same + 1 if now == count else 0
            pause.poll(5)
    return len(list(Path("/proc/self/fd").iterdir()))


def vector_of(text: str) -> np.ndarray:
    """Give the vector of length 1 that the engine below makes of a text."""
    numbers = np.random.default_rng(len(text) * 1000 + sum(text.encode())).normal(size=DIMENSION)
    return (numbers / np.linalg.norm(numbers)).astype(np.float32)


class Rows(list[str]):
    """Texts that are their own tokens."""

    @property
    def truncated(self) -> np.ndarray:
        """Whether each text was cut."""
        return np.array([len(text) > 100 for text in self])


class Engine:
    """What bulk calls use of an engine; a text of more than 100 characters is cut.

    `hold` is waited for before any vector is given, and then `pace` seconds; `most` is how many
    texts were held at once.
    """

    max_tokens = 100

    def __init__(self, hold: asyncio.Event | None = None, pace: float = 0.0) -> None:
        self.hold = hold
        self.pace = pace
        self.begun = asyncio.Event()
        self.held = self.most = self.calls = self.computed = 0

    async def tokenize(self, texts: Sequence[str]) -> Rows:
        """Give a row for each text."""
        return Rows(texts)

    async def embed(self, rows: Sequence[Any]) -> np.ndarray:
        """Give a vector for each row."""
        self.begun.set()
        self.calls += 1
        self.held += len(rows)
        self.most = max(self.most, self.held)
        try:
            if self.hold:
                await self.hold.wait()
            await asyncio.sleep(self.pace)
        finally:
            self.held -= len(rows)
        self.computed += len(rows)
        return np.array([vector_of(text) for text in rows])
