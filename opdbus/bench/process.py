"""A contender's child process as seen from here: asked in JSON, and never left behind."""

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
# No contender may ask a hub for anything, nor talk of how it is used.
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
    """A contender is not installed, failed, or did not answer; the report says why."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where contenders run: their environments, and a folder for the files made of one model.

    `limit` is in seconds, for one request.
    """

    venvs: Path
    scratch: Path
    environ: Mapping[str, str]
    limit: float = 600.0

    def environment(self) -> dict[str, str]:
        """Give the environment variables of every contender."""
        return {**self.environ, **_ENVIRONMENT}


class Child:
    """A process that answers in lines of JSON, used by `with`: killed at the end in any case.

    Raises OSError if it cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        # not a pipe, which would fill up while we wait for an answer
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
        with suppress(OSError):  # of a request that a dead child never read
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
        # one that goes by itself may still be about to say why
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
        """Send one request and wait for its result; raises ContenderFailed with its own words."""
        # killing ends the wait: there is no reading of a pipe with a limit everywhere
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
        """Stop its threads, so that they take no time from the contender that is measured."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Let it run again."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        number = getattr(signal, name, None)
        if number is not None:
            self.process.send_signal(number)


def last_line(text: str) -> str:
    """Return what a program said last, cut to a readable length."""
    return (text.strip().splitlines() or ["it said nothing"])[-1][:_MAX_COMPLAINT]


def export(folder: Path, venv: str, place: Workspace) -> Path:
    """Export a model's folder to ONNX in the environment `venv`, once, and give the new folder.

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
