"""What History1 means by an object: rows of other names, and those that are no changes."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.running import work_of

from opdbus.bus import paths
from opdbus.bus.service import contract
from opdbus.bus.service.history1 import HistoryInterface
from opdbus.config import load
from opdbus.drift.tracker import Tracker
from opdbus.errors import InvalidArgs, LimitsExceeded, NotKept
from opdbus.history.change import Cause, Change, ChangeType, FieldChange
from opdbus.history.ledger import UNCHECKED
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.changes import history_reader
from opdbus.index.changes.change_finder import ChangeFinder
from opdbus.index.changes.connections import nothing_more
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity, Json, ObjectId, StateObject, canonical

PACKAGE = "/org/opdbus/state/packages/package/x"
ROOT = contract.Caller(":1.1", 0)
UNITS = "/org/opdbus/state/systemd/unit"
PORT = Identity("live:x", "net", "listener", "tcp :1")
STOPPED = FieldChange(["active_state"], ["active"], ["inactive"])


def run(
    folder: Path,
    work: Callable[[StateStore, HistoryInterface], Awaitable[Any]],
    rows: Sequence[tuple[str, ChangeType, str]] = (),
) -> Any:
    """Run something with a history of (object, what, cause) each."""

    async def live() -> Any:
        async with StateStore(folder / "memory.db") as memory:
            fields = [FieldChange(["version"], ["3.0"], ["2.0"])]
            changes = [
                Change(Identity("file", *name.split("/")), what, Cause(cause), fields)
                for name, what, cause in rows
            ]
            await memory.record(changes, lambda _: None)
            finder = ChangeFinder(
                ObjectVectors(memory, Serving(load({"OP_DBUS_VECTOR_LEVEL": "none"}))), nothing_more
            )
            history = HistoryInterface(memory, finder, Tracker(memory), nothing_more)
            return await work(memory, history)

    return asyncio.run(live())


def test_drift_is_forgotten_with_its_object(tmp_path: Path) -> None:
    """Erase what says of an object's declaration how the host was other, and nothing else of it."""
    told: dict[tuple[str, ChangeType, str], bool] = {
        ("packages/package/x", "changed", ""): True,
        ("packagekit/package/x", "appeared", ""): False,
        ("packagekit/package/x", "drift", ""): True,
        ("packagekit/package/x", "healed", ""): True,
        ("apt/package/x:amd64", "intended", ""): True,
        ("packagekit/package/y", "drift", ""): False,
        ("systemd/unit/x", "drift", ""): False,
    }

    async def work(memory: StateStore, history: HistoryInterface) -> list[bool]:
        await history.forget(ROOT, {"object": PACKAGE})
        kept = await history_reader.rows_by_seq(memory, range(1, len(told) + 1))
        return [row.fields[0].path == [] for row in kept]

    assert run(tmp_path, work, rows=list(told)) == list(told.values())


def test_the_history_of_a_thing_has_all_its_names(tmp_path: Path) -> None:
    """Tell of what is declared what was observed of it, and the other way, also when it is gone."""
    rows: list[tuple[str, ChangeType, str]] = [
        ("packages/package/x", "changed", ""),
        ("packages/package/x:amd64", "gone", ""),
        ("packagekit/package/x", "gone", ""),
        ("packages/package/y", "gone", ""),
    ]

    async def work(_memory: StateStore, history: HistoryInterface) -> list[list[Any]]:
        found = [
            await history.changes(ROOT, {"object": path}, 9)
            for path in (PACKAGE, "/org/opdbus/state/packagekit/package/x")
        ]
        return [[row["seq"].value for row in rows] for rows in found]

    assert run(tmp_path, work, rows=rows) == [[3, 2, 1], [3, 2, 1]]


def test_what_was_erased_is_said_to_be(tmp_path: Path) -> None:
    """Refuse to forget a row that is not there, and to look for what is like an erased change."""

    async def work(_memory: StateStore, history: HistoryInterface) -> None:
        with pytest.raises(NotKept, match="there is no row 9 of history: rows 1 to 1 are kept"):
            await history.forget(ROOT, {"row": 9})
        assert await history.forget(ROOT, {"row": 1}) == (1, 0, True)
        with pytest.raises(NotKept, match="what changed of packages/package/x was erased"):
            await history.nearest(ROOT, {"object": PACKAGE}, 1)
        with pytest.raises(NotKept, match="what row 1 says is not kept"):
            await history.nearest(ROOT, {"seq": 1}, 1)

    run(tmp_path, work, rows=[("packages/package/x", "changed", "")])


