"""Memory, indexer and finder together, with the tiny model."""

import asyncio
import gc
import json
import shutil
import sqlite3
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sessions import Mortal, Wrapped
from tiny import write_tiny_model

from opdbus import text
from opdbus.config import Config, ProviderRequest
from opdbus.engine.embedder import open_level
from opdbus.engine.runtimes import open_session
from opdbus.engine.session import Session
from opdbus.errors import (
    AccessDenied,
    NoModel,
    NoVector,
    ProviderError,
    StoreError,
    UnknownObject,
)
from opdbus.index.catalogue import thing_of
from opdbus.index.events import Changed, Vectorized
from opdbus.index.finder import Finder, Page
from opdbus.index.indexer import Indexer
from opdbus.index.memory import Memory
from opdbus.index.object_vectors import ObjectVectors
from opdbus.index.store import Content, Entry
from opdbus.serving.level import RETRY_SECONDS
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity, StateObject, Thing

OWNER, OTHER, ROOT = 1000, 1001, 0
WORDS = "network mail disk user time login backup service host rule".split()


class House:
    """A memory whose events are kept, and the loop that vectorizes it."""

    def __init__(self, memory: Memory, serving: Serving) -> None:
        self.memory = memory
        self.serving = serving
        self.vectors = ObjectVectors(memory, serving)
        self.finder = Finder(self.vectors)
        # vectors that were kept on disk
        self.known = 0
        self.events: list[Any] = []
        self._news = asyncio.Event()
        memory.notify = self._take

    def _take(self, event: Any) -> None:
        self.events.append(event)
        self._news.set()

    async def event(self, kind: type[Any]) -> Any:
        """Wait for the next event of a kind, and forget what came before it."""
        async with asyncio.timeout(30):
            while True:
                while self.events:
                    event = self.events.pop(0)
                    if isinstance(event, kind):
                        return event
                self._news.clear()
                await self._news.wait()

    async def declare(self, *objects: StateObject) -> Any:
        """Make these all that the state file declares."""
        return await self.memory.replace(FILE, {o.identity for o in objects}, objects)

    async def publish(self, *objects: StateObject, owner: int = OWNER, holder: str = "") -> None:
        """Publish observed objects."""
        await self.memory.publish(objects, owner, holder=holder)


@asynccontextmanager
async def house(
    settings: Config,
    *,
    engine: bool = True,
    opener: Any = open_session,
    serving_retry: tuple[float, ...] = RETRY_SECONDS,
    kind: type[Memory] = Memory,
    **indexer: Any,
) -> AsyncIterator[House]:
    """Open the memory in the settings' folder, and vectorize it."""
    async with (
        kind(settings.state_dir / "memory.db") as memory,
        Serving(settings, partial(open_level, opener=opener), serving_retry) as serving,
    ):
        made = House(memory, serving)
        if not engine:
            yield made
            return
        embedder = await serving.embedder()
        made.known = len(await made.vectors.index(embedder.numerics, embedder.dimension))
        indexing = asyncio.create_task(Indexer(made.vectors, **indexer).run())
        try:
            yield made
        finally:
            indexing.cancel()
            with suppress(asyncio.CancelledError):
                await indexing


@pytest.fixture
def live(settings: Config, tiny_graphs: Path) -> Callable[..., Any]:
    """Run work with a house whose graph is built already."""
    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")

    def run(work: Callable[[House], Awaitable[Any]], **more: Any) -> Any:
        async def both() -> Any:
            async with house(replace(settings, **more.pop("settings", {})), **more) as made:
                return await work(made)

        return asyncio.run(both())

    return run


def unit(name: str, description: str, source: str = FILE, **more: Any) -> StateObject:
    """Make an object as the state file or a publisher gives it."""
    identity = Identity(source, "systemd", "unit", name)
    return StateObject(identity, {"description": description, **more})


def units(count: int) -> list[StateObject]:
    """Make units with a text each."""
    return [unit(f"u{n}", f"{WORDS[n % 10]} {WORDS[n // 10 % 10]} {n}") for n in range(count)]


