"""Values that differ little are shown so that the difference is seen."""

import json

import pytest

from opdbus.platform.name_lists import show_difference
from opdbus.wording import change_words
from opdbus.wording.drift_words import describe_row

ALIKE = [
    ("a ", "a"),
    ("a b", "a\N{NO-BREAK SPACE}b"),
    ("a  b", "a b"),
    ("a\tb", "a b"),
    ("1", "1\N{ZERO WIDTH SPACE}"),
    ("pass", "p\N{CYRILLIC SMALL LETTER A}ss"),
    ("1", "\N{FULLWIDTH DIGIT ONE}"),
    ("paca", "\u0440\u0430\u0441\u0430"),
    ("TAXI.service", "\u03a4\u0391\u03a7\u0399.service"),
    ("M\u00fcller", "\u041c\u00fcller"),
    ("a-b", "a\N{EN DASH}b"),
    ("abc", "abc\x1b"),
    ("abc", "a\N{RIGHT-TO-LEFT OVERRIDE}bc"),
    ("caf\u00e9", "cafe\u0301"),
    ("Line\n", "Line"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_looks_alike_is_quoted_and_escaped(one: str, other: str) -> None:
    """Quote two values that look alike, and write all that is not plain ASCII by its number."""
    assert show_difference(one, other, 40) == (json.dumps(one), json.dumps(other))
    assert show_difference(other, one, 40) == (json.dumps(other), json.dumps(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("a", "b"), ("a", ""), ("gr\u00fcn", "blau"), ("/srv/a", "/srv/A"), ("", "x y")),
        *(("M\u00fcller", "M\u00f6ller"), ("caf\u00e9", "cafe"), ("\u0434\u0430", "\u043d\u0435")),
        *(
            ("\u65e5\u672c", "\u4e2d\u672c"),
            ("na\u00efve", "na\u00efVe"),
            ("\u03b1\u03b2", "\u03b1\u03b3"),
        ),
    ],
)
def test_what_differs_visibly_is_shown_as_it_is(one: str, other: str) -> None:
    """Leave two values alone whose difference everybody sees."""
    assert show_difference(one, other, 40) == (one, other)


@pytest.mark.parametrize("at", [0, 20, 39, 40, 500, 999])
def test_long_values_show_where_they_differ(at: int) -> None:
    """Cut two long values so that both are short and different, wherever the difference is."""
    one, other = "x" * 1000, "x" * at + "y" + "x" * (999 - at)
    sides = show_difference(one, other, 40)
    assert sides[0] != sides[1]
    assert all(len(side) <= 40 for side in sides)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *ALIKE,
        ("/srv/" * 20 + "a", "/srv/" * 20 + "b"),
        (1, "1"),
        (True, "yes"),
        ("", None),
        ([1], "[1]"),
    ],
)
def test_messages_show_the_difference(one: object, other: object) -> None:
    """Never write one text for two values: in drift, in history, and in lists of one member."""
    sides = json.dumps(one), json.dumps(other)
    row = ("/org/opdbus/state/a/b/c", "drift", "error", 0, 0.0, [("x", *sides, "error")])
    ((_, line),) = describe_row(("a", "b", "c"), row)
    declared, observed = line.split("declared ")[1].split(", observed ")
    assert declared != observed
    assert line.isascii()
    value = change_words.read_fields([("x", *sides)])["x"]
    assert value.before != value.after
    both = change_words.read_fields([("x", "", sides[1]), ("declared.x", "", sides[0])])
    said = change_words.describe_drift("drift", both, ("a", "b"))
    observed, _, declared = said.removeprefix("x is ").partition(", declared ")
    assert observed != declared
    assert said.isascii()
    lists = json.dumps([one]), json.dumps([other])
    value = change_words.read_fields([("x", *lists)])["x"]
    assert value.before != value.after
    assert "-" in value.said
