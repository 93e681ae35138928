"""Publishes from the journal who became root and for what, and last lines of units that failed.

op-dbus-journal.service runs it, apart from the daemon: it may read the journal, which has what all
programs say. It follows the few entries that are about this, with `journalctl`, which each systemd
has; a unit's own lines are read once it has failed.
"""

import asyncio
import json
import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.history import acts
from opdbus.platform.lines import split_lines, write_line
from opdbus.platform.regular_files import replace_file
from opdbus.platform.tasks import at_most, end_child, signals, until_first_ends
from opdbus.platform.timestamps import uptime
from opdbus.publishers import failure_reasons, journal_lines
from opdbus.publishers.failure_reasons import Line, strip_control
from opdbus.publishers.journal_lines import (
    Act,
    ActStarted,
    CommandContinued,
    Entry,
    Failure,
    RootLoggedIn,
    SessionClosed,
    escape,
)
from opdbus.publishers.retrying import repeat_forever
from opdbus.state.object import PUBLISHED
from opdbus.state.redact import redact

Fields: TypeAlias = dict[str, Any]
Published: TypeAlias = tuple[str, str, str, Fields]
# The sources as their publisher names them.
_SOURCE: Final = acts.SOURCE.removeprefix(PUBLISHED)
_READER: Final = acts.READER.removeprefix(PUBLISHED)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
# Entries within this time are published together: mainly a command and its end.
_GATHER_SECONDS: Final = 0.25
# So often at most in the long run; so many times at once, as in an hour of work with sudo.
_RATE_SECONDS: Final = 5.0
_AT_ONCE: Final = 120
_LOOK_SECONDS: Final = 60.0
_SAVE_SECONDS: Final = 59.0
# Entries before this are not read any more when the service was off.
_MOST_LATE_SECONDS: Final = 3600.0
_ANSWER_SECONDS: Final = 10.0
# A command that has closed its output is killed if it has not ended after this time.
_END_SECONDS: Final = 2.0
_SAME_UNIT_SECONDS: Final = 10.0
# After what time a failed unit's lines are read again: the journal may get them late. The last time
# counts only if there were none before.
_AGAIN: Final = (2.0, 8.0)
# Entries without the id of a run are of this one if they are so near to its failure.
_RUN_SECONDS: Final = 60
# Limits: sessions as root, commands and failed units at a time, units, lines, characters.
_MOST_OPEN: Final = 200
_MOST_ACTS: Final = 50
_MOST_USERS: Final = 20
_MOST_FAILED: Final = 20
_MOST_UNITS: Final = 500
_MOST_LINES: Final = 10
_MOST_READ: Final = 20
_LINE: Final = 300
_BYTES_A_LINE: Final = 1 << 20
_RUN: Final = "_SYSTEMD_INVOCATION_ID"
_FIELDS: Final = (
    "--output-fields=MESSAGE,MESSAGE_ID,SYSLOG_IDENTIFIER,UNIT,UNIT_RESULT,INVOCATION_ID,PRIORITY,"
    "CONTAINER_ID,_PID,_UID,_EXE,_CMDLINE,_BOOT_ID,_AUDIT_LOGINUID,_SYSTEMD_UNIT,"
    f"_SOURCE_REALTIME_TIMESTAMP,{_RUN}"
)
_FAILED: Final = ("_PID=1", f"MESSAGE_ID={journal_lines.FAILED}")
_MATCHES: Final = (
    *(f"SYSLOG_IDENTIFIER={name}" for name in journal_lines.PROGRAMS),
    *("+", f"_SYSTEMD_UNIT={journal_lines.POLKIT}"),
    *("+", *_FAILED),
)


class PendingLook(NamedTuple):
    """A failed unit whose lines, read `times` times, are to be read at a time of monotonic()."""

    failure: Failure
    times: int = 0
    due: float = 0.0