def observed(name: str, description: str, **more: Any) -> StateObject:
    """Make a unit as a program observes it."""
    return unit(name, description, "publish:test", **more)


async def agree(made: House) -> None:
    """Check that catalogue, database, vectors in memory and vectors on disk agree exactly."""
    index = made.vectors.current
    assert index is not None
    entries = list(made.memory.catalogue)
    on_disk = {
        key: data for key, _, data in await made.memory.archive.read(lambda s: list(s.vectors()))
    }
    stored = await made.memory.archive.read(lambda s: list(s.entries()))
    assert sorted(stored, key=lambda e: e.id) == sorted(entries, key=lambda e: e.id)
    assert {index.key(e.text_digest) for e in entries} == on_disk.keys()
    assert len(index) == len(on_disk)
    contents = await made.memory.content(entries)
    fresh = (await made.serving.embed([contents[e.id].text for e in entries])).vectors
    for entry, vector in zip(entries, fresh, strict=True):
        data = on_disk[index.key(entry.text_digest)]
        np.testing.assert_allclose(np.frombuffer(data, "<f4"), vector, atol=1e-5)
        held = index.get(entry.text_digest)
        assert held is not None
        np.testing.assert_allclose(held, vector, atol=1e-5)


def test_every_object_gets_its_vector(live: Callable[..., Any]) -> None:
    """Tell of each change and of the vectors that follow, and keep memory and disk the same."""

    async def work(made: House) -> None:
        await made.event(Vectorized)
        await made.declare(*units(50))
        changed = await made.event(Changed)
        assert (changed.generation, set(changed.changes.values())) == (1, {"added"})
        done = await made.event(Vectorized)
        assert (done.generation, done.level, done.computed, done.reused) == (1, "medium", 50, 0)
        assert made.vectors.waiting() == 0
        await agree(made)

    live(work)


def test_only_what_changed_is_computed(live: Callable[..., Any]) -> None:
    """Compute the text that changed, and reuse all others."""

    async def work(made: House) -> None:
        before = units(20)
        await made.event(Vectorized)
        await made.declare(*before)
        await made.event(Vectorized)
        changed = [unit("u3", "printing"), *before[5:]]
        changes = await made.memory.replace(FILE, {o.identity for o in changed}, changed)
        names = {thing.name: what for thing, what in changes.items()}
        assert names == {"u3": "changed"} | dict.fromkeys(["u0", "u1", "u2", "u4"], "removed")
        done = await made.event(Vectorized)
        assert (done.computed, done.reused) == (1, 15)

    live(work)


def test_a_restart_computes_nothing(live: Callable[..., Any]) -> None:
    """Load every vector from the database when nothing has changed."""

    async def first(made: House) -> None:
        await made.declare(*units(30))
        while (await made.event(Vectorized)).computed < 30:
            pass

    async def second(made: House) -> None:
        assert made.known == 30
        assert await made.declare(*units(30)) == {}
        done = await made.event(Vectorized)
        assert (done.generation, done.computed, done.reused) == (1, 0, 30)
        await agree(made)

    live(first)
    live(second)


def test_a_text_that_comes_back_is_kept_on_disk(live: Callable[..., Any]) -> None:
    """Store the vector of an object again that was removed, pruned, and then came back."""

    async def work(made: House) -> None:
        await made.declare(*units(10))
        while (await made.event(Vectorized)).computed < 10:
            pass
        await made.declare(*units(9))
        await made.event(Vectorized)
        await made.declare(*units(10))
        await made.event(Vectorized)
        await agree(made)

    live(work)


