"""What becomes of a report of an object: nothing is counted twice, and no event is lost."""

from opdbus.history.change import Cause
from opdbus.observe.core.observation_diff import SeenObject, classify
from opdbus.state.object import Identity

MOVING, CAN_WAIT = frozenset({"pid"}), frozenset({"state"})
STORED = {"state": b"old", "pid": b"1"}
WAITING = SeenObject(
    Identity("live:lamps", "house", "lamp", "desk"),
    STORED,
    {**STORED, "state": b"new"},
    0.0,
    1,
    Cause("job:1 start", 1),
    {"state": "new"},
)


def test_a_late_row_is_the_change_that_waited() -> None:
    """Count it once, with its own cause, although what is volatile moved with it."""
    hashes = {**WAITING.latest, "pid": b"2"}
    found = classify(WAITING, hashes, Cause("other"), MOVING, frozenset())
    assert found == ("written", Cause("job:1 start", 0))


def test_an_event_while_a_change_waits_is_counted() -> None:
    """Count an event that left all as it was with the change that waits."""
    event = Cause("job:2 restart", is_event=True)
    found = classify(WAITING, WAITING.latest, event, MOVING, CAN_WAIT)
    assert found == ("coalesced", Cause("job:2 restart", 2))


def test_nothing_new_is_nothing() -> None:
    """Go on waiting where only what is volatile moved."""
    hashes = {**WAITING.latest, "pid": b"2"}
    disposition, why = classify(WAITING, hashes, Cause(), MOVING, CAN_WAIT)
    assert (disposition, why.coalesced_count) == ("coalesced", 1)
