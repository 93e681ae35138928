"""Delivery of alerts to one executable: in order, at least once, resumed by sequence."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from opdbus.cli.alerts.alert import (
    OF_JOURNAL,
    WHATS,
    Alert,
    may_have_recovered,
    read_alert,
    was_failed,
)
from opdbus.cli.alerts.alert_rules import Rules
from opdbus.client import Client
from opdbus.errors import AccessDenied, ConfigError, InvalidArgs, NotKept, OpDbusError
from opdbus.platform.lines import escape_hidden, write_line
from opdbus.platform.regular_files import replace_file
from opdbus.platform.tasks import at_most, pauses
from opdbus.settings.parsing import decimal
from opdbus.wording.change_words import PRESENCE, is_declaration, plural

# Pauses before an alert is given again to an executable that failed.
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0, 300.0, 900.0)
# Pause after an error of the daemon, unless it is heard of before.
_AGAIN_SECONDS: Final = 60.0
# An alert is built once its change is so old, or explained: the journal is read after the change.
_JOURNAL_SECONDS: Final = 2.0
# Changes of an object among which the one that made it drift is looked for.
_ROWS_BEFORE: Final = 10
# Changes of a unit that started among which its state before is looked for.
_ROWS_OF_UNIT: Final = 20
# Changes that are read at a time.
_ROWS: Final = 200
# Changes without an alert after which the cursor is written nevertheless.
_ROWS_UNWRITTEN: Final = 1000
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
_STORES_NOTHING: Final = "op-dbus stores nothing, so there are no alerts"
_KIND: Final = frozenset(("plugin", "kind"))
_NO_INTERPRETER: Final = (
    "its first line names an interpreter that is not there (a line that ends with CR LF does too)"
)

Row: TypeAlias = Mapping[str, Any]


def log(text: str) -> None:
    """Write a line to the unit's log."""
    write_line(escape_hidden(text), sys.stderr)


class Cursor:
    """The number of the last change that an executable is done with, in a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name

    def read(self) -> int | None:
        """Return the number, None if there is no file yet; raises ConfigError."""
        try:
            found = decimal(self._path.read_text(encoding="utf-8").strip("\n"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {self._path}: {error}") from None
        if found is None:
            raise ConfigError(
                f"{self._path} is no number of a change: without the file, alerts begin at the"
                " newest change"
            )
        return found

    def write(self, number: int) -> None:
        """Replace the file, so that it survives a crash of the host; raises OSError."""
        replace_file(self._path, f"{number}\n")


class Host:
    """The daemon as a source of alerts: it must store changes, and know the kinds of the rules."""

    def __init__(self, client: Client, rules: Rules) -> None:
        self._client = client
        self._rules = rules
        self._fault = ""
        self._are_rules_checked = False

    def __str__(self) -> str:
        """Return why there are no alerts, for people; empty if there are."""
        return self._fault and f"{_STORES_NOTHING}: {self._fault}"

    async def check(self) -> None:
        """Ask the daemon, if there is one, and log what is not as it should be."""
        with suppress(OpDbusError):
            fault = await self._client.storage_error() if await self._client.is_served() else ""
            if fault != self._fault:
                log(f"{_STORES_NOTHING}: {fault}" if fault else "op-dbus stores changes again")
            self._fault = fault
        with suppress(OpDbusError):
            if not self._are_rules_checked and await self._client.is_served():
                await self._check_rules()
                self._are_rules_checked = True

    async def _check_rules(self) -> None:
        """Log the rules about a plugin or a kind that nothing ever had."""
        for rule in self._rules.rules:
            named = {c.field: c.value for c in rule.where.conditions if c.operator == "="}
            try:
                if wanted := {key: named[key] for key in _KIND & named.keys()}:
                    await self._client.page(wanted, 0, 1)
            except InvalidArgs as error:
                log(f"{rule.place}: rule {rule.name!r} chooses nothing: {error}")


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts that all deliveries share; `since` is a time in microseconds, 0 for now."""

    client: Client
    rules: Rules
    host: str
    since: int
    changed: Callable[[], None]


