"""Signals of what changed: soon, together where they come fast, in order, and in parts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from harness.running import work_of
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus import names, paths
from opdbus.bus.service.signals import (
    MAX_BYTES,
    MAX_CHANGES,
    MERGE_SECONDS,
    Announcer,
    merge_changes,
)
from opdbus.bus.transport.values import Typed
from opdbus.index.catalogue.catalogue import ChangeKind
from opdbus.index.state_store.events import Changed, Drift, Event, Listed, Vectorized
from opdbus.state.object import ObjectId

A, B, C = (ObjectId("systemd", "unit", name) for name in "abc")


class Bus:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[Any]]] = []
        self.news = asyncio.Event()

    def emit(self, _path: str, member: str, _signature: str, *body: Any) -> None:
        """Keep a signal."""
        self.sent.append((member.rpartition(".")[2], list(body)))
        self.news.set()

    async def until(self, count: int) -> None:
        """Wait until so many were sent."""
        async with asyncio.timeout(10):
            while len(self.sent) < count:
                self.news.clear()
                await self.news.wait()


def told(work: Callable[[Announcer, Bus], Awaitable[None]]) -> list[tuple[str, list[Any]]]:
    """Give what is sent while work is done."""

    async def run() -> list[tuple[str, list[Any]]]:
        bus = Bus()
        await work(Announcer(bus), bus)  # type: ignore[arg-type]
        return bus.sent

    return asyncio.run(run())


def changed(generation: int, **names: ChangeKind) -> Changed:
    """Make an event of units by name."""
    return Changed(generation, {ObjectId("systemd", "unit", n): what for n, what in names.items()})


def path(object_id: ObjectId) -> str:
    """Give a thing's path."""
    return paths.of(*object_id)


# merging


HISTORIES = st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.booleans()), max_size=8)


@given(st.sets(st.sampled_from([A, B, C])), HISTORIES)
def test_merged_changes_say_what_became_of_a_thing(
    start: set[ObjectId], history: list[dict[ObjectId, bool]]
) -> None:
    """Lead whoever knew what was there to what is there, by any number of changes."""
    there, whole = set(start), dict[ObjectId, ChangeKind]()
    for step in history:
        changes: dict[ObjectId, ChangeKind] = {}
        for object_id, stays in step.items():
            if stays:
                changes[object_id] = "changed" if object_id in there else "added"
                there.add(object_id)
            elif object_id in there:
                changes[object_id] = "removed"
                there.remove(object_id)
        whole = merge_changes(whole, changes)
    assert {object_id for object_id, what in whole.items() if what == "added"} == there - start
    assert {object_id for object_id, what in whole.items() if what == "removed"} == start - there
    assert {object_id for object_id, what in whole.items() if what == "changed"} <= start & there


# time


@work_of(told, handed=2)
async def test_the_first_change_is_told_at_once(announcer: Announcer, bus: Bus) -> None:
    """Send a change that comes alone before anything else is done."""
    announcer.announce(changed(1, a="added"))
    assert bus.sent == [("Changed", [1, [(path(A), "added")]])]


@work_of(told, handed=2)
async def test_changes_that_come_fast_are_told_together(announcer: Announcer, bus: Bus) -> None:
    """Send the first of a hundred changes, and of the others one sum with the last generation."""
    announcer.announce(changed(1, a="added"))
    for generation in range(2, 101):
        announcer.announce(changed(generation, a="changed", b="added"))
    assert len(bus.sent) == 1
    await bus.until(2)
    _, (member, body) = bus.sent
    assert member == "Changed"
    assert body == [100, [(path(A), "changed"), (path(B), "added")]]


