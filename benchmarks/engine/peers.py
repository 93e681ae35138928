"""Compares op-dbus with other programs that embed texts: same texts, one run, in turns.

`python benchmarks/engine/peers.py [--venvs .peers] [--level LEVEL]... [--json FILE]`. `make peers`
makes the programs' environments, OP_DBUS_MODEL_DIR has the models. Each program has a process of
its own, which is stopped while others are measured; it gets texts of a kind so many a call, and all
in one call. Figures are texts a second in the median turn. All levels take half an hour a round.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import parse, say, write

from opdbus import config
from opdbus.bench import texts
from opdbus.engine import cpus
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models import folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS, TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

PEERS: Final = Path(__file__).parent / "peers"
# The row that all others are compared with, and the one whose vectors are the reference.
OURS: Final = "op-dbus"
REFERENCE: Final = "op-dbus fp32"
# The environment with torch, which exports the model for peers that read only ONNX.
TORCH: Final = "torch"
# Texts of each kind, for each level: the same time in each.
_TEXTS: Final = {"low": 512, "medium": 256, "high": 64}
_BATCHES: Final = {
    "low": (1, 8, 32, 64, 256),
    "medium": (1, 8, 32, 64, 256),
    "high": (1, 8, 32, 64),
}
# Texts of each kind whose vectors are compared with the reference's, and the batch size.
_CHECKED: Final = 32
_CHECKED_BATCH: Final = 8
_LIMIT_SECONDS: Final = 600.0
_LONGEST_REASON: Final = 300
_LAST_WORDS_SECONDS: Final = 2.0
# No contender may contact a hub or send telemetry.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
}


@dataclass(frozen=True, slots=True)
class Contender:
    """A program to compare: its script, its environment, and the options of its `load`."""

    name: str
    script: str
    # name under the folder of the peers' environments; empty for this process's own
    venv: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    # true if it needs the model as an ONNX file
    exported: bool = False


def _torch(name: str, **options: str) -> Contender:
    return Contender(f"sentence-transformers {name}", "sentence_transformers.py", TORCH, options)


CONTENDERS: Final = (
    Contender(OURS, "ours.py", options={"precision": "auto"}),
    Contender(REFERENCE, "ours.py", options={"precision": "fp32"}),
    _torch("fp32", backend="torch", dtype="float32"),
    _torch("bf16", backend="torch", dtype="bfloat16"),
    _torch("bf16 compiled", backend="torch", dtype="bfloat16", compile="inductor"),
    _torch("openvino", backend="openvino"),
    Contender("fastembed", "fastembed.py", "fastembed", exported=True),
    Contender("infinity", "infinity.py", "infinity"),
)


class ContenderFailed(Exception):
    """A contender is not installed, failed, or did not answer; the report has the reason."""


class Process:
    """A contender's process, which answers in lines of JSON; as a context, killed at the end."""

    def __init__(self, contender: Contender, venvs: Path) -> None:
        self._name = contender.name
        own = venvs / contender.venv / "bin/python" if contender.venv else Path(sys.executable)
        # not a pipe, which would fill up while the parent waits for an answer
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        command = [own, "-P", PEERS / "child.py", PEERS / contender.script]
        try:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | _ENVIRONMENT,
                encoding="utf-8",
            )
        except OSError:
            self._errors.close()
            raise ContenderFailed(f"there is no {own}: run `make peers`") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(OSError):  # a dead child never reads the request
            # closes the pipes too
            self._process.__exit__(None, None, None)
        self._errors.close()

    def request(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 -- any JSON
        """Send a request and return its result; raises ContenderFailed with its message."""
        # killing ends the wait, since reading a pipe has no portable timeout
        watchdog = Timer(_LIMIT_SECONDS, self._process.kill)
        watchdog.start()
        reply = None
        try:
            with suppress(OSError, ValueError):
                print(json.dumps({name: arguments}), file=self._process.stdin, flush=True)
                assert self._process.stdout  # noqa: S101 -- a pipe was asked for
                reply = json.loads(self._process.stdout.readline())
        finally:
            watchdog.cancel()
        if reply is None:
            raise ContenderFailed(f"its process is gone: {self._last_words()}")
        if "error" in reply:
            raise ContenderFailed(f"it cannot {name}: {reply['error']}")
        return reply

    @contextmanager
    def awake(self) -> Iterator[Self]:
        """Let it run; else it is stopped, and takes no time from the one that is measured."""
        self._process.send_signal(signal.SIGCONT)
        yield self
        self._process.send_signal(signal.SIGSTOP)

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_SECONDS)
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return _last_line(self._errors.read().decode("utf-8", "replace"))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:_LONGEST_REASON]


def export(model: Path, venvs: Path, target: Path) -> Path:
    """Export a model's folder to ONNX where torch is, once; raises ContenderFailed."""
    if not target.is_dir():
        command = [venvs / TORCH / "bin/python", "-P", PEERS / "export.py", model, target]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, env=os.environ | _ENVIRONMENT
            )
        except OSError:
            raise ContenderFailed(f"there is no {command[0]}: run `make peers`") from None
        except subprocess.CalledProcessError as error:
            raise ContenderFailed(f"no ONNX was exported: {_last_line(error.stderr)}") from None
    return target


