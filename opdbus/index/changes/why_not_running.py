"""The reason why a unit does not run, from its observed fields. Pure."""

from collections.abc import Mapping
from typing import Final

from opdbus.state.object import Json

_RUNS: Final = frozenset(("active", "activating", "reloading"))
_ENABLED: Final = frozenset(("enabled", "enabled-runtime", "alias", "generated"))


def find_reason(name: str, fields: Mapping[str, Json]) -> str:
    """Return why a unit does not run, in words; empty if it runs, or no field says it."""
    state, file_state = fields.get("active_state"), fields.get("unit_file_state")
    if state in _RUNS:
        return ""
    if fields.get("masked") is True:
        return f"{name} is masked: nothing may start it"
    if fields.get("load_state") == "not-found":
        return f"{name} has no unit file"
    if condition := unmet_condition(fields):
        return f"{name} was not started, since its condition is not met: {condition}"
    if starters := fields.get("triggered_by"):
        by = ", ".join(map(str, starters if isinstance(starters, list) else [starters]))
        return f"{name} is {state}: {by} starts it"
    if file_state in {"disabled", "static", "indirect"}:
        how = "another unit" if file_state == "static" else "a command or another unit"
        return f"{name} is {state} and {file_state}: only {how} starts it"
    if state and file_state in _ENABLED:
        return f"{name} is {state} and {file_state}: it starts at boot"
    return ""


def unmet_condition(fields: Mapping[str, Json]) -> str:
    """Return the conditions for which a unit that does not run was not started; empty if none."""
    unmet = fields.get("unmet_condition")
    if not unmet or fields.get("active_state") in _RUNS:
        return ""
    return ", ".join(map(str, unmet if isinstance(unmet, list) else [unmet]))
