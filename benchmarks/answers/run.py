"""Asks recorded hosts questions: how well answers are found and refused, and what fits the scores.

`measure` asks all check sets, and reports the half that nothing was fitted to. `exams` asks those
about whole hosts alone; `--misses` shows questions of the open half without a right answer first.
`strangers` asks one question each about 60 kinds of hosts and 100 for `op-dbus ask`, with totals
only; `--set trades_held` asks twelve hosts instead, which nothing was mended by, `--set trades`
sixty that the program was mended by. `fit` writes opdbus/tables/calibration.tsv by the other half
of the check sets. `take FOLDER NAME` adds an exam to data/ from a folder with objects.json,
questions_open.json and questions_held.json. OP_DBUS_MODEL_DIR has the models.

Exams: cluster (a node with databases, message queues, monitoring) and office (a small company's
server) were observed on booted Debian hosts and asked 130 questions each by people who had not read
the program. agency (a web agency's server) was asked 160 by somebody who had read how the program
is used. quarry (a site's server) was asked 120 by an administrator who knew the README. home (a
family's server) is ours. In each, 8 to 20 questions are about what is not there. Of held halves,
which nothing is fitted to, questions are never shown.

Strangers had read the README and some pages of docs/, no code and no other questions, and corrected
nothing afterwards. A question for `ask` is right if its route is, and, where it is about objects of
the school's host, if its first hit is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import EXAMPLE, ROOT, parse, write

from opdbus import config
from opdbus.drift.batch_comparison import PairedDeclarations
from opdbus.drift.pairs import Pairs
from opdbus.index.ranking.confidence import (
    Features,
    LogisticModel,
    Weights,
    compute_features,
    logistic,
    rate,
)
from opdbus.index.ranking.scores import MODES, Score
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.events import Vectorized
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.language import routes
from opdbus.observe.selection import select_observers
from opdbus.serving.serving import Serving
from opdbus.settings.parsing import AUTO
from opdbus.state.conditions import AllOf
from opdbus.state.conditions import parse as parse_condition
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity, Json, StateObject

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA: Final = Path(__file__).parent / "data"
TABLE: Final = ROOT / "opdbus" / "tables" / "calibration.tsv"
LEVELS: Final = ("static", "low", "medium", "high")
# Exams about whole hosts, with questions about what each has not.
EXAMS: Final = ("cluster", "office", "home", "agency", "quarry")
HOSTS: Final = ("example", "packages", "values", *EXAMS)
# Those with a question about each object.
DESCRIBED: Final = HOSTS[:2]
# Questions about states that are asked of the hosts of all exams, and are none of them.
STATES: Final = "states"
# The half that scores are fitted to, and the other one; how they are called in exams.
HALVES: Final = ("fit", "told")
NAMES: Final = ("open", "held")
STRANGERS: Final = "strangers"
_KEPT: Final = 10

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

    def confidences(self) -> list[float]:
        """Return how likely each hit is right."""
        return [rating.confidence for rating in rate(self.scores, self.mode)]

    @property
    def best(self) -> float:
        """How likely the best hit is right, 0 where nothing was found."""
        return next(iter(self.confidences()), 0.0)

    @property
    def is_refused(self) -> bool:
        """True if the answer is empty."""
        return not self.scores or rate(self.scores, self.mode)[0].is_weak


# hosts


def load(name: str) -> Any:  # noqa: ANN401 -- JSON
    """Read a file of the data."""
    return _read(DATA / f"{name}.json")


def _read(path: Path) -> Any:  # noqa: ANN401 -- JSON
    return json.loads(path.read_text(encoding="utf-8"))


def _made(rows: Iterable[Sequence[Any]]) -> list[StateObject]:
    return [StateObject(Identity(*row[:4]), row[4]) for row in rows]


@cache
def contents(host: str) -> list[StateObject]:
    """Return the objects of a host."""
    if host == "values":
        rows = _read(ROOT / "tests/data/value_host.json")
        return _made((f"live:{row[0]}", *row) for row in rows)
    if host in EXAMS:
        return _made(load(host))
    path = EXAMPLE if host == "example" else DATA / "packages.json"
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
async def finding(
    place: Path,
    serving: Serving,
    observed: Sequence[StateObject],
    moved: Mapping[Identity, Mapping[str, Json]],
    declared: Sequence[StateObject],
) -> AsyncIterator[tuple[Finder, StateStore]]:
    """Yield a finder of objects that are observed or declared, and their store in a folder."""
    place.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 -- nothing else runs
    async with StateStore(place / "db") as memory:
        vectors = ObjectVectors(memory, serving)
        if observed:
            await memory.observe(observed, set(), dict(moved))
        if declared:
            await memory.replace(FILE, _identities(declared), declared)
        await vectorize(vectors)
        memory.declarations = PairedDeclarations(memory, Pairs(memory.catalogue))
        yield Finder(vectors), memory


def _identities(objects: Iterable[StateObject]) -> set[Identity]:
    return {each.identity for each in objects}


async def vectorize(vectors: ObjectVectors) -> None:
    """Wait until every object has its vector."""
    done = asyncio.Event()
    vectors.memory.notify = lambda event: done.set() if isinstance(event, Vectorized) else None
    working = asyncio.create_task(Indexer(vectors).run())
    await done.wait()
    working.cancel()


def _as_observed(
    found: Sequence[StateObject],
) -> tuple[list[StateObject], dict[Identity, Mapping[str, Json]]]:
    """Return objects as observers report them: with the fields apart that move by themselves."""
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
    return lasting, moved


# questions


def questions(host: str) -> list[Question]:
    """Return all questions about a host, with the kind of each, its answers, and their copies."""
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
    found = list[Question]()
    for row in load("states"):
        name = row.get("unit") or row.get("package")
        right = {kind: set(_called(host, name, kind)) for kind in ("unit", "package")}
        answers = right["unit" if "unit" in row else "package"] if name else set()
        if answers or not any(right.values()):
            kind = "answerable" if answers else "absent"
            found.append(
                {**row, "kind": kind, "answers": answers, "copies": answers, "set": STATES}
            )
    return found


def _called(host: str, name: str | None, kind: str) -> Iterator[str]:
    """Yield the units or packages of a host that a program is called by, or has as an alias."""
    for each in contents(host) if name else ():
        known = [each.identity.name, *each.properties.get("aliases", ())]
        is_there = each.properties.get("status", "installed") == "installed"
        is_meant = any(re.match(rf"{re.escape(name or '')}(?![a-z])", one) for one in known)
        if is_meant and each.identity.kind == kind and is_there and "@." not in known[0]:
            yield _name(each)


def _name(each: StateObject) -> str:
    return "/".join(each.identity[1:])


def _of_values() -> list[Question]:
    found = []
    for at, row in enumerate(_read(ROOT / "tests/data/value_questions.json")):
        wanted = AllOf(parse_condition(row["where"]))
        right = {
            _name(each)
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
    objects = contents(host)
    observed, moved = _as_observed(objects) if host in EXAMS else ([], {})
    declared, place = [] if host in EXAMS else objects, scratch / f"{host}-{level}"
    async with (
        served(level, scratch) as serving,
        finding(place, serving, observed, moved, declared) as (finder, memory),
    ):
        found = []
        for row in questions(host):
            gone = row["copies"] if row["kind"] == "taken out" else set()
            async with _without(memory, objects, gone):
                found += [await answer(finder, host, row, mode) for mode in modes]
        return found


@asynccontextmanager
async def _without(
    memory: StateStore, objects: Sequence[StateObject], names: set[str]
) -> AsyncIterator[None]:
    """Take some objects out of a store, for as long as it is asked."""
    gone = [each for each in objects if _name(each) in names]
    if names:
        left = [each for each in objects if _name(each) not in names]
        await memory.replace(FILE, _identities(left), [])
    yield
    if names:
        await memory.replace(FILE, _identities(objects), gone)


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


# figures of the check sets

_TENTHS: Final = np.linspace(0, 1, 11)
_HITS: Final = 5
# An answer of such a score looks right to people.
_SURE: Final = 0.5
# Shares of answerable questions that may be refused, for the curve of those taken out.
_POINTS: Final = (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


def of(found: Sequence[Answer], **wanted: str) -> list[Answer]:
    """Return the answers with these fields."""
    return [a for a in found if all(getattr(a, key) == value for key, value in wanted.items())]


def ranks(found: Sequence[Answer]) -> dict[str, Any]:
    """Return how well answers were found; one that is refused was not."""
    ranked = [0 if each.is_refused else each.rank for each in found]
    return {
        "questions": len(found),
        "MRR": _mean(1 / rank if rank else 0 for rank in ranked),
        "recall@10": _mean(map(bool, ranked)),
        "MRR, none refused": _mean(1 / each.rank if each.rank else 0 for each in found),
    }


def _mean(values: Iterable[float]) -> float:
    numbers = [float(value) for value in values]
    return round(sum(numbers) / max(1, len(numbers)), 4)


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return how often one is larger than another, by pairs; half for equal ones."""
    first, second = np.array(positive)[:, None], np.array(negative)[None]
    return round(float(((first > second) + 0.5 * (first == second)).mean()), 4)


