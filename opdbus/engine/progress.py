"""What takes minutes is told of: when it begins, that it goes on, and when it ends."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger()

_EVERY_SECONDS: Final = 10.0


@contextmanager
def telling(provider: str, every: float = _EVERY_SECONDS) -> Iterator[None]:
    """Log that a provider compiles the model, from begin to end, every few seconds."""
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(every):
            log.info("still compiling", provider=provider, seconds=round(time.monotonic() - began))

    teller = threading.Thread(target=tell, name="compiling", daemon=True)
    log.info("compiling the model, for minutes if this is the first time", provider=provider)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        log.info("compiled", provider=provider, seconds=round(time.monotonic() - began, 1))