def test_two_models_never_mix(live: Callable[..., Any], tmp_path: Path) -> None:
    """Compute all vectors anew for another model, and have the old ones when going back."""
    other = write_tiny_model(tmp_path / "other", seed=1)

    async def fill(made: House) -> int:
        await made.declare(*units(10))
        computed = 0
        while made.vectors.waiting():
            computed += (await made.event(Vectorized)).computed
        vectors = [made.vectors.current.get(e.text_digest) for e in made.memory.catalogue]  # type: ignore[union-attr]
        contents = await made.memory.content(made.memory.catalogue.entries())
        texts = [contents[e.id].text for e in made.memory.catalogue.entries()]
        fresh = (await made.serving.embed(texts)).vectors
        np.testing.assert_allclose(np.stack(vectors), fresh, atol=1e-5)  # type: ignore[arg-type]
        return made.known

    assert live(fill) == 0
    assert live(fill, settings={"model": other}) == 0
    assert live(fill) == 10


@pytest.mark.parametrize("stale", ["redaction 0, text 0", None])
def test_what_an_older_version_wrote_is_written_anew(
    live: Callable[..., Any], settings: Config, stale: str | None
) -> None:
    """Redact and render again what another version stored, and leave no trace in any file."""

    async def fill(made: House) -> None:
        await made.declare(unit("a", "uninteresting"))

    async def look(made: House) -> None:
        (entry,) = made.memory.catalogue.entries()
        content = (await made.memory.content([entry]))[entry.id]
        assert json.loads(content.properties)["password"] == "[redacted]"
        assert entry.text_digest != b"old"
        found = await made.finder.search("leaked", Page(10), "lexical")
        assert found == []

    live(fill, engine=False)
    database = settings.state_dir / "memory.db"
    leak = json.dumps({"description": "uninteresting", "password": "leaked-PLANTED"})
    with closing(sqlite3.connect(database)) as old, old:
        old.execute(
            "UPDATE objects SET properties = ?, text = ?, words = ?, text_digest = ?",
            (leak, "text leaked-PLANTED", "leaked-PLANTED", b"old"),
        )
        if stale is None:
            old.execute("DELETE FROM facts WHERE name = 'written by'")
        else:
            old.execute("UPDATE facts SET value = ? WHERE name = 'written by'", (stale,))
    old.close()
    live(look, engine=False)
    for file in settings.state_dir.iterdir():
        if file.is_file():
            assert b"PLANTED" not in file.read_bytes(), file


def test_a_second_daemon_on_the_same_folder_is_refused(
    live: Callable[..., Any], settings: Config
) -> None:
    """Raise StoreError where another op-dbus has the database open, and leave that one be."""

    async def work(made: House) -> None:
        await made.publish(observed("a", "network"), holder=":1.1")
        with pytest.raises(StoreError, match="another op-dbus uses the database"):
            async with Memory(settings.state_dir / "memory.db"):
                pass
        stored = await made.memory.archive.read(lambda s: list(s.entries()))
        assert len(stored) == 1

    live(work, engine=False)


def test_damage_found_late_is_one_sentence(live: Callable[..., Any], settings: Config) -> None:
    """Raise StoreError for what SQLite finds wrong while it reads."""

    async def work(made: House) -> None:
        with closing(sqlite3.connect(settings.state_dir / "memory.db")) as other, other:
            other.execute("DROP TABLE vectors")
        with pytest.raises(StoreError, match="cannot use the database"):
            await made.memory.archive.read(lambda store: list(store.vectors()))

    live(work, engine=False)


# publishing


def test_objects_belong_to_who_published_them(live: Callable[..., Any]) -> None:
    """Let an owner replace and withdraw, root as well, and nobody else; not even in part."""

    async def work(made: House) -> None:
        thing = Thing("systemd", "unit", "a")
        await made.publish(observed("a", "one"))
        with pytest.raises(AccessDenied, match="belongs to uid 1000"):
            await made.publish(observed("b", "two"), observed("a", "two"), owner=OTHER)
        with pytest.raises(AccessDenied, match="not published by you"):
            await made.memory.withdraw([thing], OTHER)
        assert [e.identity.name for e in made.memory.catalogue] == ["a"]
        await made.publish(observed("a", "three"))
        assert await made.memory.withdraw([thing], ROOT) == 1
        with pytest.raises(UnknownObject):
            await made.memory.withdraw([thing], OWNER)

    live(work, engine=False)


