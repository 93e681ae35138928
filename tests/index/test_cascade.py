"""Searches in two stages: by static vectors at once, then in the order of the level's own."""

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.house import House, beside, lived, unit, units
from harness.running import (
    Caller,
    Make,
    ask,
    many,
    search,
    work_of,
)
from harness.sessions import Wrapped

from opdbus.config import Config
from opdbus.engine.provider import Session
from opdbus.engine.sessions import open_session
from opdbus.index.ranking.scores import OVERLAP_WEIGHT
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Hit, SearchRequest
from opdbus.index.state_store.events import Vectorized
from opdbus.index.vectors.embed_priority import EmbedPriorityQueue
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.second_stage import COMPARED, COMPUTED
from opdbus.index.vectors.two_stage_search import TwoStageSearch
from opdbus.models.folder import Model
from opdbus.state.object import ObjectId, StateObject

# LONG than any test takes, and so short that nothing is waited for.
LONG, SHORT = 60.0, 0.05
PRINTER = unit("cups", "CUPS scheduler for printing documents")


class Gate:
    """A model that was proven, and then runs so many batches as it is let; it fails the others."""

    def __init__(self) -> None:
        self._left = threading.Semaphore(1 << 20)
        self._is_shut = threading.Event()
        self._opened = threading.Event()
        self._limit: threading.Semaphore | None = None

    def shut(self) -> None:
        """Let nothing run until it is opened."""
        self._opened.clear()
        self._is_shut.set()

    def open(self) -> None:
        """Let everything run."""
        self._is_shut.clear()
        self._limit = None
        self._opened.set()

    def let(self, batches: int) -> None:
        """Let so many batches run, and have the others fail."""
        self._limit = threading.Semaphore(batches)

    def opener(self, *given: Any) -> Session:
        """Open a real session behind the gate."""
        return Gated(open_session(*given), self)

    def passed(self) -> None:
        """Wait for, or fail, a batch."""
        if self._is_shut.is_set():
            self._opened.wait()
        if self._limit and not self._limit.acquire(blocking=False):
            raise RuntimeError("it is not let")


class Gated(Wrapped):
    """A session behind a gate, which is still alive where a batch fails."""

    def __init__(self, session: Session, gate: Gate) -> None:
        super().__init__(session)
        self._gate = gate

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Run when it is let."""
        if ids.shape[1] > 2:
            self._gate.passed()
        return super().run(ids)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Give a gate that is open in the end, so that all threads end."""
    house = Gate()
    yield house
    house.open()


def gated(**how: Any) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Run a test with a house whose model is behind a gate, and the gate."""

    def run(live: Callable[..., Any], gate: Gate, work: Callable[..., Awaitable[None]]) -> None:
        live(lambda house: work(house, gate), opener=gate.opener, **how)

    return work_of(run, "live", "gate", handed=2)


async def stored(house: House, *objects: StateObject) -> None:
    """Declare objects, and wait for their static vectors."""
    await house.declare(*objects)
    await house.cascade.first.ready(LONG)


def stages(hits: list[Hit]) -> list[str]:
    """Give the stage of each hit."""
    return [hit.score.level for hit in hits]


def names(hits: list[Hit]) -> list[str]:
    """Give the name of each hit."""
    return [hit.object_id.name for hit in hits]


@gated(engine=False, cascade=LONG)
async def test_answers_come_before_the_model(house: House, gate: Gate) -> None:
    """Search by meaning before a model is loaded, say so, and find what is like an object."""
    gate.shut()
    await stored(house, PRINTER, unit("cups2", "printing of documents"), *units(40))
    for mode in ("hybrid", "vector"):
        hits = await house.finder.search("put it on paper", SearchRequest(50), mode)
        assert len(hits) == 42
        assert set(stages(hits)) == {"static"}
        assert set(names(hits)[:2]) == {"cups", "cups2"}
    assert set(stages(await house.finder.search("mail", SearchRequest(5), "lexical"))) == {""}
    like = await house.finder.similar(ObjectId("systemd", "unit", "cups"), SearchRequest(3))
    assert (names(like)[0], set(stages(like))) == ("cups2", {"static"})
    assert house.finder.count_first_stage() == 42
    # it is to be the next to get its vector
    assert house.vectors.priority_queue
    gate.open()


@gated(cascade=SHORT)
async def test_a_new_object_is_found_while_the_model_is_busy(house: House, gate: Gate) -> None:
    """Answer by static vectors within the time that is allowed, also about what came just now."""
    await stored(house, *units(30))
    await house.vectorized()
    assert set(stages(await house.finder.search("mail", SearchRequest(50)))) == {"medium"}
    gate.shut()
    await stored(house, PRINTER, *units(30))
    hits = await house.finder.search("put it on paper", SearchRequest(50))
    assert (names(hits)[0], set(stages(hits))) == ("cups", {"static"})
    gate.open()
    await house.vectorized()
    assert set(stages(await house.finder.search("mail", SearchRequest(50)))) == {"medium"}


@lived(cascade=LONG)
async def test_static_vectors_come_first_while_many_objects_are_stored(house: House) -> None:
    """Run the model for questions only until all objects are stored, and then for these."""
    await stored(house, *units(3))
    await house.vectorized()
    async with house.memory.archive.busy():
        await stored(house, *units(30))
        # more than enough for a batch between
        for _ in range(30):
            await house.vectors.ask("who is asking?")
        assert (house.finder.count_first_stage(), house.vectors.missing_object_count()) == (30, 27)
    await house.vectorized()


@lived(cascade=LONG)
async def test_one_stage_is_left_when_all_vectors_are_there(house: House) -> None:
    """Search exactly as without a cascade once every object has its vector, and only then."""
    await stored(house, *units(40))
    await house.vectorized()
    for question in ("mail 7", "disk"):
        exact = await Finder(house.vectors).search(question, SearchRequest(50))
        assert await house.finder.search(question, SearchRequest(50)) == exact


def test_very_many_have_static_vectors_only_while_they_lack_their_own(
    live: Callable[..., Any], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give up the memory of static vectors when all have their own, also when one more comes."""
    monkeypatch.setattr("opdbus.index.vectors.two_stage_search.MANY", 10)

    async def work(house: House) -> None:
        gate.shut()
        await stored(house, *units(200))
        assert house.cascade.first.count() == 200
        assert house.cascade.is_used()
        gate.open()
        while house.cascade.first.index is not None:
            await house.event(Vectorized)
            await house.cascade.first.ready(LONG)
        await stored(house, *units(200), PRINTER)
        assert (house.cascade.first.index, house.cascade.is_used()) == (None, False)
        await house.vectorized()
        hits = await house.finder.search("printing", SearchRequest(50))
        assert "cups" in names(hits)

    live(work, cascade=LONG, opener=gate.opener)


