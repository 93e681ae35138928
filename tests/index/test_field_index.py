"""The index of fields: whatever is stored, changed and gone, it says what a look at each would."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.house import beside

from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.fields import field_index, field_reader
from opdbus.index.fields.field_column import FieldColumn
from opdbus.index.fields.field_index import FieldIndex
from opdbus.index.fields.field_reader import FieldReader
from opdbus.index.fields.value_array import ValueArray, decode, encode
from opdbus.index.query import condition_matching
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.conditions import IS, OPERATORS, AllOf, Condition, number
from opdbus.state.object import FILE, Identity, ObjectId, StateObject

VALUES: Sequence[Any] = (
    *("failed", "Failed now", "fail", "", "yes", "No", "true", "95", " 95", "95.0", "4G", "٩٥",
     "é"),
    *("0644", "644", "0x1f", "31", "1.10", "1.1", "1.10 k", "4294967296"),
    *("É", "\x00", "ÿ\ufffe", "12 of 95", "-7", "50%", "9007199254740993", "x" * 300),
    *(95, 95.0, 95.5, -7, 0, True, False, None, 1e16, 1e-7, 0.1, 1 << 53, (1 << 53) + 1, 10**400),
)  # fmt: skip
ASKED = (
    *("failed", "fail", "il", "", "yes", "false", "95", "95.5", "4g", "4096m", "é", "é\ud800", " "),
    *("\x00", "ÿ", "x" * 300, "xxxx", "-7", "50%", "9007199254740993", "9007199254740992", "1e"),
    *("0644", "644", "0x1f", "31", "1.10", "1.1", "1.1k", "95.00"),
    *("0.1", "none", "0", "10000000000000000", "publish", "file", "u1", "unit"),
)
KEYS = ("state", "active_state", "ActiveState", "net.state", "", "kind", "name", "used%", "état")
FIELDS = (
    *("state", "active_state", "net", "kind", ".kind", "name", ".name", "source", "used", "état"),
    "missing",
)


def properties(chance: random.Random) -> dict[str, Any]:
    """Make up to four fields, some of them lists, some in objects and in lists of them."""
    made: dict[str, Any] = {}
    for key in chance.sample(KEYS, chance.randrange(5)):
        value: Any = chance.choice(VALUES)
        shape = chance.randrange(8)
        if shape == 0:
            value = [chance.choice(VALUES) for _ in range(chance.randrange(3))]
        elif shape == 1:
            value = {chance.choice(KEYS): value}
        elif shape == 2:
            value = [{chance.choice(KEYS): value}, [value]]
        made[key] = value
    return made


def conditions(chance: random.Random) -> Iterator[list[Condition]]:
    """Yield conditions, one or two together."""
    for _ in range(40):
        yield [
            Condition(chance.choice(FIELDS), operator, value)
            for operator, value in (
                (chance.choice((*OPERATORS, IS)), chance.choice(ASKED))
                for _ in range(chance.choice((1, 1, 2)))
            )
            if operator[0] not in "<>" or number(value) is not None
        ]


async def compare(memory: StateStore, chance: random.Random) -> None:
    """Compare what is found with what a look at everything that there is finds."""
    about = {
        object_id: memory.catalogue.require_entries(object_id)
        for object_id in memory.catalogue.all_object_ids()
    }
    contents = await memory.content([entry for entries in about.values() for entry in entries])
    known = {one: memory.merge_properties(entries, contents) for one, entries in about.items()}
    for asked in conditions(chance):
        wanted = AllOf(asked)
        met = {
            t for t, all_ in about.items() if any(wanted.hold(e.identity, known[t]) for e in all_)
        }
        assert await condition_matching.object_ids(memory, asked) == met, asked


async def change(memory: StateStore, chance: random.Random) -> None:
    """Have some objects come, change and go, of three sources that tell of the same things."""
    for source in (FILE, "live:systemd", "publish:probe"):
        names = [f"u{n}" for n in range(12) if chance.random() < 0.6]
        objects = [
            StateObject(Identity(source, "demo", "unit", name), properties(chance))
            for name in names
        ]
        kept = {e.identity for e in memory.catalogue.of_source(source) if chance.random() < 0.7}
        present = kept | {item.identity for item in objects}
        await memory.replace(source, present, objects)
        moving = [o.identity for o in objects if source.startswith("live")]
        memory.volatile.drop(one for one in moving if chance.random() < 0.3)
        memory.volatile.put(
            {
                one: {chance.choice(("state", "x")): chance.choice(VALUES)}
                for one in moving
                if chance.random() < 0.3
            }
        )


@pytest.mark.parametrize("seed", range(4))
async def test_it_says_what_a_look_at_each_object_says(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meet conditions exactly, with none, some and all of the fields read, and read again."""
    chance = random.Random(seed)  # noqa: S311 -- no secret
    monkeypatch.setattr(field_reader, "_LEFT", 40)
    if seed % 2:
        monkeypatch.setattr(field_index, "MAX_VALUES", 3)
    if seed % 4 > 1:
        monkeypatch.setattr(field_reader, "_MANY", 5)
    if seed % 3 == 0:
        monkeypatch.setattr(field_index, "_MAX_COLUMNS", 12)
    async with StateStore(tmp_path / "memory.db") as memory:
        for step in range(5):
            await change(memory, chance)
            if step % 2:
                await memory.fields.catch_up()
            await compare(memory, chance)
    async with StateStore(tmp_path / "memory.db") as memory:
        await compare(memory, chance)
        await memory.fields.catch_up()
        await compare(memory, chance)


