"""How well hosts of few objects answer and refuse: random parts of the hosts of the exams.

`OP_DBUS_MODEL_DIR=... python benchmarks/answers/few.py` asks each of 80 hosts of 12 to 60 objects
up to eight questions that it answers, eight whose answers, and what is called like them, it lacks,
and two about foreign topics: of the open half, or with `--half told` of the held one, of which
totals are shown only. Answers that a host holds are half of its objects at most; the rest is of any
sort, as many of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

import structlog
from asking import EXAMS, HALVES, contents, load
from strangers import Found, asked, totals

from opdbus import config
from opdbus.language.synonyms import gloss
from opdbus.serving.serving import Serving
from opdbus.state.fields import split
from opdbus.state.object import ObjectId, StateObject

_SEED: Final = 34
_SIZES: Final = 12, 14, 16, 18, 20, 25, 30, 40, 60
# Questions with more answers are about states of many.
_MOST_ANSWERS: Final = 8
_ASKED, _FOREIGN = 8, 2
# Words of many names, which say nothing of what has them.
_COMMON: Final = frozenset(
    "service timer mount socket tools common data base core system systemd linux network server"
    " client files file conf python3 root".split()
)
_SHORTEST: Final = 4

Question = dict[str, Any]


def hosts(exam: str, half: str, count: int) -> Iterator[tuple[list[StateObject], list[Question]]]:
    """Yield parts of a host, with questions about each."""
    random = Random(f"{_SEED} {exam}")  # noqa: S311 -- no secret
    every = {tuple(each.identity[1:]): each for each in contents(exam)}
    rows = [
        {**row, "right": {tuple(name.split("/", 2)) for name in row["answers"]}}
        for row in load(f"{exam}_questions")
        if row["half"] == half
    ]
    foreign = [row for row in load("foreign") if row["half"] == half]
    sorts = defaultdict(list)
    for object_id in every:
        sorts[object_id[:2]].append(object_id)
    for _ in range(count):
        size, there = random.choice(_SIZES), set[ObjectId]()
        answered = [row for row in rows if 0 < len(row["right"]) <= _MOST_ANSWERS]
        for row in random.sample(answered, size // 3):
            there.add(random.choice(sorted(row["right"] & every.keys())))
        while len(there) < size:
            there.add(random.choice(sorts[random.choice([*sorts])]))
        yes = [row for row in rows if row["right"] & there]
        no = [row for row in rows if not _is_like(row["right"], there)]
        chosen = [
            *(("there", row) for row in random.sample(yes, min(_ASKED, len(yes)))),
            *(("absent", row) for row in random.sample(no, min(_ASKED, len(no)))),
            *(("foreign", row) for row in random.sample(foreign, _FOREIGN)),
        ]
        yield (
            [every[object_id] for object_id in sorted(there)],
            [
                {
                    "kind": kind,
                    "question": row["question"],
                    "answers": row.get("right", set()) & there,
                }
                for kind, row in chosen
            ],
        )


def _is_like(right: set[ObjectId], there: set[ObjectId]) -> bool:
    """Return whether some objects are among others, or called like these."""
    words = set[str]().union(*(_words(object_id) for object_id in right)) - _COMMON
    meanings = {gloss(object_id[-1]) for object_id in right} - {""}
    return any(
        object_id in right or words & _words(object_id) or gloss(object_id[-1]) in meanings
        for object_id in there
    )


def _words(object_id: ObjectId) -> set[str]:
    return {word for word in split(object_id[-1].lower()) if len(word) >= _SHORTEST}


async def report(level: str, half: str, count: int) -> dict[str, Any]:
    """Ask all hosts, and sum up those of one size and another."""
    found: dict[str, list[Found]] = {"12 to 20 objects": [], "25 to 60 objects": []}
    with tempfile.TemporaryDirectory() as folder:
        environ = {"OP_DBUS_STATE_DIR": folder, "OP_DBUS_VECTOR_LEVEL": level}
        async with Serving(
            config.load({"OP_DBUS_PRECISION": "fp32", **os.environ, **environ})
        ) as serving:
            await serving.embedder()
            for exam in EXAMS:
                for objects, rows in hosts(exam, half, count):
                    given = [[*each.identity, each.properties] for each in objects]
                    name = [*found][len(objects) > 20]
                    found[name] += await asked(given, rows, serving)
    return {"level": level, "half": half, **{name: _figures(rows) for name, rows in found.items()}}


def _figures(found: Sequence[Found]) -> dict[str, Any]:
    foreign = [one.is_refused for one in found if one.kind == "foreign"]
    rest = totals([one for one in found if one.kind != "foreign"])
    return {**rest, "foreign": len(foreign), "foreign refused": sum(foreign)}


def main() -> None:
    """Print totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="medium")
    parser.add_argument("--half", choices=HALVES, default=HALVES[0])
    parser.add_argument("--hosts", type=int, default=16, help="of each exam")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print(json.dumps(asyncio.run(report(given.level, given.half, given.hosts)), indent=1))


if __name__ == "__main__":
    main()
