"""Fuzzes a daemon of its own on a private bus; ends with 1 where it found a fault."""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz import calls, judge
from fuzz.judge import Tally
from fuzz.serving import serving


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Fuzz as much as was asked for, and give the report."""
    tally, began = Tally(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="op-dbus-fuzz-") as folder,
        serving(Path(folder), medium=given.medium) as daemon,
    ):
        calls.shoot(daemon, tally, given.calls, given.seed)
    return {
        "seed": given.seed,
        "model": "medium" if given.medium else "tiny",
        "seconds": round(time.monotonic() - began),
        **tally.report(),
    }


def main() -> int:
    """Fuzz, print what was seen, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same calls")
    parser.add_argument("--medium", action="store_true", help="with the real model")
    parser.add_argument("--json", type=Path, help="write the report there as well")
    given = parser.parse_args()
    report = run(given)
    print(*judge.table(report["methods"]), sep="\n")
    print(f"{report['calls']} calls, {report['reached a handler']:.0%} reached a handler,")
    print(f"{len(report['faults'])} faults, seed {given.seed}, {report['seconds']} s")
    for fault in report["faults"]:
        print(f"fault: {fault}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
