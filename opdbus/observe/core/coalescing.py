"""Decides whether a report of an object is stored, coalesced into a later row, or dropped."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from opdbus.history.change import Why
from opdbus.observe.core.field_hashes import differing
from opdbus.state.object import Identity, Json

# What is `written` and an `event` are rows, what is `folded` is counted in a later one.
Fate: TypeAlias = Literal["written", "event", "folded", "nothing"]


class SeenObject(NamedTuple):
    """An object as it was seen: hashes of its fields, under a secret key.

    `stored` are those of what is stored, since when, and `latest` of what was reported last. While
    changes are folded, `held` counts them, and `folded` are the properties to be stored later.
    """

    identity: Identity
    stored: Mapping[str, bytes]
    latest: Mapping[str, bytes]
    since: float
    size: int
    held: Why = Why()
    folded: Mapping[str, Json] | None = None


def is_run(why: Why) -> bool:
    """Return whether a unit ran, as it does again and again by its timer, socket or path."""
    return why.is_event and why.cause.startswith("job:") and " by " in why.cause


def decide(
    before: SeenObject,
    hashes: Mapping[str, bytes],
    why: Why,
    moving: frozenset[str],
    can_wait: frozenset[str],
    *,
    runs_often: bool = False,
) -> tuple[Fate, Why]:
    """Return what becomes of a report, and the Why of its row, or what is held for a later one.

    `moving` fields are in no comparison; changes of no others than `can_wait` are stored later, and
    so are runs of what `runs_often`.
    """
    held = before.held
    changed = differing(before.latest, hashes) - moving
    unstored = differing(before.stored, hashes) - moving
    is_new = bool(changed or why.folded or why.is_event)
    if runs_often and is_run(why) and not unstored:
        return "folded", why._replace(folded=held.folded + why.folded + 1)
    # what is again as it is stored was something else meanwhile
    is_noise = bool(changed or unstored) and changed | unstored <= can_wait
    if is_noise or (can_wait and is_new and not unstored and not why.is_event):
        folded = held.folded + why.folded + is_new
        return "folded", Why(why.cause or held.cause, folded, seen=held.seen | why.seen)
    if unstored:
        return "written", counted(held, why, is_late=not is_new)
    if is_new:
        return "event", counted(held, why)
    if held.folded and not can_wait:
        return "event", counted(held, why, is_late=True)
    return "nothing", held


def counted(held: Why, why: Why, *, is_late: bool = False) -> Why:
    """Return why an object changed, with the changes of it that were held.

    A late row is that of a change that was held.
    """
    cause = held.cause if is_late else why.cause
    folded = why.folded + held.folded - is_late
    return Why(cause, folded, why.is_event, held.seen | why.seen)