def test_what_the_file_declares_cannot_be_withdrawn(live: Callable[..., Any]) -> None:
    """Take back what was published about a thing, never what is declared, not even for root."""

    async def work(made: House) -> None:
        thing = Thing("systemd", "unit", "a")
        await made.declare(unit("a", "declared"))
        with pytest.raises(AccessDenied, match="the state file declares it"):
            await made.memory.withdraw([thing], ROOT)
        await made.publish(observed("a", "observed"))
        assert await made.memory.withdraw([thing, thing], OWNER) == 1
        assert [e.identity.source for e in made.memory.catalogue.about(thing)] == [FILE]

    live(work, engine=False)


def test_two_owners_at_once_do_not_both_win(live: Callable[..., Any]) -> None:
    """Give a new name to the first of two who publish it at the same time."""

    async def work(made: House) -> None:
        results = await asyncio.gather(
            made.publish(observed("a", "one"), owner=OWNER),
            made.publish(observed("a", "two"), owner=OTHER),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), AccessDenied]
        assert [entry.owner for entry in made.memory.catalogue] == [OWNER]

    live(work, engine=False)


def test_two_withdrawals_at_once_take_it_once(live: Callable[..., Any]) -> None:
    """Let one of two concurrent withdrawals have it, and tell the other that it is gone."""

    async def work(made: House) -> None:
        await made.publish(observed("a", "one"))
        thing = Thing("systemd", "unit", "a")
        results = await asyncio.gather(
            *(made.memory.withdraw([thing], OWNER) for _ in range(2)), return_exceptions=True
        )
        assert results[0] == 1
        assert isinstance(results[1], UnknownObject)

    live(work, engine=False)


def test_a_holders_objects_go_with_it(live: Callable[..., Any]) -> None:
    """Remove exactly what was last published to live as long as the holder who left."""

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


def test_transient_objects_do_not_outlive_a_crash(live: Callable[..., Any]) -> None:
    """Forget, at the next start, what was to live as long as a connection."""

    async def work(made: House) -> None:
        await made.publish(observed("goes", "1"), holder=":1.1")
        await made.publish(observed("stays", "2"))

    async def after(made: House) -> None:
        assert {e.identity.name for e in made.memory.catalogue} == {"stays"}

    live(work, engine=False)
    live(after, engine=False)


def test_a_caller_who_leaves_halfway_leaves_nothing_half_done(live: Callable[..., Any]) -> None:
    """Keep database and catalogue the same however a publisher is cancelled."""

    async def work(made: House) -> None:
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

    live(work, engine=False)


def test_the_last_of_a_name_in_one_call_counts(live: Callable[..., Any]) -> None:
    """Take the last of several objects of one name that are published together."""

    async def work(made: House) -> None:
        await made.publish(observed("a", "one"), observed("a", "two"))
        (entry,) = made.memory.catalogue
        assert "two" in (await made.memory.content([entry]))[entry.id].properties

    live(work, engine=False)


# reading


def test_before_the_model_lexical_answers_and_the_rest_waits(
    live: Callable[..., Any],
) -> None:
    """Answer lexical search at once, and hybrid, vector and similar when the model is there."""

    async def work(made: House) -> None:
        await made.declare(unit("a", "network mail"), unit("b", "disk"))
        assert len(await made.finder.search("mail", Page(5), "lexical")) == 1
        waiting = [
            asyncio.ensure_future(made.finder.search("mail", Page(5))),
            asyncio.ensure_future(made.finder.search("mail", Page(5), "vector")),
        ]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        await made.serving.start()
        for hits in await asyncio.gather(*waiting):
            assert len(hits) == 2
        with pytest.raises(NoVector, match="wait for the signal Vectorized"):
            await made.vectors.vector(Thing("systemd", "unit", "a"))

    live(work, engine=False)


