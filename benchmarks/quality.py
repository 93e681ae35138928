"""Search quality: mean reciprocal rank of questions in other words, by mode and lexical weight.

Runs the real store, index and ranking over the check set (state.example.json) or over another
state file and questions about it. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from opdbus import config
from opdbus.engine.opening import open_embedder
from opdbus.index.database.identity_set import IdentityHashSet
from opdbus.index.ranking import scores
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.search.rerank import Reranker
from opdbus.index.state_store.events import Vectorized
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.language.object_text import render
from opdbus.models import folder
from opdbus.models.level_table import LEVELS
from opdbus.serving.serving import Serving
from opdbus.state.fields import dotted_values
from opdbus.state.file import StateFile
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from opdbus.state.object import StateObject

ROOT = Path(__file__).parent.parent
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)


async def measure(state_file: Path, questions: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the mean reciprocal ranks over one state file and its questions."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = config.load({**os.environ, "OP_DBUS_STATE_DIR": scratch})
        async with opened(state_file, settings, Path(scratch)) as finder:
            return await _figures(finder, questions)


@asynccontextmanager
async def opened(state_file: Path, settings: config.Config, scratch: Path) -> AsyncIterator[Finder]:
    """Yield a finder of all objects of a state file, which have their vectors."""
    async with filled(state_file, settings, scratch) as vectors:
        yield Finder(vectors, Reranker(vectors.serving))


@asynccontextmanager
async def filled(
    state_file: Path, settings: config.Config, scratch: Path
) -> AsyncIterator[ObjectVectors]:
    """Yield the vectors of all objects of a state file."""
    async with StateStore(scratch / "db") as memory, Serving(settings) as serving:
        vectors = ObjectVectors(memory, serving)
        await serving.embedder()
        present, objects = StateFile(state_file).read()
        await memory.replace(FILE, IdentityHashSet(present), objects)
        await vectorize(vectors)
        yield vectors


async def compare_texts(state_file: Path, questions: list[dict[str, Any]]) -> dict[str, float]:
    """Give the mean reciprocal rank, by vector alone, of different texts of the same objects."""
    _, items = StateFile(state_file).read()
    names = ["/".join(item.identity[1:]) for item in items]
    settings = config.load(os.environ)
    async with open_embedder(folder.load_model(LEVELS["medium"], settings), settings) as embedder:
        asked = (await embedder.embed([q["question"] for q in questions])).vectors
        figures = {}
        for name, text in TEXTS.items():
            vectors = (await embedder.embed([text(item) for item in items])).vectors
            order = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")
            ranks = [
                row.tolist().index(names.index(q["object"])) + 1
                for row, q in zip(order, questions, strict=True)
            ]
            figures[name] = round(sum(1 / rank for rank in ranks) / len(ranks), 4)
        return figures


def _described(item: StateObject) -> str:
    found = dict(dotted_values(item.properties)).get("description", "")
    return f"{item.plugin} {item.kind} {item.name}: {found}"


TEXTS: dict[str, Callable[[StateObject], str]] = {
    "whole object as JSON": lambda item: f"{_described(item)} {item.json()}",
    "kind, name, description": _described,
    "with glosses and telling values (embedded)": lambda item: render(item).text,
}


async def vectorize(vectors: ObjectVectors) -> None:
    """Wait until every object has its vector."""
    done = asyncio.Event()
    vectors.memory.notify = lambda event: done.set() if isinstance(event, Vectorized) else None
    working = asyncio.create_task(Indexer(vectors).run())
    await done.wait()
    working.cancel()


async def _figures(finder: Finder, questions: list[dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"questions": len(questions)}
    for mode in ("lexical", "vector"):
        figures[mode] = round(await _mrr(finder, questions, mode), 4)
    chosen, by_weight = scores.LEXICAL_WEIGHT, {}
    for weight in WEIGHTS:
        scores.LEXICAL_WEIGHT = weight  # type: ignore[misc] -- what is measured here
        by_weight[str(weight)] = round(await _mrr(finder, questions, "hybrid"), 4)
    scores.LEXICAL_WEIGHT = chosen  # type: ignore[misc]
    figures["hybrid"] = round(await _mrr(finder, questions, "hybrid"), 4)
    figures["hybrid, no shared word"] = round(
        await _mrr(finder, [q for q in questions if not q.get("shared")], "hybrid"), 4
    )
    return {**figures, "lexical weight": chosen, "hybrid by weight": by_weight}


async def _mrr(finder: Finder, questions: list[dict[str, Any]], mode: str) -> float:
    return float(np.mean(await reciprocal_ranks(finder, questions, mode)))


async def reciprocal_ranks(
    finder: Finder, questions: list[dict[str, Any]], mode: str, level: str = ""
) -> list[float]:
    """Return 1 / the rank of each question's object, 0 past 50; a level puts the best in order."""
    found = []
    for question in questions:
        hits = await finder.search(str(question["question"]), SearchRequest(50), mode, level)
        names = ["/".join(hit.object_id) for hit in hits]
        wanted = str(question["object"])
        found.append(1 / (names.index(wanted) + 1) if wanted in names else 0.0)
    return found


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=ROOT / "state.example.json")
    parser.add_argument("--questions", type=Path, default=ROOT / "tests/data/questions.json")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    questions = json.loads(given.questions.read_text(encoding="utf-8"))
    figures = asyncio.run(measure(given.state, questions))
    figures["vector by text"] = asyncio.run(compare_texts(given.state, questions))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
