"""Every object gets its vector, once; what is known is not computed again."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness.house import House, lived, observed, unit, units
from harness.running import PATIENCE_SECONDS
from harness.sessions import Wrapped
from harness.tiny import write_tiny_model
from structlog.testing import capture_logs

from opdbus.engine.provider import Session
from opdbus.engine.sessions import open_session
from opdbus.index.state_store.events import Changed, Vectorized
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import FILE, ObjectId


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


@lived()
async def test_every_object_gets_its_vector(made: House) -> None:
    """Tell of each change and of the vectors that follow, and keep memory and disk the same."""
    await made.event(Vectorized)
    await made.declare(*units(50))
    changed = await made.event(Changed)
    assert (changed.generation, set(changed.changes.values())) == (1, {"added"})
    done = await made.event(Vectorized)
    assert (done.generation, done.level, done.computed, done.reused) == (1, "medium", 50, 0)
    assert made.vectors.missing_object_count() == 0
    await agree(made)


@lived()
async def test_only_first_and_many_vectors_are_news(made: House) -> None:
    """Log the first computed vectors, and a hundred at once; the rest is for debugging."""
    with capture_logs() as logs:
        await made.event(Vectorized)
        for count in (3, 2, 4, 150):
            await made.declare(*units(count))
            await made.event(Vectorized)
    found = [row for row in logs if row["event"] == "vectorized"]
    news = [row["computed"] for row in found if row["log_level"] == "info"]
    others = [row["computed"] for row in found if row["log_level"] == "debug"]
    assert (news[0], sum(news[1:]), sum(others)) == (3, 146, 2)


@lived()
async def test_a_text_that_comes_back_is_kept_on_disk(made: House) -> None:
    """Store the vector of an object again that was removed, pruned, and then came back."""
    await made.declare(*units(10))
    while (await made.event(Vectorized)).computed < 10:
        pass
    await made.declare(*units(9))
    await made.event(Vectorized)
    await made.declare(*units(10))
    await made.event(Vectorized)
    await agree(made)


def test_two_models_never_mix(live: Callable[..., Any], tmp_path: Path) -> None:
    """Compute all vectors anew for another model, and have the old ones when going back."""
    other = write_tiny_model(tmp_path / "other", seed=1)

    async def fill(made: House) -> int:
        await made.declare(*units(10))
        computed = 0
        while made.vectors.missing_object_count():
            computed += (await made.event(Vectorized)).computed
        vectors = [made.vectors.current.get(e.text_digest) for e in made.memory.catalogue]  # type: ignore[union-attr]
        contents = await made.memory.content(made.memory.catalogue)
        texts = [contents[e.id].text for e in made.memory.catalogue]
        fresh = (await made.serving.embed(texts)).vectors
        np.testing.assert_allclose(np.stack(vectors), fresh, atol=1e-5)  # type: ignore[arg-type]
        return made.known

    assert live(fill) == 0
    assert live(fill, settings={"model": other}) == 0
    assert live(fill) == 10


@lived(engine=False)
async def test_a_thing_waits_once(made: House) -> None:
    """Count a thing that waits for vectors once, and until it has those of all its sources."""
    await made.serving.start()
    await made.declare(unit("a", "network"), unit("b", "network"))
    await made.publish(observed("a", "mail"), observed("c", "mail"))
    assert made.vectors.missing_object_count() == 3
    embedder = await made.serving.embedder()
    index = await made.vectors.index(embedder.numerics, embedder.dimension)
    about = made.memory.catalogue.require_entries
    for name, left in (("b", 2), ("a", 1)):
        for entry in about(ObjectId("systemd", "unit", name)):
            assert made.vectors.missing_object_count() == left + 1
            await index.add([entry.text_digest], np.zeros((1, embedder.dimension), np.float32))
        assert made.vectors.missing_object_count() == left


@lived(settings={"queue_limit": 1})
async def test_a_full_queue_does_not_stop_the_indexer(made: House) -> None:
    """Vectorize all objects also where the queue is shorter than a batch."""
    await made.declare(*units(30))
    while made.vectors.missing_object_count():
        await made.event(Vectorized)


class Forgetful(StateStore):
    """A memory in which all objects but one are gone as soon as their texts were read."""

    async def texts(self, digests: Sequence[bytes]) -> Any:
        """Return texts, and let objects go."""
        found = await super().texts(digests)
        stays = {entry.identity for entry in self.catalogue if entry.identity.name == "stays"}
        await self.replace(FILE, stays, [])
        return found


@lived(kind=Forgetful)
async def test_what_is_gone_is_not_computed(made: House) -> None:
    """Compute no vectors of objects that came and went while others were computed."""
    # at an empty memory's event, nothing is computed
    await made.event(Vectorized)
    await made.declare(unit("stays", "network mail"), *units(30))
    assert (await made.event(Vectorized)).computed == 1


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
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "no room" not in await told.get():
                pass
            illness.clear()
            while await told.get():
                pass
        assert not made.vectors.missing_object_count()

    live(work, opener=opener, on_fault=told.put_nowait, retry_seconds=(0.01,))
