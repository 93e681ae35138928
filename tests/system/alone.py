"""Outcomes of packages and extras that were installed alone, and their report."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
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
    kind: str, outcomes: Sequence[Outcome], left_out: Sequence[str], file: Path | None
) -> int:
    """Print outcomes as JSON, into a file too; return 1 if a program has not answered right."""
    system = os.uname()
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} processors, {system.sysname} {system.machine}",
        "python": sys.version.partition(" ")[0],
        f"{kind}s": [
            {kind: name, "right answer": not fault, "seconds": seconds}
            | ({"fault": fault} if fault else {})
            for name, seconds, fault in outcomes
        ],
        "left out": left_out,
    }
    print(text := json.dumps(found, indent=2))
    if file:
        file.write_text(text + "\n")
    return int(any(outcome.fault for outcome in outcomes))