@pytest.mark.parametrize("many", [0, 50_000])
async def test_a_change_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Say of an object what it has now, whatever was being read when it changed."""
    monkeypatch.setattr(field_reader, "_MANY", many)
    monkeypatch.setattr(field_reader, "_AT_A_TIME", 2)

    name = Identity("live:systemd", "systemd", "unit", "u")

    async def reading(memory: StateStore) -> None:
        while True:
            await memory.fields.catch_up()
            await asyncio.sleep(0)

    async with StateStore(tmp_path / "memory.db") as memory, beside(reading(memory)):
        for state in range(1, 20):
            others = [StateObject(name._replace(name=f"{n}"), {"state": -state}) for n in range(9)]
            await memory.observe([StateObject(name, {"state": state}), *others], set(), {})
            asked = [Condition("state", "=", str(state))]
            for _ in range(9):
                assert await condition_matching.object_ids(memory, asked) == {ObjectId(*name[1:])}
                await asyncio.sleep(0.0003)


async def test_what_is_to_be_read_anew_meanwhile_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take nothing as read that was read before all was to be read anew."""
    taking, units = FieldReader._take, [Identity("live:s", "s", "unit", f"{n}") for n in range(9)]
    monkeypatch.setattr(field_reader, "_AT_A_TIME", 4)

    async def take(self: FieldReader, *given: Any) -> Any:
        rows = await taking(self, *given)
        monkeypatch.setattr(FieldReader, "_take", taking)
        self.begin()
        return rows

    async with StateStore(tmp_path / "memory.db") as memory:
        for state in (1, 2):
            monkeypatch.setattr(FieldReader, "_take", take)
            await memory.observe([StateObject(one, {"a": state}) for one in units], set(), {})
            await memory.fields.catch_up()
            found = await condition_matching.object_ids(memory, [Condition("a", "=", str(state))])
            assert len(found) == len(units)


def test_a_place_that_another_object_has_by_now_is_not_found() -> None:
    """Leave out what is gone, also where something else has come in its place."""
    view = EntryView()
    assert not len(view.existing(view.refs_of([7])))
    index = FieldIndex(view)
    index.publish(index.write([(1, Identity("", "", "", "gone"), {"a": 1})]))
    is_met, _ = index.meeting(Condition("a", "=", "1"), index.end)
    assert not len(view.existing(index.refs_of(is_met)))


def test_values_are_found_by_parts_of_them() -> None:
    """Find what has a text, of any length, at the beginning, in the middle and at the end."""
    texts = ["", "a", "ab", "abcabc", "xabc", "cabx", "abcabcabcabd", "üa", "aü"]
    values = ValueArray()
    values.add([encode(text) for text in texts[:4]])
    values.add([encode(text) for text in texts[4:]])
    for part in ("a", "ab", "abc", "abca", "abcabd", "cabcabd", "ü", "zz", "", "abcabcabcabdd"):
        found = values.having(part.encode()).tolist()
        assert found == [n for n, text in enumerate(texts) if part in text], part
        equal = values.equal(encode(part)).tolist()
        assert equal == [n for n, text in enumerate(texts) if part == text], part


@pytest.mark.parametrize("value", [*VALUES, "É\ud800"])
def test_values_come_back(value: Any) -> None:
    """Write each value so that it is read as it was, a text in lower case."""
    back = decode(encode(value))
    assert back == (value.lower() if isinstance(value, str) else value)
    assert type(back) is type(value)


@pytest.mark.parametrize("different", [3, 3000, 9000])
@pytest.mark.parametrize("first", [0, 7])
def test_few_values_are_kept_once_and_many_as_they_come(different: int, first: int) -> None:
    """Know the rows of each value, whether a field has few different ones, or many in the end."""
    column, rows = FieldColumn(), range(first, first + 9000)
    values = [n if n % 2 else n % different for n in range(len(rows))]
    for at in range(0, 9000, 500):
        column.add(rows[at : at + 500], [encode(value) for value in values[at : at + 500]])
    for limit in (0, 2, 2999, 8000):
        found = np.zeros(6000, np.bool_)
        column.mark(found, Condition("n", ">=", str(limit)))
        met = [row for row, value in zip(rows, values, strict=True) if value >= limit]
        assert np.flatnonzero(found).tolist() == [row for row in met if row < 6000]
    having = np.zeros(10, np.bool_)
    column.mark_all(having)
    assert np.array_equal(np.flatnonzero(having), range(first, 10))


@pytest.mark.parametrize("field", ["interval", "RuntimeMaxSec"])
@pytest.mark.parametrize("asked", ["90s", "1.5min", "90", "5m", "300sec", "infinity"])
def test_spans_of_time_are_found_however_they_are_written(field: str, asked: str) -> None:
    """Meet a condition with the values that are the same span of time, and with no others."""
    spans = ("90s", "1min 30s", "5m", "5min", "300 sec", "1M", 90, 300, 5 << 20, "Infinity", 90.0)
    column, values, found = FieldColumn(), [*VALUES, *spans], np.zeros(100, np.bool_)
    column.add(range(len(values)), [*map(encode, values)])
    condition = Condition(field, "=", asked)
    column.mark(found, condition)
    met = [row for row, value in enumerate(values) if condition.is_met_by([value])]
    assert np.flatnonzero(found).tolist() == met