def test_without_a_model_words_are_left(live: Callable[..., Any]) -> None:
    """Answer by words at level none, and raise NoModel for whatever needs vectors."""

    async def work(made: House) -> None:
        await made.declare(unit("a", "network"))
        thing = Thing("systemd", "unit", "a")
        asked = (
            made.finder.search("x", Page(5), "vector"),
            made.finder.similar(thing, Page(5)),
            made.vectors.vector(thing),
        )
        for ask in asked:
            with pytest.raises(NoModel):
                await ask
        assert made.vectors.waiting() == 0
        for mode in ("lexical", "hybrid"):
            (hit,) = await made.finder.search("network", Page(5), mode)
            assert hit.thing == thing

    live(work, settings={"vector_level": "none"}, engine=False)


def test_pages_are_exact(live: Callable[..., Any]) -> None:
    """Give every object once over all pages, in the order of one large page."""

    async def work(made: House) -> None:
        await made.declare(*units(60))
        while made.vectors.waiting():
            await made.event(Vectorized)
        for mode in ("hybrid", "vector", "lexical"):
            whole = await made.finder.search("network mail 7", Page(100), mode)
            pages = [await made.finder.search("network mail 7", Page(7, o), mode)
                     for o in range(0, 100, 7)]  # fmt: skip
            assert [h.thing for page in pages for h in page] == [h.thing for h in whole]
            assert len({h.thing for h in whole}) == len(whole)
        found = await made.finder.search("network", Page(5, wanted={"plugin": "nowhere"}))
        assert found == []

    live(work)


def test_what_is_like_an_object_leaves_it_out(live: Callable[..., Any]) -> None:
    """Find an object's twin first, and never the object itself."""

    async def work(made: House) -> None:
        twins = [unit("mail one", "mail"), unit("mail two", "mail"), unit("disk", "disk time")]
        await made.declare(*twins)
        while made.vectors.waiting():
            await made.event(Vectorized)
        thing = Thing("systemd", "unit", "mail one")
        hits = await made.finder.similar(thing, Page(10))
        assert hits[0].thing.name == "mail two"
        assert thing not in [hit.thing for hit in hits]
        with pytest.raises(UnknownObject):
            await made.finder.similar(Thing("a", "b", "c"), Page(10))

    live(work)


def test_a_thing_counts_once(live: Callable[..., Any]) -> None:
    """Give one hit for a thing that is both declared and observed."""

    async def work(made: House) -> None:
        await made.declare(unit("a", "network"))
        await made.publish(observed("a", "network mail"))
        while made.vectors.waiting():
            await made.event(Vectorized)
        assert len(await made.finder.search("network", Page(10))) == 1
        assert len(made.memory.catalogue) == 1

    live(work)


def test_a_thing_waits_once(live: Callable[..., Any]) -> None:
    """Count a thing that waits for vectors once, and until it has those of all its sources."""

    async def work(made: House) -> None:
        await made.serving.start()
        await made.declare(unit("a", "network"), unit("b", "network"))
        await made.publish(observed("a", "mail"), observed("c", "mail"))
        assert made.vectors.waiting() == 3
        embedder = await made.serving.embedder()
        index = await made.vectors.index(embedder.numerics, embedder.dimension)
        about = made.memory.catalogue.about
        for name, left in (("b", 2), ("a", 1)):
            for entry in about(Thing("systemd", "unit", name)):
                assert made.vectors.waiting() == left + 1
                index.add([entry.text_digest], np.zeros((1, embedder.dimension), np.float32))
            assert made.vectors.waiting() == left

    live(work, engine=False)


def test_an_entry_renders_as_text_does(live: Callable[..., Any]) -> None:
    """Embed exactly what text.render gives."""

    async def work(made: House) -> None:
        items = units(3)
        await made.declare(*items)
        entries = made.memory.catalogue.entries()
        contents = await made.memory.content(entries)
        for entry, item in zip(entries, items, strict=True):
            assert thing_of(entry).name == item.name
            assert contents[entry.id].text == text.render(item).text

    live(work, engine=False)


class Counting(Memory):
    """A memory that counts the entries whose content is read."""

    read = 0

    async def content(self, entries: Sequence[Entry]) -> dict[int, Content]:
        """Count, and read."""
        self.read += len(entries)
        return await super().content(entries)


