"""Conversion of PID 1's properties of a unit to the fields of a state object."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.history import jobs
from opdbus.state.object import Json

Values = Mapping[str, Plain]

# Fields that move by themselves or change with each start; a reload forgets unmet conditions.
VOLATILE: Final = frozenset(
    "main_pid n_restarts status_text active_since state_changed next_elapse last_trigger"
    " unmet_condition state_now".split()
)
# These describe one run of a unit, and are dropped when it is unloaded.
_OF_A_RUN: Final = VOLATILE | set(
    "result exit_status exit_signal restart_loop load_error need_daemon_reload triggered_by".split()
)
# Fields of a unit that was never loaded.
_OF_FILE_ALONE: Final = frozenset(
    "active_state sub_state fragment_path unit_file_state masked enabled".split()
)
# These depend on other loaded units, too: PID 1 sends no signal when they change.
_OF_OTHERS: Final = frozenset(("triggered_by", "requires", "wants", "after"))
_ENABLED: Final = frozenset(("enabled", "enabled-runtime", "linked", "linked-runtime"))
_DISABLED: Final = frozenset(("disabled", "masked", "masked-runtime"))
# Unit types with dependencies shown; other types group these or follow kernel devices.
_WITH_DEPENDENCIES: Final = (".service", ".timer", ".socket", ".mount")
# Dependencies of nearly every unit, and those that its fields `what` and `slice` repeat.
_COMMON_TYPES: Final = (".target", ".slice", ".device")
_COMMON_UNITS: Final = frozenset(
    "-.mount tmp.mount systemd-remount-fs.service systemd-tmpfiles-setup.service"
    " systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket"
    " systemd-journald-audit.socket".split()
)
_MAX_DEPENDENCIES: Final = 12
# PID 1 sends this for an unset number.
_NO_NUMBER: Final = (1 << 64) - 1
# Value of ExecMainCode for an exit; larger ones are for signals.
_EXITED: Final = 1
# A unit's state at present, where another one is shown because this one comes and goes.
STATE_NOW: Final = "state_now"
# Units that wait for a time or a file, also while what they started runs.
_WAITING: Final = (".timer", ".path")
# States of a unit that does not run.
DOWN: Final = frozenset(("inactive", "failed"))
# The exceptions of reading values of unexpected types.
CONVERSION_ERRORS: Final = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    OSError,
)
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
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
    fields = {}
    for name, convert in _FIELDS:
        with suppress(*CONVERSION_ERRORS):
            fields[name] = convert(values)
    fields = {name: value for name, value in fields.items() if value not in (None, "", [])}
    state = file_state or fields.get("unit_file_state", "")
    states = fields.get("active_state"), fields.get("sub_state")
    if states == ("active", "running") and str(values.get("Id")).endswith(_WAITING):
        fields |= {"sub_state": "waiting", STATE_NOW: "active (running)"}
    return fields | ({"unit_file_state": state} | of_file_state(state) if state else {})


def is_short_run(values: Values, last: Mapping[str, Json]) -> bool:
    """Return whether a unit that was down is one of those that timers run, and is about to end."""
    with suppress(*CONVERSION_ERRORS):
        is_of_timer = values["Type"] == "oneshot" and any(values["TriggeredBy"])
        is_between = values["ActiveState"] in {"activating", "deactivating"}
        is_restarted = str(values["SubState"]).startswith("auto-restart")
        is_run = is_of_timer and is_between and not is_restarted
        return is_run and last.get("active_state") in DOWN
    return False


def of_file(path: str, state: str) -> dict[str, Json]:
    """Return the fields of a unit file that is not loaded."""
    return {"fragment_path": path, "unit_file_state": state} | of_file_state(state)


def of_file_state(state: str) -> dict[str, Json]:
    """Return `masked`, and `enabled` unless the state is neither, such as `static`."""
    if not state:
        return {}
    fields: dict[str, Json] = {"masked": state.startswith("masked")}
    if state in _ENABLED or state in _DISABLED:
        fields["enabled"] = state in _ENABLED
    return fields


def fields_of_unloaded(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields of a unit that was unloaded but still has its file."""
    lasting = {name: value for name, value in fields.items() if name not in _OF_A_RUN}
    if lasting.get("load_state") != "loaded":
        lasting.pop("load_state", None)
    return lasting | {"active_state": "inactive", "sub_state": "dead"}


