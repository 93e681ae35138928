"""When a difference counts as drift, heals, and is signalled: rules without a clock."""

from opdbus.drift import rule_table
from opdbus.drift.drift_report import MAX_FIELD, MAX_FIELDS, drift_event
from opdbus.drift.field import Field, Severity
from opdbus.drift.field_comparison import compare
from opdbus.drift.transition_filter import DriftState, DriftTransition, TransitionFilter
from opdbus.index.state_store.events import Drift
from opdbus.state.object import ObjectId

ANY = rule_table.of_declared(("test", "thing"))
A, B = ObjectId("test", "thing", "a"), ObjectId("test", "thing", "b")


def drifted(*paths: str, severity: Severity = Severity.ERROR) -> list[Field]:
    """Make fields that differ."""
    return [Field((path,), 1, 2, severity) for path in paths]


def test_a_difference_counts_after_two_seconds_of_quiet() -> None:
    """Count what differs when it has lasted, once, and heal likewise."""
    transitions = TransitionFilter()
    transitions.compare(A, drifted("x"), 10.0)
    assert transitions.due == 12.0
    assert transitions.take(11.9, 0.0, 9) == []
    (found,) = transitions.take(12.0, 5.0, 9)
    assert (found.object_id, found.before, found.began) == (A, None, drifted("x"))
    transitions.compare(A, drifted("x"), 20.0)
    assert transitions.take(30.0, 0.0, 9) == []
    transitions.compare(A, [], 30.0)
    (found,) = transitions.take(32.0, 0.0, 9)
    assert (found.after, found.ended) == (None, drifted("x"))
    assert not transitions.counted


def test_nothing_counts_before_its_time() -> None:
    """Count what differs while a host boots only if it still does afterwards."""
    transitions = TransitionFilter(not_before=90.0)
    transitions.compare(A, drifted("x"), 10.0)
    transitions.compare(B, drifted("x"), 10.0)
    transitions.compare(B, [], 40.0)
    assert transitions.take(89.0, 0.0, 9) == []
    (found,) = transitions.take(90.0, 0.0, 9)
    assert found.object_id == A


def test_a_short_difference_is_none() -> None:
    """Count nothing that is as declared again before its time, in either direction."""
    transitions = TransitionFilter()
    transitions.recall({B: DriftState("drift", 0.0, drifted("x"))})
    transitions.compare(A, drifted("x"), 10.0)
    transitions.compare(B, [], 10.0)
    transitions.compare(A, [], 11.0)
    transitions.compare(B, drifted("x"), 11.0)
    assert transitions.take(100.0, 0.0, 9) == []
    assert list(transitions.counted) == [B]


def test_fields_that_follow_each_other_are_one_crossing() -> None:
    """Wait for what comes within two seconds; a later field is a crossing of its own."""
    transitions = TransitionFilter()
    transitions.compare(A, drifted("x"), 10.0)
    transitions.compare(A, drifted("x", "y"), 11.5)
    assert transitions.take(12.5, 0.0, 9) == []
    (found,) = transitions.take(13.5, 0.0, 9)
    assert found.began == drifted("x", "y")
    transitions.compare(A, drifted("x", "y", "z"), 20.0)
    (found,) = transitions.take(22.0, 0.0, 9)
    assert (found.began, found.ended) == (drifted("z"), [])


def test_a_noisy_field_keeps_no_other_from_being_counted() -> None:
    """Count what lasts although another field changes every second."""
    transitions = TransitionFilter()
    for second in range(20):
        transitions.compare(A, drifted("x", *["y"] * (second % 2)), float(second))
        for found in transitions.take(float(second), 0.0, 9):
            assert [field.name for field in found.began] == ["x"]
    assert [field.name for field in transitions.counted[A].fields] == ["x"]


