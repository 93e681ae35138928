"""History: each change of an object is a row, in the transaction that changes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.observing import history
from harness.remembering import OWNER, SOURCE, run, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.history import hash_chain
from opdbus.history.change import Cause, FieldChange, differences, from_json, to_json, undone
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, ObjectId


async def test_each_change_is_a_row(tmp_path: Path) -> None:
    """Record what came, changed and left, with the fields before and after, and nothing else."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await memory.publish([unit("a", state="active", port=1)], OWNER, cause="c1")
        await memory.publish([unit("a", state="active", port=1)], OWNER, cause="c2")
        await memory.publish([unit("a", state="failed", port=1)], OWNER, cause="c3")
        await memory.observe([], {Identity(SOURCE, "systemd", "unit", "a")}, {})
    found = history(tmp_path)
    assert [(row["seq"], row["what"], row["cause"]) for row in found] == [
        (1, "appeared", "c1"),
        (2, "changed", "c3"),
        (3, "gone", ""),
    ]
    assert found[1]["fields"] == [[["state"], ["active"], ["failed"]]]
    assert found[2]["fields"] == [[["port"], [1], []], [["state"], ["failed"], []]]
    assert {row["boot"] for row in found} == {"b1"}


async def test_what_is_refused_leaves_no_row(tmp_path: Path) -> None:
    """Write rows and objects together, or neither."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await memory.publish([unit("a", state="active")], OWNER)
        with pytest.raises(Exception, match="belongs to uid"):
            await memory.publish([unit("b"), unit("a", state="failed")], OWNER + 1)
    assert [row["name"] for row in history(tmp_path)] == ["a"]


async def test_the_chain_covers_every_row(tmp_path: Path) -> None:
    """Make each hash from the row and the hash before."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        for number in range(7):
            await memory.publish([unit("a", number=number), unit(f"b{number}")], OWNER)
        state = await memory.archive.read(lambda store: store.ledger.state())
        found = history(tmp_path)
        before = bytes(32)
        for row in found:
            fields = to_json(from_json(row["fields"]))
            assert row["digest"] == hash_chain.values_digest(row["salt"], fields)
            keys = "seq at boot source plugin kind name what cause folded".split()
            before = hash_chain.row_hash(before, [*(row[key] for key in keys), row["digest"].hex()])
            assert row["hash"] == before
        assert state.head.seq == len(found) == 14
        assert state.head.hash == before


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
STATES = st.dictionaries(st.text(max_size=2), VALUES, max_size=5)


@given(STATES, STATES)
@settings(max_examples=60)
def test_a_change_can_be_undone(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Return exactly to the state before, of any two states."""
    fields = from_json(json.loads(to_json(differences(before, after))))
    assert json.dumps(undone(after, fields), sort_keys=True) == json.dumps(before, sort_keys=True)


def test_an_undone_change_needs_its_values() -> None:
    """Refuse to guess a value that was not kept."""
    with pytest.raises(KeyError, match=r"a\.b"):
        undone({}, [FieldChange(["a", "b"], None, None)])


def erase_deleted(store: Store) -> None:
    """Leave nothing of what was deleted in the files."""
    for _ in store.clean_words():
        pass
    assert store.empty_log()


async def test_what_lives_with_a_connection_keeps_no_values(tmp_path: Path) -> None:
    """Record that something changed, and no value, nor a sentence with one."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await memory.publish([unit("a", description="hushed")], OWNER, holder=":1.1")
        await memory.publish([unit("a", description="hidden")], OWNER, holder=":1.1")
        await memory.release(":1.1")
        await memory.archive.write(erase_deleted)
    assert [row["what"] for row in history(tmp_path)] == ["appeared", "changed", "gone"]
    assert all(row["fields"] == [[["description"]]] for row in history(tmp_path))
    assert b"hushed" not in (tmp_path / "memory.db").read_bytes()
    assert b"hidden" not in (tmp_path / "memory.db").read_bytes()


async def test_what_is_withdrawn_leaves_no_values(tmp_path: Path) -> None:
    """Erase the values of all rows about it; the rows stay, and the chain holds."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await memory.publish([unit("a", description="hushed"), unit("b")], OWNER)
        await memory.publish([unit("a", description="hidden")], OWNER)
        await memory.withdraw([ObjectId("systemd", "unit", "a")], OWNER)
        await memory.archive.write(erase_deleted)
    content = (tmp_path / "memory.db").read_bytes()
    assert b"hushed" not in content
    assert b"hidden" not in content
    assert len(history(tmp_path)) == 4


async def test_an_event_is_a_row_without_fields(tmp_path: Path) -> None:
    """Record what happened to an object and left it as it was; the object is not changed."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        item = unit("a", state="active")
        await memory.publish([item], OWNER)
        generation = memory.generation
        why = Cause("job:7 restart", 2, is_event=True)
        await memory.observe([], set(), {}, events={item.identity: why})
        assert memory.generation == generation
    last = history(tmp_path)[-1]
    assert (last["what"], last["cause"], last["folded"]) == ("event", "job:7 restart", 2)
    assert last["fields"] == []


def test_what_a_killed_daemon_held_is_gone(tmp_path: Path) -> None:
    """Record at the next start that what lived with a connection is gone, and why."""

    async def hold(memory: StateStore) -> None:
        await memory.publish([unit("a", description="hushed")], OWNER, holder=":1.1")

    async def look(memory: StateStore) -> None:
        assert not list(memory.catalogue)

    run(tmp_path, hold)
    for _ in range(2):
        run(tmp_path, look)
    last = history(tmp_path)[-1]
    assert (len(history(tmp_path)), last["what"], last["cause"]) == (2, "gone", "start")


async def test_a_kind_that_history_has_is_known(tmp_path: Path) -> None:
    """Know the plugins and kinds of objects that are gone, each by itself and together."""
    async with StateStore(tmp_path / "memory.db", boot="b1") as memory:
        await memory.publish([unit("a")], OWNER)
        await memory.withdraw([ObjectId("systemd", "unit", "a")], OWNER)

        async def has(plugin: str, kind: str) -> bool:
            return await memory.archive.read(lambda store: store.history.has_kind(plugin, kind))

        for names in (("systemd", "unit"), ("systemd", ""), ("", "unit"), ("", "")):
            assert await has(*names), names
        for names in (("systemd", "lamp"), ("lamp", "unit"), ("lamp", ""), ("", "lamp")):
            assert not await has(*names), names