def newly_seen(before: Mapping[str, Json] | None, after: Mapping[str, Json]) -> frozenset[str]:
    """Return the fields of a unit that only differ because it or another was loaded or unloaded.

    A unit that was never loaded has few fields.
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


def is_same_state(before: Mapping[str, Json], after: Mapping[str, Json]) -> bool:
    """Return whether a unit is neither started, stopped nor anything in between."""
    return all(before.get(name) == after.get(name) for name in ("active_state", "sub_state"))


def names_in(fields: Mapping[str, Json], name: str) -> list[str]:
    """Return a field that is a list of names; empty if it has another type."""
    value = fields.get(name)
    return list(map(str, value)) if isinstance(value, list) else []


def fault_of(values: Values) -> str | None:
    """Return how the main process of a service ended: its signal, its status, or systemd's word.

    Empty for one that exited well; None if none has ended. A signal that services end well by is
    returned if it did not fail the service.
    """
    with suppress(*CONVERSION_ERRORS):
        status, result, name = _exit_status(values), _result(values["Result"]), _end_signal(values)
        if result and f"exit:{name}" in jobs.CLEAN_ENDS:
            name = None
        fault = name or (f"status {status}" if status else result)
        return fault if values["ExecMainCode"] >= _EXITED else None
    return None


def as_text(value: Plain) -> str:
    """Return a string unchanged; raise TypeError for other types."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _as_texts(value: Plain) -> list[str]:
    return sorted(map(as_text, value))


def _as_number(value: Plain) -> int | None:
    """Return the number; None for zero or an unset number."""
    return int(value) if 0 < value < _NO_NUMBER else None


def _as_time(microseconds: Plain) -> str | None:
    """Format microseconds since 1970 as a UTC time; None for zero or an unset number."""
    if not 0 < microseconds < _NO_NUMBER:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _if_true(value: Plain) -> bool | None:
    return True if value is True else None


def _as_span(microseconds: int) -> str:
    """Format microseconds as a duration such as `1 h 30 min`."""
    left, parts = round(microseconds / 1_000_000), []
    for unit, seconds in _SPANS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(parts) or "0 s"


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


def _spans_after(rows: Plain) -> list[str]:
    return [f"{_as_span(span)} {_SINCE.get(base, as_text(base))}" for base, span, _ in rows]


def _result(value: Plain) -> str:
    return "" if value == "success" else as_text(value)


def _second_column(rows: Plain) -> list[str]:
    return [as_text(row[1]) for row in rows]


def _dependencies(*keys: str) -> Callable[[Values], list[str]]:
    """Return a function that lists the units in the properties: at most twelve, sorted."""

    def list_units(values: Values) -> list[str]:
        if not as_text(values["Id"]).endswith(_WITH_DEPENDENCIES):
            return []
        found = {as_text(name) for key in keys for name in values.get(key, ())} - _COMMON_UNITS
        return sorted(name for name in found if not name.endswith(_COMMON_TYPES))[
            :_MAX_DEPENDENCIES
        ]

    return list_units


def _description(values: Values) -> str:
    """Return the description, unless it only repeats the name."""
    text = as_text(values["Description"])
    return "" if text in {values.get("Id"), values.get("Where")} else text


def _user(values: Values) -> str | None:
    """Return the user of a service: system services that name nobody run as root."""
    if "ExecMainPID" not in values or values["LoadState"] != "loaded":
        return None
    return as_text(values["User"]) or "root"


def _load_error(values: Values) -> str:
    is_fault = values["LoadState"] in {"error", "bad-setting"}
    return as_text(values["LoadError"][1]) if is_fault else ""


