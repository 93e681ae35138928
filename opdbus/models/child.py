"""Work in a child process: its memory is freed when it ends, and it ends with its parent."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from opdbus.errors import OpDbusError

# By these systemd watches the process that it started; a child must not answer for it.
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


class ChildFailed(Exception):
    """The child could not be started, or ended with a fault: the sentence says which."""


# in the parent


async def run(module: str, **request: Any) -> str:  # noqa: ANN401 -- any JSON
    """Run a module that calls `answer`, and give its answer; raises ChildFailed.

    The child is killed if the caller is cancelled, and ends by itself when this process does.
    """
    try:
        with _leash() as leash:
            return await _answered(leash, module, json.dumps(request))
    except OSError as error:
        raise ChildFailed(f"cannot start a process for it: {error.strerror}") from None


@contextmanager
def _leash() -> Iterator[int]:
    """Give the end of a pipe that is never written to, and is closed when this process ends."""
    leash, ours = os.pipe()
    try:
        yield leash
    finally:
        os.close(leash)
        os.close(ours)


async def _answered(leash: int, module: str, request: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # no modules from the current folder
        "-m",
        module,
        request,
        env=inherited,
        stdin=leash,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        answer, stderr = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise ChildFailed(lines[-1] if lines else f"its process ended with code {child.returncode}")
    return answer.decode()


# in the child


def answer(work: Callable[[dict[str, Any]], str]) -> None:
    """Be the child: answer the request of the command line, or exit with a sentence."""
    _follow_parent()
    # what is logged and what runtimes print is no answer
    stdout = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        text = work(json.loads(sys.argv[1]))
        with os.fdopen(stdout, "w") as answered:
            answered.write(text)
    except (OpDbusError, OSError, ValueError) as error:
        # one line, since the parent reads the last one
        sys.exit(" ".join(str(error).split()))


def _follow_parent() -> None:
    """End when the parent ends, and not by a signal before.

    A service manager and a terminal signal both processes. The parent decides what that means; if
    the child died of it first, the parent would report a fault.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # returns when the parent's end of the pipe is closed, since nothing is ever written to it
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)