def test_a_text_just_rendered_is_not_read_again(live: Callable[..., Any], settings: Config) -> None:
    """Vectorize new objects without the database, and what an earlier run stored with it."""

    async def first(made: House) -> None:
        await made.event(Vectorized)
        for texts in ([f"mail {n}" for n in range(300)], ["mail of another user"]):
            await made.publish(*(observed(text, text) for text in texts))
            while made.vectors.waiting():
                await made.event(Vectorized)
        assert made.memory.read == 0  # type: ignore[attr-defined]
        await agree(made)

    async def second(made: House) -> None:
        await made.event(Vectorized)
        assert made.memory.read == 301  # type: ignore[attr-defined]

    live(first, kind=Counting)
    with closing(sqlite3.connect(settings.state_dir / "memory.db")) as other, other:
        other.execute("DELETE FROM vectors")
    live(second, kind=Counting)


def test_a_full_queue_does_not_stop_the_indexer(live: Callable[..., Any]) -> None:
    """Vectorize all objects also where the queue is shorter than a batch."""

    async def work(made: House) -> None:
        await made.declare(*units(30))
        while made.vectors.waiting():
            await made.event(Vectorized)

    live(work, settings={"queue_limit": 1})


class Forgetful(Memory):
    """A memory in which all objects but one are gone as soon as their texts were read."""

    async def texts(self, entries: Sequence[Entry]) -> Any:
        """Return texts, and let objects go."""
        found = await super().texts(entries)
        stays = {entry.identity for entry in entries if entry.identity.name == "stays"}
        await self.replace(FILE, stays, [])
        return found


def test_what_is_gone_is_not_computed(live: Callable[..., Any]) -> None:
    """Compute no vectors of objects that came and went while others were computed."""

    async def work(made: House) -> None:
        # at an empty memory's event, nothing is computed
        await made.event(Vectorized)
        await made.declare(unit("stays", "network mail"), *units(30))
        assert (await made.event(Vectorized)).computed == 1

    live(work, kind=Forgetful)


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


def test_a_holder_may_leave_while_it_publishes(live: Callable[..., Any]) -> None:
    """Remove what a holder was still publishing when it left."""

    async def work(made: House) -> None:
        task = asyncio.ensure_future(made.publish(observed("a", "one"), holder=":1.5"))
        await asyncio.sleep(0)
        task.cancel()
        await made.memory.release(":1.5")
        assert len(made.memory.catalogue) == 0

    live(work, engine=False)


class Name(str):
    """A name that can be watched: whether anything still holds it, and how often it is compared."""

    __slots__ = ("__weakref__",)
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_nothing_is_known_of_what_is_gone(live: Callable[..., Any]) -> None:
    """Forget who held an object when it is withdrawn, and a holder when it has left."""

    async def publish_and_withdraw(made: House) -> weakref.ref[Name]:
        name = Name("a")
        await made.publish(observed(name, "one"), holder=":1.5")
        assert await made.memory.withdraw([Thing("systemd", "unit", name)], OWNER) == 1
        made.events.clear()
        return weakref.ref(name)

    async def publish_and_leave(made: House) -> weakref.ref[Name]:
        holder = Name(":1.6")
        await made.publish(observed("b", "two"), holder=holder)
        await made.memory.release(holder)
        return weakref.ref(holder)

    async def work(made: House) -> None:
        known = [await publish_and_withdraw(made), await publish_and_leave(made)]
        gc.collect()
        assert [name() for name in known] == [None, None]
        assert len(made.memory.catalogue) == 0

    live(work, engine=False)


def test_who_leaves_is_not_looked_for_among_all_holders(live: Callable[..., Any]) -> None:
    """Look up a name that leaves the bus, whatever others hold: most names hold nothing."""

    async def work(made: House) -> None:
        await made.publish(*(observed(f"n{n}", "mail") for n in range(50)), holder=Name(":1.5"))
        Name.compared = 0
        await made.memory.release(Name(":1.6"))
        assert Name.compared == 0
        assert len(made.memory.catalogue) == 50

    live(work, engine=False)