class Delivery:
    """The alerts of one executable; `news` is set when there may be new changes."""

    def __init__(self, setting: Setting, executable: Path, cursor: Cursor) -> None:
        self.news = asyncio.Event()
        self._setting = setting
        self._executable = executable
        self._cursor = cursor
        # when it was heard last that there are new changes
        self._heard_at = -math.inf
        # the last change that is done with, and the one in the file
        self._at = self._written = cursor.read()
        self._failures = 0
        self._reason = ""
        # why the last one could not be written
        self._fault = ""

    def __str__(self) -> str:
        """Return how far it is, for people."""
        at = "waits for op-dbus" if self._at is None else f"is at change {self._at:,}"
        times = f"{self._failures:,} {plural('time', self._failures)}"
        failed = f", and failed {times} since: {self._reason}" if self._failures else ""
        unnoted = f", and cannot note that: {self._fault}" if self._fault else ""
        return f"{self._executable.name} {at}{unnoted}{failed}"

    async def begin(self) -> None:
        """Set where the first start begins; if op-dbus does not answer, `run` does so later."""
        with suppress(OpDbusError):
            if self._at is None and await self._setting.client.is_served():
                await self._read_rows()

    async def run(self) -> None:
        """Deliver until cancelled; raises AccessDenied if this user may not read."""
        try:
            while True:
                for row in await self._next_rows():
                    await self._take(row)
        finally:
            self._note()

    async def _next_rows(self) -> list[dict[str, Any]]:
        """Wait for the next changes; an op-dbus that is stopped is not started."""
        while True:
            self.news.clear()
            patience = _AGAIN_SECONDS if self._fault else None
            try:
                if await self._setting.client.is_served() and (rows := await self._read_rows()):
                    return rows
            except (AccessDenied, InvalidArgs):
                raise
            except OpDbusError as error:
                log(f"{self._executable.name} waits: {error}")
                patience = _AGAIN_SECONDS
            async with at_most(patience):
                await self.news.wait()
                # the next changes are not older, whatever a clock says that is set
                self._heard_at = time.monotonic()
            if self._fault:
                self._note()
                self._setting.changed()

    async def _read_rows(self) -> list[dict[str, Any]]:
        """Return the changes after the last one; raises NotKept while some are hidden."""
        client = self._setting.client
        kept, hidden = await client.kept_rows()
        newest, at = kept.stop - 1, self._at
        if hidden and (at is None or not kept or at < kept.start - 1):
            raise NotKept(f"{hidden:,} changes are looked through for secrets after an update")
        if at is None:
            later = {"since": self._setting.since, "order": "oldest"}
            first = await client.changes(later, 1) if self._setting.since else ()
            at = first[0]["seq"] - 1 if first else newest
        elif newest < at:
            self._say("history began anew, and so do its alerts")
            at = kept.start - 1
        elif at < kept.start - 1:
            lost = f"{at + 1:,} to {kept.start - 1:,}"
            self._say(f"changes {lost} are not in history any more: it gets no alerts of them")
            at = kept.start - 1
        if at != self._at:
            self._move(at, is_kept=True)
        return await client.changes({"after": at, "below": newest + 1, "order": "oldest"}, _ROWS)

    async def _take(self, row: Row) -> None:
        if alert := read_alert(row):
            alert = await self._find_recovery(alert)
        rules = self._setting.rules.match(self._executable.name, alert) if alert else ()
        if alert and rules:
            alert = await self._explain(alert)
            await self._deliver(alert, f"{alert.to_json(self._setting.host, rules)}\n")
        self._move(row["seq"], is_kept=bool(rules))

    async def _find_recovery(self, alert: Alert) -> Alert:
        """Return an alert of that a unit is failed no longer as such; any other unchanged."""
        has_recovered = may_have_recovered(alert)
        if has_recovered is None:
            wanted = {"object": alert.row["object"], "below": alert.row["seq"]}
            with suppress(OpDbusError):
                rows = await self._setting.client.changes(wanted, _ROWS_OF_UNIT)
                has_recovered = was_failed(rows)
        return replace(alert, kind="recovered") if has_recovered else alert

    async def _explain(self, alert: Alert) -> Alert:
        """Return an alert with who did it and why, waiting for that while the journal is read."""
        client, wanted = self._setting.client, "why" if alert.kind == "failed" else "by"
        now = time.monotonic()
        age = min(time.time() - alert.row["at"] / 1e6, now - self._heard_at)
        until = now + min(_JOURNAL_SECONDS, _JOURNAL_SECONDS - age)
        with suppress(OpDbusError):
            while await client.is_served() and await client.is_journal_read():
                self.news.clear()
                alert = replace(alert, row={**alert.row, **await self._read_journal(alert)})
                rest = until - time.monotonic()
                if alert.row.get(wanted) or rest <= 0:
                    break
                async with at_most(rest):
                    await self.news.wait()
        return alert

    async def _read_journal(self, alert: Alert) -> Row:
        """Return what explains an alert's change; of drift, the change that brought it about."""
        row, number = alert.row, alert.row["seq"]
        wanted = {"after": number - 1, "below": number + 1}
        if alert.kind == "drift":
            wanted = {"object": row["object"], "below": number + 1}
        rows = await self._setting.client.changes(wanted, _ROWS_BEFORE)
        same = [
            one
            for one in rows
            if one["cause"] == row["cause"]
            and one["what"] in WHATS["change"]
            and not is_declaration(one)
        ]
        fitting = [one for one in same if _is_of_fields(one, row)]
        of_row = [one for one in rows if one["seq"] == number]
        found = [*of_row, *(fitting or same)[:1]]
        return {key: one[key] for one in found for key in OF_JOURNAL if key in one}

    async def _deliver(self, alert: Alert, text: str) -> None:
        """Give an alert to the executable, again after growing pauses until it is taken."""
        number, delays = alert.row["seq"], pauses(_RETRY_SECONDS)
        while reason := await run_executable(self._executable, text, self._setting.rules.timeout):
            delay = next(delays)
            self._failures, self._reason = self._failures + 1, reason
            self._say(f"did not take change {number:,}: {reason}; again in {delay:.0f} s")
            self._setting.changed()
            await asyncio.sleep(delay)
        if self._failures:
            self._say(f"took change {number:,} at last")
        self._failures = 0

    def _move(self, number: int, *, is_kept: bool) -> None:
        """Set the last change that is done with; write it if it is kept, or after many."""
        self._at = number
        if is_kept or number - (self._written or 0) >= _ROWS_UNWRITTEN:
            self._note()
        self._setting.changed()

    def _note(self) -> None:
        """Write the last change that is done with; alerts go on if that fails, on a full disk."""
        if self._at is None or self._at == self._written:
            return
        try:
            self._cursor.write(self._at)
        except OSError as error:
            reason = error.strerror or str(error)
            if not self._fault:
                self._say(
                    f"cannot note change {self._at:,}: {reason}; its alerts go on, and those from"
                    " here on come again if this service ends before there is room"
                )
            self._fault = reason
            return
        if self._fault:
            self._say(f"noted change {self._at:,} at last")
        self._written, self._fault = self._at, ""

    def _say(self, text: str) -> None:
        log(f"{self._executable.name}: {text}")


