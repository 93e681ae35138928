"""Runs one step of run.py; each finding is printed at once, so that nothing is lost by a kill."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import checks
import peers
import speeds
from kit import Kit

if TYPE_CHECKING:
    from kit import Findings

STEPS: dict[str, Callable[[Kit], Findings]] = {
    step.__name__: step
    for step in (
        checks.environment,
        checks.providers,
        checks.models,
        checks.proof,
        speeds.engine,
        speeds.model,
        speeds.tokenizing,
        speeds.latency,
        peers.peer,
        peers.parity,
        checks.memory,
        speeds.variants,
    )
}


def main() -> None:
    """Run one step: each finding is a line of JSON, at once."""
    # only findings on standard output: libraries print there too
    findings = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for name, value in STEPS[sys.argv[1]](Kit(**json.loads(sys.argv[2]))):
        print(json.dumps([name, value]), file=findings, flush=True)
    # everything is printed: the ends of runtimes and torch are not worth waiting for
    os._exit(0)


if __name__ == "__main__":
    main()
