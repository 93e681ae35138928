"""Observer of the kernel: loaded modules, command line parameters and sysctl settings."""

import asyncio
import re
import socket
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from opdbus.history.change import STATE_FILE
from opdbus.observe.core.file_reading import in_thread, text_of
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.kernel.sysctls import Sysctls
from opdbus.observe.kernel.uevents import CAUSE, Follower, Uevents
from opdbus.platform.lines import split_lines, split_words
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.object import Json
from opdbus.state.redact import redact_text
from opdbus.state.watch import edits

# The kernel reports no event when a setting changes.
_SYSCTL_SECONDS: Final = 600.0
_SETTLE_SECONDS: Final = 0.1
# Polling intervals while a module is being loaded or removed: no event reports the end.
_LOADING_SECONDS: Final = (0.1, 0.2, 0.5, 2.0, 10.0)
_MAX_MODULES: Final = 5_000
_MAX_PARAMETERS: Final = 500
_WORD = re.compile('(?:[^ \t\n\v\f\r"]|"[^"]*"?)+')
# Parameters after this are passed to init.
_END: Final = "--"
# By the taint letters in /proc/modules.
_TAINTS: Final = {
    "P": "proprietary", "O": "from outside the kernel", "F": "loaded by force", "C": "from staging",
    "E": "unsigned", "K": "live patch", "N": "a test",
}  # fmt: skip
_COLUMNS: Final = 5
_COOKIE: Final = 71


@dataclass(frozen=True, slots=True)
class Kernel:
    """Observer of the kernel's modules, parameters and settings in /proc."""

    events: Uevents = field(default_factory=Uevents)
    root: Path = Path("/")

    async def observe(self, report: Report) -> None:
        """Follow modules and settings; parameters are read once."""
        settings = Sysctls(self.root, is_apart=_is_apart(self.events.passed))
        with self.events.follow("module") as events:
            report.busy(self._limits(events))
            names = await report.named("sysctl")
            skipped = Skipped()
            found = await in_thread(partial(self._list, settings, names, skipped))
            for kind, objects in found.items():
                report.replace(kind, objects)
            report.skip("parameter", skipped)
            await until_first_ends(
                self._follow_modules(events, report), _follow_settings(settings, names, report)
            )

    async def _follow_modules(self, events: Follower, report: Report) -> None:
        cause = ""
        while True:
            await self._until_loaded(report, cause)
            await events.changed()
            cause = CAUSE

    async def _until_loaded(self, report: Report, cause: str) -> None:
        """Report the modules; poll until none of them is being loaded or removed."""
        for seconds in (*_LOADING_SECONDS, 0.0):
            skipped = Skipped()
            path = self.root / "proc/modules"
            text = await in_thread(partial(text_of, path, skipped=skipped))
            report.replace("module", modules(text, path, skipped), cause)
            report.skip("module", skipped)
            if not re.search(r" (?:Loading|Unloading) ", text):
                return
            await asyncio.sleep(seconds)

    def _limits(self, events: Follower) -> str:
        if not (self.root / "proc/modules").exists():
            return "this kernel has no modules that could be loaded"
        return f"modules are listed every minute: {events.missing}" if events.missing else ""

    def _list(
        self, settings: Sysctls, names: AbstractSet[str], skipped: Skipped
    ) -> dict[str, dict[str, dict[str, Json]]]:
        return {
            "parameter": parameters(text_of(self.root / "proc/cmdline", skipped=skipped)),
            # both are read again at once by their followers, which report what they skip
            "module": modules(text_of(self.root / "proc/modules")),
            "sysctl": settings.read(names),
        }


async def _follow_settings(settings: Sysctls, names: AbstractSet[str], report: Report) -> None:
    changed = asyncio.Event()
    await until_first_ends(
        _note(settings, changed),
        _note_names(names, report, changed),
        _read(settings, names, changed, report),
    )