class JournalBatch:
    """Commands, sessions as root and failed units that were read and are to be published.

    Commands are kept by user and process. `state` is the state that a restart needs, `boot` the id
    of this boot.
    """

    def __init__(self, state: Mapping[str, Any], boot: str) -> None:
        self.cursor = str(state.get("cursor", ""))
        self.units = list(map(str, state.get("units", ())))
        self.open = {key: Act(*act) for key, act in dict(state.get("open", {})).items()}
        pending = (
            PendingLook(Failure(*failure), int(times)) for failure, times in state.get("looks", ())
        )
        self.looks = {look.failure.unit: look for look in pending}
        # the commands that came last, by user, as they were published
        self.ran: dict[str, list[Fields]] = dict(state.get("ran", {}))
        self.boot = boot
        # where root came from, by process of sshd
        self._addresses: dict[str, str] = {}
        # processes of commands that only ask op-dbus
        self._asking: set[str] = set()
        self.acts: dict[str, dict[str, Act]] = {}
        # sessions that ended, by user
        self.ended: dict[str, list[Fields]] = {}
        self.failed: dict[str, Failure] = {}
        # numbers of lines that were not understood, by program, and the shape of the last
        self._unread = Counter[str]()
        self._last_unread = ""

    @property
    def unread(self) -> str:
        """The numbers of lines that were not understood; empty if there are none."""
        counts = (f"{n:,} line{'s' * (n > 1)} of {name}" for name, n in self._unread.items())
        listed = ", ".join(counts)
        return listed and f"{listed} not understood; the last: {self._last_unread}"

    @property
    def state(self) -> Fields:
        """The state as JSON."""
        looks = [look[:2] for look in self.looks.values()]
        return {
            "cursor": self.cursor,
            "units": self.units,
            "open": self.open,
            "looks": looks,
            "ran": self.ran,
            "saved": [self.boot, uptime()],
        }

    @property
    def is_full(self) -> bool:
        """True if more commands or ends of sessions of a user would be left out."""
        counts = map(len, (*self.acts.values(), *self.ended.values()))
        return max(counts, default=0) >= _MOST_ACTS

    def take(self, line: bytes) -> None:
        """Read a line of journalctl."""
        entry = journal_lines.read_entry(line)
        if entry is None:
            if line.strip():
                self._note_unread("journalctl", line.decode(errors="replace"))
            return
        self.cursor = entry.cursor
        event = journal_lines.parse_event(entry)
        if event is None and (program := journal_lines.find_unread(entry)):
            self._note_unread(program, entry.message)
        match event:
            case ActStarted() as started:
                self._begin(started)
            case CommandContinued(key=key, user=user, text=text):
                self._continue(key, user, text)
            case SessionClosed(key=key, at=at):
                self._end(key, at)
            case RootLoggedIn(key=key, address=address):
                if len(self._addresses) >= _MOST_OPEN:
                    self._addresses.clear()
                self._addresses[key] = address
            case Failure() as failure:
                self._note_failure(failure)

    def _note_failure(self, failure: Failure) -> None:
        """Keep the last failure of each unit, and of the most units those that failed last."""
        self.failed.pop(failure.unit, None)
        self.failed[failure.unit] = failure
        if len(self.failed) > _MOST_UNITS:
            del self.failed[next(iter(self.failed))]

    def _note_unread(self, program: str, line: str) -> None:
        self._unread[program] += 1
        self._last_unread = journal_lines.describe_shape(line)

    def end_lost(self) -> None:
        """End the sessions whose process is gone, as after a kill or a boot."""
        for key, act in [*self.open.items()]:
            if key.partition(" ")[0] != self.boot:
                # when it ended is not known
                self._end(key, act.at)
            elif not _is_alive(key):
                self._end(key, int(time.time() * 1e6))

    def clear(self) -> None:
        """Begin another batch."""
        self.acts, self.ended, self.failed = {}, {}, {}

    def users(self) -> list[Published]:
        """Return the object of each user of this batch; a change has a list as a whole."""
        for user, commands in self.acts.items():
            # a user without new ones keeps those from before; the last users are kept
            ran = [_act_fields(act) for act in commands.values()] or self.ran.get(user, [])
            self.ran.pop(user, None)
            self.ran[user] = ran
        found: list[Published] = [
            (
                *acts.USER,
                user,
                {
                    "ran": self.ran[user],
                    "as_root": [_act_fields(act) for act in self.open.values() if act.user == user],
                    "was_root": self.ended.get(user, []),
                },
            )
            for user in self.acts
        ]
        self.ran = dict([*self.ran.items()][-_MOST_USERS:])
        return found

    def _begin(self, started: ActStarted) -> None:
        key, act, is_open = started
        if self._is_question(key, act.command):
            return
        if act.user == journal_lines.ROOT and act.program not in {"ssh", "login"}:
            # root was root before
            is_open = False
            if not act.command:
                return
        ran = self.acts.setdefault(act.user, {})
        if act.program == "ssh":
            act = act._replace(folder=f"from {self._addresses.pop(key, 'an unknown address')}")
        if not is_open:
            if len(ran) < _MOST_ACTS:
                ran[key] = act
            return
        known = ran.get(key)
        if act.command and not known and len(ran) < _MOST_ACTS:
            ran[key] = act
        if len(self.open) < _MOST_OPEN:
            self.open[key] = known or act

    def _is_question(self, key: str, command: str) -> bool:
        """Return whether a process only asks op-dbus, which would find its own questions."""
        if acts.only_asks(command):
            if len(self._asking) >= _MOST_OPEN:
                self._asking.clear()
            self._asking.add(key)
        return key in self._asking

    def _continue(self, key: str, user: str, text: str) -> None:
        if act := self.acts.get(user, {}).get(key):
            longer = act._replace(command=journal_lines.clean(f"{act.command} {text}"))
            self.acts[user][key] = longer
            if self.open.get(key) == act:
                self.open[key] = longer

    def _end(self, key: str, at: int) -> None:
        self._asking.discard(key)
        if act := self.open.pop(key, None):
            self.acts.setdefault(act.user, {})
            ended = self.ended.setdefault(act.user, [])
            if len(ended) < _MOST_ACTS:
                ended.append(_act_fields(act) | {"until": _format_time(at)})


