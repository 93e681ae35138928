"""Drift is a declared field that was observed with another value."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.state.drift import drifted_fields, leaves


def test_changed_fields_are_named() -> None:
    """Name each declared field that differs, with dots, in order."""
    declared = {
        "z": 1,
        "ipv4": {"enabled": True, "dns": ["a", "b"]},
        "same": "x",
        "l": [{"k": 1}, 2],
    }
    observed = {
        "z": 2,
        "ipv4": {"enabled": False, "dns": ["b", "a"]},
        "same": "x",
        "l": [{"k": 3}, 2],
    }
    assert drifted_fields(declared, observed) == ["ipv4.dns", "ipv4.enabled", "l.0.k", "z"]


def test_fields_of_one_side_are_no_drift() -> None:
    """Pass over what only the file or only the host says."""
    assert drifted_fields({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}, "e": 3}) == []
    assert drifted_fields({}, {"a": 1}) == []
    assert drifted_fields({"a": 1}, {}) == []


@pytest.mark.parametrize(
    ("declared", "observed"),
    [(1, "1"), (True, "true"), (False, "False "), ("Active", "active"), (1.5, "1.5"), ([1], [1])],
)
def test_spelling_is_no_drift(declared: Any, observed: Any) -> None:
    """Take values as the same that people write differently."""
    assert drifted_fields({"a": declared}, {"a": observed}) == []
    assert drifted_fields({"a": observed}, {"a": declared}) == []


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (1, 2),
        (True, False),
        (None, "x"),
        ("a", "b"),
        ([1, 2], [1]),
        ("1", [1]),
        (0, None),
        ("", "x"),
    ],
)
def test_other_value_is_drift(declared: Any, observed: Any) -> None:
    """Take values as drifted that mean something else."""
    assert drifted_fields({"a": declared}, {"a": observed}) == ["a"]
    assert drifted_fields({"a": observed}, {"a": declared}) == ["a"]


def test_leaves_are_named_with_dots() -> None:
    """Name scalars and lists of scalars by their way from the top."""
    value = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": None}, "f"], "g": {}, "h": []}
    assert list(leaves(value)) == [
        ("a.b", 1),
        ("a.c", [1, 2]),
        ("d.0.e", None),
        ("d.1", "f"),
        ("h", []),
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=3),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
            max_leaves=8,
        ),
    )
)
def test_nothing_drifts_from_itself(properties: dict[str, Any]) -> None:
    """Find no drift between equal properties, whatever they are."""
    assert drifted_fields(properties, properties) == []