def test_no_static_vectors_are_made_where_the_level_s_own_may_be_stored(
    live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait for the model where very many vectors were left, and make static ones if it has none."""
    monkeypatch.setattr("opdbus.index.vectors.two_stage_search.MANY", 10)

    async def work(house: House) -> None:
        await house.declare(*units(100))
        folder = house.memory.archive.folder
        assert folder
        folder.mkdir()
        (folder / "of_before.rows").touch()
        vectors = ObjectVectors(house.memory, house.serving)
        first = TwoStageSearch(vectors, LONG).first
        async with beside(first.run()):
            await first.ready(LONG)
            assert (first.index, first.is_broken) == (None, False)
            await house.serving.start()
            gate.shut()
            async with beside(Indexer(vectors).run()):
                while first.count() < 100:
                    house.memory.unstaged.set()
                    await first.ready(LONG)
                gate.open()

    gate = Gate()
    live(work, engine=False, opener=gate.opener)


def without_overlap(hit: Hit) -> float:
    """Return what ranked a hit before its own words did: of equal ones any may be among these."""
    return hit.score.total - OVERLAP_WEIGHT * hit.score.overlap


@lived(cascade=LONG, always=True)
async def test_two_stages_score_as_one_does(house: House) -> None:
    """Give the best the scores of the exact search, in their order, and the others behind them."""
    await stored(house, *units(120))
    await house.vectorized()
    for question in ("mail 7", "which services use the network?"):
        exact = await Finder(house.vectors).search(question, SearchRequest(200))
        total = {hit.object_id: without_overlap(hit) for hit in exact}
        hits = await house.finder.search(question, SearchRequest(200))
        assert stages(hits) == ["medium"] * COMPARED + ["static"] * (120 - COMPARED)
        best = [hit.score.total for hit in hits[:COMPARED]]
        parts = [without_overlap(hit) for hit in hits[:COMPARED]]
        assert parts == pytest.approx([total[hit.object_id] for hit in hits[:COMPARED]], abs=1e-5)
        assert best == sorted(best, reverse=True)
        rest = [hit.score.total for hit in hits[COMPARED:]]
        assert rest == sorted(rest, reverse=True)
        ask = partial(house.finder.search, question)
        pages = [await ask(SearchRequest(19, n)) for n in range(0, 120, 19)]
        assert [hit.object_id for page in pages for hit in page] == [hit.object_id for hit in hits]


@gated(engine=False, cascade=LONG)
async def test_what_is_missing_is_computed_and_kept(
    house: House, gate: Gate, settings: Config
) -> None:
    """Compute vectors of the best first, rank the others after them, and store what was computed.

    The scores of the two parts are those of one model each.
    """
    gate.shut()
    await stored(house, *units(60))
    before = await house.finder.search("mail 7", SearchRequest(60))
    assert set(stages(before)) == {"static"}
    gate.open()
    await house.serving.start()
    # one for the question
    gate.let(6)
    hits = await house.finder.search("mail 7", SearchRequest(60))
    best = [hit for hit in hits if hit.score.level == "medium"]
    assert 1 <= len(best) < COMPUTED
    assert hits[: len(best)] == best
    assert before[0].object_id in [hit.object_id for hit in best]
    left = [hit for hit in before if hit.object_id not in {one.object_id for one in best}]
    rest = [(hit.object_id, hit.score) for hit in hits[len(best) :]]
    assert rest == [(hit.object_id, hit.score) for hit in left]
    assert set(in_order(house, settings)) == {hit.object_id.name for hit in best}
    gate.let(1)
    again = await house.finder.search("mail 7", SearchRequest(60))
    assert names(again) == names(hits)
    gate.open()
    whole = await house.finder.search("mail 7", SearchRequest(60))
    assert stages(whole)[:COMPUTED] == ["medium"] * COMPUTED
    totals = {hit.object_id: hit.score.total for hit in whole}
    for hit in best:
        assert hit.score.total == pytest.approx(totals[hit.object_id], abs=1e-5)


def in_order(house: House, settings: Config) -> list[str]:
    """Give the names of units whose vectors are stored, the first stored first."""
    texts = {entry.text_digest: entry.identity.name for entry in house.memory.catalogue}
    with closing(sqlite3.connect(settings.state_dir / "memory.db")) as reader:
        rows = reader.execute("SELECT text_digest FROM vectors ORDER BY rowid").fetchall()
    return [texts[key] for (key,) in rows]


@lived(engine=False, cascade=0.0)
async def test_the_most_asked_for_come_first(house: House, settings: Config) -> None:
    """Fill in the vectors that searches wanted before all others, by how often they did."""
    await stored(house, *units(100))
    wanted: dict[str, int] = {}
    for question in ("mail 7", "mail 7", "disk 3"):
        for name in names(await house.finder.search(question, SearchRequest(COMPUTED))):
            wanted[name] = wanted.get(name, 0) + 1
    async with house.indexing():
        await house.event(Vectorized)
    order = in_order(house, settings)
    assert len(order) == 100
    times = [wanted.get(name, 0) for name in order]
    assert times == sorted(times, reverse=True)


@lived(engine=False, cascade=LONG)
async def test_an_object_without_a_vector_has_others_like_it(house: House) -> None:
    """Compute the vector of the object that is compared, and those of the ones most like it."""
    await house.serving.start()
    await stored(house, unit("a", "mail network"), unit("b", "mail network disk"), *units(9))
    hits = await house.finder.similar(ObjectId("systemd", "unit", "a"), SearchRequest(20))
    assert stages(hits) == ["medium"] * 10
    again = await house.finder.similar(ObjectId("systemd", "unit", "a"), SearchRequest(20))
    assert names(again) == names(hits)
    assert "a" not in names(hits)


def test_a_level_without_a_model_has_one_stage(live: Callable[..., Any]) -> None:
    """Keep no static vectors beside those of the level static, nor where there are none."""

    async def work(house: House) -> None:
        await stored(house, *units(5))
        assert house.finder.count_first_stage() == 0
        assert not house.cascade.is_used()

    for level in ("none", "static"):
        live(work, settings={"vector_level": level, "model": None}, engine=False, cascade=LONG)


def test_what_was_asked_for_is_bounded() -> None:
    """Remember the texts that were priority_queue for most, and forget the others."""
    priority_queue = EmbedPriorityQueue()
    texts = [b"%d" % number for number in range(20_000)]
    priority_queue.add(texts[:3])
    priority_queue.add(texts)
    assert len(priority_queue) < 10_000
    assert priority_queue.take(2, lambda text: text != texts[1]) == [texts[0], texts[2]]
    assert texts[1] not in priority_queue.take(20_000, lambda _: True)
    assert priority_queue.take(1, lambda _: True) == []


def test_a_daemon_answers_while_its_model_works(
    daemons: Make, tmp_path: Path, medium_model: Model
) -> None:
    """Answer over the bus before the real model is proven, and then in its order, while most wait.

    The status says how far the second stage is.
    """
    file = many(tmp_path / "state.json", 800)

    async def work(caller: Caller) -> None:
        await caller._until_owned()
        await caller.signal("Changed")
        assert {more["stage"] for _, _, more in await search(caller, "lexical")} == {""}
        for mode in ("hybrid", "vector"):
            hits = await search(caller, mode, "which service sends mail?")
            assert {more["stage"] for _, _, more in hits} == {"static"}
        assert await caller.read("State") == "loading"
        assert await caller.read("Provider") == ""
        await caller.ready()
        hits = await search(caller, "hybrid", "which service sends mail?")
        assert {more["stage"] for _, _, more in hits} == {"medium"}
        scores = [score for _, score, _ in hits]
        assert scores == sorted(scores, reverse=True)
        assert await caller.read("Pending") > 0
        assert await caller.read("FirstStage") == 800

    with daemons(STATE_FILE=file, MODEL=medium_model.folder, CASCADE_MS=10_000) as daemon:
        ask(daemon, work)
        assert "searches find 800 objects by static vectors" in daemon.cli("status").stdout
