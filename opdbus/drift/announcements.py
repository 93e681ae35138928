"""What of a crossing is signalled: names of fields that are bad enough, never values."""

from collections.abc import Callable
from typing import Final

from opdbus.drift.field import Path, Severity
from opdbus.drift.transition_filter import Drifted, DriftTransition
from opdbus.index.state_store.events import Drift, Event
from opdbus.platform.name_lists import shortened

# A signal names at most so many fields, with so many characters of each name.
MAX_FIELDS: Final = 64
MAX_FIELD: Final = 200


def announce(
    notify: Callable[[Event], None], threshold: Severity, transition: DriftTransition
) -> None:
    """Tell of a crossing unless it is below the threshold."""
    if event := signalled(transition, threshold):
        notify(event)


def signalled(transition: DriftTransition, threshold: Severity) -> Drift | None:
    """Return what to tell of a crossing: which fields are bad enough, or that none is any more.

    Each field that begins, ends, or is worse or less bad than before is told of.
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
