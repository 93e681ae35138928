"""The D-Bus signal of a drift transition: names of fields at or above a severity, never values."""

from collections.abc import Callable
from typing import Final

from opdbus.drift.field import Path, Severity
from opdbus.drift.transition_filter import Drifted, DriftTransition
from opdbus.index.state_store.events import Drift, Event
from opdbus.platform.name_lists import shortened

# Limits of a signal: number of fields, and characters of each field's name.
MAX_FIELDS: Final = 64
MAX_FIELD: Final = 200


def announce(
    notify: Callable[[Event], None], threshold: Severity, transition: DriftTransition
) -> None:
    """Report a transition to `notify` unless it is below the threshold."""
    if event := signalled(transition, threshold):
        notify(event)


def signalled(transition: DriftTransition, threshold: Severity) -> Drift | None:
    """Return the event of a transition, None if it changes nothing at or above the threshold.

    Fields that begin, end or change their severity count. If no field remains, the event is
    `healed` or `undeclared`.
    """
    before, after = _bad(transition.before, threshold), _bad(transition.after, threshold)
    was, now = transition.before, transition.after
    if now and after and (after != before or (was and was.what != now.what)):
        names = [shortened(field.name, MAX_FIELD) for field in now.fields[:MAX_FIELDS]]
        return Drift(transition.object_id, now.what, now.severity.word, names)
    if was and before and not after:
        what = "healed" if transition.healed or not transition.dropped else "undeclared"
        return Drift(transition.object_id, what, was.severity.word, [])
    return None


def _bad(drifted: Drifted | None, threshold: Severity) -> dict[Path, Severity]:
    fields = drifted.fields if drifted else ()
    return {field.path: field.severity for field in fields if field.severity >= threshold}
