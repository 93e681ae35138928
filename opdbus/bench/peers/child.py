"""The process of one contender: loads its script, then answers each line of JSON with one.

It runs in the contender's virtual environment, where op-dbus is not installed: run as a file, it
imports the standard library only. Requests are {"load": ...}, {"measure": ...} and
{"vectors": ...}; a reply is their result or {"error": sentence}.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import platform
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

if TYPE_CHECKING:
    Embed = Callable[[Sequence[str]], Any]
    # gives what embeds with a batch size
    At = Callable[[int], Embed]
    # what the script says of itself: precision, threads, settings
    Facts = Mapping[str, str]
    Json: TypeAlias = Any

_PR_SET_PDEATHSIG: Final = 1
# Texts that are embedded, and not measured, before each pass: the process has just been woken.
_WARM: Final = 16


class Contender:
    """A script and the model that it loaded, which all but `load` need."""

    _at: At

    def __init__(self, script: str) -> None:
        self._script = runpy.run_path(script)

    def load(self, folder: str, scratch: str, threads: int, options: dict[str, str]) -> Json:
        """Load the model's folder; return versions, precision, seconds and memory."""
        start = time.perf_counter()
        load = self._script["load"]
        self._at, facts = load(Path(folder), Path(scratch), threads, options)
        self._at(1)(["once"])
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "rss": rss(), "versions": self._versions(), "facts": facts}

    def measure(self, texts: list[str], batch: int, whole: bool) -> Json:  # noqa: FBT001 -- JSON
        """Embed all texts, in one call or `batch` a call, and return the seconds that it took."""
        embed = self._at(batch)
        size = len(texts) if whole else batch
        calls = [texts[start : start + size] for start in range(0, len(texts), size)]
        embed(texts[: min(size, _WARM)])
        start = time.perf_counter()
        for call in calls:
            embed(call)
        return {"seconds": time.perf_counter() - start, "rss": rss()}

    def vectors(self, texts: list[str], batch: int) -> Json:
        """Give the vectors themselves."""
        return {"vectors": [[float(x) for x in row] for row in self._at(batch)(texts)]}

    def _versions(self) -> dict[str, str]:
        found = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
        names = [name for name in self._script["PACKAGES"] if name in found]
        return {"python": platform.python_version()} | {name: found[name] for name in names}


def rss() -> int:
    """Give the resident memory of this process in bytes; 0 where it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def answer(contender: Contender, line: str) -> Json:
    """Carry out one request."""
    try:
        [(name, arguments)] = json.loads(line).items()
        return getattr(contender, name)(**arguments)
    # whatever a library raises is a result of the comparison, and the parent reports it
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer requests until there are no more."""
    die_with_parent()
    replies = own_stdout()
    contender = Contender(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(answer(contender, line)), file=replies, flush=True)


def die_with_parent() -> None:
    """Be killed when the parent is gone, also if it was killed and we are stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def own_stdout() -> TextIO:
    """Keep the pipe for replies; what libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # what it says last must not be lost in a buffer when it dies
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return replies


if __name__ == "__main__":
    main()
