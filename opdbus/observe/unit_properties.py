"""What is told of a unit: few of the properties that PID 1 has of it, under plain names."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.state.object import Json

Values = Mapping[str, Plain]

# Fields that move by themselves, or change with each start.
VOLATILE: Final = frozenset(
    "main_pid n_restarts status_text active_since state_changed next_elapse last_trigger".split()
)
# Of a unit that was unloaded these say nothing any more.
_OF_A_RUN: Final = VOLATILE | {"result", "exit_status", "exit_signal", "unmet_condition"}
_ENABLED: Final = frozenset(("enabled", "enabled-runtime", "linked", "linked-runtime"))
_DISABLED: Final = frozenset(("disabled", "masked", "masked-runtime"))
# What PID 1 sends for a number that there is not.
_NO_NUMBER: Final = (1 << 64) - 1
_EXITED: Final = 1
_SINCE: Final = {
    "OnActiveUSec": "after the timer was started",
    "OnBootUSec": "after boot",
    "OnStartupUSec": "after systemd was started",
    "OnUnitActiveUSec": "after its unit was last started",
    "OnUnitInactiveUSec": "after its unit was last stopped",
}
_OFTEN: Final = {
    "*-*-* *:*:00": "every minute",
    "*-*-* *:00:00": "hourly",
    "*-*-* 00:00:00": "daily",
    "Mon *-*-* 00:00:00": "weekly",
    "*-*-01 00:00:00": "monthly",
    "*-01-01 00:00:00": "yearly",
}
_SECONDS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def of_unit(values: Values, file_state: str = "") -> dict[str, Json]:
    """Return what is told of a unit that is loaded, from all its properties.

    A state of its file that was asked for later than PID 1 read it comes first. What is empty, or
    not of the type that it should have, is left out.
    """
    found = {}
    for name, key, convert in _FIELDS:
        with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            found[name] = convert(values[key])
    found["unit_file_state"] = file_state or found.get("unit_file_state")
    for name, read in _TOGETHER:
        with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):
            found[name] = read(values)
    if found.get("description") in (values.get("Id"), values.get("Where")):
        del found["description"]
    told = {name: value for name, value in found.items() if value not in (None, "", [])}
    return told | of_file_state(str(found["unit_file_state"] or ""))


def of_file(path: str, state: str) -> dict[str, Json]:
    """Return what is told of a unit file that is not loaded."""
    return {"fragment_path": path, "unit_file_state": state} | of_file_state(state)


def of_file_state(state: str) -> dict[str, Json]:
    """Return whether a unit is masked, and whether it is enabled where that is the question."""
    if not state:
        return {}
    told: dict[str, Json] = {"masked": state.startswith("masked")}
    if state in _ENABLED or state in _DISABLED:
        told["enabled"] = state in _ENABLED
    return told


def unloaded(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Return what is told of a unit that was loaded and is not any more, but has its file."""
    lasting = {name: value for name, value in properties.items() if name not in _OF_A_RUN}
    lasting.pop("load_state", None)
    return lasting | {"active_state": "inactive", "sub_state": "dead"}


def _text(value: Plain) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(value: Plain) -> list[str]:
    return sorted(map(_text, value))


def _time(microseconds: Plain) -> str | None:
    if not 0 < microseconds < _NO_NUMBER:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(microseconds: int) -> str:
    """Return a span of time such as `1 h 30 min`."""
    left, parts = round(microseconds / 1_000_000), []
    for unit, seconds in _SECONDS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(parts) or "0 s"


def _number(value: Plain) -> int | None:
    return int(value) if 0 < value < _NO_NUMBER else None


def _truth(value: Plain) -> bool | None:
    return True if value is True else None


def _command(commands: Plain) -> str:
    """Return the program, and the script that it runs, if that is its first argument.

    Other arguments may be anything, passwords too.
    """
    path, arguments = commands[0][0], commands[0][1]
    script = [word for word in map(_text, arguments[1:2]) if word.startswith("/")]
    return " ".join([_text(path), *script])


def _calendar(rows: Plain) -> list[str]:
    specs = [_text(spec) for _, spec, _ in rows]
    return [f"{spec} ({_OFTEN[spec]})" if spec in _OFTEN else spec for spec in specs]


def _after(rows: Plain) -> list[str]:
    return [f"{_span(span)} {_SINCE[base]}" for base, span, _ in rows if base in _SINCE]


def _result(value: Plain) -> str:
    return "" if value == "success" else _text(value)