@work_of(run, "tmp_path", handed=2)
async def test_what_followed_is_told_once(memory: StateStore, history: HistoryInterface) -> None:
    """Give of the turns of a restart loop the first, and nothing that only has the same cause."""

    async def see(name: str, cause: str, state: str, *, is_event: bool = False) -> None:
        unit, why = Identity("live:x", "systemd", "unit", name), Cause(cause, is_event=is_event)
        what = StateObject(unit, {"active_state": state})
        events = {unit: why} if is_event else {}
        await memory.observe([] if is_event else [what], set(), {}, lambda _: why, events)

    await see("web.service", "job:1 start", "active")
    await see("web.service", "exit", "failed")
    for number in range(2, 20):
        await see("web.service", f"job:{number} restart", "failed", is_event=True)
    await see("other.service", "exit", "active")
    await see("web.service", "job:20 start", "active")
    await see("web.service", "exit", "failed")
    ((found, after),) = await history.nearest(ROOT, {"seq": 23}, 9)
    assert [found["seq"].value, [row["seq"].value for row in after]] == [2, [3, 22, 23]]


@work_of(run, "tmp_path", handed=2)
async def test_what_is_like_an_object_is_like_what_happened_to_it(
    memory: StateStore, history: HistoryInterface
) -> None:
    """Take what happened on the host last, and not what became of a declaration."""
    unit = Identity("live:x", "systemd", "unit", "web.service")
    declared = Identity("file", "systemd", "unit", "web")
    for state in ("active", "failed", "active", "failed"):
        await memory.observe([StateObject(unit, {"active_state": state})], set(), {})
    await memory.observe([StateObject(declared, {"active_state": "active"})], set(), {})
    await memory.observe([], {declared}, {})
    near = await history.nearest(ROOT, {"object": f"{UNITS}/web_2eservice"}, 9)
    assert [(found["event"].value, found["seq"].value) for found, _ in near] == [(4, 2)]


@work_of(run, "tmp_path", handed=2)
async def test_what_was_around_an_object_is_told_by_all_its_names(
    memory: StateStore, history: HistoryInterface
) -> None:
    """Tell of ports that are closed, and of a declaration that is gone and has the short name."""
    told: list[tuple[Identity, ChangeType, FieldChange]] = [
        (
            PORT._replace(name="tcp :1"),
            "gone",
            FieldChange(["unit"], ["old-web.service"], None),
        ),
        (PORT._replace(name="tcp :2"), "gone", FieldChange(["unit"], ["web.service"], None)),
        (Identity("file", "systemd", "unit", "web"), "gone", FieldChange(["x"], ["1"], None)),
        (Identity("live:x", "systemd", "unit", "web.service"), "changed", STOPPED),
    ]
    changes = [Change(identity, what, Cause(), [field]) for identity, what, field in told]
    await memory.record(changes, lambda _: None)
    asked = [{"around": f"{UNITS}/{name}"} for name in ("web", "web_2eservice")]
    found = [await history.changes(ROOT, each, 9) for each in asked]
    assert [[row["seq"].value for row in rows] for rows in found] == [[4, 3, 2], [4, 3, 2]]


