"""Alerts: rows of history as the JSON objects that executables get."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from opdbus.config import SEVERITIES
from opdbus.history import jobs
from opdbus.state.object import UNIT, Identity
from opdbus.wording.change_lines import group_into_lines
from opdbus.wording.change_words import DECLARED, Change, is_declaration

# Version of the objects; the minor number grows with additions.
FORMAT: Final = "1.1"
# Words of history for what happened, by the kinds of alerts.
WHATS: Final[Mapping[str, Sequence[str]]] = {
    "drift": ("drift", "intended", "healed", "undeclared"),
    "failed": ("appeared", "changed", "event"),
    "recovered": ("changed", "gone"),
    "change": ("appeared", "changed", "gone", "event", "forgot"),
}
# Values of a change that the journal explains: who made it, and why a unit failed.
OF_JOURNAL: Final = ("by", "as_root", "why", "lines")
_STATE: Final = "active_state"
# States between two others.
_MOVING: Final = frozenset(("activating", "deactivating", "reloading", "refreshing"))
_INFO, _WORST = SEVERITIES[0], SEVERITIES[-1]


@dataclass(frozen=True, slots=True)
class Alert:
    """A row of history with its kind, severity, and values by the dotted paths of fields."""

    row: Change
    kind: str
    severity: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def what(self) -> str:
        """The change's type in history, such as `changed` or `drift`."""
        return str(self.row["what"])

    @property
    def identity(self) -> Identity:
        """The identity of the object."""
        return Identity(*(self.row[key] for key in Identity._fields))

    def to_json(self, host: str, rules: Sequence[str]) -> str:
        """Return the JSON object, on one line, of an alert that some rules chose."""
        (line,) = group_into_lines([self.row], is_narrow=True)
        after, declared = dict(self.after), {}
        if self.kind == "drift":
            declared = {path: after.pop(path) for path in self.after if path.startswith(DECLARED)}
        cause, text = self.row["cause"], str(line)
        if self.kind == "recovered":
            text = text.replace(" started: ", " works again: ", 1)
        values = {
            "format_version": FORMAT,
            "kind": self.kind,
            "what": self.what,
            "sequence": self.row["seq"],
            "time": _format_time(self.row["at"]),
            "host": host,
            "object": "/".join(self.identity.object_id),
            "severity": self.severity,
            "before": self.before,
            "after": after,
            "declared": {path.removeprefix(DECLARED): v for path, v in declared.items()},
            "causes": [cause] if cause else [],
            "by": self.row.get("by", ""),
            "as_root": [
                {"by": act, "since": _format_time(since)}
                for act, since in self.row.get("as_root", ())
            ],
            "why": self.row.get("why", ""),
            "lines": self.row.get("lines", []),
            "rules": rules,
            "text": text,
        }
        return json.dumps(values, ensure_ascii=False)


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat()


def read_alert(row: Change) -> Alert | None:
    """Return the alert of a change; None for a first listing, which is no change.

    A unit that is found failed is an alert even then.
    """
    before, after = (
        {field[0]: json.loads(field[side]) for field in row["fields"] if field[side]}
        for side in (1, 2)
    )
    if row["what"] in WHATS["drift"]:
        # values of rows of earlier versions, and erased ones, have none
        return Alert(row, "drift", row.get("severity", _WORST), before, after)
    if _is_failure(row, after):
        return Alert(row, "failed", _WORST, before, after)
    return None if row["cause"] == "first" else Alert(row, "change", _INFO, before, after)


def _is_failure(row: Change, after: Mapping[str, Any]) -> bool:
    """Return whether a unit failed, failed again, or is restarted again and again."""
    if (row["plugin"], row["kind"]) != UNIT or is_declaration(row):
        return False
    cause = jobs.alone(row["cause"])
    is_again = cause.endswith(jobs.FAILED) or cause in {"start:failed", jobs.GAVE_UP}
    return is_again or after.get(_STATE) == "failed" or after.get("restart_loop") is True


def may_have_recovered(alert: Alert) -> bool | None:
    """Return whether a unit is failed no longer; None if its state before a transition says that.

    It works again, ran to its end, is restarted no longer, or its failure was reset.
    """
    row = alert.row
    is_unit = (row["plugin"], row["kind"]) == UNIT and not is_declaration(row)
    if alert.kind != "change" or not is_unit or alert.what not in WHATS["recovered"]:
        return False
    before, after = alert.before.get(_STATE), alert.after.get(_STATE)
    if before in _MOVING and after not in _MOVING and after:
        return None
    is_looping = alert.before.get("restart_loop") is True and after != "failed"
    return is_looping or (before == "failed" and after not in _MOVING)


def was_failed(rows: Sequence[Change]) -> bool:
    """Return whether a unit was failed in the last state that its changes, the newest first, tell.

    States of transition are passed over.
    """
    for row in rows:
        if (row["plugin"], row["kind"]) != UNIT or is_declaration(row):
            continue
        told = (json.loads(field[2]) for field in row["fields"] if field[0] == _STATE and field[2])
        state = next(told, None)
        if state and state not in _MOVING:
            return bool(state == "failed")
    return False