def _why_not_run(path: Path, error: OSError) -> str:
    """Return why an executable cannot be run; its interpreter may be missing."""
    is_there = isinstance(error, FileNotFoundError) and path.exists()
    return _NO_INTERPRETER if is_there else str(error.strerror)


async def run_executable(path: Path, text: str, seconds: float) -> str:
    """Give a text to an executable; return why it failed, empty if it did not."""
    try:
        process = await asyncio.create_subprocess_exec(
            path, stdin=asyncio.subprocess.PIPE, env=_ENVIRONMENT, cwd="/", start_new_session=True
        )
    except OSError as error:
        return f"it cannot be run: {_why_not_run(path, error)}"
    try:
        async with asyncio.timeout(seconds):
            await process.communicate(text.encode(errors="replace"))
    except TimeoutError:
        return f"it took longer than {seconds:g} s"
    finally:
        if process.returncode is None:
            # all that it started, also when this program ends
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    code = process.returncode
    if code and code < 0:
        return f"signal {-code} ended it"
    return f"its exit code was {code}" if code else ""


def _is_of_fields(change: Row, drift: Row) -> bool:
    """Return whether a change is of a field that drifts, or made the object appear or go."""
    drifting = {path for path, *_ in drift["fields"]}
    if PRESENCE in drifting:
        return change["what"] in {"appeared", "gone"}
    return not drifting.isdisjoint(path for path, *_ in change["fields"])