def curve(answerable: Sequence[float], taken_out: Sequence[float]) -> list[float]:
    """Return the shares of those taken out that are refused, at shares of answerable ones."""
    cuts = [float(np.quantile(answerable, point)) for point in _POINTS]
    return [_mean(confidence < cut for confidence in taken_out) for cut in cuts]


def calibration(found: Sequence[Answer]) -> list[list[float]]:
    """Return for each tenth of the score how many of the best hits have it, and are right."""
    rows = [
        row
        for each in found
        for row in list(zip(each.confidences(), each.right, strict=True))[:_HITS]
    ]
    table = []
    for low, high in pairwise(_TENTHS):
        some = [is_right for score, is_right in rows if low <= score < high + (high == 1)]
        table.append([round(float(low), 1), len(some), _mean(some)])
    return table


def figures(found: Sequence[Answer]) -> dict[str, Any]:
    """Return the figures of one level and mode: of the half that nothing was fitted to."""
    told = of(found, half="told")
    answerable, absent = of(told, kind="answerable"), of(told, kind="absent")
    described = [each.best for each in answerable if each.host in DESCRIBED]
    out = [each.best for each in of(told, kind="taken out")]
    sets = {host: of(answerable, host=host) for host in HOSTS}
    sets["typing errors"] = of(told, kind="typos")
    kinds = ("answerable", "typos", "foreign", "taken out", "absent")
    return {
        "MRR with none refused, recall@10": {
            name: [row["MRR, none refused"], row["recall@10"]]
            for name, some in sets.items()
            if (row := ranks(some))
        },
        "refused": {k: _mean(each.is_refused for each in of(told, kind=k)) for k in kinds},
        "absent, sure": _mean(each.best >= _SURE and not each.is_refused for each in absent),
        "AUC": auc(described, out),
        "refused of answerable": list(_POINTS),
        "then of taken out": curve(described, out),
        "score from, hits, right": calibration([each for each in told if each.kind != "typos"]),
    }