def test_what_is_about_to_end_begins_as_nothing_else() -> None:
    """Tell that a field ended, and not that it is drift, when an object is intended no longer."""
    transitions = TransitionFilter()
    transitions.compare(A, drifted("x", "y"), 10.0, intended_until=610.0)
    transitions.take(12.0, 0.0, 9)
    # the host has followed in one field; the other one lasts, and ends in time, then
    transitions.compare(A, drifted("x"), 40.0)
    assert transitions.take(41.9, 0.0, 9) == []
    (found,) = transitions.take(42.0, 0.0, 9)
    assert (found.began, found.ended) == (drifted("x"), drifted("y"))
    transitions.compare(B, drifted("x"), 50.0, intended_until=610.0)
    transitions.take(52.0, 0.0, 9)
    transitions.compare(B, drifted("x"), 80.0)
    transitions.compare(B, [], 80.3)
    (found,) = transitions.take(90.0, 0.0, 9)
    assert (found.after, found.ended) == (None, drifted("x"))
    transitions.compare(B, drifted("x", "y"), 100.0, intended_until=610.0)
    transitions.take(102.0, 0.0, 9)
    for tenth in range(1190, 1300, 10):
        transitions.compare(B, drifted("x", *["y"] * (tenth // 10 % 2)), tenth / 10)
    (found,) = transitions.take(129.0, 0.0, 9)
    assert found.after
    assert found.after.what == "drift"


def transition(before: list[Field], after: list[Field]) -> DriftTransition:
    """Make a crossing between two sets of fields."""
    sides = [DriftState("drift", 0.0, fields) if fields else None for fields in (before, after)]
    return DriftTransition(A, *sides)


def test_only_what_is_bad_enough_is_signalled() -> None:
    """Signal what comes to be at least as bad as the threshold, and when it no longer is."""
    notice, error = drifted("n", severity=Severity.NOTICE), drifted("e")
    least = Severity.WARNING
    assert drift_event(transition([], notice), least) is None
    assert drift_event(transition(notice, []), least) is None
    assert drift_event(transition(notice, error + notice), least) == Drift(
        A, "drift", "error", ["e", "n"]
    )
    assert drift_event(transition(error, error + notice), least) is None
    assert drift_event(transition(error + notice, notice), least) == Drift(A, "healed", "error", [])
    assert drift_event(transition(error, []), least) == Drift(A, "healed", "error", [])
    warning, both = drifted("e", severity=least), drifted("a", "e")
    assert drift_event(transition(warning, error), least) == Drift(A, "drift", "error", ["e"])
    assert drift_event(transition(error, warning), least) == Drift(A, "drift", "warning", ["e"])
    assert drift_event(transition(both, error), least) == Drift(A, "drift", "error", ["e"])


def test_many_and_long_names_are_cut() -> None:
    """Name so many fields and so much of each that the signal stays small."""
    keys = [f"{'é' * MAX_FIELD}{n:05}" for n in range(9_000)]
    fields = compare(ANY, dict.fromkeys(keys, 1), dict.fromkeys(keys, 2))
    found = drift_event(transition([], fields), Severity.INFO)
    assert found
    assert len(found.fields) == MAX_FIELDS
    assert all(name.endswith("...") and len(name) == MAX_FIELD for name in found.fields)
    assert len("".join(found.fields).encode()) < 64 << 10


def test_known_drift_is_counted_by_its_worst_field() -> None:
    """Count each object once, under its class and worst severity, until it heals."""
    transitions = TransitionFilter()
    transitions.compare(A, [*drifted("x"), *drifted("y", severity=Severity.INFO)], 10.0)
    transitions.compare(B, drifted("x", severity=Severity.NOTICE), 10.0, 100.0)
    transitions.take(12.0, 0.0, 9)
    counts = {(Severity.ERROR, "drift"): 1, (Severity.NOTICE, "intended"): 1}
    assert (+transitions.known_by, transitions.known) == (counts, 2)
    transitions.compare(A, drifted("y", severity=Severity.INFO), 20.0)
    transitions.compare(B, [], 20.0)
    transitions.take(22.0, 0.0, 9)
    assert (+transitions.known_by, transitions.known) == ({(Severity.INFO, "drift"): 1}, 1)