@work_of(told, handed=2)
async def test_after_a_pause_the_next_is_the_first_again(announcer: Announcer, bus: Bus) -> None:
    """Send at once what comes when nothing has come for a while, and in between not too often."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    announcer.announce(changed(1, a="added"))
    announcer.announce(changed(2, a="changed"))
    await bus.until(2)
    announcer.announce(changed(3, a="changed"))
    assert len(bus.sent) == 2
    await bus.until(3)
    assert loop.time() - began >= 1.9 * MERGE_SECONDS
    await asyncio.sleep(1.5 * MERGE_SECONDS)
    announcer.announce(changed(4, a="changed"))
    assert len(bus.sent) == 4
    assert [body[0] for _, body in bus.sent] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "after",
    [Vectorized(2, "medium", 1, 0), Drift(A, "drift", "error", ["state"])],
    ids=["vectors", "drift"],
)
@work_of(told, handed=2)
async def test_what_follows_a_change_is_told_after_it(
    announcer: Announcer, bus: Bus, after: Event
) -> None:
    """Send the changes that wait before the news that rests on them."""
    announcer.announce(changed(1, a="added"))
    announcer.announce(changed(2, b="added"))
    announcer.announce(after)
    assert len(bus.sent) == 3
    await asyncio.sleep(1.5 * MERGE_SECONDS)
    assert [member for member, _ in bus.sent] in (
        ["Changed", "Changed", "Vectorized"],
        ["Changed", "Changed", "DriftDetected"],
    )


@work_of(told, handed=2)
async def test_the_last_change_is_told_on_stopping(announcer: Announcer, bus: Bus) -> None:
    """Send what waits when asked to, and nothing twice."""
    announcer.announce(changed(1, a="added"))
    announcer.announce(changed(2, b="added"))
    announcer.flush()
    announcer.flush()
    assert len(bus.sent) == 2
    await asyncio.sleep(1.5 * MERGE_SECONDS)
    assert [body[0] for _, body in bus.sent] == [1, 2]


# properties


@work_of(told, handed=2)
async def test_a_property_that_invalidates_is_told_without_its_value(
    announcer: Announcer, bus: Bus
) -> None:
    """Name LastError when it changes, and no more: it may quote what only some may read."""
    for sentence in ("", "line 1: mail is down", "line 1: mail is down", ""):
        announcer.notify(paths.STATE, names.STATE, {"LastError": sentence, "Count": 7})
    changed = ("PropertiesChanged", [names.STATE, {}, ["LastError"]])
    assert bus.sent == [changed, changed]


@work_of(told, handed=2)
async def test_what_emits_is_told_with_its_value(announcer: Announcer, bus: Bus) -> None:
    """Tell the new values of properties that emit them, and nothing of the others."""
    for state in ("loading", "ready"):
        values = {"State": state, "Level": "medium", "Truncated": len(state)}
        announcer.notify(paths.ROOT, names.VECTORIZER, values)
    body = [names.VECTORIZER, {"State": Typed("s", "ready")}, []]
    assert bus.sent == [("PropertiesChanged", body)]


# parts

MANY = 10 * MAX_CHANGES


@work_of(told, handed=2)
async def test_parts_let_others_go_first(announcer: Announcer, bus: Bus) -> None:
    """Send one part at a time: what else waits for the loop is done between any two."""
    announcer.announce(Changed(1, {ObjectId("p", "k", str(n)): "added" for n in range(MANY)}))
    seen = []
    for _ in range(4):
        seen.append(len(bus.sent))
        await bus.until(len(bus.sent) + 1)
    assert seen == [1, 2, 3, 4]
    announcer.announce(Changed(2, {ObjectId("p", "k", str(MANY - 1)): "removed"}))
    await bus.until(10)
    sent = bus.sent
    rows = [row for _, body in sent for row in body[1]]
    assert len(rows) == MANY - 1
    assert [body[0] for _, body in sent] == [1] * 5 + [2] * 5


@work_of(told, handed=2)
async def test_many_changes_come_in_parts(announcer: Announcer, bus: Bus) -> None:
    """Send no more changes in a signal than its limit, and all of them, in order."""
    many: Mapping[ObjectId, ChangeKind] = {
        ObjectId("p", "k", str(n)): "added" for n in range(2 * MAX_CHANGES + 201)
    }
    announcer.announce(Changed(7, many))
    assert len(bus.sent) == 1
    await bus.until(3)
    sent = bus.sent
    assert [len(body[1]) for _, body in sent] == [MAX_CHANGES, MAX_CHANGES, 201]
    assert {body[0] for _, body in sent} == {7}
    assert [row for _, body in sent for row in body[1]] == [(path(t), "added") for t in many]


@work_of(told, handed=2)
async def test_long_paths_come_in_smaller_parts(announcer: Announcer, bus: Bus) -> None:
    """Send no more bytes of paths in a signal than its limit, but one path however long."""
    names = ["a" * 30_000 + str(n) for n in range(5)] + ["b" * (MAX_BYTES + 1)]
    announcer.announce(Changed(1, {ObjectId("p", "k", name): "added" for name in names}))
    announcer.flush()
    parts = [body[1] for _, body in bus.sent]
    assert [len(part) for part in parts] == [2, 2, 1, 1]
    assert all(sum(len(at) for at, _ in part) <= MAX_BYTES for part in parts[:-1])


@work_of(told, handed=2)
async def test_what_follows_many_changes_waits_for_them(announcer: Announcer, bus: Bus) -> None:
    """Send at once what follows few changes, and after all of them what follows many, in order."""
    announcer.announce(
        Changed(1, {ObjectId("p", "k", str(n)): "added" for n in range(4 * MAX_CHANGES)})
    )
    for number in range(120):
        announcer.announce(Drift(ObjectId("p", "k", str(number)), "drift", "error", ["state"]))
    announcer.announce(Listed("live:systemd", frozenset({("p", "k")})))
    assert len(bus.sent) == 1
    await bus.until(124)
    announcer.announce(Vectorized(1, "low", 2, 3))
    members = [member for member, _ in bus.sent]
    assert members == [*["Changed"] * 4, *["DriftDetected"] * 120, "Vectorized"]
