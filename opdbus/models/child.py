"""Work in a child process: its memory goes when it ends, and it dies with whoever waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# How systemd hears of the process that it started: no business of any other.
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


async def run(module: str, *arguments: str) -> str:
    """Run a module's `main` and give the last line of what it complains of, empty if all is well.

    The child is killed if the caller is cancelled, and ends by itself when this process does.
    """
    fault, _ = await _ran(module, arguments, None)
    return fault


async def ask(module: str, *arguments: str) -> tuple[str, str]:
    """Run a module's `main` as `run` does, and give as well what it printed."""
    return await _ran(module, arguments, asyncio.subprocess.PIPE)


def follow() -> None:
    """Make this process end with the one that runs it, however that ends, and by no signal before.

    A service manager and a terminal send their signals to both: what they mean is the parent's to
    decide, which else might take our end for a fault.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    # nothing is ever written there, so that this returns when whoever could write is gone
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


async def _ran(module: str, arguments: Sequence[str], stdout: int | None) -> tuple[str, str]:
    try:
        with _leash() as leash:
            return await _led(leash, module, arguments, stdout)
    except OSError as error:
        return f"cannot start a process for it: {error.strerror}", ""


@contextmanager
def _leash() -> Iterator[int]:
    """Give what a child reads nothing from until we are gone."""
    leash, ours = os.pipe()
    try:
        yield leash
    finally:
        os.close(leash)
        os.close(ours)


async def _led(
    leash: int, module: str, arguments: Sequence[str], stdout: int | None
) -> tuple[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # no modules from the folder that we happen to be started in
        "-m",
        module,
        *arguments,
        env=inherited,
        stdin=leash,
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
