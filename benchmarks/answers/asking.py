"""Asks all check sets of answers on their hosts, by a level, and keeps what was found."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

sys.path.extend(str(Path(__file__).parents[n] / name) for n, name in ((1, "."), (2, "tests")))
from harness.value_host import objects as of_the_value_host
from quality import vectorize

from opdbus import config
from opdbus.drift.batch_comparison import PairedDeclarations
from opdbus.drift.pairs import Pairs
from opdbus.index.database.identity_set import IdentityHashSet
from opdbus.index.query import query_parser
from opdbus.index.ranking.scores import MODES, Score
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.observe.selection import select_observers
from opdbus.serving.serving import Serving
from opdbus.settings.parsing import AUTO
from opdbus.state.conditions import AllOf, parse
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity, Json, StateObject

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(__file__).parent / "data"
# Exams about whole hosts, with questions about what each has not.
EXAMS: Final = ("cluster", "office", "home", "agency", "quarry")
HOSTS: Final = ("example", "packages", "values", *EXAMS)
# Those with a question about each object.
DESCRIBED: Final = HOSTS[:2]
# Questions about states that are asked of the hosts of all exams, and are none of them.
STATES: Final = "states"
HALVES: Final = ("fit", "told")
_KEPT: Final = 10
# When the hosts of the exams were observed: what is told of them has not expired since.
OBSERVED: Final = datetime(2026, 11, 23, 22, tzinfo=UTC)

Question = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question was answered: by a kind of a half, on a host, in a mode.

    `kind` is answerable, typos, foreign, taken out or absent; of the best hits `names` and `scores`
    are theirs, and `right` whether each is the answer or a near copy of it. `rank` is that of the
    answer itself, 0 if it is not among the best.
    """

    host: str
    kind: str
    half: str
    mode: str
    question: str
    names: Sequence[str]
    scores: Sequence[Score]
    right: Sequence[bool]
    rank: int


