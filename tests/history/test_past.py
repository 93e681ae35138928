"""An object as it was: whatever happened to it, each of its states can be had again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.errors import NotKept, UnknownObject
from opdbus.history.change import FIRST, Cause, FieldChange, differences
from opdbus.history.row_filter import Row, StateRewinder
from opdbus.index.changes import history_reader
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, ObjectId, StateObject

LAMP = ObjectId("house", "lamp", "hall")
SOURCES = ("live:a", "live:b")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("xy", max_size=1), inner),
    max_leaves=5,
)
STATES = st.none() | st.dictionaries(st.text("xyz", max_size=2), VALUES, max_size=3)


def row(seq: int, source: str, before: Any, after: Any) -> Row:
    """Make the row of a change between two states, None where it was not there."""
    what = "appeared" if before is None else "gone" if after is None else "changed"
    fields = differences(before or {}, after or {})
    return Row(seq, seq, "", Identity(source, *LAMP), what, "", fields, 0, None, "")


@given(st.lists(st.tuples(st.sampled_from(SOURCES), STATES), max_size=12))
@settings(max_examples=100)
def test_every_state_comes_back(changes: Sequence[tuple[str, Any]]) -> None:
    """Return through all states of all sources, in which an object comes, changes and leaves."""
    states: list[dict[str, Any]] = [{}]
    rows: list[Row] = []
    for source, after in changes:
        before = states[-1].get(source)
        if before == after:
            continue
        rows.append(row(len(rows), source, before, after))
        now = {**states[-1], source: after}
        states.append({name: state for name, state in now.items() if state is not None})
    then = StateRewinder(states[-1])
    for undone, wanted in zip(reversed(rows), reversed(states[:-1]), strict=True):
        then.undo(undone)
        assert json.dumps(then.states, sort_keys=True) == json.dumps(wanted, sort_keys=True)
        assert then.unknown == []


def test_what_is_not_kept_is_known_again_further_back() -> None:
    """Name fields without values, until an earlier change tells them or the object is not there."""
    then = StateRewinder({SOURCES[0]: {"a": 3, "b": {"c": 1}}})
    fields = [FieldChange(["a"], None, None), FieldChange(["b", "c"], None, None)]
    changed = Identity(SOURCES[0], *LAMP)
    then.undo(Row(4, 4, "", changed, "changed", "", fields, 0, None, ""))
    assert then.unknown == ["a", "b.c"]
    then.undo(Row(3, 3, "", changed, "drift", "", [], 0, None, ""))
    then.undo(row(2, SOURCES[0], {"a": 1, "b": {"c": 1}}, {"a": 2, "b": {"c": 1}}))
    assert then.unknown == ["b.c"]
    then.undo(row(1, SOURCES[0], None, {"a": 1}))
    assert (then.unknown, then.states) == ([], {})


async def test_what_was_before_the_first_look_is_not_known(tmp_path: Path) -> None:
    """Tell apart what came from what was first looked at, and from what left."""
    now = 100.0
    async with StateStore(tmp_path / "memory.db", clock=lambda: now) as memory:

        async def see(name: str, cause: str, **state: Any) -> None:
            item = StateObject(Identity("live:a", "house", "lamp", name), state)
            await memory.observe([item], set(), {}, lambda _: Cause(cause))

        await see("old", "", on=True)
        now = 200.0
        await see("hall", FIRST, on=True)
        await see("new", "", on=True)
        now = 300.0
        gone = {Identity("live:a", *ObjectId("house", "lamp", "new"))}
        await memory.observe([], gone, {})
        found = await history_reader.object_at(memory, LAMP, 200_000_000)
        assert found == {"live:a": {"on": True}}
        with pytest.raises(NotKept, match="op-dbus first saw it at 1970-01-01 00:03:20Z"):
            await history_reader.object_at(memory, LAMP, 199_999_999)
        new = ObjectId("house", "lamp", "new")
        with pytest.raises(UnknownObject, match="it appeared at 1970-01-01 00:03:20Z"):
            await history_reader.object_at(memory, new, 150_000_000)
        with pytest.raises(UnknownObject, match="it left at 1970-01-01 00:05:00Z"):
            await history_reader.object_at(memory, new, 300_000_000)
        with pytest.raises(NotKept, match="history begins at 1970-01-01 00:01:40Z"):
            await history_reader.object_at(memory, LAMP, 99_999_999)


async def test_an_empty_history_says_so(tmp_path: Path) -> None:
    """Claim nothing about the past where nothing was written down."""
    async with StateStore(tmp_path / "memory.db") as memory:
        with pytest.raises(NotKept, match="history has no rows yet"):
            await history_reader.object_at(memory, LAMP, 5)