def test_a_failed_publish_keeps_who_holds_what(live: Callable[..., Any], settings: Config) -> None:
    """Leave a kept object kept when publishing it for a connection's life fails."""

    async def work(made: House) -> None:
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

    live(work, engine=False)


class Sick(Wrapped):
    """A session that runs two tokens at most while it is ill."""

    def __init__(self, session: Session, illness: asyncio.Event) -> None:
        super().__init__(session)
        self._illness = illness

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Run, or fail."""
        if self._illness.is_set() and ids.shape[1] > 2:
            raise MemoryError("no room")
        return super().run(ids)


def test_vectorizing_is_tried_again(live: Callable[..., Any]) -> None:
    """Tell of a failed batch, serve on, and finish once the model works again."""
    told: asyncio.Queue[str] = asyncio.Queue()
    illness = asyncio.Event()

    def opener(*given: Any) -> Session:
        return Sick(open_session(*given), illness)

    async def work(made: House) -> None:
        illness.set()
        await made.declare(unit("a", "network"))
        async with asyncio.timeout(30):
            while "no room" not in await told.get():
                pass
            illness.clear()
            while await told.get():
                pass
        assert not made.vectors.waiting()

    live(work, opener=opener, on_fault=told.put_nowait, retry_seconds=(0.01,))


def test_searches_go_on_when_no_provider_is_left(live: Callable[..., Any]) -> None:
    """Answer by words and say why while nothing can be proven, take in what comes, and recover."""
    dead: set[str] = set()
    faults: asyncio.Queue[str] = asyncio.Queue()

    def opener(*given: Any) -> Session:
        return Mortal(open_session(*given), given[1].name, dead)

    async def work(made: House) -> None:
        await made.declare(unit("a", "network mail"))
        while made.vectors.waiting():
            await made.event(Vectorized)
        dead.add("cpu:onnxruntime")
        await made.publish(observed("b", "mail disk"))
        async with asyncio.timeout(60):
            while "stopped working" not in await faults.get():
                pass
            hits = await made.finder.search("mail", Page(5))
            assert {hit.thing.name for hit in hits} == {"a", "b"}
            # what was computed before is still compared
            assert await made.finder.similar(Thing("systemd", "unit", "a"), Page(5))
            with pytest.raises(ProviderError, match="cpu:onnxruntime"):
                await made.finder.search("mail", Page(5), "vector")
            await made.publish(observed("c", "mail user"))
            dead.clear()
            while made.vectors.waiting():
                await made.event(Vectorized)
            assert await made.finder.search("mail", Page(5), "vector")

    only = {"execution_provider": ProviderRequest(("cpu:onnxruntime",))}
    fast = {"retry_seconds": (0.01,), "serving_retry": (0.2,)}
    live(work, opener=opener, on_fault=faults.put_nowait, settings=only, **fast)


def test_a_clock_that_goes_back_changes_no_order(settings: Config) -> None:
    """Take what was observed last for the observed state, whatever the clock said meanwhile."""
    times = iter([2_000_000_000.0, 2_000_000_000.0, 100.0, -5.0])

    async def work() -> None:
        path = settings.state_dir / "memory.db"
        async with Memory(path, clock=lambda: next(times)) as memory:
            thing = Thing("systemd", "unit", "a")
            for number in range(3):
                await memory.publish([unit("a", f"text {number}", f"publish:p{number}")], OWNER)
                newest = memory.catalogue.about(thing)[0]
                assert newest.identity.source == f"publish:p{number}"
            assert newest.updated_at == 0

    asyncio.run(work())


def test_large_changes_let_others_run(settings: Config) -> None:
    """Give the loop to others often while thousands of objects are taken in."""

    async def work() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with Memory(settings.state_dir / "memory.db") as memory:
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


def _counting(memory: Memory, told: asyncio.Event) -> Any:
    """Tell when the database has taken something, and the catalogue has yet to."""
    write = memory.archive.write

    async def tell(work: Any) -> Any:
        result = await write(work)
        told.set()
        return result

    return tell