def load(name: str) -> Any:  # noqa: ANN401 -- JSON
    """Read a file of the data."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


@cache
def contents(host: str) -> list[StateObject]:
    """Return the objects of a host."""
    if host == "values":
        return of_the_value_host()
    if host in EXAMS:
        return [StateObject(Identity(*row[:4]), row[4]) for row in load(host)]
    path = ROOT / "state.example.json" if host == "example" else DATA / "packages.json"
    return list(StateFile(path).read()[1])


@asynccontextmanager
async def served(level: str, scratch: Path) -> AsyncIterator[Serving]:
    """Yield the engine of a level, with what is built from its model in the scratch."""
    environ = {"OP_DBUS_STATE_DIR": str(scratch), "OP_DBUS_VECTOR_LEVEL": level}
    settings = config.load({"OP_DBUS_PRECISION": "fp32", **os.environ, **environ})
    async with Serving(settings) as serving:
        await serving.embedder()
        yield serving


@asynccontextmanager
async def opened(host: str, scratch: Path, serving: Serving) -> AsyncIterator[ObjectVectors]:
    """Yield the vectors of all objects of a host, which are kept in the scratch."""
    place = scratch / f"{host}-{serving.config.vector_level}"
    place.mkdir(parents=True, exist_ok=True)
    async with StateStore(place / "db") as memory:
        vectors = ObjectVectors(memory, serving)
        found = contents(host)
        if host in EXAMS:
            await memory.observe(*_as_observed(found))
        else:
            await memory.replace(FILE, IdentityHashSet({each.identity for each in found}), found)
        await vectorize(vectors)
        yield vectors


def _as_observed(
    found: Sequence[StateObject],
) -> tuple[list[StateObject], set[Identity], dict[Identity, Mapping[str, Json]]]:
    """Return objects as observers tell of them: with the fields apart that move by themselves."""
    moving = {
        (each.source, kind): names
        for each in select_observers([AUTO], {})
        for kind, names in each.volatile.items()
    }
    lasting, moved = [], {}
    for each in found:
        names = moving.get((each.identity.source, each.identity.kind), frozenset())
        moved[each.identity] = {k: v for k, v in each.properties.items() if k in names}
        kept = {k: v for k, v in each.properties.items() if k not in names}
        lasting.append(StateObject(each.identity, kept))
    return lasting, set(), moved


def questions(host: str) -> list[Question]:
    """Return all questions about a host, with the kind of each, its answers, and what says so."""
    foreign = [{**row, "kind": "foreign"} for row in load("foreign")]
    if host in EXAMS:
        return [*_of_an_exam(host), *_of_states(host), *foreign]
    if host not in DESCRIBED:
        return [*_of_values(), *foreign]
    asked = [
        {**row, "kind": kind} for row in _described(host) for kind in ("answerable", "taken out")
    ]
    copies = _copies(host)
    mistyped = [
        {**row, "kind": "typos", "answers": {row["object"]}, "copies": copies[row["object"]]}
        for row in load("typos")
        if row["set"] == host
    ]
    return [*asked, *mistyped, *foreign]


def _described(host: str) -> list[Question]:
    """Return the different questions of a host: what several objects say has several answers."""
    copies, found = _copies(host), dict[str, Question]()
    for row in load("questions")[host]:
        same = found.setdefault(row["question"], {**row, "answers": set(), "copies": set()})
        same["answers"].add(row["object"])
        same["copies"] |= copies[row["object"]]
    return [*found.values()]


def _of_an_exam(host: str) -> list[Question]:
    return [
        {**row, "kind": "answerable" if row["answers"] else "absent", "copies": set(row["answers"])}
        for row in load(f"{host}_questions")
    ]


def _of_states(host: str) -> list[Question]:
    """Return questions whether programs run or are installed, and about what no host has.

    A program is there by the name of a unit or of a package; where it only has the other one, or
    only its name stands elsewhere, nothing is asked.
    """
    rows, found = load("states"), list[Question]()
    for row in rows:
        name = row.get("unit") or row.get("package")
        right = {sort: set(_called(host, name, sort)) for sort in ("unit", "package")}
        answers = right["unit" if "unit" in row else "package"] if name else set()
        if answers or not any(right.values()):
            kind = "answerable" if answers else "absent"
            found.append(
                {**row, "kind": kind, "answers": answers, "copies": answers, "set": STATES}
            )
    return found


def _called(host: str, name: str | None, sort: str) -> Iterator[str]:
    """Yield the units or packages of a host that a program is called by, or has as an alias."""
    for each in contents(host) if name else ():
        known = [each.identity.name, *each.properties.get("aliases", ())]
        is_there = each.properties.get("status", "installed") == "installed"
        is_meant = any(re.match(rf"{re.escape(name or '')}(?![a-z])", one) for one in known)
        if is_meant and each.identity.kind == sort and is_there and "@." not in known[0]:
            yield "/".join(each.identity[1:])


def _of_values() -> list[Question]:
    path = ROOT / "tests" / "data" / "value_questions.json"
    found = []
    for at, row in enumerate(json.loads(path.read_text(encoding="utf-8"))):
        wanted = AllOf(parse(row["where"]))
        right = {
            "/".join(each.identity[1:])
            for each in contents("values")
            if wanted.hold(each.identity, each.properties)
        }
        asked = {"question": row["question"], "half": HALVES[at % 2], "kind": "answerable"}
        found.append({**asked, "answers": right, "copies": right})
    return found


def _copies(host: str) -> dict[str, set[str]]:
    """Return what is right for each object: itself, and its near copies."""
    kept = load("copies")[host]
    names = kept["names"]
    return {
        name: {names[int(place)] for place in places.split()}
        for name, places in zip(names, kept["copies"], strict=True)
    }


async def answers(
    host: str, level: str, scratch: Path, modes: Sequence[str] = MODES
) -> list[Answer]:
    """Ask all questions about a host in some modes."""
    async with (
        served(level, scratch) as serving,
        finding(host, scratch, serving) as (finder, memory),
    ):
        found = []
        for row in questions(host):
            gone = row["copies"] if row["kind"] == "taken out" else set()
            async with _without(memory, host, gone):
                found += [await answer(finder, host, row, mode) for mode in modes]
        return found


@asynccontextmanager
async def finding(
    host: str, scratch: Path, serving: Serving
) -> AsyncIterator[tuple[Finder, StateStore]]:
    """Yield a finder of a host's objects as of the time of its observation, and their store."""
    query_parser.now = lambda: OBSERVED
    async with opened(host, scratch, serving) as vectors:
        memory = vectors.memory
        memory.declarations = PairedDeclarations(memory, Pairs(memory.catalogue))
        yield Finder(vectors), memory


@asynccontextmanager
async def _without(memory: StateStore, host: str, names: set[str]) -> AsyncIterator[None]:
    """Take some objects out of a memory, for as long as it is asked."""
    objects = contents(host) if names else []
    gone = [each for each in objects if "/".join(each.identity[1:]) in names]
    every = {each.identity for each in objects}
    if names:
        await memory.replace(FILE, IdentityHashSet(every - {each.identity for each in gone}), [])
    yield
    if names:
        await memory.replace(FILE, IdentityHashSet(every), gone)


async def answer(finder: Finder, host: str, row: Question, mode: str) -> Answer:
    """Ask a question."""
    hits = await finder.search(row["question"], SearchRequest(_KEPT), mode)
    right = row.get("copies", set())
    names = ["/".join(hit.object_id) for hit in hits]
    ranks = [rank for rank, name in enumerate(names, 1) if name in row.get("answers", ())]
    return Answer(
        row.get("set") if row.get("set") == STATES else host,
        row["kind"],
        row["half"],
        mode,
        row["question"],
        names,
        [hit.score for hit in hits],
        [name in right for name in names],
        next(iter(ranks), 0),
    )