class Comparison:
    """A running comparison with one model: the remaining contenders, and the figures so far."""

    def __init__(self, level: str, model: Path, given: argparse.Namespace, scratch: Path) -> None:
        self._level, self._model, self._venvs, self._scratch = level, model, given.venvs, scratch
        self._texts = texts.kinds(given.texts or _TEXTS[level])
        self._batches = _BATCHES[level]
        self._rows: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, Process] = {}
        self._seconds: dict[tuple[str, str, str], list[float]] = {}

    def run(self, rounds: int) -> dict[str, Any]:
        """Measure; no process is left when it ends."""
        with ExitStack() as stack:
            for contender in CONTENDERS:
                self._open(contender, stack)
            for number in range(rounds):
                for batch in self._batches:
                    say(f"{self._level}: round {number + 1} of {rounds}, {batch} texts a call")
                    self._turn(batch)
            self._check()
        tokenizer = Tokenizer(self._model / TOKENIZER, 512)
        tokens = {kind: round(fmean(tokenizer.count(some))) for kind, some in self._texts.items()}
        return {"tokens": tokens, "programs": self._figures()}

    def _open(self, contender: Contender, stack: ExitStack) -> None:
        """Start a contender and let it load the model."""
        say(f"{self._level}: loading {contender.name}")
        with self._may_fail(contender.name):
            options = {**contender.options, "level": self._level}
            if options.get("dtype") == "bfloat16" and not cpus.BF16 & cpus.features():
                raise ContenderFailed("this processor only emulates bfloat16")
            if contender.exported:
                target = self._scratch / "exported"
                options["exported"] = str(export(self._model, self._venvs, target))
            process = stack.enter_context(Process(contender, self._venvs))
            with process.awake():
                reply = process.request(
                    "load",
                    folder=str(self._model),
                    scratch=str(self._scratch),
                    threads=cpus.usable(),
                    options=options,
                )
            reply["facts"].pop("threads", None)
            self._rows[contender.name] = {**reply["facts"], "versions": reply["versions"]}
            self._processes[contender.name] = process

    def _turn(self, batch: int) -> None:
        """Let every contender in turn do all passes with a batch size."""
        for name, process in list(self._processes.items()):
            with self._may_fail(name), process.awake():
                for kind, some in self._texts.items():
                    for how, whole in ((str(batch), False), (f"whole {batch}", True)):
                        reply = process.request("measure", texts=some, batch=batch, whole=whole)
                        self._seconds.setdefault((name, kind, how), []).append(reply["seconds"])
                        self._rows[name]["MiB"] = reply["rss"] >> 20

    def _check(self) -> None:
        """Compare the vectors of every contender with the reference's."""
        vectors: dict[str, NDArray[np.float64]] = {}
        some = [text for kind in self._texts.values() for text in kind[:_CHECKED]]
        for name, process in list(self._processes.items()):
            with self._may_fail(name), process.awake():
                rows = np.asarray(
                    process.request("vectors", texts=some, batch=_CHECKED_BATCH)["vectors"]
                )
                vectors[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for name, found in vectors.items():
            if REFERENCE in vectors:
                cosines = np.sum(found * vectors[REFERENCE], axis=1)
                self._rows[name]["least cosine"] = round(float(cosines.min()), 4)

    def _figures(self) -> dict[str, Any]:
        """Return texts a second of each contender by kind, by texts a call and at its best."""
        best: dict[tuple[str, str], int] = {}
        for (name, kind, how), seconds in self._seconds.items():
            rate = round(len(self._texts[kind]) / median(seconds))
            best[name, kind] = max(rate, best.get((name, kind), 0))
            if how.isdigit():
                self._rows[name].setdefault(kind, {})[how] = rate
        for (name, kind), rate in best.items():
            self._rows[name][kind]["best"] = rate
            ours = best.get((OURS, kind), 0)
            self._rows[name][kind]["op-dbus is"] = round(ours / rate, 2)
        return self._rows

    @contextmanager
    def _may_fail(self, name: str) -> Iterator[None]:
        """Remove a contender that fails from the comparison, and keep the reason."""
        try:
            yield
        except ContenderFailed as failure:
            say(f"{name}: {failure}")
            self._rows[name] = {"failure": str(failure)}
            self._processes.pop(name, None)


def main() -> None:
    """Compare, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, default=Path(".peers"), help="[.peers]")
    parser.add_argument("--level", dest="levels", action="append", choices=list(_TEXTS))
    parser.add_argument("--rounds", type=int, default=3, help="the median counts [3]")
    parser.add_argument("--texts", type=int, default=0, help="of each kind, for a short run")
    given = parse(parser)
    given.venvs = given.venvs.absolute()
    settings, found = config.load(os.environ), dict[str, Any]()
    for level in given.levels or [name for name in LEVELS if name in ON_PROVIDERS]:
        model = folder.load_model(LEVELS[level], settings)
        with tempfile.TemporaryDirectory() as scratch:
            run = Comparison(level, model.folder, given, Path(scratch))
            found[level] = {"model": model.name, **run.run(given.rounds)}
    # the same with each model
    for level in list(found)[1:]:
        for row in found[level]["programs"].values():
            row.pop("versions", None)
    write(given, found)


if __name__ == "__main__":
    main()
