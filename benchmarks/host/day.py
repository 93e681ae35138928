"""Questions about a recorded day: boots a host, lets a day pass on it, and asks what happened.

As root: `python benchmarks/host/day.py [--json FILE] [--misses] [--save FOLDER]`. What happens is
in `acts.py`, the questions are those of tests/data/day_questions.json, each in three wordings; they
are asked with `op-dbus changes` by a member of the group op-dbus. A question is answered right if
one of its rows is among the first three. Half of the questions are held back: how they were
answered is only counted, so that nothing is made to fit them; `--misses` shows the others.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from bisect import bisect_right
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inside import ASKER, asked_by_a_member, parser, python, report, start
from system.service import STORE

if TYPE_CHECKING:
    from system.host import Host

QUESTIONS = Path(__file__).parents[2] / "tests" / "data" / "day_questions.json"
FIRST = 3
_LIMIT = 10
# Unit files that are not loaded are listed 10 s after the start.
_FILES_AFTER = 12.0
# How full file systems are is read once a minute.
_SETTLED_AFTER = 65.0
_OPTIONS = {"about": "--about", "before": "--before"}


def lived(host: Host) -> list[list[Any]]:
    """Let a day pass, and return its acts with the times when they began."""
    service = asked_by_a_member(host)
    python(host, "populate.py")
    start(service)
    time.sleep(_FILES_AFTER)
    python(host, "until_ready.py", user=ASKER)
    acts: list[list[Any]] = json.loads(python(host, "acts.py"))
    time.sleep(_SETTLED_AFTER)
    return acts


def asked(host: Host, question: dict[str, Any], acts: list[list[Any]]) -> dict[str, Any]:
    """Return the rank of the first right answer to each wording, and what came first."""
    ranks, first = [], []
    for wording in question["wordings"]:
        option = _OPTIONS[question["ask"]]
        lines = host.ask("op-dbus", "changes", option, wording, "--json", user=ASKER)
        rows = [json.loads(line) for line in lines.splitlines()][:_LIMIT]
        right = [rank for rank, row in enumerate(rows, 1) if is_right(row, question, acts)]
        ranks.append(next(iter(right), None))
        first.append([row["sentence"] for row in rows[:FIRST]])
    return {"ranks": ranks, "first": first}


def is_right(row: dict[str, Any], question: dict[str, Any], acts: list[list[Any]]) -> bool:
    """Return whether a row is of one of the acts and things that a question is about."""
    name = f"{row['plugin']}/{row['kind']}/{row['name']}"
    number = bisect_right([began for _, began in acts], row["at"]) - 1
    act = acts[number][0] if number >= 0 else ""
    return any(
        wanted["act"] == act
        and any(fnmatchcase(name, object_id.replace("[", "[[]")) for object_id in wanted["things"])
        for wanted in question["rows"]
    )


def figures(rows: list[dict[str, Any]], **only: str) -> dict[str, Any]:
    """Return how many questions were answered right in each wording, of those with such fields."""
    some = [row for row in rows if row.items() >= only.items()]
    ranks = list(zip(*(row["ranks"] for row in some), strict=True))
    return {
        "questions": len(some),
        "in the first three": [sum(bool(r) and r <= FIRST for r in each) for each in ranks],
        "first": [each.count(1) for each in ranks],
    }


def measure(host: Host, save: Path | None, *, misses: bool) -> dict[str, Any]:
    """Let a day pass on a host that was booted just now, and ask about it."""
    acts = lived(host)
    questions = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    rows = [question | asked(host, question, acts) for question in questions]
    if save:
        host.ask("systemctl", "stop", "op-dbus")
        shutil.copytree(host.path(STORE), save, dirs_exist_ok=True)
        (save / "acts.json").write_text(json.dumps(acts))
    for row in rows:
        for wording, rank, first in zip(row["wordings"], row["ranks"], row["first"], strict=True):
            if misses and row["set"] == "dev" and not (rank and rank <= FIRST):
                print(f"{row['ask']}: {wording}: {rank}: {first}", file=sys.stderr)
    return {
        "acts": len(acts),
        "by set": {
            f"{name}, {ask}": figures(rows, set=name, ask=ask)
            for name in ("dev", "held")
            for ask in _OPTIONS
        },
        "all": figures(rows),
        "ranks": {row["wordings"][0]: row["ranks"] for row in rows},
    }


def main() -> None:
    """Boot, let a day pass, ask, and write the report."""
    options = parser(__doc__)
    options.add_argument("--misses", action="store_true")
    options.add_argument("--save", type=Path, help="a folder for the database of the day")
    given = options.parse_args()
    report(given, lambda host: measure(host, given.save, misses=given.misses))


if __name__ == "__main__":
    main()