@pytest.mark.parametrize("path", [f"{UNITS}/web", "/org/opdbus/state/files/file/etc"])
def test_all_things_are_walked_on_a_thread(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the event loop to others while all things are compared with one, however many."""
    walkers = []

    def known(catalogue: Catalogue) -> list[ObjectId]:
        walkers.append(threading.get_ident())
        return original(catalogue)

    async def work(_memory: StateStore, history: HistoryInterface) -> int:
        await history.changes(ROOT, {"around": path}, 9)
        return threading.get_ident()

    original = Catalogue.all_object_ids
    monkeypatch.setattr(Catalogue, "all_object_ids", known)
    rows: list[tuple[str, ChangeType, str]] = [("systemd/unit/web", "changed", "")]
    loop = run(tmp_path, work, rows=rows)
    assert walkers
    assert loop not in walkers


def test_what_was_listed_first_is_no_change_around_an_object(tmp_path: Path) -> None:
    """Leave out what was there when it was first listed, unless a cause is asked for."""
    rows: list[tuple[str, ChangeType, str]] = [
        ("packages/package/x", "appeared", "first"),
        ("packages/package/x", "changed", "apt:1"),
    ]

    async def work(_memory: StateStore, history: HistoryInterface) -> list[list[Any]]:
        asked = ({"around": PACKAGE}, {"around": PACKAGE, "cause": "first"}, {"object": PACKAGE})
        found = [await history.changes(ROOT, dict(each), 9) for each in asked]
        return [[row["seq"].value for row in rows] for rows in found]

    assert run(tmp_path, work, rows=rows) == [[2], [1], [2, 1]]


def test_a_hidden_row_can_be_forgotten(tmp_path: Path) -> None:
    """Erase a row that is being looked through after an update, and say that it is hidden."""

    async def work(memory: StateStore, history: HistoryInterface) -> tuple[int, int, bool]:
        await memory.archive.write(partial(hide, last=2))
        assert await history.properties() == {"Rows": 1, "First": 3, "Hidden": 2}
        with pytest.raises(NotKept, match="row 2 of history is hidden: rows 1 to 2 are looked"):
            await history.nearest(ROOT, {"seq": 2}, 1)
        for way in (history.nearest(ROOT, {"seq": 9}, 1), history.forget(ROOT, {"row": 9})):
            with pytest.raises(NotKept, match="no row 9 of history: rows 1 to 3 are kept"):
                await way
        with pytest.raises(NotKept, match="what row 3 says is not kept"):
            await history.nearest(ROOT, {"seq": 3}, 1)
        return await history.forget(ROOT, {"row": 2})

    rows: list[tuple[str, ChangeType, str]] = [("packages/package/x", "changed", "")] * 3
    assert run(tmp_path, work, rows=rows) == (1, 0, True)


@work_of(run, "tmp_path", handed=2)
async def test_changes_bring_what_their_hashes_cover(
    memory: StateStore, history: HistoryInterface
) -> None:
    """A reader of all rows can compute the chain, also across rows whose values were erased."""
    names = ["a", 'b\u2028"\\\x01', "\U0001f600"]
    fields = [FieldChange(["version"], ["3.0"], ["2.0"])]
    for number in range(300):
        of = Identity("live:x", "lab", "box", names[number % 3])
        change = Change(of, "changed", Cause(f"job:{number} \xe9", number), fields)
        await memory.record([change], lambda _: None)
    await history.forget(ROOT, {"object": paths.of("lab", "box", names[1])})
    before, after = bytes(32), 0
    while rows := await history.changes(
        ROOT, {"chain": True, "order": "oldest", "after": after}, 99
    ):
        for row in rows:
            text = row["chained"]
            whole = hashlib.sha256(b"\0" + before + text.encode()).digest()
            assert whole.hex() == row["hash"]
            assert text == canonical(json.loads(text))
            assert json.loads(text)[:-1] == [
                row["seq"].value, row["at"].value, row["boot"], row["source"], row["plugin"],
                row["kind"], row["name"], row["what"], row["cause"], row["folded"].value,
            ]  # fmt: skip
            before, after = whole, row["seq"].value
    assert after == 301
    (last,) = await history.changes(ROOT, {"chain": True, "below": 302}, 1)
    assert last["hash"] == before.hex()
    assert "hash" not in (await history.changes(ROOT, {"chain": False}, 1))[0]
    for wrong in ({"about": "what"}, {"before_event": "x failed"}):
        with pytest.raises(InvalidArgs, match="chain"):
            await history.changes(ROOT, {"chain": True, **wrong}, 1)
    with pytest.raises(InvalidArgs, match="chain"):
        await history.nearest(ROOT, {"chain": True, "about": "what"}, 1)


def hide(store: Store, last: int) -> None:
    """Hide rows, as after an update until they were looked through."""
    with store.transaction():
        store.set_fact(UNCHECKED, str(last))


@work_of(run, "tmp_path", handed=2)
async def test_what_is_added_to_changes_is_within_the_limit(
    memory: StateStore, history: HistoryInterface
) -> None:
    """A change names the last three of the open sessions, and replies are limited with these."""
    shells: list[Json] = [
        {
            "at": f"2020-01-01T00:00:0{n}+00:00",
            "with": "sudo",
            "command": "x" * 190,
        }
        for n in range(6)
    ]
    user = Identity("publish:journal", "journal", "user", "bob")
    fields: dict[str, Json] = {"ran": [], "as_root": shells}
    await memory.publish([StateObject(user, fields)], 0, cause="bus::1.9 uid 0")
    unit = Identity("live:x", "systemd", "unit", "web.service")
    change = Change(unit, "changed", Cause("job:7 stop"), [STOPPED])
    await memory.record([change] * 2000, lambda _: None)
    (found,) = await history.changes(ROOT, {"plugin": "systemd"}, 1)
    assert [at % 60_000_000 for _, at in found["as_root"].value] == [3e6, 4e6, 5e6]
    assert found["as_root_others"].value == 3
    with pytest.raises(LimitsExceeded):
        await history.changes(ROOT, {"plugin": "systemd"}, 2000)
