"""Search quality on a whole host: boots one, populates it, and asks what administrators ask.

As root: `python benchmarks/host/questions.py [--json FILE] [--misses]`. The questions are those of
tests/data/host_questions.json. Half of them are held back: how they were answered is only counted,
so that nothing is made to fit them; `--misses` shows what came first instead, for the other half.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inside import ASKER, asked_by_a_member, parser, python, report, start
from system.service import STATE

if TYPE_CHECKING:
    from system.host import Host

QUESTIONS = Path(__file__).parents[2] / "tests" / "data" / "host_questions.json"
_INSIDE = "/run/host_questions.json"
# Unit files that are not loaded are listed 10 s after the start.
_FILES_AFTER = 12.0


def ask(host: Host) -> dict[str, Any]:
    """Ask all questions of a host that was booted just now."""
    service = asked_by_a_member(host)
    python(host, "populate.py")
    start(service)
    rows = answered(host)
    return {
        "objects": service.get("Count", STATE),
        "observers": {name: count for name, _, count, _ in service.get("Observers", STATE)},
        "questions": len(rows),
        "by set": {name: figures(rows, set=name) for name in ("dev", "held")},
        "by kind": {name: figures(rows, about=name) for name in _KINDS} | {"all": figures(rows)},
        "misses": [row for row in rows if row["set"] == "dev" and row["rank"] != 1],
    }


def answered(host: Host) -> list[dict[str, Any]]:
    """Return the questions with their answers, of a service that was started just now."""
    time.sleep(_FILES_AFTER)
    python(host, "until_ready.py", user=ASKER)
    text = QUESTIONS.read_text(encoding="utf-8")
    host.write(_INSIDE, text)
    answers = json.loads(python(host, "ask.py", _INSIDE, user=ASKER))
    return [question | answer for question, answer in zip(json.loads(text), answers, strict=True)]


_KINDS = ("value", "what", "where", "identifier")


def figures(rows: list[dict[str, Any]], **only: str) -> dict[str, Any]:
    """Return how well questions were answered, of those with such fields."""
    ranks = [row["rank"] for row in rows if row.items() >= only.items()]
    return {
        "questions": len(ranks),
        "MRR@10": round(sum(1 / rank for rank in ranks if rank) / len(ranks), 4),
        "first": round(ranks.count(1) / len(ranks), 4),
        "in ten": round(sum(rank is not None for rank in ranks) / len(ranks), 4),
    }


def main() -> None:
    """Boot, ask, and write the report."""
    options = parser(__doc__)
    options.add_argument("--misses", action="store_true")
    given = options.parse_args()

    def measure(host: Host) -> dict[str, Any]:
        found = ask(host)
        for row in found.pop("misses"):
            if given.misses:
                said = f"{row['rank']} of {row['right']}: {row['question']}: {row['first']}"
                print(said, file=sys.stderr)
        return found

    report(given, measure)


if __name__ == "__main__":
    main()