def _is_alive(key: str) -> bool:
    """Return whether the process of a key runs in this boot, as far as its number tells."""
    pid = key.rpartition(" ")[2]
    with suppress(ProcessLookupError, ValueError):
        with suppress(PermissionError):
            os.kill(int(pid), 0)
        return True
    return False


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="milliseconds")


def _act_fields(act: Act) -> Fields:
    found = {
        "at": _format_time(act.at),
        "with": act.program,
        "command": act.command,
        "folder": act.folder,
    }
    return {name: value for name, value in found.items() if value}


@asynccontextmanager
async def running_command(*command: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run a command and yield its output, which is read at our own pace; end it then."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        limit=_BYTES_A_LINE,
    )  # fmt: skip
    try:
        if process.stdout:
            yield process.stdout
    finally:
        try:
            if process.stdout and process.stdout.at_eof():
                # asyncio warns of an unknown process if one is killed just when it ends
                async with at_most(_END_SECONDS):
                    await process.wait()
        finally:
            await end_child(process)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Read the next line; one that is too long is left out."""
    while True:
        with suppress(ValueError):
            return await reader.readline()


class Follower:
    """Follows the journal and publishes what it says, until one of both is gone."""

    def __init__(
        self, client: Client, journalctl: Sequence[str], batch: JournalBatch, state: Path
    ) -> None:
        self._client = client
        self._journalctl = (*journalctl, "--quiet", "--no-pager", "--all", "--output=json", _FIELDS)
        self._batch = batch
        self._state = state
        self._published_at: deque[float] = deque([0.0] * _AT_ONCE, maxlen=_AT_ONCE)
        # when units failed last
        self._failed_at: dict[str, float] = {}
        self._state_text, self._saved_at = "", time.monotonic()
        self._unread = ""
        # what was published last
        self._said: dict[str, Published] = {}
        # why the state could not be written at the last attempt
        self._fault = ""

    async def run(self) -> None:
        """Publish that the journal is followed, and then what it says; raises ConnectionError."""
        async with self._follow() as lines:
            await self._publish_reader()
            if not self._batch.cursor:
                await self._queue_earlier()
            try:
                while True:
                    await self._publish()
                    await self._gather(lines)
            finally:
                self._save()

    async def _gather(self, lines: asyncio.StreamReader) -> None:
        """Read what comes together; nothing when lines of units are due, or once a minute."""
        line = b"\n"
        async with at_most(self._wait()):
            line = await _read_line(lines)
        if not line:
            raise ConnectionError("journalctl ended")
        self._batch.take(line)
        async with at_most(self._pause()):
            while line := await _read_line(lines):
                self._batch.take(line)
                if self._batch.is_full and not self._is_busy:
                    break

    def _wait(self) -> float:
        due = min((look.due for look in self._batch.looks.values()), default=math.inf)
        return max(0.0, min(_LOOK_SECONDS, due - time.monotonic()))

    @property
    def _is_busy(self) -> bool:
        """True if there were so many publications that they come more seldom now."""
        first = self._published_at[0]
        return bool(first) and time.monotonic() - first < _RATE_SECONDS * _AT_ONCE

    def _pause(self) -> float:
        return _RATE_SECONDS if self._is_busy else _GATHER_SECONDS

    def _follow(self) -> AbstractAsyncContextManager[asyncio.StreamReader]:
        # not `now`: journalctl takes a moment to start
        since = f"--since=@{int(time.time())}"
        if self._batch.cursor:
            since = f"--after-cursor={self._batch.cursor}"
        return running_command(*self._journalctl, "--follow", "--no-tail", since, *_MATCHES)

    async def _queue_earlier(self) -> None:
        """Queue the units that failed last in this boot, before the journal was followed."""
        found: dict[str, Failure] = {}
        of_boot = f"_BOOT_ID={self._batch.boot}"
        command = (*self._journalctl, f"--lines={_MOST_UNITS}", *_FAILED, of_boot)
        async with at_most(_ANSWER_SECONDS), running_command(*command) as lines:
            while line := await _read_line(lines):
                entry = journal_lines.read_entry(line)
                event = journal_lines.parse_event(entry) if entry else None
                if isinstance(event, Failure):
                    found.pop(event.unit, None)
                    found[event.unit] = event
        for failure in [*found.values()][-_MOST_FAILED:]:
            self._queue(failure)

    async def _publish_reader(self) -> None:
        """Publish that the journal is followed, and how many lines were not understood."""
        self._unread = self._batch.unread
        fields = {"follows": [*journal_lines.PROGRAMS], "unread": self._unread}
        reader = (*acts.READER_KIND, acts.PUBLISHER, {k: v for k, v in fields.items() if v})
        await self._client.publish(_READER, [reader], lifetime="connection")

    async def _publish(self) -> None:
        if self._batch.unread != self._unread:
            await self._publish_reader()
        self._batch.end_lost()
        objects = self._batch.users()
        for failure in self._batch.failed.values():
            self._queue(failure)
        objects += (failures := await self._look())
        self._batch.clear()
        if objects:
            await self._client.publish(_SOURCE, objects)
            await self._withdraw_oldest([name for *_, name, _ in failures])
            self._published_at.append(time.monotonic())
        # what is read from now on is not published yet
        self._state_text = json.dumps(self._batch.state)
        if objects or time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        """Write the state as of the last publication; if that fails, say so once, and go on."""
        if not self._state_text:
            return
        fault = ""
        try:
            replace_file(self._state, self._state_text)
        except OSError as error:
            fault = f"cannot write {self._state}, which a restart needs: {error.strerror}"
        if fault != self._fault:
            write_line(fault or f"{self._state} is written again", sys.stderr)
        self._fault, self._saved_at = fault, time.monotonic()

    def _queue(self, failure: Failure) -> None:
        """Queue a failure, unless the unit failed just before."""
        now = time.monotonic()
        if now - self._failed_at.get(failure.unit, -_SAME_UNIT_SECONDS) < _SAME_UNIT_SECONDS:
            return
        if len(self._failed_at) > _MOST_UNITS:
            self._failed_at.clear()
            self._said.clear()
        self._failed_at[failure.unit] = now
        self._batch.looks[failure.unit] = PendingLook(failure)

    async def _look(self) -> list[Published]:
        """Return the last lines of failed units that are due, where they are new.

        Those that cannot be read in time are left for later, since the journal is to be followed.
        """
        looks, found = self._batch.looks, []
        due = [look for look in looks.values() if look.due <= time.monotonic()][:_MOST_FAILED]
        async with at_most(_ANSWER_SECONDS):
            for failure, times, _ in due:
                # planned before: one that takes too long must not be first again
                del looks[failure.unit]
                if times < len(_AGAIN):
                    again = time.monotonic() + _AGAIN[times]
                    looks[failure.unit] = PendingLook(failure, times + 1, again)
                described = await self._describe(failure)
                if described and described != self._said.get(failure.unit):
                    self._said[failure.unit] = described
                    found.append(described)
                if times and described:
                    looks.pop(failure.unit, None)
        return found

    async def _withdraw_oldest(self, units: Sequence[str]) -> None:
        """Keep the lines of the units that failed last."""
        known = [name for name in self._batch.units if name not in units] + [*units]
        self._batch.units = known[-_MOST_UNITS:]
        if gone := known[:-_MOST_UNITS]:
            with suppress(OpDbusError):  # root may have withdrawn them
                await self._client.withdraw([paths.of(*acts.FAILURE, name) for name in gone])

    async def _describe(self, failure: Failure) -> Published | None:
        """Return why a unit failed, and its last lines; None if nothing says why."""
        if not failure.run:
            return None
        at = failure.at // 1_000_000
        near = (f"--since=@{at - _RUN_SECONDS}", f"--until=@{at + _RUN_SECONDS}")
        lines = (
            await self._lines(f"{_RUN}={failure.run}")
            # of a process that is gone, journald may not know the run
            or await self._lines(f"_SYSTEMD_UNIT={failure.unit}", *near)
            # what PID 1 says of a run that never came to say anything itself
            or await self._lines(f"INVOCATION_ID={failure.run}", "-p", "err")
        )
        ends: Sequence[Line] = ()
        if failure_reasons.is_by_signal(failure.result):
            ends = await self._lines(f"INVOCATION_ID={failure.run}")
        if not (why := failure_reasons.describe_reason(failure.result, [*lines, *ends])):
            return None
        last = {
            "at": _format_time(failure.at),
            "result": failure.result,
            "why": why,
            "lines": [line.text for line in lines[-_MOST_LINES:]],
        }
        # a list is one field of a change, with all of it
        return *acts.FAILURE, failure.unit, {"failed": [last]}

    async def _lines(self, *matches: str) -> list[Line]:
        entries, is_of_run = [], not matches[0].startswith("_SYSTEMD_UNIT=")
        command = (*self._journalctl, f"--lines={_MOST_READ}", *matches)
        async with running_command(*command) as lines:
            while line := await _read_line(lines):
                entry = journal_lines.read_entry(line)
                if entry and (is_of_run or _RUN not in entry.fields):
                    entries.append(entry)
        return _lines_of(entries)


def _lines_of(entries: Sequence[Entry]) -> list[Line]:
    """Return the last lines of entries, without the secrets of whole entries or several."""
    found = []
    messages = redact({"lines": [entry.message for entry in entries]})["lines"]
    for entry, message in zip(entries, messages, strict=True):
        priority = entry.fields.get("PRIORITY", "6")
        level = int(priority) if priority.isdecimal() else 6
        found += [
            Line(escape(strip_control(text).strip(), _LINE), level, entry.fields.get("_PID") == "1")
            for text in split_lines(message)[-_MOST_READ:]
            if strip_control(text).strip()
        ]
    return found[-_MOST_READ:]


def _read_batch(path: Path, boot: str) -> JournalBatch:
    """Return the batch that the run before left; without a cursor if it is too long ago."""
    try:
        state = json.loads(path.read_text())
        batch, saved = JournalBatch(state, boot), state.get("saved")
        # the time of the file tells it of another boot alone: the clock may have been set since
        is_of_boot = bool(saved) and saved[0] == boot
        age = uptime() - saved[1] if is_of_boot else time.time() - path.stat().st_mtime
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return JournalBatch({}, boot)
    if age > _MOST_LATE_SECONDS:
        batch.cursor = ""
    return batch


async def main(
    state: Path, bus: str = "system", journalctl: Sequence[str] = ("journalctl",)
) -> None:
    """Follow the journal for ever; print why it cannot be followed, or nothing be published."""
    boot = await _find_boot(journalctl)

    async def follow() -> None:
        async with Client(bus) as client:
            await Follower(client, journalctl, _read_batch(state, boot), state).run()

    await repeat_forever(follow, (OSError, OpDbusError))


async def _find_boot(journalctl: Sequence[str]) -> str:
    """Return the id of this boot in the newest entry of the journal, or else the kernel's.

    The kernel's may be that of a container's host, since a sandbox has a /proc of its own.
    """
    command = (*journalctl, "--quiet", "--no-pager", "--output=json", "--lines=1")
    with suppress(OSError):
        async with at_most(_ANSWER_SECONDS), running_command(*command) as lines:
            entry = journal_lines.read_entry(await _read_line(lines))
            if entry and (boot := entry.fields.get("_BOOT_ID")):
                return boot
    return _BOOT.read_text().strip().replace("-", "")


async def _run_until_stopped(state: Path) -> None:
    async with signals(asyncio.Event()) as stopped:
        await until_first_ends(main(state), stopped.wait())


if __name__ == "__main__":
    asyncio.run(_run_until_stopped(Path(sys.argv[1]) / "state.json"))
