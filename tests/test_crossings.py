"""When a difference counts as drift, heals, and is signalled: rules without a clock."""

from opdbus.drift import rule_table
from opdbus.drift.announcements import MAX_FIELD, MAX_FIELDS, signalled
from opdbus.drift.compare import compare
from opdbus.drift.field import Field, Severity
from opdbus.drift.transition_filter import Drifted, DriftTransition, TransitionFilter
from opdbus.index.state_store.events import Drift
from opdbus.state.object import ObjectId

ANY = rule_table.of_declared(("test", "thing"))
A, B = ObjectId("test", "thing", "a"), ObjectId("test", "thing", "b")


def drifted(*paths: str, severity: Severity = Severity.ERROR) -> list[Field]:
    """Make fields that differ."""
    return [Field((path,), 1, 2, severity) for path in paths]


def test_a_difference_counts_after_two_seconds_of_quiet() -> None:
    """Count what differs when it has lasted, once, and heal likewise."""
    crossings = TransitionFilter()
    crossings.compare(A, drifted("x"), 10.0)
    assert crossings.due == 12.0
    assert crossings.take(11.9, 0.0, 9) == []
    (found,) = crossings.take(12.0, 5.0, 9)
    assert (found.thing, found.before, found.began) == (A, None, drifted("x"))
    crossings.compare(A, drifted("x"), 20.0)
    assert crossings.take(30.0, 0.0, 9) == []
    crossings.compare(A, [], 30.0)
    (found,) = crossings.take(32.0, 0.0, 9)
    assert (found.after, found.ended) == (None, drifted("x"))
    assert not crossings.counted


def test_nothing_counts_before_its_time() -> None:
    """Count what differs while a host boots only if it still does afterwards."""
    crossings = TransitionFilter(not_before=90.0)
    crossings.compare(A, drifted("x"), 10.0)
    crossings.compare(B, drifted("x"), 10.0)
    crossings.compare(B, [], 40.0)
    assert crossings.take(89.0, 0.0, 9) == []
    (found,) = crossings.take(90.0, 0.0, 9)
    assert found.thing == A


def test_a_short_difference_is_none() -> None:
    """Count nothing that is as declared again before its time, in either direction."""
    crossings = TransitionFilter()
    crossings.recall({B: Drifted("drift", 0.0, drifted("x"))})
    crossings.compare(A, drifted("x"), 10.0)
    crossings.compare(B, [], 10.0)
    crossings.compare(A, [], 11.0)
    crossings.compare(B, drifted("x"), 11.0)
    assert crossings.take(100.0, 0.0, 9) == []
    assert list(crossings.counted) == [B]


def test_fields_that_follow_each_other_are_one_crossing() -> None:
    """Wait for what comes within two seconds; a later field is a crossing of its own."""
    crossings = TransitionFilter()
    crossings.compare(A, drifted("x"), 10.0)
    crossings.compare(A, drifted("x", "y"), 11.5)
    assert crossings.take(12.5, 0.0, 9) == []
    (found,) = crossings.take(13.5, 0.0, 9)
    assert found.began == drifted("x", "y")
    crossings.compare(A, drifted("x", "y", "z"), 20.0)
    (found,) = crossings.take(22.0, 0.0, 9)
    assert (found.began, found.ended) == (drifted("z"), [])


def test_a_restless_field_keeps_no_other_from_being_counted() -> None:
    """Count what lasts although another field changes every second."""
    crossings = TransitionFilter()
    for second in range(20):
        crossings.compare(A, drifted("x", *["y"] * (second % 2)), float(second))
        for found in crossings.take(float(second), 0.0, 9):
            assert [field.name for field in found.began] == ["x"]
    assert [field.name for field in crossings.counted[A].fields] == ["x"]


def test_what_is_intended_becomes_drift() -> None:
    """Tell of what the host has not followed in time."""
    crossings = TransitionFilter()
    crossings.compare(A, drifted("x"), 10.0, intended_until=610.0)
    (found,) = crossings.take(12.0, 0.0, 9)
    assert found.after
    assert found.after.what == "intended"
    assert crossings.take(609.0, 0.0, 9) == []
    (found,) = crossings.take(610.0, 0.0, 9)
    assert found.after
    assert (found.after.what, found.began) == ("drift", drifted("x"))
    assert crossings.due == float("inf")


def test_what_is_about_to_end_begins_as_nothing_else() -> None:
    """Tell that a field ended, and not that it is drift, when an object is intended no longer."""
    crossings = TransitionFilter()
    crossings.compare(A, drifted("x", "y"), 10.0, intended_until=610.0)
    crossings.take(12.0, 0.0, 9)
    # the host has followed in one field; the other one lasts, and ends in time, then
    crossings.compare(A, drifted("x"), 40.0)
    assert crossings.take(41.9, 0.0, 9) == []
    (found,) = crossings.take(42.0, 0.0, 9)
    assert (found.began, found.ended) == (drifted("x"), drifted("y"))
    crossings.compare(B, drifted("x"), 50.0, intended_until=610.0)
    crossings.take(52.0, 0.0, 9)
    crossings.compare(B, drifted("x"), 80.0)
    crossings.compare(B, [], 80.3)
    (found,) = crossings.take(90.0, 0.0, 9)
    assert (found.after, found.ended) == (None, drifted("x"))
    crossings.compare(B, drifted("x", "y"), 100.0, intended_until=610.0)
    crossings.take(102.0, 0.0, 9)
    for tenth in range(1190, 1300, 10):
        crossings.compare(B, drifted("x", *["y"] * (tenth // 10 % 2)), tenth / 10)
    (found,) = crossings.take(129.0, 0.0, 9)
    assert found.after
    assert found.after.what == "drift"


def crossing(before: list[Field], after: list[Field]) -> DriftTransition:
    """Make a crossing between two sets of fields."""
    sides = [Drifted("drift", 0.0, fields) if fields else None for fields in (before, after)]
    return DriftTransition(A, *sides)


def test_only_what_is_bad_enough_is_signalled() -> None:
    """Signal what comes to be at least as bad as the threshold, and when it no longer is."""
    notice, error = drifted("n", severity=Severity.NOTICE), drifted("e")
    least = Severity.WARNING
    assert signalled(crossing([], notice), least) is None
    assert signalled(crossing(notice, []), least) is None
    assert signalled(crossing(notice, error + notice), least) == Drift(
        A, "drift", "error", ["e", "n"]
    )
    assert signalled(crossing(error, error + notice), least) is None
    assert signalled(crossing(error + notice, notice), least) == Drift(A, "healed", "error", [])
    assert signalled(crossing(error, []), least) == Drift(A, "healed", "error", [])
    warning, both = drifted("e", severity=least), drifted("a", "e")
    assert signalled(crossing(warning, error), least) == Drift(A, "drift", "error", ["e"])
    assert signalled(crossing(error, warning), least) == Drift(A, "drift", "warning", ["e"])
    assert signalled(crossing(both, error), least) == Drift(A, "drift", "error", ["e"])


def test_many_and_long_names_are_cut() -> None:
    """Name so many fields and so much of each that the signal stays small."""
    keys = [f"{'é' * MAX_FIELD}{n:05}" for n in range(9_000)]
    fields = compare(ANY, dict.fromkeys(keys, 1), dict.fromkeys(keys, 2))
    found = signalled(crossing([], fields), Severity.INFO)
    assert found
    assert len(found.fields) == MAX_FIELDS
    assert all(name.endswith("...") and len(name) == MAX_FIELD for name in found.fields)
    assert len("".join(found.fields).encode()) < 64 << 10
