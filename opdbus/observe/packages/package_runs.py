"""Runs of dpkg and apt, with start, end and name, as causes of changes."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.history.change import MAX_CAUSE
from opdbus.observe.core.file_reading import changed_at, files_in
from opdbus.observe.core.recent_causes import Causes
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.regular_files import open_regular
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
# dpkg has its lock so long before it writes to its log, on the slowest of machines.
_STARTING_SECONDS: Final = 10.0
# What changes so soon after a run is of it: apt notes which packages are dependencies.
_LATE_SECONDS: Final = 1.0
# Of what was added to a log.
_MAX_BYTES: Final = 1 << 20
_BY_APT: Final = re.compile(
    rb"^Start-Date: ([0-9-]{10}) +([0-9:]{8})(?:\nCommandline: (.*))?$", re.MULTILINE
)
_APT_BEGINS: Final = b"Start-Date: "
_APT_BEGINNINGS: Final = re.compile(rb"^Start-Date:.*$", re.MULTILINE)
_APT_ENDS: Final = re.compile(rb"^End-Date: ", re.MULTILINE)
_BY_DPKG: Final = re.compile(rb"^([0-9-]{10}) ([0-9:]{8}) startup ", re.MULTILINE)
_Signature: TypeAlias = tuple[int, int, int] | None


class Log:
    """A log of which only what is added is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        # whether it could be read the last time
        self.is_read = False
        self.added()

    def added(self) -> bytes:
        """Return what was added since the last time; empty where it may not be read."""
        try:
            with os.fdopen(open_regular(self.path, follow=True), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                # a log that is shorter than before is another one
                file.seek(max(self._read if self._read <= size else 0, size - _MAX_BYTES))
                content = file.read(_MAX_BYTES)
                # it may have grown meanwhile
                self._read, self.is_read = file.tell(), True
        except OSError:
            self.is_read = False
            return b""
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
        # dpkg empties this when it begins
        self._begins = str(dpkg / "lock")
        # while dpkg works, there are notes of it here
        self._notes = dpkg / "updates"
        self._watched = (str(dpkg / "status"), str(states))
        self._apt, self._dpkg = Log(logs / "apt" / "history.log"), Log(logs / "dpkg.log")
        self._causes = causes
        # beginnings of runs that are not understood: their time is that at which they were read
        self.skipped = Skipped()
        self._known = self._signatures()
        self._unlogged = ByTime("dpkg")
        self._cause = ""
        # "apt" or "dpkg" while a run goes on
        self._on = ""
        self._is_closed = False
        causes.look_for_runs = self._look

    def close(self) -> None:
        """Look for no more runs; nobody waits for the end of one that is not seen any more."""
        self._causes.look_for_runs = lambda: None
        self._causes.run_ended(time.time())

    async def changes(self) -> AsyncGenerator[str]:
        """Yield at once, and the cause whenever packages have changed; raises OSError."""
        is_first = True
        files = [self._lock, *self._watched, str(self._apt.path), str(self._dpkg.path)]
        while True:
            with Watch(files) as watch:
                # something may have changed before this watch
                change: Change | None = Change({})
                while change is not None:
                    # others open and close the lock, too, while apt goes on
                    self._is_closed = change.was_closed(self._lock)
                    self._look(is_closed=self._is_closed)
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
            self._end(time.time())
            return Change({})

    def _look(self, *, is_closed: bool = False) -> None:
        """Learn from the logs, and from a lock that was closed, whether a run goes on."""
        by_apt, by_dpkg = self._apt.added(), self._dpkg.added()
        for line in _APT_BEGINNINGS.findall(by_apt):
            if not _BY_APT.match(line):
                self.skipped.row(f"the beginning of a run in {self._apt.path}")
        if begun := list(_BY_APT.finditer(by_apt)):
            self._begin("apt", begun[-1])
        # dpkg says so several times in a run
        elif (not self._on or (self._on == "dpkg" and is_closed)) and (
            first := _BY_DPKG.search(by_dpkg)
        ):
            self._begin("dpkg", first)
        if _APT_ENDS.search(by_apt.rpartition(_APT_BEGINS)[2]):
            self._end(changed_at(str(self._apt.path)))
        elif self._on == "dpkg" and (is_closed or not files_in(self._notes)):
            # one that was killed leaves notes
            self._end(time.time() if files_in(self._notes) else changed_at(str(self._notes)))

    def _begin(self, name: str, found: re.Match[bytes]) -> None:
        words = [part.decode(errors="replace") for part in found.groups() if part]
        self._on = name
        cause = _sane(f"{name}:{words[0]}T{' '.join(words[1:])}")
        self._causes.run_begins(cause, self._begun(_time(words)))

    def _begun(self, second: float) -> float:
        """Return when a run began, of which logs have the second: what was done before is not its.

        dpkg takes its lock, and reads all packages, before it writes to its log. apt writes first,
        and a lock from before that is another's.
        """
        lock = changed_at(self._begins)
        if self._on == "dpkg":
            return lock if second - _STARTING_SECONDS < lock < second + 1 else second
        signs = [at for at in (lock, changed_at(str(self._apt.path))) if second <= at < second + 1]
        return min(signs, default=second)

    def _end(self, at: float) -> None:
        if self._on:
            self._on = ""
            self._causes.run_ended(at)

    async def _have_changed(self) -> bool:
        """Return whether packages have changed and no run goes on any more."""
        if self._on or self._signatures() == self._known:
            return False
        self._cause = self._run()
        if not self._cause:
            # apt has dpkg note what it wants, and begins its log only then
            await asyncio.sleep(_QUIET_SECONDS)
            self._look()
            # that a package is held is noted without a run
            self._cause = self._run() or ("" if self._dpkg.is_read else self._unlogged.cause())
        return not self._on

    def _run(self) -> str:
        """Return the run that changed packages last; empty if none is known."""
        rows = zip(self._watched, self._signatures(), self._known, strict=True)
        at = max((changed_at(path) for path, now, known in rows if now != known), default=0.0)
        return self._causes.run(at) or self._causes.run(at - _LATE_SECONDS)

    def _signatures(self) -> Sequence[_Signature]:
        return [_signature(path) for path in self._watched]


def _time(words: Sequence[str]) -> float:
    """Return when a run began, in seconds since 1970: logs have days and local times."""
    with suppress(ValueError):
        return min(time.time(), datetime.fromisoformat(f"{words[0]} {words[1]}").timestamp())
    return time.time()


def _sane(text: str) -> str:
    """Return a line without secrets, cut where it is long."""
    line = redact_text(text[: 4 * MAX_CAUSE])[:MAX_CAUSE]
    return "".join(char if char.isprintable() else "?" for char in line)


def _signature(path: str) -> _Signature:
    try:
        found = os.stat(path)  # noqa: PTH116 -- of a text
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
