"""Numbers in texts that somebody else wrote: of any length, and nothing else that int() takes."""

from typing import Any

import pytest

from opdbus.drift import equality, field_comparison, rule_table, versions
from opdbus.history import jobs
from opdbus.history.change import Cause, Change, FieldChange
from opdbus.history.change_sentence import events_of
from opdbus.settings.parsing import decimal, whole
from opdbus.state.conditions import number
from opdbus.state.object import Identity

# Python reads 4,300 digits.
LONG = "9" * 5000
PACKAGE = rule_table.of_declared(("packages", "package"))


@pytest.mark.parametrize("tail", ["", ".1", "-1", ":1", "~rc1", "a" * 9])
def test_versions_of_any_length_are_ordered(tail: str) -> None:
    """A version of more digits than Python reads is newer than one of fewer."""
    assert versions.compare(LONG + tail, f"1{LONG}{tail}") < 0
    assert versions.compare(f"000{LONG}{tail}", LONG + tail) == 0
    assert versions.satisfies(f">= {LONG}{tail}", f"1{LONG}{tail}")
    assert not versions.satisfies(f"> 1{LONG}{tail}", LONG + tail)


def test_a_long_version_hides_no_drift() -> None:
    """A version too long for int() is compared like others, and so are the other fields."""
    declared = {"version": LONG, "architecture": "amd64"}
    found = field_comparison.compare(PACKAGE, declared, {"version": "1.2", "architecture": "arm64"})
    assert [field.name for field in found] == ["version", "architecture"]
    change = [FieldChange(("version",), [LONG], ["1" + LONG])]
    identity = Identity("live:packages", "packages", "package", "x")
    assert "upgraded" in events_of(Change(identity, "changed", Cause(), change))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (1000, "1_000", False),
        (1000, "1e3", True),
        (1000, "1000.0", True),
        (0.5, ".5", True),
        (5, "\u0665", False),
        (5, "nan", False),
        (5, LONG, False),
        (1, "inf", False),
    ],
)
def test_what_float_takes_is_no_number(one: Any, other: str, is_same: bool) -> None:  # noqa: FBT001 -- a table
    """A text is a number only as people and JSON write it."""
    assert equality.same(one, other) is is_same
    assert equality.same(other, one) is is_same


@pytest.mark.parametrize(
    "text", ["", "1_0", " 1", "\u0663", "\u00b2", "+1", "-1", "1.0", LONG, "nan"]
)
def test_decimal_is_ascii_digits(text: str) -> None:
    """A decimal number is one or more ASCII digits."""
    assert decimal(text) is None
    assert jobs.others(f"exit, after restart {text}") == {}
    assert decimal("0018") == 18


@pytest.mark.parametrize("text", ["1_0", "\u0663", LONG, "1.0", "--1", ""])
def test_settings_are_ascii_digits(text: str) -> None:
    """A setting is a number only as everybody writes it."""
    with pytest.raises(ValueError, match="a whole number from -5 to 99"):
        whole(-5, 99)(text)
    assert [whole(-5, 99)(each) for each in ("7", " 8 ", "-3")] == [7, 8, -3]


def test_conditions_know_ascii_digits() -> None:
    """Digits of other scripts are words, as the index has them."""
    assert number("\u0663") is None
    assert number("3k") == 3 << 10


def test_lists_that_take_long_to_match_differ() -> None:
    """Lists of objects are matched as long as that takes few steps; equal ones always are."""
    many = [{"name": str(n), "in": [{"a": [m, n]} for m in range(100)]} for n in range(150)]
    others = [{**each, "name": f"x{each['name']}"} for each in many]
    assert not equality.same(many, others)
    assert equality.same(many, many[::-1])
    few = [{"name": n, "more": 1} for n in range(50)]
    assert equality.same([{"name": str(n)} for n in range(50)], few[::-1])
