"""The best of what was found, in the order of another level."""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from harness.house import units
from harness.tiny import write_tiny_model

from opdbus.config import Config
from opdbus.engine.embedder import Embedding
from opdbus.errors import InvalidArgs, ModelError
from opdbus.index.database.store import Content, Entry
from opdbus.index.ranking.scores import LEXICAL_WEIGHT, Score
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.search.rerank import RERANKED, Reranker
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.models.level_table import LEVELS
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity

ANGLES = {"question": 0.0, "near": 0.1, "far": 1.0, "opposite": 3.0}


class Levels:
    """Engines of two dimensions, in which each text has an angle; what was asked is kept."""

    level = "high"

    def __init__(self) -> None:
        self.numerics = "large"
        self.asked: list[list[str]] = []

    async def embedder(self, _level: str) -> "Levels":
        """Be the engine too."""
        return self

    async def embed(self, texts: Sequence[str], _level: str, **_: Any) -> Embedding:
        """Give the vectors of known texts."""
        self.asked.append(list(texts))
        angles = np.array([ANGLES[text] for text in texts], np.float32)
        return Embedding(np.stack([np.cos(angles), np.sin(angles)], axis=1), 0, self.numerics)


def found_by(share: float) -> Score:
    """Make the score of what words found."""
    return Score(share, 0.0, share)


def entry(number: int, text: str) -> Entry:
    """Make an entry with a text of a digest of its own."""
    return Entry(number, Identity(FILE, "p", "k", text), 0, "", text.encode(), 0, transient=False)


def order(
    reranker: Reranker, texts: Sequence[str], shares: Sequence[float] = (0, 0, 0, 0)
) -> list[tuple[str, float]]:
    """Put texts in order, and give each with its score."""
    scored = [found_by(share) for share in shares]
    found = [(entry(n, text), scored[n]) for n, text in enumerate(texts)]
    contents = {e.id: Content("", e.identity.name, e.text_digest) for e, _ in found}
    rows = asyncio.run(reranker.order("question", found, contents, "alias"))
    assert {score.level for _, score in rows} <= {"high"}
    return [(e.identity.name, score.total) for e, score in rows]


def test_the_order_is_the_levels() -> None:
    """Give the nearest to the question first, by the cosines of the level's own vectors."""
    found = order(Reranker(cast("Any", Levels())), ["opposite", "far", "near"])
    assert [name for name, _ in found] == ["near", "far", "opposite"]
    for name, score in found:
        assert score == pytest.approx(np.cos(ANGLES[name]), abs=1e-6)


def test_words_count_as_they_did() -> None:
    """Add what the words of the question gave, as the first search does."""
    found = order(Reranker(cast("Any", Levels())), ["near", "far"], (0.0, 1.0))
    assert dict(found)["far"] == pytest.approx(np.cos(1.0) + LEXICAL_WEIGHT, abs=1e-6)


def test_vectors_are_computed_once() -> None:
    """Ask for the question and for new texts only, and once for a text that two objects have."""
    levels = Levels()
    reranker = Reranker(cast("Any", levels))
    order(reranker, ["near", "far", "near"])
    order(reranker, ["far", "opposite"])
    assert levels.asked == [["question", "near", "far"], ["question", "opposite"]]


def test_vectors_of_other_numerics_are_not_taken() -> None:
    """Compute anew what another model or precision had computed."""
    levels = Levels()
    reranker = Reranker(cast("Any", levels))
    order(reranker, ["near"])
    levels.numerics = "larger"
    order(reranker, ["near"])
    assert levels.asked[1] == ["question", "near"]


def test_what_was_removed_is_left_out() -> None:
    """Leave out an object whose content went away between the two searches."""
    reranker = Reranker(cast("Any", Levels()))
    found = [(entry(1, "near"), found_by(0.0)), (entry(2, "far"), found_by(0.0))]
    contents = {2: Content("", "far", b"far")}
    rows = asyncio.run(reranker.order("question", found, contents, "high"))
    assert [e.id for e, _ in rows] == [2]


