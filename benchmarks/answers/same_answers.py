"""Compares the answers of two commits to all check sets and exams, to the last digit.

`same_answers.py --json FILE [--level LEVEL ...]` writes objects, order, scores, chances and
explanations of the best ten hits of each question and mode. `same_answers.py BEFORE AFTER` prints
the questions whose answers differ, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import structlog
from asking import HOSTS, finding, questions, served

from opdbus.index.ranking.scores import MODES
from opdbus.index.search.hits import SearchRequest

_PAGE: Final = SearchRequest(10, is_explained=True)


async def answers(level: str, scratch: Path, hosts: Sequence[str]) -> dict[str, Any]:
    """Return what a level answers, by host, mode and question."""
    found: dict[str, Any] = {}
    for host in hosts:
        async with (
            served(level, scratch) as serving,
            finding(host, scratch, serving) as (finder, _),
        ):
            different = dict.fromkeys(row["question"] for row in questions(host))
            for question, mode in product(different, MODES):
                hits = await finder.search(question, _PAGE, mode)
                found[f"{level} | {host} | {mode} | {question}"] = [plain(hit) for hit in hits]
    return found


def plain(value: Any) -> Any:  # noqa: ANN401 -- any field of a hit
    """Return a value as JSON without the names of its types, which may be renamed."""
    if is_dataclass(value):
        return [plain(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    return value if value is None or isinstance(value, (str, int, bool)) else repr(float(value))


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield each question whose answers differ, with the place of the first hit that does."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, []), after.get(key, [])
        if old != new:
            pairs = enumerate(zip(old, new, strict=False), 1)
            at = next(
                (at for at, (one, other) in pairs if one != other), 1 + min(len(old), len(new))
            )
            yield f"{key}: hit {at}"


def main() -> int:
    """Write answers to a file, or compare two such files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--level", action="append")
    parser.add_argument("--host", action="append")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.json:
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
        with tempfile.TemporaryDirectory() as scratch:
            found = {}
            for level in options.level or ["static"]:
                found |= asyncio.run(answers(level, Path(scratch), options.host or HOSTS))
        options.json.write_text(json.dumps(found, indent=0), encoding="utf-8")
        return 0
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in options.files)
    lines = list(differing(before, after))
    print(*lines, f"{len(lines)} of {len(before)} answers differ", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
