"""Endless repetition of a publisher's work, which its source or the bus may interrupt."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from opdbus.platform.lines import escape_hidden, write_line
from opdbus.platform.tasks import pauses

_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


async def repeat_forever(
    work: Callable[[], Awaitable[None]], faults: tuple[type[Exception], ...], subject: str = ""
) -> None:
    """Do work that ends with one of `faults` again and again, after growing pauses.

    A reason that differs from the last one is printed, with `subject` in front.
    """
    delays, last_reason = pauses(_RETRY_SECONDS), ""
    while True:
        began, reason = time.monotonic(), last_reason
        try:
            await work()
        except faults as error:
            reason = f"{subject}{str(error) or type(error).__name__}"
        if reason != last_reason:
            print_reason(reason)
        if time.monotonic() - began > _RETRY_SECONDS[-1]:
            delays = pauses(_RETRY_SECONDS)
        last_reason = reason
        await asyncio.sleep(next(delays))


def print_reason(reason: str) -> None:
    """Print what a publisher cannot do: the journal has it."""
    write_line(escape_hidden(reason), sys.stderr)