def _second(rows: Plain) -> list[str]:
    return [_text(row[1]) for row in rows]


# Our name, theirs, and how to convert it.
_FIELDS: Final[tuple[tuple[str, str, Callable[[Plain], Json]], ...]] = (
    ("description", "Description", _text),
    ("load_state", "LoadState", _text),
    ("active_state", "ActiveState", _text),
    ("sub_state", "SubState", _text),
    ("unit_file_state", "UnitFileState", _text),
    ("fragment_path", "FragmentPath", _text),
    ("drop_ins", "DropInPaths", _texts),
    ("documentation", "Documentation", _texts),
    ("following", "Following", _text),
    ("triggers", "Triggers", _texts),
    ("triggered_by", "TriggeredBy", _texts),
    ("transient", "Transient", _truth),
    ("need_daemon_reload", "NeedDaemonReload", _truth),
    ("result", "Result", _result),
    ("group", "Group", _text),
    ("slice", "Slice", _text),
    ("exec", "ExecStart", _command),
    ("restart", "Restart", _text),
    ("main_pid", "MainPID", _number),
    ("n_restarts", "NRestarts", _number),
    ("status_text", "StatusText", _text),
    ("listens", "Listen", _second),
    ("accept", "Accept", _truth),
    ("unit", "Unit", _text),
    ("calendar", "TimersCalendar", _calendar),
    ("on", "TimersMonotonic", _after),
    ("last_trigger", "LastTriggerUSec", _time),
    ("persistent", "Persistent", _truth),
    ("watches", "Paths", _second),
    ("where", "Where", _text),
    ("what", "What", _text),
    ("options", "Options", _text),
    ("priority", "Priority", lambda value: int(value) if value != -1 else None),
    ("sysfs_path", "SysFSPath", _text),
    ("state_changed", "StateChangeTimestamp", _time),
)


def _type(values: Values) -> str:
    return "" if "Where" in values else _text(values["Type"])


def _fstype(values: Values) -> str:
    return _text(values["Type"]) if "Where" in values else ""


def _user(values: Values) -> str | None:
    """Return whom a service runs as: system services that name nobody run as root."""
    if "ExecMainPID" not in values or values["LoadState"] != "loaded":
        return None
    return _text(values["User"]) or "root"


def _load_error(values: Values) -> str:
    is_fault = values["LoadState"] in {"error", "bad-setting"}
    return _text(values["LoadError"][1]) if is_fault else ""


def _aliases(values: Values) -> list[str]:
    return sorted(name for name in values["Names"] if name != values["Id"])


def _active_since(values: Values) -> str | None:
    return _time(values["ActiveEnterTimestamp"]) if values["ActiveState"] == "active" else None


def _exit_status(values: Values) -> int | None:
    is_exit = values["ExecMainCode"] == _EXITED and values["Result"] != "success"
    return int(values["ExecMainStatus"]) if is_exit else None


def _exit_signal(values: Values) -> str | None:
    is_killed = values["ExecMainCode"] > _EXITED and values["Result"] != "success"
    return signal.Signals(values["ExecMainStatus"]).name if is_killed else None


def _read_only(values: Values) -> bool | None:
    if "Where" not in values or not values["Options"]:
        return None
    return "ro" in values["Options"].split(",")


def _unmet_condition(values: Values) -> list[str]:
    """Return the conditions for which a unit was not started."""
    if values["ConditionResult"] or not values["ConditionTimestamp"]:
        return []
    rows = [row for row in values["Conditions"] if row[4] < 0]
    return [f"{name}={'!' * negated}{value}" for name, _, negated, value, _ in rows]


def _next_elapse(values: Values) -> str | None:
    if at := _time(values["NextElapseUSecRealtime"]):
        return at
    since_boot = values["NextElapseUSecMonotonic"]
    if not 0 < since_boot < _NO_NUMBER:
        return None
    return _time(since_boot + int((time.time() - time.monotonic()) * 1_000_000))


_TOGETHER: Final[tuple[tuple[str, Callable[[Values], Json]], ...]] = (
    ("type", _type),
    ("fstype", _fstype),
    ("user", _user),
    ("load_error", _load_error),
    ("aliases", _aliases),
    ("active_since", _active_since),
    ("exit_status", _exit_status),
    ("exit_signal", _exit_signal),
    ("read_only", _read_only),
    ("unmet_condition", _unmet_condition),
    ("next_elapse", _next_elapse),
)
