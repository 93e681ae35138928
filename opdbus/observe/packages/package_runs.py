"""Runs of dpkg and apt, with start, end and name, as causes of changes."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from opdbus.history.change import MAX_CAUSE
from opdbus.observe.core.file_reading import changed_at, files_in
from opdbus.observe.core.recent_causes import Causes
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.regular_files import open_regular
from opdbus.state.redact import redact_text
from opdbus.state.watch import Change, Watch

# Events within this time are handled together; a change outside of a run ends after a longer time.
_SETTLE_SECONDS: Final = 0.2
_QUIET_SECONDS: Final = 0.8
# A run without events for this time waits for a person, or its end was missed.
_MOST_WAIT_SECONDS: Final = 300.0
# Without a log: changes within this time of each other belong to one run.
_SAME_RUN_SECONDS: Final = 10.0
# apt logs its end; without that, it has ended this long after its lock was closed.
_CLOSED_SECONDS: Final = 3.0
# The longest time between dpkg's lock and its first log line.
_STARTING_SECONDS: Final = 10.0
# Changes within this time after a run belong to it: apt records which packages are dependencies.
_LATE_SECONDS: Final = 1.0
# The most bytes of an addition to a log that are read.
_MAX_BYTES: Final = 1 << 20
_BY_APT: Final = re.compile(
    rb"^Start-Date: ([0-9-]{10}) +([0-9:]{8})(?:\nCommandline: (.*))?$", re.MULTILINE
)
_APT_BEGINS: Final = b"Start-Date: "
_APT_BEGINNINGS: Final = re.compile(rb"^Start-Date:.*$", re.MULTILINE)
_APT_ENDS: Final = re.compile(rb"^End-Date: ", re.MULTILINE)
_BY_DPKG: Final = re.compile(rb"^([0-9-]{10}) ([0-9:]{8}) startup ", re.MULTILINE)


class Log:
    """Reader of the additions to a log file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        # False if the last attempt to read it failed
        self.is_read = False

    def read_added(self) -> bytes:
        """Return the text added since the last call; empty if the file cannot be read."""
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


