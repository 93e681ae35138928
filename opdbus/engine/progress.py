"""Log events for work that takes minutes: start, every ten seconds, end."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

log = structlog.get_logger()

_EVERY_SECONDS: Final = 10.0


@contextmanager
def log_compiling(provider: str, every: float = _EVERY_SECONDS) -> Iterator[None]:
    """Log that a provider compiles the model while the context lasts."""
    began, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(every):
            log.info("still compiling", provider=provider, seconds=round(time.monotonic() - began))

    thread = threading.Thread(target=repeat, name="compiling", daemon=True)
    log.info("compiling the model, for minutes if this is the first time", provider=provider)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        log.info("compiled", provider=provider, seconds=round(time.monotonic() - began, 1))