def measure(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the figures of each level in hybrid searches, and of words alone."""
    report = {}
    for level in given.levels:
        found = [each for host in HOSTS for each in asyncio.run(answers(host, level, scratch))]
        alone = {}
        for mode in MODES:
            some = of(found, mode=mode, half="told", kind="answerable")
            alone[mode] = [ranks(of(some, host=host))["MRR, none refused"] for host in HOSTS]
        report[level] = {**figures(of(found, mode="hybrid")), "MRR by mode": alone}
        report["none"] = figures(of(found, mode="lexical"))
    return report


# exams

# What lies beneath a host that was booted for an exam.
_BENEATH: Final = re.compile(r"((?:lower|upper|work)dir)=[^,\"]*")
_DIGEST: Final = "sha256"
# Packages that nobody asks for, as on every host that compiles.
_LEFT_OUT: Final = "libdevel"


def ask_exams(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Print the figures of each exam, half and level, and return them."""
    report: dict[str, Any] = {}
    for level in given.levels:
        for exam in given.exams:
            found = asyncio.run(answers(exam, level, scratch, ("hybrid",)))
            for half, name in zip(HALVES, NAMES, strict=True):
                some = [each for each in of(found, host=exam, half=half) if each.kind != "foreign"]
                row = report.setdefault(level, {}).setdefault(exam, {})
                row[name] = _figures_of_exam(some)
                print(f"{exam}, {name}, {level}: {row[name]}", file=sys.stderr, flush=True)
                if given.misses and name == "open":
                    _show_misses(some)
    return report


def _figures_of_exam(found: Sequence[Answer]) -> dict[str, Any]:
    there, absent = of(found, kind="answerable"), of(found, kind="absent")
    refused = {"absent": len(absent), "absent, refused": sum(each.is_refused for each in absent)}
    return {
        **ranks(there),
        "answerable, refused": sum(each.is_refused for each in there),
        **refused,
    }


def _show_misses(found: Sequence[Answer]) -> None:
    """Print questions that were not answered as they should."""
    for each in found:
        is_right = each.is_refused if each.kind == "absent" else each.rank == 1
        if not is_right or each.is_refused != (each.kind == "absent"):
            said = "refused" if each.is_refused else f"{each.rank or '-'}. {each.best:.3f}"
            print(f"  {each.kind}: {said}: {each.question}: {', '.join(each.names[:3])}")


def take(folder: Path, name: str) -> None:
    """Add an exam to the data: without digests, and without places of the machine it ran on."""
    rows = [_row(item) for item in _read(folder / "objects.json")]
    rows = [row for row in rows if row[-1].get("section") != _LEFT_OUT]
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    (DATA / f"{name}.json").write_text(_BENEATH.sub(r"\1=/beneath", text))
    asked = [
        {**row, "half": half}
        for part, half in zip(NAMES, HALVES, strict=True)
        for row in _read(folder / f"questions_{part}.json")
    ]
    found = json.dumps(asked, ensure_ascii=False, indent=0)
    (DATA / f"{name}_questions.json").write_text(f"{found}\n")


def _row(item: dict[str, Any]) -> list[Any]:
    fields = item.get("properties") or item["observed"]
    kept = {key: value for key, value in fields.items() if key != _DIGEST}
    return [*(item[key] for key in ("origin", "plugin", "kind", "name")), kept]


# strangers

# A score that says that an answer is right.
_CERTAIN: Final = 0.9


@dataclass(frozen=True, slots=True)
class Found:
    """The best hit for a question: whether it is right, its score, and whether it was refused."""

    kind: str
    is_absent: bool
    is_refused: bool
    is_right: bool
    score: float


async def _ask_host(
    objects: Iterable[Sequence[Any]], rows: Sequence[Question], serving: Serving
) -> list[Found]:
    """Ask questions about a host whose objects are observed, or declared by a file."""
    made = _made(objects)
    declared = [each for each in made if each.identity.source == FILE]
    observed = [each for each in made if each.identity.source != FILE]
    with tempfile.TemporaryDirectory() as folder:
        async with finding(Path(folder), serving, observed, {}, declared) as (finder, _):
            return [await _best_hit(finder, row) for row in rows]


async def _best_hit(finder: Finder, row: Question) -> Found:
    hits = await finder.search(row["question"], SearchRequest(_KEPT), "hybrid")
    rated = rate([hit.score for hit in hits], "hybrid")
    is_refused = not rated or rated[0].is_weak
    right = {tuple(answer) for answer in row["answers"]}
    return Found(
        row["kind"],
        not right,
        is_refused,
        not is_refused and tuple(hits[0].object_id) in right,
        0.0 if is_refused else rated[0].confidence,
    )


def _totals(found: Sequence[Found]) -> dict[str, Any]:
    """Sum up: what was right first, what was refused, and what a score above .9 means."""
    answerable = [one for one in found if not one.is_absent]
    absent = [one for one in found if one.is_absent]
    sure = [one for one in found if one.score > _CERTAIN]
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


def _routed(rows: Sequence[Question]) -> dict[str, str]:
    """Count the questions whose route is right, by their route."""
    now = datetime(2026, 11, 26, 12)  # noqa: DTZ001 -- local, as people mean it
    right, every = Counter[str](), Counter[str]()
    for row in rows:
        accepted = row["route"] if isinstance(row["route"], list) else [row["route"]]
        every[accepted[0]] += 1
        right[accepted[0]] += routes.find_route(row["question"], now).name in accepted
    return {route: f"{right[route]} of {n}" for route, n in every.items()}


def ask_strangers(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the totals of a set about hosts, and with that of strangers of the one for `ask`."""
    return asyncio.run(_ask_strangers(given.set, given.levels[0], scratch))


async def _ask_strangers(name: str, level: str, scratch: Path) -> dict[str, Any]:
    rows, found = load(name), list[Found]()
    async with served(level, scratch) as serving:
        for row in rows:
            found += await _ask_host(row["objects"], row.get("questions", [row]), serving)
        report = {"level": level, f"{len(rows)} hosts": _totals(found)}
        if name != STRANGERS:
            return report
        of_ask = load("ask")
        school = _read(ROOT / "tests/data/school.json")["first"]
        about = await _ask_host(school, [row for row in of_ask if "answers" in row], serving)
        return {**report, "objects for ask": _totals(about), "routes for ask": _routed(of_ask)}


# the weights of scores

# Each host counts for as much as it has different objects: a hundred of any kind more than a
# thousand packages.
_HOST_WEIGHTS: Final = {
    "example": 3.0, "packages": 1.0, "values": 4.0, **dict.fromkeys(EXAMS, 4.0), STATES: 1.0
}  # fmt: skip
# Each question is asked both ways; more people ask for what is there.
_TAKEN_OUT_WEIGHT: Final = 0.5
# Questions about foreign topics are to be told apart from answerable ones above all.
_TAKEN_OUT_THERE: Final = 0.3
# The weight of a hit behind the first one.
_LATER_WEIGHT: Final = 0.1
_RIDGE: Final = 1e-3
# Shares of all answerable questions that may be refused, 0.4 percent less than of those to come,
# and of those of a host on the mean.
_REFUSED: Final = 0.026
_REFUSED_OF_HOSTS: Final = 0.05
# Shares of questions about foreign topics to refuse. By words alone the halves differ most.
_FOREIGN_REFUSED: Final = {"hybrid": 0.96, "vector": 0.95, "lexical": 0.97}
_HEAD: Final = """\
# How likely hits are right: the weights of two log-odds, by the level whose vectors were compared
# and the mode. Level, mode, the chance that a question has an answer here, below which what was
# found is weak; the weights of the features in index/ranking/confidence.py for that chance, and for
# the chance that a hit is right, the constant ones first.
# Written by `benchmarks/answers/run.py fit`.
"""

# A hit, its answer, whether it is right, and its weight.
_Row = tuple[Features, Answer, bool, float]


def fit(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Write the table of weights, and return its changed lines."""
    kept = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    lines = {tuple(line.split("\t")[:2]): line for line in kept}
    before = dict(lines)
    for level in given.levels:
        found = [a for host in HOSTS for a in asyncio.run(answers(host, level, scratch))]
        for mode in MODES:
            model = fitted(of(found, mode=mode))
            key = ("none", mode) if mode == "lexical" else (level, mode)
            numbers = (model.least, *model.answerable, *model.right)
            lines[key] = "\t".join((*key, *(f"{number:.4g}" for number in numbers)))
    TABLE.write_text(_HEAD + "\n".join(lines[key] for key in sorted(lines)) + "\n")
    return {"changed": [line for key, line in lines.items() if before.get(key) != line]}


def fitted(found: Sequence[Answer]) -> LogisticModel:
    """Return the curve of the answers of one level and mode."""
    asked = [each for each in found if each.half == "fit" and each.kind != "typos"]
    used = [each for each in asked if each.scores]
    first = [_for_there(row) for each in used for row in _rows(each, 1)]
    there = _logistic(first, lambda row: row[1].kind == "answerable")
    rows = [row for each in used if each.kind != "foreign" for row in _rows(each, _HITS)]
    model = LogisticModel(there, _logistic(rows, lambda row: row[2]), 0.0)
    return model._replace(least=_least(model, asked))


def _for_there(row: _Row) -> _Row:
    features, answer, right, weight = row
    is_out = answer.kind == "taken out"
    return features, answer, right, weight * (_TAKEN_OUT_THERE if is_out else 1)


def _rows(answer: Answer, most: int) -> list[_Row]:
    weight = _HOST_WEIGHTS[answer.host]
    if answer.kind == "taken out":
        weight *= _TAKEN_OUT_WEIGHT
    return [
        (features, answer, right, weight * (_LATER_WEIGHT if at else 1))
        for at, (features, right) in enumerate(
            zip(compute_features(answer.scores)[:most], answer.right[:most], strict=True)
        )
    ]


def _logistic(rows: Sequence[_Row], label: Callable[[_Row], bool]) -> Weights:
    """Return the weights of a logistic regression with a small ridge, by Newton's method."""
    values = np.array([row[0] for row in rows])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    # a feature that never differs gets no weight
    spread[spread < 1e-9] = np.inf
    matrix = np.hstack([np.ones((len(rows), 1)), (values - mean) / spread])
    labels = np.array([label(row) for row in rows], float)
    counts = np.array([row[3] for row in rows])
    counts /= counts.sum()
    ridge = np.full(matrix.shape[1], _RIDGE)
    ridge[0] = 0
    weights = np.zeros(matrix.shape[1])
    for _ in range(50):
        confidences = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        gradient = matrix.T @ (counts * (confidences - labels)) + ridge * weights
        curvature = (matrix * (counts * confidences * (1 - confidences))[:, None]).T @ matrix
        weights -= np.linalg.solve(curvature + np.diag(ridge + 1e-9), gradient)
    weights[1:] /= spread
    weights[0] -= weights[1:] @ np.where(np.isinf(spread), 0, mean)
    return tuple(weights.tolist())


def _least(model: LogisticModel, asked: Sequence[Answer]) -> float:
    """Return the chance below which an answer is refused.

    Enough foreign questions have less, if few answerable ones do.
    """

    def confidences(kind: str, host: str) -> NDArray[np.float64]:
        scores = [each.scores for each in asked if (each.kind, each.host) == (kind, host)]
        # where nothing is found, nothing is answered
        return np.array(
            [logistic(model.answerable, compute_features(s)[0]) if s else 0.0 for s in scores]
        )

    foreign = np.concatenate([confidences("foreign", host) for host in HOSTS])
    enough = max(float(np.quantile(foreign, _FOREIGN_REFUSED[asked[0].mode])), 1e-6)
    return min(enough, _most([confidences("answerable", host) for host in HOSTS]))


def _most(by_host: Sequence[NDArray[np.float64]]) -> float:
    """Return the largest chance below which few answerable questions of the hosts have theirs."""
    every = np.concatenate(by_host)
    for least in sorted(every, reverse=True):
        of_hosts = [(confidences < least).mean() for confidences in by_host]
        if (every < least).mean() <= _REFUSED and np.mean(of_hosts) <= _REFUSED_OF_HOSTS:
            return float(least)
    return 0.0


def main() -> None:
    """Run a command, and write its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = {
        "measure": (measure, LEVELS),
        "exams": (ask_exams, ("medium",)),
        "strangers": (ask_strangers, ("medium",)),
        "fit": (fit, LEVELS),
    }
    parser.add_argument("command", choices=[*commands, "take"])
    parser.add_argument("taken", nargs="*", help="of take: a folder, and the name of the exam")
    parser.add_argument("--levels", nargs="+")
    parser.add_argument("--exams", nargs="+", default=EXAMS)
    parser.add_argument("--misses", action="store_true", help="show those of the open half")
    parser.add_argument("--set", default=STRANGERS, help="strangers, trades or trades_held")
    parser.add_argument("--scratch", type=Path, help="where vectors are kept for the next time")
    given = parse(parser)
    if given.command == "take":
        return take(Path(given.taken[0]), given.taken[1])
    run, levels = commands[given.command]
    given.levels = given.levels or levels
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        return write(given, run(given, given.scratch or Path(folder)))


if __name__ == "__main__":
    main()