async def _note(settings: Sysctls, changed: asyncio.Event) -> None:
    async for _ in edits([settings.file], settings.folders, _SETTLE_SECONDS):
        changed.set()


async def _note_names(names: AbstractSet[str], report: Report, changed: asyncio.Event) -> None:
    while True:
        await report.renamed.wait()
        report.renamed.clear()
        before, names = names, await report.named("sysctl")
        if names != before:
            changed.set()


async def _read(
    settings: Sysctls, names: AbstractSet[str], changed: asyncio.Event, report: Report
) -> None:
    await changed.wait()
    while True:
        changed.clear()
        before, names = names, await report.named("sysctl")
        skipped = Skipped()
        found = await in_thread(partial(settings.read, names, skipped))
        report.skip("sysctl", skipped)
        _tell(report, found, before ^ names)
        report.replace("sysctl", found)
        async with at_most(_SYSCTL_SECONDS):
            await changed.wait()


def _tell(report: Report, found: Mapping[str, dict[str, Json]], names: AbstractSet[str]) -> None:
    """Report settings that the state file has begun or ceased to name, with that as the cause."""
    known = report.names("sysctl")
    for name in sorted(names & (found.keys() ^ known)):
        if name in found:
            report.put("sysctl", name, found[name], STATE_FILE)
        else:
            report.gone("sysctl", name, STATE_FILE)


def modules(
    text: str, path: Path = Path("/proc/modules"), skipped: Skipped | None = None
) -> dict[str, dict[str, Json]]:
    """Return the live modules of /proc/modules by name, without their use counts."""
    found: dict[str, dict[str, Json]] = {}
    for number, line in enumerate(split_lines(text)[:_MAX_MODULES], 1):
        row = split_words(line)
        if len(row) < _COLUMNS:
            if row and skipped:
                skipped.line(path, number)
            continue
        name, _, _, users, state, *rest = row
        if state != "Live":
            continue
        letters = rest[1].strip("()+-") if len(rest) > 1 else ""
        found[name] = {
            "used_by": [user for user in users.split(",") if user not in ("-", "[permanent]", "")],
            "taints": [_TAINTS.get(letter, f"flag {letter}") for letter in letters],
        }
    return {name: {k: v for k, v in values.items() if v} for name, values in found.items()}


def parameters(line: str) -> dict[str, dict[str, Json]]:
    """Return the parameters of a kernel command line by name, with secrets redacted.

    The line is redacted before it is split: a word may be secret because of the word before it.
    """
    words = _WORD.findall(redact_text(line))[:_MAX_PARAMETERS]
    values: dict[str, list[str]] = {}
    for number, word in enumerate(words):
        if word == _END:
            values[_END] = [" ".join(words[number + 1 :])]
            break
        name, _, value = word.partition("=")
        values.setdefault(name, []).append(value.strip('"'))
    return {name: _parameter(name, found) for name, found in values.items()}


def _parameter(name: str, values: list[str]) -> dict[str, Json]:
    given = ", ".join(filter(None, values))
    if name == _END:
        return {"description": f"the kernel starts the first program with {given}", "value": given}
    said = f"the kernel was started with {name}" + (f"={given}" if given else "")
    module, dot, _ = name.partition(".")
    found: dict[str, Json] = {"value": given} if given else {}
    return {"description": said, **found} | ({"module": module} if dot else {})


def _is_apart(passed: socket.socket | None) -> bool:
    """Return whether the socket that systemd passed is of another network namespace than ours."""
    if passed is None:
        return False
    with socket.socket(socket.AF_UNIX) as ours:
        try:
            theirs = passed.getsockopt(socket.SOL_SOCKET, _COOKIE, 8)
            return theirs != ours.getsockopt(socket.SOL_SOCKET, _COOKIE, 8)
        except OSError:  # an old kernel: only a sandboxed service is passed a socket
            return True


def observer(events: Uevents) -> Observer:
    """Return the observer; other observers share `events`."""
    return Observer("kernel", "kernel", Kernel(events).observe)
