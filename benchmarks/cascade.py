"""Searches in two stages beside the same level's exact ones: how well, how fast, and how soon.

Ranks and milliseconds are of the same questions, asked in turns: the exact search, two stages where
every object has its vector, and two stages where none has any before each question. Two stages are
never exact here: `always`. Then a daemon starts with 10,000 new objects. Writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog

sys.path.extend(str(Path(__file__).parent / part) for part in (".", "static", "../tests"))
from harness.running import Bus, Running
from measure import check_sets, interval
from quality import filled
from robustness.harness import QUESTIONS, state

from opdbus import config
from opdbus.bench import machine
from opdbus.bench.figures import percentiles
from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.vectors.two_stage_search import TwoStageSearch
from opdbus.platform.tasks import cancel

if TYPE_CHECKING:
    from opdbus.index.vectors.object_vectors import ObjectVectors

    Question = dict[str, Any]
    # reciprocal ranks, and seconds
    Asked = tuple[list[float], list[float]]

EXACT, THERE, MISSING = "exact", "two stages", "two stages, vectors missing"
_PAGE: Final = SearchRequest(50)
# So many questions are asked while vectors are missing: each of them takes as long as is allowed.
_MOST_MISSING: Final = 200
_PATIENCE_SECONDS: Final = 120.0


def sets(corpus: Path, scratch: Path) -> dict[str, tuple[Path, list[Question]]]:
    """Return the check sets of measure.py, and both of them in one state file."""
    found = check_sets(corpus, scratch)
    (ours, asked), (packages, more) = found.values()
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in (ours, packages)]
    both = contents[0]["plugins"] | contents[1]["plugins"]
    path = scratch / "both.json"
    path.write_text(json.dumps({"version": 1, "plugins": both}))
    return {**found, "check set among packages": (path, [*asked, *more])}


async def compare(
    state_file: Path, questions: list[Question], scratch: Path, level: str
) -> dict[str, Any]:
    """Return the figures of each way to search one set."""
    environ = {"OP_DBUS_STATE_DIR": str(scratch), "OP_DBUS_VECTOR_LEVEL": level}
    settings = config.load(os.environ | environ)
    async with filled(state_file, settings, scratch) as vectors:
        cascade = TwoStageSearch(vectors, settings.cascade_ms / 1000, always=True)
        keeping = asyncio.create_task(cascade.run())
        await cascade.first.ready(_PATIENCE_SECONDS)
        two = Finder(vectors, two_stage=cascade)
        found: dict[str, Asked] = {way: ([], []) for way in (EXACT, THERE, MISSING)}
        rescored = []
        apart = -(-len(questions) // _MOST_MISSING)
        for number, question in enumerate(questions):
            ways = {EXACT: Finder(vectors), THERE: two}
            # neither is always the one whose words the database has just read
            for way in sorted(ways, reverse=number % 2 == 1):
                await _ask(ways[way], question, found[way])
            if number % apart == 0:
                rescored.append(await _ask_without(vectors, two, question, found[MISSING]))
        await cancel([keeping])
        objects = len(vectors.memory.catalogue)
    return {"objects": objects, "questions": len(questions), **_figures(found, rescored, apart)}


async def _ask(finder: Finder, question: Question, into: Asked) -> list[str]:
    """Ask, keep the reciprocal rank and the seconds, and return the stages of the best 24."""
    began = time.perf_counter()
    hits = await finder.search(question["question"], _PAGE)
    into[1].append(time.perf_counter() - began)
    names = ["/".join(hit.object_id) for hit in hits]
    wanted = question["object"]
    into[0].append(1 / (names.index(wanted) + 1) if wanted in names else 0.0)
    return [hit.score.level for hit in hits[:24]]


async def _ask_without(
    vectors: ObjectVectors, finder: Finder, question: Question, into: Asked
) -> int:
    """Ask where no object has a vector, and count the ones that were computed in time."""
    embedder = await vectors.serving.embedder()
    index = await vectors.index(embedder.numerics, embedder.dimension)
    kept = {key: index.get(key) for key in {e.text_digest for e in vectors.memory.catalogue}}
    index.drop(kept)
    stages = await _ask(finder, question, into)
    # what was begun when the time was over is not to slow the next question
    while embedder.scheduler.depth:  # noqa: ASYNC110 -- nothing tells of it
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    index.drop(kept)
    await index.add([*kept], np.stack([*kept.values()]))  # type: ignore[arg-type] -- all are there
    return sum(stage not in {"static", ""} for stage in stages)


def _figures(found: dict[str, Asked], rescored: list[int], apart: int) -> dict[str, Any]:
    figures: dict[str, Any] = {
        way: {"MRR": interval(ranks), **_milliseconds(seconds)}
        for way, (ranks, seconds) in found.items()
    }
    for way, step in ((THERE, 1), (MISSING, apart)):
        lost = np.subtract(found[way][0], found[EXACT][0][::step]).tolist()
        figures[way]["MRR - exact"] = interval(lost)
    exact, there, missing = (figures[way]["p50_ms"] for way in found)
    figures[THERE]["p50 / exact"] = round(there / exact, 2)
    figures[MISSING]["p50 - exact, ms"] = round(missing - exact, 1)
    figures[MISSING]["computed in time, of 24"] = round(float(np.mean(rescored)), 1)
    return figures


def _milliseconds(seconds: list[float]) -> dict[str, float]:
    found = percentiles(seconds, 50, 99)
    return {f"{cut}_ms": round(value, 1) for cut, value in found.items()}


def first_start(objects: int, level: str) -> dict[str, Any]:
    """Return how soon a daemon answers that has just stored so many new objects."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bus = Bus()
        stack.callback(bus.kill)
        file = folder / "state.json"
        file.write_text(json.dumps(state(objects)))
        settings = {"STATE_FILE": file, "LOG_LEVEL": "warning", "VECTOR_LEVEL": level}
        models = os.environ.get("OP_DBUS_MODEL_DIR")
        daemon = Running(
            folder, bus.address, **settings, **({"MODEL_DIR": models} if models else {})
        )
        with daemon:
            return asyncio.run(_followed(daemon, objects))