class UnloggedRuns:
    """Runs of a program without a log: changes that follow each other soon are one run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._cause = ""
        self._seen_at = -_SAME_RUN_SECONDS

    def cause(self) -> str:
        """Return the run to which a change at this moment belongs."""
        if time.monotonic() > self._seen_at + _SAME_RUN_SECONDS:
            self._cause = f"{self._name}:{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S}"
        self._seen_at = time.monotonic()
        return self._cause


class Runs:
    """Detector of package changes and of the runs of dpkg and apt that caused them.

    During a run, packages change several times, so that they are read only after it. At its end
    dpkg closes the lock of package managers; apt also writes to its log.
    """

    def __init__(self, dpkg: Path, states: Path, logs: Path, causes: Causes) -> None:
        self._lock = str(dpkg / "lock-frontend")
        # dpkg empties this file at the start of a run
        self._start_lock = str(dpkg / "lock")
        # holds files while dpkg works
        self._updates = dpkg / "updates"
        self._watched = (str(dpkg / "status"), str(states))
        self._apt, self._dpkg = Log(logs / "apt" / "history.log"), Log(logs / "dpkg.log")
        self._causes = causes
        # starts that could not be parsed: the time of reading counts instead of theirs
        self.skipped = Skipped()
        self._known = self._signatures()
        self._unlogged = UnloggedRuns("dpkg")
        self._cause = ""
        # "apt" or "dpkg" during a run
        self._current = ""
        self._is_closed = False
        self._resume()
        causes.look_for_runs = self._read_logs

    @property
    def is_going(self) -> bool:
        """True during a run."""
        return bool(self._current)

    def _resume(self) -> None:
        """Read the logs so far, and detect a run that began before: one may have started op-dbus.

        A run that was killed leaves files, too, but has changed nothing lately.
        """
        by_apt, by_dpkg = self._apt.read_added(), self._dpkg.read_added()
        is_quiet = time.time() > changed_at(str(self._updates)) + _MOST_WAIT_SECONDS
        if is_quiet or not files_in(self._updates):
            return
        apt, dpkg = (
            list(each.finditer(log)) for each, log in ((_BY_APT, by_apt), (_BY_DPKG, by_dpkg))
        )
        if apt and not _APT_ENDS.search(by_apt, apt[-1].end()):
            self._begin("apt", apt[-1])
        elif dpkg:
            self._begin("dpkg", dpkg[-1])

    def close(self) -> None:
        """Stop the detection; the current run counts as ended, so that nobody waits for it."""
        self._causes.look_for_runs = lambda: None
        self._causes.end_run(time.time())

    async def changes(self) -> AsyncGenerator[str]:
        """Yield at once, and the cause whenever packages have changed; raises OSError."""
        is_first = True
        files = [self._lock, *self._watched, str(self._apt.path), str(self._dpkg.path)]
        while True:
            with Watch(files) as watch:
                # packages may have changed before this watch
                change: Change | None = Change({})
                while change is not None:
                    # during a run of apt, other programs open and close the lock, too
                    self._is_closed = change.was_closed(self._lock)
                    self._read_logs(is_closed=self._is_closed)
                    if is_first or await self._have_changed():
                        # what is read during a run is read again after it
                        is_half = is_first and self.is_going
                        self._known = [None] * len(self._watched) if is_half else self._signatures()
                        yield "" if is_first else self._cause
                    is_first = False
                    most = _CLOSED_SECONDS if self._is_closed else _MOST_WAIT_SECONDS
                    try:
                        async with asyncio.timeout(most if self._current else None):
                            change = await watch.change(_SETTLE_SECONDS)
                    except TimeoutError:
                        self._end(time.time())
                        change = Change({})

    def _read_logs(self, *, is_closed: bool = False) -> None:
        """Detect starts and ends of runs in the logs, and by a lock that was closed."""
        by_apt, by_dpkg = self._apt.read_added(), self._dpkg.read_added()
        for line in _APT_BEGINNINGS.findall(by_apt):
            if not _BY_APT.match(line):
                self.skipped.row(f"the beginning of a run in {self._apt.path}")
        if starts := list(_BY_APT.finditer(by_apt)):
            self._begin("apt", starts[-1])
        # dpkg logs several starts in a run
        elif (not self._current or (self._current == "dpkg" and is_closed)) and (
            first := _BY_DPKG.search(by_dpkg)
        ):
            self._begin("dpkg", first)
        if _APT_ENDS.search(by_apt.rpartition(_APT_BEGINS)[2]):
            self._end(changed_at(str(self._apt.path)))
        elif self._current == "dpkg" and (is_closed or not files_in(self._updates)):
            # a run that was killed leaves files
            self._end(time.time() if files_in(self._updates) else changed_at(str(self._updates)))

    def _begin(self, name: str, found: re.Match[bytes]) -> None:
        """Record the start of a run; logs have only its second, and locks a more precise time.

        dpkg takes its lock, and reads all packages, before it writes to its log. apt writes to its
        log first, and an older lock belongs to another program.
        """
        words = [part.decode(errors="replace") for part in found.groups() if part]
        line = redact_text(f"{name}:{words[0]}T{' '.join(words[1:])}"[: 4 * MAX_CAUSE])[:MAX_CAUSE]
        cause = "".join(char if char.isprintable() else "?" for char in line)
        second = time.time()
        with suppress(ValueError):  # logs have local times
            logged = datetime.fromisoformat(f"{words[0]} {words[1]}").timestamp()
            second = min(second, logged)
        self._current = name
        lock = changed_at(self._start_lock)
        if name == "dpkg":
            start = lock if second - _STARTING_SECONDS < lock < second + 1 else second
        else:
            times = (lock, changed_at(str(self._apt.path)))
            start = min((at for at in times if second <= at < second + 1), default=second)
        self._causes.run_begins(cause, start)

    def _end(self, at: float) -> None:
        if self._current:
            self._current = ""
            self._causes.end_run(at)

    async def _have_changed(self) -> bool:
        """Return whether packages have changed and no run is in progress; sets the cause."""
        if self._current or self._signatures() == self._known:
            return False
        self._cause = self._find_run()
        if not self._cause:
            # apt has dpkg record its selections before it writes the start to its log
            await asyncio.sleep(_QUIET_SECONDS)
            self._read_logs()
            self._cause = self._find_run()
            # dpkg logs nothing when a package is held
            if not self._cause and not self._dpkg.is_read:
                self._cause = self._unlogged.cause()
        return not self._current

    def _find_run(self) -> str:
        """Return the run that changed packages last; empty if unknown."""
        rows = zip(self._watched, self._signatures(), self._known, strict=True)
        at = max((changed_at(path) for path, now, before in rows if now != before), default=0.0)
        return self._causes.run(at) or self._causes.run(at - _LATE_SECONDS)

    def _signatures(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for path in self._watched:
            try:
                status = os.stat(path)  # noqa: PTH116 -- of a text
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                found.append(None)
        return found
