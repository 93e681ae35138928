"""What is published, held and withdrawn, and how the memory keeps it."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from harness.house import OTHER, OWNER, ROOT, House, lived, observed, unit, units

from opdbus.config import Config
from opdbus.errors import AccessDenied, StoreError, UnknownObject
from opdbus.index.state_store.events import Changed
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, ObjectId, StateObject


def test_a_large_state_file_is_written_in_parts(
    live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is found while the rest is read; what is left out is gone with the last.

    Two parts are read before one is written, and one more while each is.
    """
    monkeypatch.setattr("opdbus.index.state_store.state_store._PART", 2)

    async def work(made: House) -> None:
        await made.declare(unit("old", "old"))
        made.events.clear()
        found: list[int] = []

        def read() -> Iterator[StateObject]:
            for item in units(7):
                found.append(len(made.memory.catalogue))
                yield item

        present = {item.identity for item in units(7)}
        count = await made.memory.replace(FILE, present, read())
        parts = [len(event.changes) for event in made.events if isinstance(event, Changed)]
        assert (parts, found[:4], count) == ([2, 2, 2, 2], [1, 1, 1, 1], 8)
        assert found[6] >= 3
        assert {entry.identity for entry in made.memory.catalogue} == present

    live(work, engine=False)


def test_what_can_wait_for_a_large_state_file_waits_for_it(
    live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read no fields or words of parts of it while others are written.

    A file that fails halfway keeps nobody waiting.
    """
    monkeypatch.setattr("opdbus.index.state_store.state_store._PART", 2)

    async def work(made: House) -> None:
        memory, seen = made.memory, list[bool]()
        calm = memory.archive.no_bulk_load
        reading = asyncio.create_task(memory.fields.run())

        def read(failing: str = "") -> Iterator[StateObject]:
            for item in units(9):
                seen.append(calm.is_set())
                assert item.identity.name != failing
                yield item

        present = {item.identity for item in units(9)}
        await memory.replace(FILE, present, read())
        assert seen[:4] == [True] * 4
        assert seen[6:] == [False] * 3
        await memory.fields.is_read.wait()
        with pytest.raises(AssertionError):
            await memory.replace(FILE, present, read(failing=units(9)[7].identity.name))
        assert calm.is_set()
        reading.cancel()

    live(work, engine=False)


# publishing


@lived(engine=False)
async def test_objects_belong_to_their_publisher(made: House) -> None:
    """Let an owner replace and withdraw, root as well, and nobody else; not even in part."""
    object_id = ObjectId("systemd", "unit", "a")
    await made.publish(observed("a", "one"))
    with pytest.raises(AccessDenied, match="belongs to uid 1000"):
        await made.publish(observed("b", "two"), observed("a", "two"), owner=OTHER)
    with pytest.raises(AccessDenied, match="not published by you"):
        await made.memory.withdraw([object_id], OTHER)
    assert [e.identity.name for e in made.memory.catalogue] == ["a"]
    await made.publish(observed("a", "three"))
    assert await made.memory.withdraw([object_id], ROOT) == 1
    with pytest.raises(UnknownObject):
        await made.memory.withdraw([object_id], OWNER)


@lived(engine=False)
async def test_two_owners_at_once_do_not_both_win(made: House) -> None:
    """Give a new name to the first of two owners that publish it at the same time."""
    results = await asyncio.gather(
        made.publish(observed("a", "one"), owner=OWNER),
        made.publish(observed("a", "two"), owner=OTHER),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), AccessDenied]
    assert [entry.owner for entry in made.memory.catalogue] == [OWNER]


@lived(engine=False)
async def test_two_withdrawals_at_once_take_it_once(made: House) -> None:
    """Let one of two concurrent withdrawals have it, and tell the other that it is gone."""
    await made.publish(observed("a", "one"))
    object_id = ObjectId("systemd", "unit", "a")
    results = await asyncio.gather(
        *(made.memory.withdraw([object_id], OWNER) for _ in range(2)), return_exceptions=True
    )
    assert results[0] == 1
    assert isinstance(results[1], UnknownObject)


def test_a_holders_objects_go_with_it(live: Callable[..., Any]) -> None:
    """Remove exactly what was last published to live as long as the holder that left."""

    async def work(made: House) -> None:
        await made.publish(observed("mine", "1"), observed("kept", "2"), holder=":1.1")
        await made.publish(observed("taken", "3"), holder=":1.1")
        await made.publish(observed("kept", "2"))  # the same again, now to be kept
        await made.publish(observed("taken", "3"), holder=":1.2")
        await made.publish(observed("other", "4"), holder=":1.2")
        await made.memory.release(":1.1")
        await made.memory.release(":1.1")
        assert {e.identity.name for e in made.memory.catalogue} == {"kept", "taken", "other"}
        await made.memory.release(":1.2")
        assert {e.identity.name for e in made.memory.catalogue} == {"kept"}
        (kept,) = made.memory.catalogue
        assert not kept.transient

    async def after(made: House) -> None:
        assert {e.identity.name for e in made.memory.catalogue} == {"kept"}

    live(work, engine=False)
    live(after, engine=False)


def test_what_is_kept_stays_when_a_holder_leaves(live: Callable[..., Any]) -> None:
    """Keep an object that was published to be kept, whatever was published of it for a while."""

    async def work(made: House) -> None:
        for name in ("a", "b", "c"):
            await made.publish(observed(name, "kept"))
        await made.publish(observed("a", "kept"), observed("b", "later"), holder=":1.1")
        await made.publish(observed("b", "later"), observed("new", "1"), holder=":1.2")
        await made.memory.release(":1.1")
        assert {e.identity.name for e in made.memory.catalogue} == {"a", "b", "c", "new"}
        await made.memory.release(":1.2")
        assert {e.identity.name for e in made.memory.catalogue} == {"a", "b", "c"}

    async def after(made: House) -> None:
        assert {e.identity.name for e in made.memory.catalogue} == {"a", "b", "c"}

    live(work, engine=False)
    live(after, engine=False)


@lived(engine=False)
async def test_objects_that_have_gone_keep_no_batch_from_being_withdrawn(made: House) -> None:
    """Withdraw the rest of a batch; refuse all of it if one is another's, or if none is there."""
    ids = {name: observed(name, "").identity.object_id for name in ("a", "b", "c", "gone", "file")}
    await made.publish(*(observed(name, "1") for name in ("a", "b")))
    await made.publish(observed("c", "1"), owner=OTHER)
    await made.declare(unit("file", "1"))
    withdraw = made.memory.withdraw
    with pytest.raises(AccessDenied, match="not published by you"):
        await withdraw([ids["a"], ids["gone"], ids["c"]], OWNER)
    with pytest.raises(AccessDenied, match="the state file declares it"):
        await withdraw([ids["gone"], ids["file"]], OWNER)
    assert await withdraw([ids["gone"], ids["a"], ids["file"], ids["b"]], OWNER) == 2
    with pytest.raises(UnknownObject):
        await withdraw([ids["a"], ids["gone"]], OWNER)
    assert await withdraw([], OWNER) == 0
    assert {e.identity.name for e in made.memory.catalogue} == {"c", "file"}


@lived(engine=False)
async def test_a_caller_that_leaves_halfway_leaves_nothing_half_done(made: House) -> None:
    """Keep database and catalogue the same however a publisher is cancelled."""
    for number in range(40):
        item = observed(f"a{number}", f"network {number}")
        task = asyncio.ensure_future(made.publish(item, holder=":1.9"))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
    await made.publish(observed("last", "one"))
    stored = await made.memory.archive.read(lambda s: {e.id for e in s.entries()})
    assert stored == {e.id for e in made.memory.catalogue}
    await made.memory.release(":1.9")
    assert {e.identity.name for e in made.memory.catalogue} == {"last"}


@lived(engine=False)
async def test_the_last_of_a_name_in_one_call_counts(made: House) -> None:
    """Take the last of several objects of one name that are published together."""
    await made.publish(observed("a", "one"), observed("a", "two"))
    (entry,) = made.memory.catalogue
    assert "two" in (await made.memory.content([entry]))[entry.id].properties


def test_closing_gives_up_what_is_unfinished(live: Callable[..., Any]) -> None:
    """Undo a long write that is under way when the memory is closed, and start well again."""

    async def work(made: House) -> None:
        await made.publish(observed("before", "one"))
        task = asyncio.ensure_future(made.declare(*units(20_000)))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)  # so that it has begun

    async def after(made: House) -> None:
        names = {entry.identity.name for entry in made.memory.catalogue}
        assert names in ({"before"}, {"before"} | {unit.name for unit in units(20_000)})

    live(work, engine=False)
    live(after, engine=False)


