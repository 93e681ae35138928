"""Observer of the kernel: loaded modules, command line parameters and sysctl settings."""

import asyncio
import re
import socket
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
            if not (self.root / "proc/modules").exists():
                report.busy("this kernel has no modules that could be loaded")
            elif events.missing:
                report.busy(f"modules are listed every minute: {events.missing}")
            else:
                report.busy("")
            skipped = Skipped()
            line = partial(text_of, self.root / "proc/cmdline", skipped=skipped)
            report.replace("parameter", await in_thread(lambda: parse_parameters(line())))
            report.skip("parameter", skipped)
            await until_first_ends(
                self._follow_modules(events, report), _follow_settings(settings, report)
            )

    async def _follow_modules(self, events: Follower, report: Report) -> None:
        path, cause = self.root / "proc/modules", ""
        while True:
            # polled until no module is being loaded or removed
            for seconds in (*_LOADING_SECONDS, 0.0):
                skipped = Skipped()
                text = await in_thread(partial(text_of, path, skipped=skipped))
                report.replace("module", parse_modules(text, path, skipped), cause)
                report.skip("module", skipped)
                if not re.search(r" (?:Loading|Unloading) ", text):
                    break
                await asyncio.sleep(seconds)
            await events.wait_for_events()
            cause = CAUSE


async def _follow_settings(settings: Sysctls, report: Report) -> None:
    names = await report.named("sysctl")
    changed = asyncio.Event()

    async def watch_files() -> None:
        async for _ in edits([settings.file], settings.folders, _SETTLE_SECONDS):
            changed.set()

    async def watch_names() -> None:
        while True:
            await report.renamed.wait()
            report.renamed.clear()
            if await report.named("sysctl") != names:
                changed.set()

    async def report_settings() -> None:
        nonlocal names
        await changed.wait()
        while True:
            changed.clear()
            before, names = names, await report.named("sysctl")
            skipped = Skipped()
            found = await in_thread(partial(settings.read, names, skipped))
            report.skip("sysctl", skipped)
            # the state file has begun or ceased to name these
            for name in sorted((before ^ names) & (found.keys() ^ report.names("sysctl"))):
                if name in found:
                    report.put("sysctl", name, found[name], STATE_FILE)
                else:
                    report.gone("sysctl", name, STATE_FILE)
            report.replace("sysctl", found)
            async with at_most(_SYSCTL_SECONDS):
                await changed.wait()

    await until_first_ends(watch_files(), watch_names(), report_settings())


def parse_modules(
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
        lists = {
            "used_by": [user for user in users.split(",") if user not in ("-", "[permanent]", "")],
            "taints": [_TAINTS.get(letter, f"flag {letter}") for letter in letters],
        }
        found[name] = {key: words for key, words in lists.items() if words}
    return found


def parse_parameters(line: str) -> dict[str, dict[str, Json]]:
    """Return the parameters of a kernel command line by name, with secrets redacted.

    The line is redacted before it is split: a word may be secret because of the word before it.
    """
    words = _WORD.findall(redact_text(line.rstrip("\n")))[:_MAX_PARAMETERS]
    values: dict[str, list[str]] = {}
    for number, word in enumerate(words):
        if word == _END:
            values[_END] = [" ".join(words[number + 1 :])]
            break
        # quotes stand round a value, or round a parameter with its value
        name, _, value = _unquote(word).partition("=")
        values.setdefault(name, []).append(_unquote(value))
    found: dict[str, dict[str, Json]] = {}
    for name, several in values.items():
        value = ", ".join(filter(None, several))
        description = f"the kernel was started with {name}" + (f"={value}" if value else "")
        if name == _END:
            description = f"the kernel starts the first program with {value}"
        found[name] = {"description": description}
        if value or name == _END:
            found[name]["value"] = value
        module, dot, _ = name.partition(".")
        if dot:
            found[name]["module"] = module
    return found


def _unquote(word: str) -> str:
    return word[1:].removesuffix('"') if word.startswith('"') else word


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
    return Observer("kernel", "kernel", Kernel(events).observe, polled=frozenset({"sysctl"}))
