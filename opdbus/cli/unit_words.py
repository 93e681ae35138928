"""What happens to units, in plain words. Pure."""

from collections.abc import Iterator
from typing import Final

from opdbus.cli.field_values import Values
from opdbus.history import jobs

# What a unit's files say of it, and its state does not.
_OF_FILES: Final = ("description", "exec", "user", "calendar", "drop_ins")


def found(values: Values) -> Iterator[str]:
    """Say the most of a new unit: whether it is enabled or masked, and whether it has failed."""
    if said := _file_state(values):
        yield said
    if values["active_state"].after == "failed":
        yield f"failed{_in_brackets(_fault(values))}"


_ENDED: Final = {"exit": "ended and was started again", "stop": "was stopped and started again"}


def happened(cause: str) -> str:
    """Say what left a unit as it was; "" where that was no job and no end of its process."""
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
    """Say what a change of a unit is; None where the fields say it best."""
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
    """Say what became of a unit that does not run: one that a job started has run, and is done."""
    has_run = jobs.act(cause) in {"start", "restart"}
    ran = "ran" if has_run and before in {"failed", "activating"} else ""
    return ", ".join(filter(None, (ran, "is no longer failed" if before == "failed" else "")))


def _fault(values: Values) -> str:
    """Say how the process of a unit ended, where that says more than systemd's word for it."""
    result, status = values["result"].after, values["exit_status"].after
    if result in {"signal", "core-dump"}:
        return values["exit_signal"].after or result
    return f"status {status}" if result == "exit-code" and status else result


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _file_state(values: Values) -> str:
    """Say whether a unit was masked or enabled, or was so and is not any more, or lost its file."""
    if values["load_state"].after == "not-found" and "yes" not in values["masked"]:
        return "has no file any more"
    for field, yes, no in (("masked", "masked", "unmasked"), ("enabled", "enabled", "disabled")):
        before, after, _ = values[field]
        if "yes" in {before, after}:
            return yes if after == "yes" else no
    return ""
