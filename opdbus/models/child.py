"""Work in a child process: its memory goes when it ends, and it dies with whoever waits for it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# How systemd hears of the process that it started: no business of any other.
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


async def run(module: str, *arguments: str) -> str:
    """Run a module's `main` and give the last line of what it complains of, empty if all is well.

    The child is killed if the caller is cancelled.
    """
    fault, _ = await _ran(module, arguments, None)
    return fault


async def ask(module: str, *arguments: str) -> tuple[str, str]:
    """Run a module's `main` as `run` does, and give as well what it printed."""
    return await _ran(module, arguments, asyncio.subprocess.PIPE)


async def _ran(module: str, arguments: Sequence[str], stdout: int | None) -> tuple[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # no modules from the folder that we happen to be started in
        "-m",
        module,
        *arguments,
        env=inherited,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        printed, stderr = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == 0:
        return "", (printed or b"").decode()
    lines = stderr.decode(errors="replace").strip().splitlines()
    fault = lines[-1] if lines else f"the process {module} ended with code {child.returncode}"
    return fault, ""
