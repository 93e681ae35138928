"""Drift is a declared field that was observed with another value."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.bus.service.node import Caller
from opdbus.bus.service.options import MAX_LIMIT
from opdbus.bus.service.state import StateInterface
from opdbus.config import load
from opdbus.errors import InvalidArgs
from opdbus.index.declared import Declared
from opdbus.index.finder import Finder
from opdbus.index.health import Health
from opdbus.index.memory import Memory
from opdbus.index.object_vectors import ObjectVectors
from opdbus.index.store import Content, Entry
from opdbus.observe.supervisor import Supervisor
from opdbus.serving.serving import Serving
from opdbus.state.drift import MAX_FIELD, MAX_FIELDS, drifted_fields, leaves
from opdbus.state.object import FILE, Identity, StateObject


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


def test_many_and_long_names_are_cut() -> None:
    """Name so many fields and so much of each that the signal stays small."""
    names = [f"{'é' * MAX_FIELD}{n:05}" for n in range(9_000)] + [f"a{n:05}" for n in range(9_000)]
    found = drifted_fields(dict.fromkeys(names, 1), dict.fromkeys(reversed(names), 2))
    assert found == [f"a{n:05}" for n in range(MAX_FIELDS)]
    long = dict.fromkeys(names[:9_000], 1)
    found = drifted_fields({"x": long}, {"x": dict.fromkeys(long, 2)})
    assert len(found) == MAX_FIELDS
    assert all(name.endswith("...") and len(name) == MAX_FIELD for name in found)
    assert len("".join(found).encode()) < 64 << 10


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (1, "1"),
        (True, "true"),
        (False, "False "),
        ("Active", "active"),
        (1.5, "1.5"),
        ([1], [1]),
        ([80], ["80"]),
        ([True, "Up"], ["true", "up"]),
        ([80, [443, {"on": True}]], ["80", ["443", {"on": "TRUE"}]]),
        ({"ports": [[80]]}, {"ports": [["80"]]}),
    ],
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
        ([1, 2], [2, 1]),
        (["1, 2"], [1, 2]),
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


def _state(memory: Memory, tmp_path: Path) -> StateInterface:
    vectors = ObjectVectors(memory, Serving(load({})))
    declared = Declared(tmp_path / "state.json", memory)
    health, observers = Health(vectors, declared), Supervisor((), memory)
    return StateInterface(vectors, Finder(vectors), declared, health, observers)


def _drifts(tmp_path: Path, wanted: dict[str, Any]) -> Any:
    async def work() -> Any:
        async with Memory(tmp_path / "memory.db") as memory:
            return await _state(memory, tmp_path).drift(Caller(":1.1", 0), wanted)

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", 0),
        ("limit", -1),
        ("limit", MAX_LIMIT + 1),
        ("limit", "5"),
        ("limit", True),
        ("offset", -1),
        ("offset", 1.5),
        ("ofset", 1),
        ("source", "file"),
        ("kind", 7),
    ],
)
def test_wrong_pages_of_drifts_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    """Refuse, by its name, an option that is out of bounds, of another type, or unknown."""
    with pytest.raises(InvalidArgs, match=key):
        _drifts(tmp_path, {key: value})


class CountingMemory(Memory):
    """A memory that counts the reads of contents."""

    reads = 0

    async def content(self, entries: Sequence[Entry]) -> dict[int, Content]:
        """Count, and read."""
        self.reads += 1
        return await super().content(entries)


@pytest.mark.parametrize(("declared", "reads"), [(0, 0), (300, 1)])
def test_the_database_is_read_once_for_all_drifts(
    tmp_path: Path, declared: int, reads: int
) -> None:
    """Read all pairs at once, and nothing where nothing is declared."""

    async def work() -> tuple[list[Any], int]:
        async with CountingMemory(tmp_path / "memory.db") as memory:
            items = [StateObject(Identity(FILE, "p", "k", f"n{n}"), {"a": n}) for n in range(300)]
            await memory.replace(FILE, {i.identity for i in items[:declared]}, items[:declared])
            seen = [StateObject(i.identity._replace(source="publish:x"), {"a": 7}) for i in items]
            await memory.publish(seen, 0)
            found = await _state(memory, tmp_path).drift(Caller(":1.1", 0), {"kind": "k"})
            return found, memory.reads

    found, reads_done = asyncio.run(work())
    assert len(found) == declared
    assert [path for path, _, fields in found if not fields] == ["/org/opdbus/state/p/k/n7"] * reads
    assert reads_done == reads


def test_pages_of_drifts_may_begin_anywhere(tmp_path: Path) -> None:
    """Accept the bounds of a page, and give nothing where there is nothing."""
    for wanted in ({}, {"limit": 1}, {"limit": MAX_LIMIT, "offset": 0}, {"offset": 1 << 31}):
        assert _drifts(tmp_path, dict(wanted)) == []
