"""Search quality on a whole host: boots one, populates it, and asks what administrators ask.

As root: `python benchmarks/host/questions.py [--json FILE] [--misses]`. The questions are those of
tests/data/host_questions.json. Half of them are held back: how they were answered is only counted,
so that nothing is made to fit them; `--misses` shows what came first instead, for the other half.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run import CACHE, python, start
from system.booting import booted, why_not
from system.installing import installed
from system.service import STATE, Service

from opdbus.bench.machine import describe

if TYPE_CHECKING:
    from system.host import Host

QUESTIONS = Path(__file__).parents[2] / "tests" / "data" / "host_questions.json"
_INSIDE = "/run/host_questions.json"


def ask(host: Host) -> dict[str, Any]:
    """Ask all questions of a host that was booted just now."""
    service = Service(host)
    python(host, "populate.py")
    start(service)
    text = QUESTIONS.read_text(encoding="utf-8")
    host.write(_INSIDE, text)
    answers = json.loads(python(host, "ask.py", _INSIDE))
    rows = [question | answer for question, answer in zip(json.loads(text), answers, strict=True)]
    return {
        "objects": service.get("Count", STATE),
        "observers": {name: count for name, _, count, _ in service.get("Observers", STATE)},
        "questions": len(rows),
        "by set": {name: figures(rows, set=name) for name in ("dev", "held")},
        "by kind": {name: figures(rows, about=name) for name in _KINDS} | {"all": figures(rows)},
        "misses": [row for row in rows if row["set"] == "dev" and row["rank"] != 1],
    }


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bus", default="dbus", help="dbus or dbus-broker")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    with installed(CACHE) as layer, booted(options.bus, layer) as host:
        found = ask(host)
    misses = found.pop("misses")
    for row in misses if options.misses else []:
        print(
            f"{row['rank']} of {row['right']}: {row['question']}: {row['first']}", file=sys.stderr
        )
    report = {"date": f"{datetime.now(UTC):%F}", "machine": describe().line, **found}
    text = json.dumps(report, indent=1)
    (options.json or Path("/dev/stdout")).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