def test_nothing_found() -> None:
    """Give nothing in order."""
    assert order(Reranker(cast("Any", Levels())), []) == []


# with real models


@pytest.fixture
def both(settings: Config, tiny_graphs: Path, tmp_path: Path) -> Config:
    """Give settings with a medium and a high tiny model."""
    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")
    write_tiny_model(tmp_path / "models" / LEVELS["high"].folder, seed=5, family="mpnet")
    return replace(settings, model_dir=tmp_path / "models")


async def test_search_with_another_level(both: Config) -> None:
    """Put the best in another level's order, page by page, and leave the rest where it was."""
    async with StateStore(both.state_dir / "memory.db") as memory, Serving(both) as serving:
        await serving.start()
        vectors = ObjectVectors(memory, serving)
        told: asyncio.Queue[Any] = asyncio.Queue()
        memory.notify = told.put_nowait
        indexing = asyncio.create_task(Indexer(vectors).run())
        objects = units(60)
        await memory.replace(FILE, {o.identity for o in objects}, objects)
        while vectors.missing_object_count():
            await told.get()
        finder = Finder(vectors, Reranker(serving))
        plain = await finder.search("mail disk", SearchRequest(40), "vector")
        ranked = await finder.search("mail disk", SearchRequest(40), "vector", "high")
        best = {hit.object_id for hit in ranked[:RERANKED]}
        assert best == {hit.object_id for hit in plain[:RERANKED]}
        assert [hit.object_id for hit in ranked] != [hit.object_id for hit in plain]
        rest = [(hit.object_id, hit.score) for hit in ranked[RERANKED:]]
        assert rest == [(hit.object_id, hit.score) for hit in plain[RERANKED:]]
        scores = [hit.score.total for hit in ranked[:RERANKED]]
        assert scores == sorted(scores, reverse=True)
        texts = ["mail disk", await text_of(memory, ranked[0])]
        first, second = (await serving.embed(texts, "high")).vectors
        assert scores[0] == pytest.approx(float(first @ second), abs=1e-5)
        pages = [
            hit
            for offset in range(0, 40, 8)
            for hit in await finder.search("mail disk", SearchRequest(8, offset), "vector", "high")
        ]
        assert [hit.object_id for hit in pages] == [hit.object_id for hit in ranked]
        with pytest.raises(InvalidArgs, match="there is no level 'huge'"):
            await finder.search("mail", SearchRequest(3), "vector", "huge")
        with pytest.raises(ModelError, match="models pull low"):
            await finder.search("mail", SearchRequest(3), "vector", "low")
        indexing.cancel()
        with suppress(asyncio.CancelledError):
            await indexing


async def text_of(memory: StateStore, hit: Any) -> str:
    """Give the whole text of what was found."""
    entries = memory.catalogue.require_entries(hit.object_id)
    return (await memory.content(entries))[entries[0].id].text


class Evicting(Levels):
    """Engines that let another question in while one is embedded."""

    reranker: Reranker
    others = 40

    async def embed(self, texts: Sequence[str], level: str, **more: Any) -> Embedding:
        """Answer questions about many other texts first, once."""
        others, self.others = self.others, 0
        for turn in range(others):
            names = [f"{turn}/{n}" for n in range(200)]
            ANGLES.update(dict.fromkeys(names, 0.5))
            found = [(entry(n, name), found_by(0.0)) for n, name in enumerate(names)]
            contents = {e.id: Content("", e.identity.name, e.text_digest) for e, _ in found}
            await self.reranker.order("question", found, contents, "high")
        return await super().embed(texts, level, **more)


def test_a_question_survives_the_eviction_of_its_vectors() -> None:
    """Answer from kept vectors also where other questions push them out meanwhile."""
    levels = Evicting()
    levels.reranker = Reranker(cast("Any", levels))
    levels.others = 0
    order(levels.reranker, ["near", "far"])
    levels.others = 40
    assert [name for name, _ in order(levels.reranker, ["far", "near"])] == ["near", "far"]
