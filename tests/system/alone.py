"""Outcomes of packages and extras that were installed alone, and their report."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    """The answer of a program; `fault` is empty if it was the right one."""

    name: str
    seconds: float
    fault: str


def tried(name: str, ask: Callable[[], str], right: str) -> Outcome:
    """Ask a program, and compare its answer with the right one."""
    began, fault = time.monotonic(), ""
    try:
        answer = ask()
    except Exception as error:  # noqa: BLE001 -- the others are tried too
        fault = f"{type(error).__name__}: {error}"
        print(fault, file=sys.stderr)
        fault = fault.partition("\n")[0]
    else:
        fault = "" if answer == right else f"{answer!r} instead of {right!r}"
    outcome = Outcome(name, round(time.monotonic() - began, 1), fault)
    print(name, fault or "answers", file=sys.stderr)
    return outcome


def report(
    kind: str, outcomes: Iterable[Outcome], known: Collection[str], file: Path | None
) -> int:
    """Print outcomes as JSON as they come, into a file too; return 1 if one is not right.

    The file keeps the rows of the same day that are not tried again.
    """
    system, today = os.uname(), datetime.now(UTC).date().isoformat()
    before = json.loads(file.read_text()) if file and file.exists() else {}
    rows = {row[kind]: row for row in before.get(f"{kind}s", ()) if before["date"] == today}
    code = 0
    for name, seconds, fault in outcomes:
        code |= bool(fault)
        rows[name] = {kind: name, "right answer": not fault, "seconds": seconds}
        rows[name] |= {"fault": fault} if fault else {}
        found = {
            "date": today,
            "machine": f"{os.cpu_count()} processors, {system.sysname} {system.machine}",
            "python": sys.version.partition(" ")[0],
            f"{kind}s": [*rows.values()],
            "left out": sorted({*known} - {*rows}),
        }
        text = json.dumps(found, indent=2)
        if file:
            file.write_text(text + "\n")
    print(text)
    return code
