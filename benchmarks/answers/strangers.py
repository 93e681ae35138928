"""Held sets of strangers: one question about each of 60 kinds of hosts, and 100 for `op-dbus ask`.

`OP_DBUS_MODEL_DIR=... python benchmarks/answers/strangers.py --json FILE` prints totals only: no
question of these sets is ever shown, and nothing is fitted to them. Their authors had read the
README and some pages of docs/, no code and no other questions, and corrected nothing afterwards.

`--set trades` asks ours instead, which the program was mended by: five questions about each of 60
hosts, written before any was asked, two of them about what the host lacks. On the last twenty most
objects are of kinds that only publishers tell of. `--set trades_held` has twelve more, which were
written after the program had been mended, and by which nothing was.

A question for `ask` is right if its route is, and, where it is about objects of the school's host,
if its first hit is, too. `--level` and `--before` (a checkout without routes: objects only) serve
comparisons.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from asking import ROOT, load

from opdbus import config
from opdbus.bench import machine
from opdbus.index.database.identity_set import IdentityHashSet
from opdbus.index.ranking.confidence import rate
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity, StateObject

_MODE: Final = "hybrid"
_STRANGERS: Final = "strangers"
# A score that says that an answer is right.
_SURE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Found:
    """The best hit for a question: whether it is right, its score, and whether it was refused."""

    kind: str
    is_absent: bool
    is_refused: bool
    is_right: bool
    score: float


async def found(finder: Finder, row: dict[str, Any]) -> Found:
    """Ask for the best hit."""
    hits = await finder.search(row["question"], SearchRequest(10), _MODE)
    rated = rate([hit.score for hit in hits], _MODE)
    is_refused = not rated or rated[0].is_weak
    right = {tuple(answer) for answer in row["answers"]}
    return Found(
        row["kind"],
        not right,
        is_refused,
        not is_refused and tuple(hits[0].object_id) in right,
        0.0 if is_refused else rated[0].confidence,
    )


async def asked(
    objects: Iterable[Sequence[Any]], rows: Sequence[dict[str, Any]], serving: Serving
) -> list[Found]:
    """Ask questions about a host whose objects are observed, or declared by a file."""
    with tempfile.TemporaryDirectory() as folder:
        async with finding(objects, Path(folder), serving) as (finder, _):
            return [await found(finder, row) for row in rows]


@asynccontextmanager
async def finding(
    objects: Iterable[Sequence[Any]], folder: Path, serving: Serving
) -> AsyncIterator[tuple[Finder, StateStore]]:
    """Yield a finder of objects that are observed, or declared by a file, and their store."""
    # here, so that a checkout of before can be asked too
    from quality import vectorize

    made = [StateObject(Identity(*row[:4]), row[4]) for row in objects]
    declared = [each for each in made if each.identity.source == FILE]
    observed = [each for each in made if each.identity.source != FILE]
    async with StateStore(folder / "db") as memory:
        await memory.observe(observed, set(), {})
        if declared:
            await memory.replace(
                FILE, IdentityHashSet({one.identity for one in declared}), declared
            )
        try:
            from opdbus.drift.batch_comparison import PairedDeclarations
            from opdbus.drift.pairs import Pairs

            memory.declarations = PairedDeclarations(memory, Pairs(memory.catalogue))
        except ImportError:
            pass
        vectors = ObjectVectors(memory, serving)
        await vectorize(vectors)
        yield Finder(vectors), memory


def totals(found: Sequence[Found]) -> dict[str, Any]:
    """Sum up: what was right first, what was refused, and what a score above .9 means."""
    answerable = [one for one in found if not one.is_absent]
    absent = [one for one in found if one.is_absent]
    sure = [one for one in found if one.score > _SURE]
    kinds = Counter(one.kind for one in answerable)
    right = Counter(one.kind for one in answerable if one.is_right)
    return {
        "answerable": len(answerable),
        "right first": sum(one.is_right for one in answerable),
        "answerable refused": sum(one.is_refused for one in answerable),
        "absent": len(absent),
        "absent refused": sum(one.is_refused for one in absent),
        "above .9": len(sure),
        "above .9 right": sum(one.is_right for one in sure),
        "right first by kind": {kind: f"{right[kind]} of {n}" for kind, n in kinds.items()},
    }


def routed(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Count the questions whose route is right, by their route."""
    from opdbus.language import routes

    now = datetime(2026, 11, 26, 12)  # noqa: DTZ001 -- local, as people mean it
    right, every = Counter[str](), Counter[str]()
    for row in rows:
        accepted = row["route"] if isinstance(row["route"], list) else [row["route"]]
        every[accepted[0]] += 1
        right[accepted[0]] += routes.find_route(row["question"], now).name in accepted
    return {route: f"{right[route]} of {n}" for route, n in every.items()}


async def report(level: str, name: str, *, before: bool) -> dict[str, Any]:
    """Ask a set about hosts, and with that of strangers the one for `ask`."""
    school = json.loads((ROOT / "tests/data/school.json").read_text(encoding="utf-8"))["first"]
    of_ask = load("ask") if name == _STRANGERS else []
    of_objects = [row for row in of_ask if "answers" in row]
    rows, found = load(name), list[Found]()
    with tempfile.TemporaryDirectory() as folder:
        environ = {"OP_DBUS_STATE_DIR": folder, "OP_DBUS_VECTOR_LEVEL": level}
        async with Serving(
            config.load({"OP_DBUS_PRECISION": "fp32", **os.environ, **environ})
        ) as serving:
            await serving.embedder()
            for row in rows:
                found += await asked(row["objects"], row.get("questions", [row]), serving)
            about = await asked(school, of_objects, serving) if of_ask else []
    figures = {
        "machine": machine.describe().line,
        "level": level,
        f"{len(rows)} hosts": totals(found),
    }
    if not of_ask:
        return figures
    routes = {} if before else routed(of_ask)
    return {**figures, "objects for ask": totals(about), "routes for ask": routes}


def main() -> None:
    """Print totals, and keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="medium")
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--set", default=_STRANGERS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    text = json.dumps(asyncio.run(report(given.level, given.set, before=given.before)), indent=1)
    if given.json:
        given.json.write_text(f"{text}\n")
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
