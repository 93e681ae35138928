"""Decides whether a report of an object is stored, coalesced into a later row, or dropped."""

import marshal
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.errors import InvalidArgs
from opdbus.history.change import Why
from opdbus.state import publish
from opdbus.state.object import Identity, Json, digest

# What is `written` and an `event` are rows, what is `folded` is counted in a later one.
Fate: TypeAlias = Literal["written", "event", "folded", "nothing"]
# Size limit before secrets are replaced, which takes long: no less than what may be stored.
_MAX_BYTES: Final = 4 * publish.MAX_BYTES


class SeenObject(NamedTuple):
    """The last report of an object, with hashes of its fields instead of their values.

    `stored` are the hashes of the stored state, written at `since`; `latest` those of the last
    report. While changes are folded, `held` counts them, and `folded` has the properties to be
    stored later.
    """

    identity: Identity
    stored: Mapping[str, bytes]
    latest: Mapping[str, bytes]
    since: float
    size: int
    held: Why = Why()
    folded: Mapping[str, Json] | None = None


def hash_fields(properties: Mapping[str, Json], key: bytes) -> dict[str, bytes]:
    """Hash each field under a secret key; raise InvalidArgs for an object that is too large."""
    # newer formats of marshal depend on what else refers to a value
    plain = {name: marshal.dumps(value, 2) for name, value in properties.items()}
    if sum(map(len, plain.values())) > _MAX_BYTES:
        raise InvalidArgs(f"it has more than {publish.MAX_BYTES} bytes of properties")
    return {name: digest(data, key) for name, data in plain.items()}


def differing(some: Mapping[str, bytes], others: Mapping[str, bytes]) -> frozenset[str]:
    """Return the names of the fields that are not the same in both."""
    if some == others:  # most are, and this is much faster
        return frozenset()
    return frozenset(name for name, _ in some.items() ^ others.items())


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
    """Return the fate of a report, and the Why of its row, or what is held for a later one.

    `moving` fields are in no comparison; changes of no others than `can_wait` are stored later, and
    so are runs of an object that `runs_often`.
    """
    held = before.held
    changed = differing(before.latest, hashes) - moving
    unstored = differing(before.stored, hashes) - moving
    is_new = bool(changed or why.folded or why.is_event)
    if runs_often and is_run(why) and not unstored:
        return "folded", why._replace(folded=held.folded + why.folded + 1)
    # a report equal to the stored state followed another one
    is_noise = bool(changed or unstored) and changed | unstored <= can_wait
    if is_noise or (can_wait and is_new and not unstored and not why.is_event):
        folded = held.folded + why.folded + is_new
        return "folded", Why(why.cause or held.cause, folded, seen=held.seen | why.seen)
    if unstored:
        return "written", add_held(held, why, is_late=not is_new)
    if is_new:
        return "event", add_held(held, why)
    if held.folded and not can_wait:
        return "event", add_held(held, why, is_late=True)
    return "nothing", held


def add_held(held: Why, why: Why, *, is_late: bool = False) -> Why:
    """Return why an object changed, with the changes that were held.

    With `is_late`, the row is that of a held change.
    """
    cause = held.cause if is_late else why.cause
    folded = why.folded + held.folded - is_late
    return Why(cause, folded, why.is_event, held.seen | why.seen)
