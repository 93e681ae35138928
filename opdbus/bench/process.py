"""A contender's child process as seen from here: asked in JSON, and never left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, Self

from opdbus.bench.contenders import PEERS, python_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

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
    """A contender is not installed, failed, or did not answer: a result, and told as one."""


@dataclass(frozen=True, slots=True)
class Place:
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


class Process:
    """One contender's process, used by `with`: killed at the end, whatever the reason."""

    def __init__(self, contender: Contender, place: Place) -> None:
        self.contender = contender
        self._place = place
        # not a pipe: nobody reads it while we wait for an answer
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        command = [contender.python(place.venvs), "-P", _CHILD, contender.script]
        try:
            self._child = self._start([str(part) for part in command])
        except OSError:
            self._stderr.close()
            raise _not_installed(contender, place) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._child.kill()
        with suppress(OSError):  # of a request that a dead child never read
            # closes the pipes too
            self._child.__exit__(None, None, None)
        self._stderr.close()

    def ask(self, request: str, **arguments: Any) -> Any:  # noqa: ANN401 -- any JSON
        """Send one request and wait for its result; raises ContenderFailed with its own words."""
        # killing ends the wait: there is no reading of a pipe with a limit everywhere
        watchdog = Timer(self._place.limit, self._child.kill)
        watchdog.start()
        try:
            reply = self._exchange(json.dumps({request: arguments}))
        finally:
            watchdog.cancel()
        if "error" in reply:
            raise ContenderFailed(f"{self.contender.name} cannot {request}: {reply['error']}")
        return reply

    def pause(self) -> None:
        """Stop its threads, so that they take no time from the contender that is measured."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Let it run again."""
        self._signal("SIGCONT")

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 -- our own script
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._place.environment(),
            encoding="utf-8",
        )

    def _exchange(self, line: str) -> Any:  # noqa: ANN401 -- any JSON
        assert self._child.stdin is not None  # noqa: S101 -- Popen was told to make pipes
        assert self._child.stdout is not None  # noqa: S101
        try:
            print(line, file=self._child.stdin, flush=True)
            return json.loads(self._child.stdout.readline())
        except (OSError, ValueError):
            raise ContenderFailed(self._why_gone()) from None

    def _why_gone(self) -> str:
        # one that goes by itself may still be about to say why
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_LAST_WORDS_SECONDS)
        self._child.kill()
        code = self._child.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").splitlines() or ["it said nothing"]
        last = lines[-1][:_MAX_COMPLAINT]
        return (
            f"the process of {self.contender.name} is gone (exit code {code}, at most"
            f" {self._place.limit:.0f} s a request): {last}"
        )

    def _signal(self, name: str) -> None:
        number = getattr(signal, name, None)
        if number is not None:
            self._child.send_signal(number)


def export(folder: Path, venv: str, place: Place) -> Path:
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
        lines = error.stderr.splitlines() or ["it said nothing"]
        last = lines[-1][:_MAX_COMPLAINT]
        raise ContenderFailed(f"cannot export {folder} to ONNX: {last}") from None
    return target


def _not_installed(contender: Contender, place: Place) -> ContenderFailed:
    return ContenderFailed(
        f"{contender.name} is not installed: there is no {contender.python(place.venvs)};"
        " run `make peers`"
    )
