"""A memory whose events are kept, and the loop that vectorizes it, with the tiny model."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.running import PATIENCE_SECONDS, work_of
from opdbus.config import Config, load
from opdbus.engine.opening import open_level
from opdbus.engine.sessions import open_session
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Hit, SearchRequest
from opdbus.index.state_store.events import Vectorized
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.two_stage_search import TwoStageSearch
from opdbus.insight.insight import Insight
from opdbus.serving.level import RETRY_SECONDS
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity, StateObject

OWNER, OTHER, ROOT = 1000, 1001, 0
WORDS = "network mail disk user time login backup service host rule".split()


class House:
    """A memory whose events are kept, and the loop that vectorizes it."""

    def __init__(
        self,
        memory: StateStore,
        serving: Serving,
        cascade: float | None = None,
        *,
        always: bool = False,
    ) -> None:
        self.memory = memory
        self.serving = serving
        self.vectors = ObjectVectors(memory, serving)
        self.cascade = TwoStageSearch(self.vectors, cascade or 0.0, always=always)
        self.finder = Finder(self.vectors, two_stage=None if cascade is None else self.cascade)
        self.insight = Insight(self.vectors)
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
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                while self.events:
                    event = self.events.pop(0)
                    if isinstance(event, kind):
                        return event
                self._news.clear()
                await self._news.wait()

    async def vectorized(self) -> None:
        """Wait until every object has its vector."""
        while self.vectors.missing_object_count():
            await self.event(Vectorized)

    async def declare(self, *objects: StateObject) -> Any:
        """Make these all that the state file declares."""
        return await self.memory.replace(FILE, {o.identity for o in objects}, objects)

    @asynccontextmanager
    async def indexing(self, **indexer: Any) -> AsyncIterator[None]:
        """Vectorize what is there and what comes."""
        async with beside(Indexer(self.vectors, **indexer).run()):
            yield

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
    kind: type[StateStore] = StateStore,
    cascade: float | None = None,
    always: bool = False,
    **indexer: Any,
) -> AsyncIterator[House]:
    """Open the memory in the settings' folder, and vectorize it.

    With a `cascade`, searches may have two stages, and wait so many seconds for missing vectors.
    """
    async with (
        kind(settings.state_dir / "memory.db") as memory,
        Serving(settings, partial(open_level, opener=opener), serving_retry) as serving,
    ):
        made = House(memory, serving, cascade, always=always)
        async with AsyncExitStack() as stack:
            if cascade is not None:
                await stack.enter_async_context(beside(made.cascade.run()))
            if engine:
                embedder = await serving.embedder()
                made.known = len(await made.vectors.index(embedder.numerics, embedder.dimension))
                await stack.enter_async_context(made.indexing(**indexer))
            yield made


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work beside what is done inside."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def lived(**how: Any) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Run a test with a house as its first parameter, as the fixture `live` does."""
    return work_of(lambda live, work: live(work, **how), "live")


def search_words(
    folder: Path, objects: Sequence[StateObject], question: str, *pages: SearchRequest
) -> list[Hit]:
    """Search by words among some objects, without a model; return the hits of all pages."""

    async def searching() -> list[Hit]:
        async with StateStore(folder / "memory.db") as memory:
            for source in {item.identity.source for item in objects}:
                mine = [item for item in objects if item.identity.source == source]
                identities = {item.identity for item in mine}
                await memory.replace(source, identities, mine)
            finder = Finder(ObjectVectors(memory, Serving(load({}))))
            every = [
                await finder.search(question, one, "lexical")
                for one in pages or (SearchRequest(10),)
            ]
            return [hit for hits in every for hit in hits]

    return asyncio.run(searching())


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