async def _followed(daemon: Running, objects: int) -> dict[str, Any]:
    """Ask again and again from the moment when all objects are stored."""
    began = time.perf_counter()
    figures: dict[str, Any] = {"objects": objects}
    async with asyncio.timeout(_PATIENCE_SECONDS), Client(daemon.bus) as client:
        while (await _values(client)).get("Count", 0) < objects:  # noqa: ASYNC110 -- before it serves
            await asyncio.sleep(0.01)
        stored = time.perf_counter()
        figures["stored s"] = round(stored - began, 2)
        waits = []
        while "all static vectors s" not in figures or len(waits) < 20:
            asked = time.perf_counter()
            hits = await client.search(QUESTIONS[len(waits) % len(QUESTIONS)], 10, {"all": True})
            now = time.perf_counter()
            waits.append(now - asked)
            if hits:
                figures.setdefault("first answer s", round(now - stored, 3))
            if hits and hits[0][2]["stage"]:
                figures.setdefault("first answer by meaning s", round(now - stored, 3))
            values = await _values(client)
            if values["FirstStage"] == objects:
                figures.setdefault("all static vectors s", round(time.perf_counter() - stored, 3))
        return figures | {"searches": _milliseconds(waits), "state": values["State"]}


async def _values(client: Client) -> dict[str, Any]:
    try:
        return await client.status()
    except OpDbusError:  # it has not begun to serve
        return {}


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="what training/corpus.py wrote")
    parser.add_argument("--level", default="medium")
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    report: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%F}",
        "machine": machine.describe().line,
        "level": given.level,
        "first start": first_start(given.objects, given.level),
        "sets": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, (file, asked) in sets(given.corpus, Path(scratch)).items():
            place = Path(scratch) / name.replace(" ", "-")
            place.mkdir()
            found = asyncio.run(compare(file, asked, place, given.level))
            report["sets"][name] = found
            print(name, json.dumps(found), file=sys.stderr, flush=True)
    text = json.dumps(report, indent=1)
    (given.json or Path("/dev/stdout")).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