def _exit_status(values: Values) -> int | None:
    is_exit = values["ExecMainCode"] == _EXITED and values["Result"] != "success"
    return int(values["ExecMainStatus"]) if is_exit else None


def _exit_signal(values: Values) -> str | None:
    """Return the signal that ended a service and failed it."""
    return None if values["Result"] == "success" else _end_signal(values)


def _end_signal(values: Values) -> str | None:
    """Return the name of the signal that ended a service; its number if it has no name.

    Raises ValueError for a number that is no signal.
    """
    if values["ExecMainCode"] <= _EXITED:
        return None
    number = int(values["ExecMainStatus"])
    if not 0 < number < signal.NSIG:
        raise ValueError(number)
    names = {int(each): each.name for each in signal.Signals}
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
    if at := _as_time(values["NextElapseUSecRealtime"]):
        return at
    since_boot = values["NextElapseUSecMonotonic"]
    if not 0 < since_boot < _NO_NUMBER:
        return None
    return _as_time(since_boot + int((time.time() - time.monotonic()) * 1_000_000))


def _of(key: str, convert: Callable[[Plain], Json] = as_text) -> Callable[[Values], Json]:
    """Return a function that converts one property."""
    return lambda values: convert(values[key])


# Field names, and the functions that make the fields of the properties.
_FIELDS: Final[tuple[tuple[str, Callable[[Values], Json]], ...]] = (
    ("description", _description),
    ("load_state", _of("LoadState")),
    ("active_state", _of("ActiveState")),
    ("sub_state", _of("SubState")),
    ("unit_file_state", _of("UnitFileState")),
    ("fragment_path", _of("FragmentPath")),
    ("drop_ins", _of("DropInPaths", _as_texts)),
    ("documentation", _of("Documentation", _as_texts)),
    ("following", _of("Following")),
    ("triggers", _of("Triggers", _as_texts)),
    ("triggered_by", _of("TriggeredBy", _as_texts)),
    ("requires", _dependencies("Requires", "Requisite", "BindsTo")),
    ("wants", _dependencies("Wants")),
    ("after", _dependencies("After")),
    ("transient", _of("Transient", _if_true)),
    ("need_daemon_reload", _of("NeedDaemonReload", _if_true)),
    ("result", _of("Result", _result)),
    ("group", _of("Group")),
    ("slice", _of("Slice")),
    ("exec", _of("ExecStart", _command)),
    ("restart", _of("Restart")),
    ("main_pid", _of("MainPID", _as_number)),
    ("n_restarts", _of("NRestarts", _as_number)),
    ("status_text", _of("StatusText")),
    ("listens", _of("Listen", _second_column)),
    ("accept", _of("Accept", _if_true)),
    ("unit", _of("Unit")),
    ("calendar", _of("TimersCalendar", _calendar)),
    ("on", _of("TimersMonotonic", _spans_after)),
    ("last_trigger", _of("LastTriggerUSec", _as_time)),
    ("persistent", _of("Persistent", _if_true)),
    ("watches", _of("Paths", _second_column)),
    ("where", _of("Where")),
    ("what", _of("What")),
    ("options", _of("Options")),
    ("priority", _of("Priority", lambda value: int(value) if value != -1 else None)),
    ("sysfs_path", _of("SysFSPath")),
    ("state_changed", _of("StateChangeTimestamp", _as_time)),
    # the type of a mount is its file system
    ("type", lambda values: "" if "Where" in values else as_text(values["Type"])),
    ("fstype", lambda values: as_text(values["Type"]) if "Where" in values else ""),
    ("user", _user),
    ("load_error", _load_error),
    ("aliases", lambda values: sorted(name for name in values["Names"] if name != values["Id"])),
    (
        "active_since",
        lambda values: (
            _as_time(values["ActiveEnterTimestamp"]) if values["ActiveState"] == "active" else None
        ),
    ),
    ("exit_status", _exit_status),
    ("exit_signal", _exit_signal),
    ("read_only", _read_only),
    ("unmet_condition", _unmet_condition),
    ("next_elapse", _next_elapse),
)
