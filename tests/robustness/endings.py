"""Does a process that used `Embedder` end cleanly? Runs many short ones under load, and counts.

Each opens the engine with `provider="auto"`, embeds a text and ends, as programs do that follow the
documentation; more run at once than there are processors. Prints JSON; ends with 1 where one
crashed, with what faulthandler wrote of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from robustness.harness import finish, parser

PROGRAM = """
import asyncio, opdbus

async def main():
    async with opdbus.Embedder(provider="auto") as embedder:
        assert (await embedder.embed_async(["a disk that fills up"])).shape == (1, 384)

asyncio.run(main())
"""
LIMIT_SECONDS = 300


def run(_: int) -> tuple[int, str]:
    """Run the program once, and give its exit code and what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


def measure(runs: int, at_once: int) -> dict[str, Any]:
    """Run the program `runs` times, some at once, and count the exit codes."""
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(run, range(runs)))
    return {
        "runs": runs,
        "at once": at_once,
        "processors": os.cpu_count(),
        "exit codes": dict(Counter(code for code, _ in found)),
        "failures": [{"code": code, "stderr": text[-4000:]} for code, text in found if code],
    }


def main() -> int:
    """Print what was found, and give the exit code."""
    reading = parser(__doc__)
    reading.add_argument("--runs", type=int, default=500)
    reading.add_argument("--at-once", type=int, default=8)
    given = reading.parse_args()
    found = measure(given.runs, given.at_once)
    failures = [f"exit code {one['code']}" for one in found["failures"]]
    return finish(given, found, failures)


if __name__ == "__main__":
    sys.exit(main())
