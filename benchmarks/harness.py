"""A bus, a daemon and a gateway of a benchmark's own, its times, and its report."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from opdbus import __version__
from opdbus.bench.measures import describe
from opdbus.client import Client
from opdbus.errors import OpDbusError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
EXAMPLE: Final = ROOT / "state.example.json"
_START_SECONDS: Final = 120.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# A daemon that computes less of the time is idle; seconds between two looks.
_IDLE_SHARE: Final = 0.05
_LOOK_SECONDS: Final = 2.0
_INNERMOST: Final = re.compile(r"[\[{][^][{}]*[]}]")


class Program:
    """`op-dbus ...` as a child process, as a context, which kills it."""

    def __init__(self, *arguments: object, log: Path, environ: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-m", "opdbus", *map(str, arguments)]
        self._environ = environ
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill it, if it still runs."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def start(self) -> Self:
        """Start it; what it prints goes to its log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environ, stdout=log, stderr=log
            )
        return self

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process  # noqa: S101 -- it was started
        return self._process.pid

    def stop(self) -> float:
        """End it as systemd does, and return the seconds that it took."""
        began = time.perf_counter()
        assert self._process  # noqa: S101 -- it was started
        self._process.terminate()
        self._process.wait()
        return time.perf_counter() - began

    def wait_for_log(self, words: str) -> None:
        """Wait until its log has these words; raises RuntimeError if it ends before."""
        end = time.monotonic() + _START_SECONDS
        while words not in (text := self.log.read_text(errors="replace")):
            assert self._process  # noqa: S101 -- it was started
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no {words!r} in:\n{text}")
            time.sleep(0.02)


class Daemon(Program):
    """`op-dbus daemon` on a private bus; settings are without their prefix."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self.bus = self._stack.enter_context(private_bus())
        own = {"BUS": self.bus, "STATE_DIR": folder / "state", "OBSERVE": "none"}
        given = {f"OP_DBUS_{name}": str(value) for name, value in {**own, **settings}.items()}
        kept = {name: each for name, each in os.environ.items() if not name.startswith("OP_DBUS_")}
        # where the models are
        kept |= {name: os.environ[name] for name in ("OP_DBUS_MODEL_DIR",) if name in os.environ}
        self.environ = kept | given
        super().__init__("daemon", log=folder / "daemon.log", environ=self.environ)

    def close(self) -> None:
        """Kill it and its bus."""
        super().close()
        self._stack.close()

    def run(self, *arguments: str) -> str:
        """Run `op-dbus` beside it, and return what it prints."""
        command = [sys.executable, "-m", "opdbus", *arguments]
        return subprocess.run(
            command, env=self.environ, check=True, capture_output=True, text=True
        ).stdout

    def gateway(self, *listen: str, **settings: object) -> Program:
        """Return a gateway of it, which is not started."""
        environ = self.environ | {f"OP_DBUS_{key}": str(each) for key, each in settings.items()}
        flags = [word for each in listen for word in ("--listen", each)]
        return Program("gateway", *flags, log=self.folder / "gateway.log", environ=environ)

    async def until_serving(self) -> None:
        """Wait until it answers, and its model is there."""
        async with Client(self.bus) as client:
            while True:
                with suppress(OpDbusError):
                    if (await client.status())["State"] in {"ready", "degraded"}:
                        return
                await asyncio.sleep(0.01)

    async def until_vectorized(self) -> None:
        """Wait until every object has its vector, however long that takes."""
        await self.until_serving()
        async with Client(self.bus) as client:
            while (await client.status())["Pending"]:  # noqa: ASYNC110 -- no signal has a number
                await asyncio.sleep(0.02)

    def until_idle(self) -> None:
        """Wait until it computes no more."""
        used = -1.0
        while (now := cpu_seconds(self.pid)) - used > _IDLE_SHARE * _LOOK_SECONDS:
            used = now
            time.sleep(_LOOK_SECONDS)


@contextmanager
def private_bus() -> Iterator[str]:
    """Run a dbus-daemon, and give its address."""
    with tempfile.TemporaryDirectory(prefix="op-dbus-bus-") as folder:
        command = ["dbus-daemon", "--session", "--nofork", "--print-address=1"]
        command.append(f"--address=unix:path={folder}/bus")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout  # noqa: S101 -- a pipe was asked for
            yield process.stdout.readline().decode().strip()
            process.kill()


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def memory_mib(pid: int, row: str = "VmRSS") -> float:
    """Return a row of the memory of a process, such as VmHWM, its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(each.split()[1]) / 1024 for each in lines if each.startswith(row)), 1)


def milliseconds(seconds: Iterable[float], *cuts: int) -> dict[str, float]:
    """Return percentiles of times, `p50` and `p99` unless others are asked for."""
    times = 1000 * np.array(list(seconds))
    return {f"p{cut}": round(float(np.percentile(times, cut)), 2) for cut in cuts or (50, 99)}


async def timed(count: int, ask: Callable[[int], Awaitable[Any]]) -> list[float]:
    """Return the seconds of so many calls, one after the other."""
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        await ask(number)
        seconds.append(time.perf_counter() - began)
    return seconds


def parse(parser: ArgumentParser, arguments: Sequence[str] | None = None) -> Namespace:
    """Parse the command line, with `--json FILE` for the report."""
    parser.add_argument("--json", type=Path, help="where the report goes")
    return parser.parse_args(arguments)


def write(given: Namespace, found: dict[str, Any]) -> None:
    """Print a report with the day and the machine, and write it where `--json` says."""
    head = {"date": f"{datetime.now(UTC):%F}", "op-dbus": __version__}
    head |= {"machine": describe().line, "python": platform.python_version()}
    text = json.dumps(head | {"load average": round(os.getloadavg()[1], 1)} | found, indent=1)
    # innermost lists and objects on a line of their own
    text = _INNERMOST.sub(lambda match: re.sub(r"\n\s*", " ", match[0]), text)
    print(text)
    if given.json:
        given.json.write_text(f"{text}\n", encoding="utf-8")


def say(text: object) -> None:
    """Tell the progress on standard error."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)
