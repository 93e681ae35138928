"""The unit op-dbus.service as systemd reports it: state, reason of its end, and settings."""

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdbus.config import Given
from opdbus.errors import ConfigError
from opdbus.platform.lines import split_lines
from opdbus.settings import env_file
from opdbus.settings.env_file import Assignment

NAME: Final = "op-dbus.service"
# The service that delivers alerts, which is off at first.
ALERTS: Final = "op-dbus-notify.service"
# The service that writes metrics, and the timer that runs it, which is off at first.
METRICS: Final = "op-dbus-metrics"
# The service that sends to the fleet, which is off at first.
SENDER: Final = "op-dbus-fleet.service"
FLEET_SERVER: Final = "op-dbus-fleet-server.service"
# Services of the HTTP gateway by their sockets, which are off at first.
GATEWAYS: Final = {
    "op-dbus-gateway.socket": "op-dbus-gateway.service",
    "op-dbus-gateway-metrics.socket": "op-dbus-gateway.service",
    "op-dbus-gateway-write.socket": "op-dbus-gateway-write.service",
}
SETTINGS: Final = "/etc/op-dbus/op-dbus.env"
# The prefix of the status of a service that ended by a fault; systemd keeps the status.
FAILED: Final = "Failed: "
_PROPERTIES: Final = (
    "LoadState ActiveState SubState Result ExecMainStatus StatusText Environment EnvironmentFiles"
    " NRestarts ExecMainStartTimestampMonotonic ConditionResult ConditionTimestampMonotonic"
    " PrivateNetwork"
).split()
_SECONDS: Final = 5.0
# Results of systemd.exec(5) in plain words.
_ENDS: Final = {
    "oom-kill": "the kernel ended it, since memory ran out",
    "start-limit-hit": "it ended too often, and systemd gave up",
    "timeout": "it took too long to start or to stop",
    "watchdog": "it hung, and systemd ended it",
}
# SIGKILL without a request is mostly the kernel's out-of-memory killer.
_SIGNALS: Final = {str(int(each)): each.name for each in signal.Signals} | {
    "9": "SIGKILL, which the kernel also sends where memory runs out,"
}
# Used in messages on a line of its settings.
IGNORED: Final = "is not NAME=VALUE, and systemd leaves it out"
_OPTIONAL: Final = " (ignore_errors=yes)"
# A fault as printed before logging begins, or as logged.
_FAULT: Final = re.compile(r'op-dbus: (?P<early>.+)|failed reason="(?P<late>.+)" exit_code=\d+')
_KEPT_LINES: Final = "50"


@dataclass(frozen=True, slots=True)
class Unit:
    """The properties of the unit, named as `systemctl show` prints them."""

    shown: Mapping[str, str]

    @property
    def has_failed(self) -> bool:
        """Return whether the service is down, or about to restart, because of a fault."""
        state = self.shown["ActiveState"]
        # systemd resets result and status text as soon as it restarts the service
        is_again = state == "activating" and self.restarts()[0] > 0
        is_fault = self.shown["Result"] != "success" or self.shown["StatusText"].startswith(FAILED)
        return state != "active" and (is_again or is_fault)

    @property
    def is_given_up(self) -> bool:
        """Return whether the service ended by a fault and systemd does not restart it."""
        return self.shown["ActiveState"] == "failed"

    @property
    def is_running(self) -> bool:
        """Return whether the service runs or is about to."""
        return self.shown["ActiveState"] in {"active", "activating", "reloading"}

    @property
    def is_left_out(self) -> bool:
        """Return whether systemd did not run it when it should, since a condition is not met."""
        was_tried = self.shown["ConditionTimestampMonotonic"] not in {"", "0"}
        return was_tried and self.shown["ConditionResult"] == "no"

    def restarts(self) -> tuple[int, float]:
        """Return the number of restarts after faults, and the seconds since the last start."""
        count, began = self.shown["NRestarts"], self.shown["ExecMainStartTimestampMonotonic"]
        return int(count or 0), time.monotonic() - int(began or 0) / 1e6

    def fault(self) -> str:
        """Return a sentence on why it ended: by its own last message, else by systemd's result."""
        status = self.shown["StatusText"]
        own = status.removeprefix(FAILED) if status.startswith(FAILED) else _last_words()
        return f"{NAME} ended by a fault: {own or f'{self._end()}; see `journalctl --unit {NAME}`'}"

    def cure(self) -> str:
        """Return advice on how to recover from the fault."""
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

    def environ(self) -> dict[str, Given]:
        """Return the variables that the unit and its files set.

        Raises PermissionError if this user may not read a file, ConfigError if it cannot be read at
        all.
        """
        own = _split_assignments(shlex.split(self.shown["Environment"]))
        found = {name: Given(value, NAME) for name, value in own}
        return found | {
            each.name: Given(each.value, each.where) for each in self._lines() if each.name
        }

    def ignored(self) -> list[str]:
        """Return the lines, as FILE:LINE, that systemd ignores; raises as `environ`."""
        return [each.where for each in self._lines() if not each.name]

    def _lines(self) -> list[Assignment]:
        found: list[Assignment] = []
        for line in filter(None, self.shown["EnvironmentFiles"].split("\n")):
            file = re.sub(r" \(ignore_errors=\w+\)$", "", line)
            try:
                found += env_file.read_assignments(Path(file))
            except FileNotFoundError:
                if not line.endswith(_OPTIONAL):
                    raise ConfigError(f"{NAME} needs the file {file}, which is missing") from None
            except PermissionError:
                raise
            except (OSError, ValueError) as error:
                raise ConfigError(f"cannot read the settings of the service: {error}") from None
        return found


def find_unit(name: str = NAME) -> Unit | None:
    """Return the unit from systemctl; None if there is no systemd or no such service."""
    printed = _run_and_capture("systemctl", "show", name, f"--property={','.join(_PROPERTIES)}")
    shown = dict.fromkeys(_PROPERTIES, "")
    for key, value in _split_assignments(split_lines(printed)):
        # a property with several values has a line for each
        shown[key] = "\n".join(filter(None, [shown.get(key, ""), value]))
    return None if shown["LoadState"] in {"", "not-found"} else Unit(shown)


def _last_words() -> str:
    """Return the last fault in the journal, if this user may read it; else empty."""
    lines = _run_and_capture(
        "journalctl", "--quiet", "--output=cat", f"--lines={_KEPT_LINES}", "--unit", NAME
    )
    said = [match for match in map(_FAULT.fullmatch, split_lines(lines)) if match]
    return said[-1]["early"] or said[-1]["late"] if said else ""


def _run_and_capture(*command: str) -> str:
    """Return what a command prints; empty if it is missing or fails."""
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


def _split_assignments(words: list[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, is_one, value in (w.partition("=") for w in words) if is_one]
