"""Search quality: mean reciprocal rank of questions in other words, by mode and lexical weight.

Runs the real store, index and ranking over the check set (state.example.json), and, with
--units, over the systemd units of this host and questions about them. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from opdbus import config
from opdbus.engine.embedder import open_embedder
from opdbus.index import search
from opdbus.index.finder import Finder, Page
from opdbus.index.indexer import Indexer
from opdbus.index.memory import Memory, Vectorized
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS
from opdbus.state.file import StateFile
from opdbus.state.object import FILE

ROOT = Path(__file__).parent.parent
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)


async def measure(state_file: Path, questions: list[dict[str, object]]) -> dict[str, object]:
    """Give the mean reciprocal ranks over one state file and its questions."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = config.load({**os.environ, "OP_DBUS_STATE_DIR": scratch})
        model = folder.load(LEVELS["medium"], settings)
        async with open_embedder(model, settings) as embedder, Memory(Path(scratch) / "db") as memory:
            await memory.attach(embedder)
            await memory.replace(FILE, *StateFile(state_file).read())
            await _vectorize(memory)
            return await _figures(Finder(memory), questions)


async def _vectorize(memory: Memory) -> None:
    done = asyncio.Event()
    memory.notify = lambda event: done.set() if isinstance(event, Vectorized) else None
    working = asyncio.create_task(Indexer(memory, 2.0).run())
    await done.wait()
    working.cancel()


async def _figures(finder: Finder, questions: list[dict[str, object]]) -> dict[str, object]:
    figures: dict[str, object] = {"questions": len(questions)}
    for mode in ("lexical", "vector"):
        figures[mode] = round(await _mrr(finder, questions, mode), 4)
    chosen, by_weight = search.LEXICAL_WEIGHT, {}
    for weight in WEIGHTS:
        search.LEXICAL_WEIGHT = weight  # type: ignore[misc] -- what is measured here
        by_weight[str(weight)] = round(await _mrr(finder, questions, "hybrid"), 4)
    search.LEXICAL_WEIGHT = chosen  # type: ignore[misc]
    figures["hybrid"] = round(await _mrr(finder, questions, "hybrid"), 4)
    figures["hybrid, no shared word"] = round(
        await _mrr(finder, [q for q in questions if not q.get("shared")], "hybrid"), 4
    )
    return {**figures, "lexical weight": chosen, "hybrid by weight": by_weight}


async def _mrr(finder: Finder, questions: list[dict[str, object]], mode: str) -> float:
    total = 0.0
    for question in questions:
        hits = await finder.search(str(question["question"]), Page(50), mode)
        names = ["/".join(hit.thing) for hit in hits]
        wanted = str(question["object"])
        total += 1 / (names.index(wanted) + 1) if wanted in names else 0.0
    return total / len(questions)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=ROOT / "state.example.json")
    parser.add_argument("--questions", type=Path, default=ROOT / "tests/data/questions.json")
    given = parser.parse_args()
    questions = json.loads(given.questions.read_text(encoding="utf-8"))
    json.dump(asyncio.run(measure(given.state, questions)), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
