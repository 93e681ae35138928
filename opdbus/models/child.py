"""Child processes whose memory is freed at the end and that end with their parent."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

from opdbus.errors import OpDbusError
from opdbus.platform.tasks import end_child

# systemd uses these variables for the process that it started; a child must not use them.
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
# Nice value of a low-priority child: it gets a tenth of its parent's share of a busy CPU.
_NICE: Final = 10
# Pipe capacity in bytes: how far a child that answers in parts may be ahead of the reader.
_AHEAD: Final = 1 << 20
_LENGTH: Final = 4


class ChildFailed(Exception):
    """The child could not be started or failed; the message gives the reason."""


# functions for the parent


async def run(module: str, **request: Any) -> str:  # noqa: ANN401 -- any JSON
    """Run a module that calls `answer`, and return its answer; raises ChildFailed.

    The child is killed if the caller is cancelled, and exits when this process does.
    """
    try:
        with _leash() as leash:
            work = asyncio.create_task(_answered(leash, _command(module, request)))
            try:
                return await asyncio.shield(work)
            finally:
                await _ended(work)
    except OSError as error:
        raise ChildFailed(f"cannot start a process for it: {error.strerror}") from None


async def _ended(work: asyncio.Task[str]) -> None:
    """Cancel once, and wait for the child's end despite further cancellations."""
    if not work.cancelling():  # else the end of the event loop has cancelled it
        work.cancel()
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])


def parts(module: str, files: Collection[int] = (), **request: Any) -> Generator[bytes, None, None]:  # noqa: ANN401 -- any JSON
    """Run a module that calls `answer_in_parts`, and yield its answers; raises ChildFailed.

    Blocks; call it on a thread. The child inherits the open `files`, and is killed when the
    iterator is closed. Its error message is dropped, because it may contain a secret.
    """
    try:
        with (
            _leash() as leash,
            subprocess.Popen(  # noqa: S603 -- our own module
                _command(module, request),
                env=_inherited(),
                stdin=leash,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pipesize=_AHEAD,
                pass_fds=files,
            ) as child,
        ):
            try:
                while size := int.from_bytes(_read_exactly(child, _LENGTH), "little"):
                    yield _read_exactly(child, size)
            finally:
                child.kill()
    except OSError as error:
        raise ChildFailed(f"cannot start a process for it: {error.strerror}") from None


def _read_exactly(child: subprocess.Popen[bytes], size: int) -> bytes:
    data = child.stdout.read(size) if child.stdout else b""
    if len(data) < size:
        raise ChildFailed(f"its process ended with code {child.wait()}")
    return data


def _command(module: str, request: Mapping[str, Any]) -> tuple[str, ...]:
    # -P: no modules from the current folder
    return sys.executable, "-P", "-m", module, json.dumps(request)


def _inherited() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}  # noqa: TID251 -- inherited, no setting


@contextmanager
def _leash() -> Iterator[int]:
    """Yield the read end of an unused pipe, which reports EOF when this process ends."""
    leash, ours = os.pipe()
    try:
        yield leash
    finally:
        os.close(leash)
        os.close(ours)


async def _answered(leash: int, command: Iterable[str]) -> str:
    child = await asyncio.create_subprocess_exec(
        *command,
        env=_inherited(),
        stdin=leash,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        answer, stderr = await child.communicate()
    finally:
        await end_child(child)
    if child.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise ChildFailed(lines[-1] if lines else f"its process ended with code {child.returncode}")
    return answer.decode()


# functions for the child


def answer(work: Callable[[dict[str, Any]], str]) -> None:
    """Answer the request on the command line, or exit with an error message; runs in the child."""
    with _asked() as (request, answered):
        answered.write(work(request).encode())


def answer_in_parts(work: Callable[[dict[str, Any]], Iterator[bytes]]) -> None:
    """Answer the request in non-empty parts, or exit with an error message; runs in the child."""
    with _asked() as (request, answered):
        for part in work(request):
            answered.write(len(part).to_bytes(_LENGTH, "little"))
            answered.write(part)
            answered.flush()
        answered.write(bytes(_LENGTH))


def go_second() -> None:
    """Lower this process's priority, so that a busy CPU serves the parent first."""
    if sys.platform != "win32":
        # a sandbox may refuse this
        with suppress(PermissionError):
            os.nice(_NICE)


@contextmanager
def _asked() -> Iterator[tuple[dict[str, Any], BinaryIO]]:
    """Yield the request and the stream for its answer; exit with a message on an error."""
    _follow_parent()
    # keep log lines and output of runtimes out of the answer
    stdout = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        with os.fdopen(stdout, "wb") as answered:
            yield json.loads(sys.argv[1]), answered
    except (OpDbusError, OSError, ValueError) as error:
        # a single line, since the parent reads the last one
        sys.exit(" ".join(str(error).split()))


def _follow_parent() -> None:
    """Exit when the parent exits, and ignore SIGTERM and SIGINT.

    A service manager and a terminal signal both processes. The parent decides what to do; if the
    child died of the signal first, the parent would report a failure.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    def end_with_parent() -> None:
        # returns when the parent's end of the pipe is closed, since nothing is written to it
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