@lived(engine=False)
async def test_a_failed_publish_changes_no_holder(made: House, settings: Config) -> None:
    """Leave a kept object kept when publishing it for a connection's life fails."""
    await made.publish(observed("a", "one"))
    with closing(sqlite3.connect(settings.state_dir / "memory.db")) as broken:
        broken.execute(
            "CREATE TRIGGER no BEFORE UPDATE ON objects BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
    with pytest.raises(StoreError):
        await made.publish(observed("a", "two"), holder=":1.7")
    with closing(sqlite3.connect(settings.state_dir / "memory.db")) as mended:
        mended.execute("DROP TRIGGER no")
    await made.memory.release(":1.7")
    assert len(made.memory.catalogue) == 1


async def test_a_clock_that_goes_back_changes_no_order(settings: Config) -> None:
    """Take what was observed last for the observed state, whatever the clock said meanwhile."""
    times = iter([2_000_000_000.0, 2_000_000_000.0, 100.0, -5.0])
    path = settings.state_dir / "memory.db"
    async with StateStore(path, clock=lambda: next(times)) as memory:
        object_id = ObjectId("systemd", "unit", "a")
        for number in range(3):
            await memory.publish([unit("a", f"text {number}", f"publish:p{number}")], OWNER)
            newest = memory.catalogue.require_entries(object_id)[0]
            assert newest.identity.source == f"publish:p{number}"
        assert newest.updated_at == 0


def test_large_changes_let_others_run(settings: Config) -> None:
    """Give the loop to others often while thousands of objects are taken in."""

    async def work() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with StateStore(settings.state_dir / "memory.db") as memory:
            turning = asyncio.create_task(turn())
            told = asyncio.Event()
            memory.archive.write = _counting(memory, told)  # type: ignore[method-assign] -- the only moment
            publishing = asyncio.create_task(
                memory.publish([observed(f"n{n}", "text") for n in range(5000)], OWNER)
            )
            await told.wait()
            before = turns
            await publishing
            turning.cancel()
            return turns - before

    assert asyncio.run(work()) >= 10


async def test_texts_of_many_are_looked_up_in_turns(settings: Config) -> None:
    """Let others run while the texts of thousands of objects are looked up."""
    async with StateStore(settings.state_dir / "memory.db") as memory:
        await memory.publish([observed(f"n{n}", f"text {n}") for n in range(3000)], OWNER)
        digests = [entry.text_digest for entry in memory.catalogue]
        looking = asyncio.create_task(memory.texts(digests))
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 3
        assert [*await looking] == digests


def _counting(memory: StateStore, told: asyncio.Event) -> Any:
    """Tell when the database has taken something, and the catalogue has yet to."""
    write = memory.archive.write

    async def tell(work: Any) -> Any:
        result = await write(work)
        told.set()
        return result

    return tell
