"""Searches the host that it runs in, again and again: writes JSON with milliseconds of a search."""

import asyncio
import json
import sys
import time

from opdbus.bench.figures import percentiles
from opdbus.client import Client

_QUESTIONS = (
    "which services have failed?",
    "file systems that are nearly full",
    "who may become root?",
    "what listens on the network?",
    "address of this machine",
)
_ROUNDS = 40


async def main() -> None:
    """Print how long searches take."""
    times = []
    async with Client("system") as client:
        for _ in range(_ROUNDS):
            for question in _QUESTIONS:
                began = time.monotonic()
                await client.search(question, 10, {})
                times.append(time.monotonic() - began)
    found = percentiles(times, 50, 99)
    json.dump({name: round(value, 1) for name, value in found.items()}, sys.stdout)


asyncio.run(main())
