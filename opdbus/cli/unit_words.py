"""Plain words for changes of units; pure."""

from collections.abc import Iterator
from typing import Final

from opdbus.cli.field_values import Values
from opdbus.history import jobs

# Fields from a unit's files, not from its state.
_OF_FILES: Final = ("description", "exec", "user", "calendar", "drop_ins")


def found(values: Values) -> Iterator[str]:
    """Yield the most important values of a new unit: enabled or masked, and failed."""
    if said := _file_state(values):
        yield said
    if values["active_state"].after == "failed":
        yield f"failed{_in_brackets(_fault(values))}"


_ENDED: Final = {"exit": "ended and was started again", "stop": "was stopped and started again"}


def happened(cause: str) -> str:
    """Return the event that left a unit as it was; "" if it was no job and no end of a process."""
    ended, cause = jobs.ended_by(cause), jobs.alone(cause)
    if not cause.startswith("job:"):
        exact = {"start:failed": "failed again", "start:ran": "ran", jobs.GAVE_UP: "failed again"}
        if cause in exact:
            return exact[cause]
        verbs = {"exit": _ENDED["exit"], "start": "restarted"}
        return verbs.get(cause.partition(":")[0], "")
    if cause.endswith(", failed"):
        return "failed again"
    verbs = {"restart": "restarted", "reload": "reloaded", "stop": "stopped"}
    return verbs.get(jobs.act(cause), _ENDED.get(ended, "ran"))


def changed(values: Values, cause: str) -> tuple[str, str] | None:
    """Return a change of a unit in words; None if the fields are clearer."""
    before, after, _ = values["active_state"]
    if values["restart_loop"].after:
        return f"is restarted again and again{_in_brackets(_fault(values))}", ""
    if values["restart_loop"].before and after == "active" and not cause.startswith("job:"):
        return "is not restarted again and again any more", ""
    if after:
        verbs = {"failed": "failed", "inactive": "stopped", "activating": "is starting"}
        verb = verbs.get(after, "started" if before != "reloading" else "reloaded")
        verb = "is stopping" if after == "deactivating" else verb
        verb = _ended_well(before, cause) or verb if after == "inactive" else verb
        result = _in_brackets(_fault(values))
        again = values["sub_state"].after.startswith("auto-restart")
        if after == "activating" and (again or (result and before == "active")):
            verb, result = f"exited{result}, is starting again", ""
        detail = f"{before or 'unknown'} -> {after}{result}"
        others = (f"{name} {values[name].said}" for name in _OF_FILES if values[name].said)
        return ", ".join(filter(None, (verb, _file_state(values)))), ", ".join([detail, *others])
    if values["sub_state"].after == "elapsed":
        return "elapsed, and is not set again", ""
    if values["load_state"].after in {"error", "bad-setting"}:
        return "cannot be loaded", values["load_error"].after
    return (said, "") if (said := _file_state(values)) else None


def _ended_well(before: str, cause: str) -> str:
    """Return words for a unit that ended well: `ran` if a job started it, and no longer failed."""
    has_run = jobs.act(cause) in {"start", "restart"}
    ran = "ran" if has_run and before in {"failed", "activating"} else ""
    return ", ".join(filter(None, (ran, "is no longer failed" if before == "failed" else "")))


def _fault(values: Values) -> str:
    """Return the end of a unit's process, in more detail than systemd's result if known."""
    result, status = values["result"].after, values["exit_status"].after
    if result in {"signal", "core-dump"}:
        return values["exit_signal"].after or result
    return f"status {status}" if result == "exit-code" and status else result


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _file_state(values: Values) -> str:
    """Return a change of a unit's file: masked, enabled, the reverse, or removed."""
    if values["load_state"].after == "not-found" and "yes" not in values["masked"]:
        return "has no file any more"
    for field, yes, no in (("masked", "masked", "unmasked"), ("enabled", "enabled", "disabled")):
        before, after, _ = values[field]
        if "yes" in {before, after}:
            return yes if after == "yes" else no
    return ""
