"""Table of the compared programs, op-dbus among them, and their processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any, Final, Self

PEERS: Final = Path(__file__).parent / "peers"
# The row that all others are compared with, and the one whose vectors are the reference.
OURS: Final = "op-dbus"
REFERENCE: Final = "op-dbus fp32"
# The environment with torch, which exports the model for peers that read only ONNX.
TORCH: Final = "torch"


@dataclass(frozen=True, slots=True)
class Contender:
    """A program to compare: its script, its virtual environment, and the options of its `load`."""

    name: str
    script: Path
    # name under the folder of the peers' environments; empty for this process's own
    venv: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    # true if it needs the model as an ONNX file
    exported: bool = False
    # true if it chooses its batches itself: one call for all texts then has only one figure
    own_batches: bool = False

    def python(self, venvs: Path) -> Path:
        """Return the interpreter that runs the script."""
        return python_of(venvs, self.venv) if self.venv else Path(sys.executable)


def python_of(venvs: Path, name: str) -> Path:
    """Return the interpreter of one of the peers' environments."""
    below = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    return venvs.joinpath(name, *below)


def _sentence_transformers(name: str, **options: str) -> Contender:
    return Contender(
        f"sentence-transformers {name}", PEERS / "sentence_transformers.py", TORCH, options
    )


CONTENDERS: Final = (
    Contender(OURS, PEERS / "ours.py", options={"precision": "auto"}, own_batches=True),
    Contender(REFERENCE, PEERS / "ours.py", options={"precision": "fp32"}, own_batches=True),
    _sentence_transformers("fp32", backend="torch", dtype="float32"),
    _sentence_transformers("bf16", backend="torch", dtype="bfloat16"),
    _sentence_transformers("bf16 compiled", backend="torch", dtype="bfloat16", compile="inductor"),
    _sentence_transformers("openvino", backend="openvino"),
    Contender("fastembed", PEERS / "fastembed.py", "fastembed", exported=True),
    Contender("infinity", PEERS / "infinity.py", "infinity"),
)

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


class Process:
    """A contender's process, which answers in lines of JSON; as a context, killed at the end."""

    def __init__(self, contender: Contender, place: Workspace) -> None:
        self.contender = contender
        self._limit = place.limit
        command = [contender.python(place.venvs), "-P", _CHILD, contender.script]
        # not a pipe, which would fill up while the parent waits for an answer
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        try:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=place.environment(),
                encoding="utf-8",
            )
        except OSError:
            self._stderr.close()
            raise ContenderFailed(
                f"{contender.name} is not installed: there is no {command[0]}; run `make peers`"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with suppress(OSError):  # a dead child never reads the request
            # closes the pipes too
            self.process.__exit__(None, None, None)
        self._stderr.close()

    def request(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 -- any JSON
        """Send a request and return its result; raises ContenderFailed with its message."""
        # killing ends the wait, since reading a pipe has no portable timeout
        watchdog = Timer(self._limit, self.process.kill)
        watchdog.start()
        reply = None
        try:
            with suppress(OSError, ValueError):
                print(json.dumps({name: arguments}), file=self.process.stdin, flush=True)
            with suppress(OSError, ValueError):
                assert self.process.stdout is not None  # noqa: S101 -- a pipe was asked for
                reply = json.loads(self.process.stdout.readline())
        finally:
            watchdog.cancel()
        if reply is None:
            last = self._last_words()
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

    def _last_words(self) -> str:
        """End the process, and return the last line that it wrote to standard error."""
        # a process that ends by itself may still be writing the reason
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS_SECONDS)
        self.process.kill()
        self.process.wait()
        self._stderr.seek(0)
        return last_line(self._stderr.read().decode("utf-8", "replace"))


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
        subprocess.run(command, check=True, capture_output=True, text=True, env=place.environment())
    except OSError:
        raise ContenderFailed(f"there is no {command[0]}: run `make peers`") from None
    except subprocess.CalledProcessError as error:
        raise ContenderFailed(
            f"cannot export {folder} to ONNX: {last_line(error.stderr)}"
        ) from None
    return target
