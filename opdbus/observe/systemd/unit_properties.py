"""Conversion of PID 1's properties of a unit to the fields of a state object."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.observe.systemd import unit_dependencies
from opdbus.observe.systemd.unit_values import (
    NO_NUMBER,
    as_number,
    as_span,
    as_text,
    as_texts,
    as_time,
    if_true,
)
from opdbus.state.object import Json

Values = Mapping[str, Plain]

# Fields that move by themselves or change with each start; a reload forgets unmet conditions.
VOLATILE: Final = frozenset(
    "main_pid n_restarts status_text active_since state_changed next_elapse last_trigger"
    " unmet_condition".split()
)
# These say nothing about a unit that was unloaded.
_OF_A_RUN: Final = VOLATILE | set(
    "result exit_status exit_signal restart_loop load_error need_daemon_reload triggered_by".split()
)
# What is known of a unit that was never loaded.
_OF_FILE_ALONE: Final = frozenset(
    "active_state sub_state fragment_path unit_file_state masked enabled".split()
)
# What other units are loaded says, too: PID 1 sends nothing when it changes.
_OF_OTHERS: Final = frozenset(("triggered_by", *unit_dependencies.FIELDS))
_ENABLED: Final = frozenset(("enabled", "enabled-runtime", "linked", "linked-runtime"))
_DISABLED: Final = frozenset(("disabled", "masked", "masked-runtime"))
_EXITED: Final = 1
# States of a unit that does not run.
DOWN: Final = frozenset(("inactive", "failed"))
# What reading values raises that are not of the type that they should have.
ODD: Final = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, OSError)
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


def of_unit(values: Values, file_state: str = "") -> dict[str, Json]:
    """Return the fields of a loaded unit from PID 1's properties.

    `file_state`, if given, replaces PID 1's UnitFileState. Empty values and values of a wrong
    type are left out.
    """
    told = {}
    for name, read in _FIELDS:
        with suppress(*ODD):
            told[name] = read(values)
    told = {name: value for name, value in told.items() if value not in (None, "", [])}
    state = file_state or told.get("unit_file_state", "")
    return told | ({"unit_file_state": state} | of_file_state(state) if state else {})


def of_file(path: str, state: str) -> dict[str, Json]:
    """Return the fields of a unit file that is not loaded."""
    return {"fragment_path": path, "unit_file_state": state} | of_file_state(state)


def of_file_state(state: str) -> dict[str, Json]:
    """Return `masked`, and `enabled` unless the state is neither, such as `static`."""
    if not state:
        return {}
    told: dict[str, Json] = {"masked": state.startswith("masked")}
    if state in _ENABLED or state in _DISABLED:
        told["enabled"] = state in _ENABLED
    return told


def unloaded(properties: Mapping[str, Json]) -> dict[str, Json]:
    """Return the properties of a unit that was unloaded but still has its file."""
    lasting = {name: value for name, value in properties.items() if name not in _OF_A_RUN}
    if lasting.get("load_state") != "loaded":
        lasting.pop("load_state", None)
    return lasting | {"active_state": "inactive", "sub_state": "dead"}


def newly_seen(before: Mapping[str, Json] | None, after: Mapping[str, Json]) -> frozenset[str]:
    """Return the fields of a unit that only differ because it or another was loaded or unloaded.

    Of a unit that was never loaded, only few are known.
    """
    if not before:
        return frozenset()
    if "load_state" in before or "load_state" not in after:
        return _OF_OTHERS
    return _OF_OTHERS | (after.keys() - _OF_A_RUN - _OF_FILE_ALONE)


def differ(before: Mapping[str, Json], after: Mapping[str, Json]) -> bool:
    """Return whether two states differ in fields that are not volatile or of other units."""
    names = (before.keys() | after.keys()) - VOLATILE - _OF_OTHERS
    return any(before.get(name) != after.get(name) for name in names)


def fault_of(values: Values) -> str | None:
    """Return how the main process of a service ended: its signal, its status, or systemd's word.

    Nothing is said of one that ended well; None where none has ended.
    """
    with suppress(*ODD):
        status = _exit_status(values)
        told = _exit_signal(values) or (f"status {status}" if status else _result(values["Result"]))
        return told if values["ExecMainCode"] >= _EXITED else None
    return None


def is_same_state(before: Mapping[str, Json], after: Mapping[str, Json]) -> bool:
    """Return whether a unit is neither started, stopped nor anything in between."""
    return all(before.get(name) == after.get(name) for name in ("active_state", "sub_state"))


def _command(commands: Plain) -> str:
    """Return the program, and the script that it runs, if that is its first argument.

    Other arguments may be anything, passwords too.
    """
    path, arguments = commands[0][0], commands[0][1]
    script = [word for word in map(as_text, arguments[1:2]) if word.startswith("/")]
    return " ".join([as_text(path), *script])


def _calendar(rows: Plain) -> list[str]:
    specs = [as_text(spec) for _, spec, _ in rows]
    return [f"{spec} ({_OFTEN[spec]})" if spec in _OFTEN else spec for spec in specs]


def _after(rows: Plain) -> list[str]:
    return [f"{as_span(span)} {_SINCE.get(base, as_text(base))}" for base, span, _ in rows]


def _result(value: Plain) -> str:
    return "" if value == "success" else as_text(value)


def _second(rows: Plain) -> list[str]:
    return [as_text(row[1]) for row in rows]


def _description(values: Values) -> str:
    """Return the description, unless it only repeats what the unit is called."""
    text = as_text(values["Description"])
    return "" if text in {values.get("Id"), values.get("Where")} else text


def _type(values: Values) -> str:
    return "" if "Where" in values else as_text(values["Type"])


def _fstype(values: Values) -> str:
    return as_text(values["Type"]) if "Where" in values else ""


def _user(values: Values) -> str | None:
    """Return whom a service runs as: system services that name nobody run as root."""
    if "ExecMainPID" not in values or values["LoadState"] != "loaded":
        return None
    return as_text(values["User"]) or "root"


def _load_error(values: Values) -> str:
    is_fault = values["LoadState"] in {"error", "bad-setting"}
    return as_text(values["LoadError"][1]) if is_fault else ""


def _aliases(values: Values) -> list[str]:
    return sorted(name for name in values["Names"] if name != values["Id"])


def _active_since(values: Values) -> str | None:
    return as_time(values["ActiveEnterTimestamp"]) if values["ActiveState"] == "active" else None


def _exit_status(values: Values) -> int | None:
    is_exit = values["ExecMainCode"] == _EXITED and values["Result"] != "success"
    return int(values["ExecMainStatus"]) if is_exit else None


def _exit_signal(values: Values) -> str | None:
    is_killed = values["ExecMainCode"] > _EXITED and values["Result"] != "success"
    return _signal(int(values["ExecMainStatus"])) if is_killed else None


def _signal(number: int) -> str:
    """Return the name of a signal; its number where it has none, as most of real time.

    Raises ValueError for what is no signal.
    """
    names = {int(each): each.name for each in signal.Signals}
    if not 0 < number < signal.NSIG:
        raise ValueError(number)
    return names.get(number, f"signal {number}")


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
    if at := as_time(values["NextElapseUSecRealtime"]):
        return at
    since_boot = values["NextElapseUSecMonotonic"]
    if not 0 < since_boot < NO_NUMBER:
        return None
    return as_time(since_boot + int((time.time() - time.monotonic()) * 1_000_000))


def _of(key: str, convert: Callable[[Plain], Json] = as_text) -> Callable[[Values], Json]:
    """Make what reads one property."""
    return lambda values: convert(values[key])


# Our names, and what reads them.
_FIELDS: Final[tuple[tuple[str, Callable[[Values], Json]], ...]] = (
    ("description", _description),
    ("load_state", _of("LoadState")),
    ("active_state", _of("ActiveState")),
    ("sub_state", _of("SubState")),
    ("unit_file_state", _of("UnitFileState")),
    ("fragment_path", _of("FragmentPath")),
    ("drop_ins", _of("DropInPaths", as_texts)),
    ("documentation", _of("Documentation", as_texts)),
    ("following", _of("Following")),
    ("triggers", _of("Triggers", as_texts)),
    ("triggered_by", _of("TriggeredBy", as_texts)),
    ("requires", unit_dependencies.reading("Requires", "Requisite", "BindsTo")),
    ("wants", unit_dependencies.reading("Wants")),
    ("after", unit_dependencies.reading("After")),
    ("transient", _of("Transient", if_true)),
    ("need_daemon_reload", _of("NeedDaemonReload", if_true)),
    ("result", _of("Result", _result)),
    ("group", _of("Group")),
    ("slice", _of("Slice")),
    ("exec", _of("ExecStart", _command)),
    ("restart", _of("Restart")),
    ("main_pid", _of("MainPID", as_number)),
    ("n_restarts", _of("NRestarts", as_number)),
    ("status_text", _of("StatusText")),
    ("listens", _of("Listen", _second)),
    ("accept", _of("Accept", if_true)),
    ("unit", _of("Unit")),
    ("calendar", _of("TimersCalendar", _calendar)),
    ("on", _of("TimersMonotonic", _after)),
    ("last_trigger", _of("LastTriggerUSec", as_time)),
    ("persistent", _of("Persistent", if_true)),
    ("watches", _of("Paths", _second)),
    ("where", _of("Where")),
    ("what", _of("What")),
    ("options", _of("Options")),
    ("priority", _of("Priority", lambda value: int(value) if value != -1 else None)),
    ("sysfs_path", _of("SysFSPath")),
    ("state_changed", _of("StateChangeTimestamp", as_time)),
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
