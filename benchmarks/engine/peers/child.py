"""Process of one contender: loads its script, then answers each JSON line with one JSON line.

It runs in the contender's virtual environment, where op-dbus is not installed: run as a file, it
imports the standard library only. Requests are {"load": ...}, {"measure": ...} and {"vectors":
...}; a reply is their result or {"error": sentence}.
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
    # returns the function that embeds with a batch size
    At = Callable[[int], Embed]
    # the script's own description: precision, threads, settings
    Facts = Mapping[str, str]
    Json: TypeAlias = Any

_PR_SET_PDEATHSIG: Final = 1
# Texts embedded before each measured pass, since the process has just been resumed.
_WARM: Final = 16


class Contender:
    """A script and the model that it loaded; call `load` first."""

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
        """Return the vectors of texts."""
        return {"vectors": [[float(x) for x in row] for row in self._at(batch)(texts)]}

    def _versions(self) -> dict[str, str]:
        found = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
        names = [name for name in self._script["PACKAGES"] if name in found]
        return {"python": platform.python_version()} | {name: found[name] for name in names}


def rss() -> int:
    """Return the resident memory of this process in bytes; 0 if it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def answer(contender: Contender, line: str) -> Json:
    """Handle one request."""
    try:
        [(name, arguments)] = json.loads(line).items()
        return getattr(contender, name)(**arguments)
    # any exception of a library is a result of the comparison, which the parent reports
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer requests until standard input ends."""
    die_with_parent()
    replies = own_stdout()
    contender = Contender(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(answer(contender, line)), file=replies, flush=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even if it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def own_stdout() -> TextIO:
    """Return a stream for replies, and redirect stdout, where libraries print, to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # the last line must not be lost in a buffer if the process dies
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return replies


if __name__ == "__main__":
    main()
