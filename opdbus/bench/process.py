"""Parent side of a contender's child process: JSON requests, and a kill at the end."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, Self

from opdbus.bench.contenders import PEERS, python_of

if TYPE_CHECKING:
    from opdbus.bench.contenders import Contender

_CHILD: Final = PEERS / "child.py"
_EXPORT: Final = PEERS / "export.py"
# No contender may contact a hub or send telemetry.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
}
_MAX_COMPLAINT: Final = 300
_LAST_WORDS_SECONDS: Final = 2.0


class ContenderFailed(Exception):
    """A contender is not installed, failed, or did not answer; the report has the reason."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folders for contenders: their environments, and the files made of one model.

    `limit` is the time of one request in seconds.
    """

    venvs: Path
    scratch: Path
    environ: Mapping[str, str]
    limit: float = 600.0

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every contender."""
        return {**self.environ, **_ENVIRONMENT}


class Child:
    """A process that answers in lines of JSON; use as a context, which kills it at the end.

    Raises OSError if it cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        # not a pipe, which would fill up while the parent waits for an answer
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        try:
            self.process = subprocess.Popen(  # noqa: S603 -- our own script or module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environ,
                encoding="utf-8",
            )
        except OSError:
            self._stderr.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with suppress(OSError):  # a dead child never reads the request
            # closes the pipes too
            self.process.__exit__(None, None, None)
        self._stderr.close()

    def ask(self, request: Any) -> Any:  # noqa: ANN401 -- any JSON
        """Send a line and return the answer, None if the process has ended."""
        assert self.process.stdin is not None  # noqa: S101 -- a pipe was asked for
        with suppress(OSError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.read()

    def read(self) -> Any:  # noqa: ANN401 -- any JSON
        """Return the next line, None if the process has ended."""
        assert self.process.stdout is not None  # noqa: S101 -- a pipe was asked for
        with suppress(OSError, ValueError):
            return json.loads(self.process.stdout.readline())
        return None

    def last_words(self) -> str:
        """End the process, and return the last line that it wrote to standard error."""
        # a process that ends by itself may still be writing the reason
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS_SECONDS)
        self.process.kill()
        self.process.wait()
        self._stderr.seek(0)
        return last_line(self._stderr.read().decode("utf-8", "replace"))


class Process(Child):
    """A contender's process."""

    def __init__(self, contender: Contender, place: Workspace) -> None:
        self.contender = contender
        self._limit = place.limit
        command = [contender.python(place.venvs), "-P", _CHILD, contender.script]
        try:
            super().__init__([str(part) for part in command], place.environment())
        except OSError:
            raise ContenderFailed(
                f"{contender.name} is not installed: there is no {command[0]}; run `make peers`"
            ) from None

    def request(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 -- any JSON
        """Send a request and return its result; raises ContenderFailed with its message."""
        # killing ends the wait, since reading a pipe has no portable timeout
        watchdog = Timer(self._limit, self.process.kill)
        watchdog.start()
        try:
            reply = self.ask({name: arguments})
        finally:
            watchdog.cancel()
        if reply is None:
            last = self.last_words()
            raise ContenderFailed(
                f"the process of {self.contender.name} is gone (exit code"
                f" {self.process.returncode}, at most {self._limit:.0f} s a request): {last}"
            )
        if "error" in reply:
            raise ContenderFailed(f"{self.contender.name} cannot {name}: {reply['error']}")
        return reply

    def pause(self) -> None:
        """Stop the process, so that it takes no time from the contender that is measured."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Resume the process."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        number = getattr(signal, name, None)
        if number is not None:
            self.process.send_signal(number)


def last_line(text: str) -> str:
    """Return the last line of a program's output, cut to a readable length."""
    return (text.strip().splitlines() or ["it said nothing"])[-1][:_MAX_COMPLAINT]


def export(folder: Path, venv: str, place: Workspace) -> Path:
    """Export a model's folder to ONNX in the environment `venv`, once, and return the new folder.

    Raises ContenderFailed.
    """
    target = place.scratch / "exported"
    if target.is_dir():
        return target
    command = [str(python_of(place.venvs, venv)), "-P", str(_EXPORT), str(folder), str(target)]
    try:
        subprocess.run(  # noqa: S603 -- our own script
            command, check=True, capture_output=True, text=True, env=place.environment()
        )
    except OSError:
        raise ContenderFailed(f"there is no {command[0]}: run `make peers`") from None
    except subprocess.CalledProcessError as error:
        raise ContenderFailed(
            f"cannot export {folder} to ONNX: {last_line(error.stderr)}"
        ) from None
    return target
