"""The runs of dpkg and apt: when one begins and ends, and its name as the cause of changes."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.history.change import MAX_CAUSE
from opdbus.observe.causes import Causes
from opdbus.state.redact import redact_text
from opdbus.state.watch import Change, Watch

# Events within this time are read together; outside of a run, a change is over after a longer time.
_SETTLE_SECONDS: Final = 0.2
_QUIET_SECONDS: Final = 0.8
# A run in which nothing happens for so long waits for a person, or its end was not seen.
_MOST_WAIT_SECONDS: Final = 300.0
# Without a log: what changes so soon after something else was the same run.
_SAME_RUN_SECONDS: Final = 10.0
# apt says when it ends: without that, it has ended when its lock was closed so long ago.
_CLOSED_SECONDS: Final = 3.0
# What changes so soon after a run is of it.
_LATE_SECONDS: Final = 1.0
# Of what was added to a log.
_MAX_BYTES: Final = 1 << 20
_BY_APT: Final = re.compile(
    rb"^Start-Date: ([0-9-]{10}) +([0-9:]{8})(?:\nCommandline: (.*))?$", re.MULTILINE
)
_APT_BEGINS: Final = b"Start-Date: "
_APT_ENDS: Final = re.compile(rb"^End-Date: ", re.MULTILINE)
_BY_DPKG: Final = re.compile(rb"^([0-9-]{10}) ([0-9:]{8}) startup ", re.MULTILINE)
_Signature: TypeAlias = tuple[int, int, int] | None


class Log:
    """A log of which only what is added is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self.added()

    def added(self) -> bytes:
        """Return what was added since the last time; empty where it may not be read."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                # a log that is shorter than before is another one
                file.seek(max(self._read if self._read <= size else 0, size - _MAX_BYTES))
                content = file.read(_MAX_BYTES)
        except OSError:
            return b""
        self._read = size
        return content


class ByTime:
    """Runs of which no log tells: changes that follow each other soon are one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._cause = ""
        self._seen_at = -_SAME_RUN_SECONDS

    def cause(self) -> str:
        """Return the run that changes something now."""
        if time.monotonic() > self._seen_at + _SAME_RUN_SECONDS:
            self._cause = f"{self._name}:{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S}"
        self._seen_at = time.monotonic()
        return self._cause


class Runs:
    """Says when packages have changed, and which run has changed them.

    While a run goes on packages are half-way, and change several times: they are read when it is
    over. dpkg then closes the lock of package managers; apt says so in its log.
    """

    def __init__(self, dpkg: Path, states: Path, logs: Path, causes: Causes) -> None:
        self._lock = str(dpkg / "lock-frontend")
        self._watched = (dpkg / "status", states)
        self._apt, self._dpkg = Log(logs / "apt" / "history.log"), Log(logs / "dpkg.log")
        self._causes = causes
        self._known = self._signatures()
        self._unlogged = ByTime("dpkg")
        self._cause = ""
        # "apt" or "dpkg" while a run goes on, and when the last one ended
        self._on = ""
        self._seen_at = -_LATE_SECONDS
        self._is_closed = False

    async def changes(self) -> AsyncGenerator[str]:
        """Yield at once, and the cause whenever packages have changed; raises OSError."""
        is_first = True
        files = [self._lock, *map(str, (*self._watched, self._apt.path, self._dpkg.path))]
        while True:
            with Watch(files) as watch:
                # something may have changed before this watch
                change: Change | None = Change({})
                while change is not None:
                    self._hear(change)
                    if is_first or await self._have_changed():
                        self._known = self._signatures()
                        yield "" if is_first else self._cause
                    is_first = False
                    change = await self._next(watch)

    async def _next(self, watch: Watch) -> Change | None:
        """Wait for a change; a run in which nothing more happens is over."""
        most = _CLOSED_SECONDS if self._is_closed else _MOST_WAIT_SECONDS
        try:
            async with asyncio.timeout(most if self._on else None):
                return await watch.change(_SETTLE_SECONDS)
        except TimeoutError:
            self._end()
            return Change({})

    def _hear(self, change: Change) -> None:
        """Learn from the logs and from the lock whether a run goes on."""
        by_apt, by_dpkg = self._apt.added(), self._dpkg.added()
        is_closed = change.was_closed(self._lock)
        if begun := list(_BY_APT.finditer(by_apt)):
            self._begin("apt", begun[-1])
        # dpkg says so several times in a run
        elif (not self._on or (self._on == "dpkg" and is_closed)) and (
            first := _BY_DPKG.search(by_dpkg)
        ):
            self._begin("dpkg", first)
        # others open and close the lock, too, while apt goes on
        self._is_closed = is_closed
        latest = by_apt.rpartition(_APT_BEGINS)[2]
        if (self._on == "dpkg" and is_closed) or _APT_ENDS.search(latest):
            self._end()

    def _begin(self, name: str, found: re.Match[bytes]) -> None:
        words = [part.decode(errors="replace") for part in found.groups() if part]
        self._cause = _sane(f"{name}:{words[0]}T{' '.join(words[1:])}")
        self._on = name
        self._causes.run_goes_on(self._cause)

    def _end(self) -> None:
        if self._on:
            self._on = ""
            self._seen_at = time.monotonic()
            self._causes.run_ended()

    async def _have_changed(self) -> bool:
        """Return whether packages have changed and no run goes on any more."""
        if self._on or self._signatures() == self._known:
            return False
        if time.monotonic() > self._seen_at + _LATE_SECONDS:
            self._cause = self._unlogged.cause()
            await asyncio.sleep(_QUIET_SECONDS)
        return True

    def _signatures(self) -> Sequence[_Signature]:
        return [_signature(path) for path in self._watched]


def _sane(text: str) -> str:
    """Return a line without secrets, cut where it is long."""
    line = redact_text(text[: 4 * MAX_CAUSE])[:MAX_CAUSE]
    return "".join(char if char.isprintable() else "?" for char in line)


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
