"""The unit op-dbus.service as systemd shows it: whether it runs, why it ended, its settings."""

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdbus.errors import ConfigError

NAME: Final = "op-dbus.service"
SETTINGS: Final = "/etc/op-dbus/op-dbus.env"
# begins the status of a service that ends by a fault, which systemd keeps
FAILED: Final = "Failed: "
_PROPERTIES: Final = (
    "LoadState ActiveState SubState Result ExecMainStatus StatusText Environment EnvironmentFiles"
    " NRestarts ExecMainStartTimestampMonotonic"
).split()
_SECONDS: Final = 5.0
_COMMENTS: Final = ("#", ";")
# systemd.exec(5): a line goes on after a backslash
_CONTINUED: Final = re.compile(r"\\\n")
# Results of systemd.exec(5) that are no words of its own.
_ENDS: Final = {
    "oom-kill": "the kernel ended it, since memory ran out",
    "start-limit-hit": "it ended too often, and systemd gave up",
    "timeout": "it took too long to start or to stop",
    "watchdog": "it hung, and systemd ended it",
}
# An end by SIGKILL that nobody asked for is mostly one for want of memory.
_SIGNALS: Final = {str(int(each)): each.name for each in signal.Signals} | {
    "9": "SIGKILL, which the kernel also sends where memory runs out,"
}
_OPTIONAL: Final = " (ignore_errors=yes)"
_KEPT_LINES: Final = "50"


@dataclass(frozen=True, slots=True)
class Unit:
    """The properties of the unit that `systemctl show` prints, by its names for them."""

    shown: Mapping[str, str]

    @property
    def has_failed(self) -> bool:
        """Whether it does not run, or is about to start again, because it ended by a fault."""
        is_down = self.shown["ActiveState"] != "active"
        return is_down and (
            self.shown["Result"] != "success" or self.shown["StatusText"].startswith(FAILED)
        )

    @property
    def is_given_up(self) -> bool:
        """Whether it ended by a fault, and systemd does not start it again by itself."""
        return self.shown["ActiveState"] == "failed"

    @property
    def is_running(self) -> bool:
        """Whether it runs, or is about to."""
        return self.shown["ActiveState"] in {"active", "activating", "reloading"}

    def restarts(self) -> tuple[int, float]:
        """Return how often systemd started it again after a fault, and the seconds since then."""
        count, began = self.shown["NRestarts"], self.shown["ExecMainStartTimestampMonotonic"]
        return int(count or 0), time.monotonic() - int(began or 0) / 1e6

    def fault(self) -> str:
        """Say why it ended: in its own last words where there are any, else in systemd's."""
        status = self.shown["StatusText"]
        own = status.removeprefix(FAILED) if status.startswith(FAILED) else _last_words()
        return f"{NAME} ended by a fault: {own or f'{self._end()}; see `journalctl --unit {NAME}`'}"

    def cure(self) -> str:
        """Say what to do after a fault."""
        is_setting = self.shown["ExecMainStatus"] == str(ConfigError.exit_code)
        where = f" in {SETTINGS} or the unit" if is_setting else ""
        return f"correct that{where}, then `systemctl restart op-dbus`"

    def _end(self) -> str:
        result, code = self.shown["Result"], self.shown["ExecMainStatus"]
        if result == "exit-code":
            return f"its exit code was {code}"
        if result in {"signal", "core-dump"} and code in _SIGNALS:
            return f"{_SIGNALS[code]} ended it"
        return _ENDS.get(result, f"systemd says {result}")

    def environ(self) -> dict[str, str]:
        """Return the settings that the unit and its files give.

        Raises PermissionError where this user may not read them, ConfigError where nobody can.
        """
        found = dict(_assignments(shlex.split(self.shown["Environment"])))
        for line in filter(None, self.shown["EnvironmentFiles"].split("\n")):
            file = re.sub(r" \(ignore_errors=\w+\)$", "", line)
            try:
                found |= _read(Path(file))
            except FileNotFoundError:
                if not line.endswith(_OPTIONAL):
                    raise ConfigError(f"{NAME} needs the file {file}, which is missing") from None
            except PermissionError:
                raise
            except (OSError, ValueError) as error:
                raise ConfigError(f"cannot read the settings of the service: {error}") from None
        return found


def find() -> Unit | None:
    """Ask systemd for the service; None where there is no systemd or no such service."""
    printed = _printed("systemctl", "show", NAME, f"--property={','.join(_PROPERTIES)}")
    shown = dict.fromkeys(_PROPERTIES, "")
    for key, value in _assignments(printed.splitlines()):
        # a property with several values has a line for each
        shown[key] = "\n".join(filter(None, [shown.get(key, ""), value]))
    return None if shown["LoadState"] in {"", "not-found"} else Unit(shown)


def _last_words() -> str:
    """Return the last sentence about a fault in the journal, as far as this user may read it."""
    lines = _printed(
        "journalctl", "--quiet", "--output=cat", f"--lines={_KEPT_LINES}", "--unit", NAME
    )
    said = [line for line in lines.splitlines() if line.startswith("op-dbus: ")]
    return said[-1].removeprefix("op-dbus: ") if said else ""


def _printed(*command: str) -> str:
    """Run a program, and return what it prints; nothing where it is missing or fails."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own arguments
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def _assignments(words: list[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, is_one, value in (w.partition("=") for w in words) if is_one]


def _read(file: Path) -> dict[str, str]:
    """Read a file as systemd does under EnvironmentFile=, systemd.exec(5)."""
    text = _CONTINUED.sub("", file.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines()]
    pairs = _assignments([line for line in lines if line and line[0] not in _COMMENTS])
    return {key.strip(): _unquoted(value.strip()) for key, value in pairs}


def _unquoted(value: str) -> str:
    is_quoted = value[:1] in {"'", '"'} and value.endswith(value[0]) and value[1:]
    return value[1:-1] if is_quoted else value
