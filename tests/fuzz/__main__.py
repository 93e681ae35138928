"""Fuzzes a daemon of its own on a private bus; ends with 1 where it found a fault."""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz import calls, judge, loading, mangled
from fuzz.judge import Tally
from fuzz.loading import Reading
from fuzz.serving import serving
from opdbus.bench.machine import describe


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Fuzz as much as was asked for, and give the report."""
    tally, reading, began = Tally(), Reading(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="op-dbus-fuzz-") as folder,
        serving(Path(folder), medium=given.medium) as daemon,
    ):
        calls.shoot(daemon, tally, given.calls, given.seed)
        broken = mangled.mangle(daemon, tally, given.messages, given.seed)
        loading.load(Path(folder), reading, given.files, given.seed)
        state = Path(folder) / "state.json"
        loading.watch(daemon.bus, state, reading, given.files // 20, given.seed)
        code = daemon.stop()
        if code:
            tally.fault(f"it ended with {code}:\n{daemon.log[-2000:]}")
    return {
        "machine": describe().line,
        "seed": given.seed,
        "model": "medium" if given.medium else "tiny",
        "seconds": round(time.monotonic() - began),
        **tally.report(),
        "broken messages": broken,
        "state files": reading.seen,
        "faults": tally.faults + reading.faults,
    }


def main() -> int:
    """Fuzz, print what was seen, and give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=5000, help="state files")
    parser.add_argument("--messages", type=int, default=3000, help="broken ones")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same calls")
    parser.add_argument("--medium", action="store_true", help="with the real model")
    parser.add_argument("--json", type=Path, help="write the report there as well")
    given = parser.parse_args()
    report = run(given)
    print(*judge.table(report["methods"]), sep="\n")
    print(f"{report['calls']} calls, {report['reached a handler']:.0%} reached a handler,")
    print("state files:", ", ".join(f"{v} {k}" for k, v in report["state files"].items()))
    print("broken messages:", ", ".join(f"{v} {k}" for k, v in report["broken messages"].items()))
    print(f"{len(report['faults'])} faults, seed {given.seed}, {report['seconds']} s")
    for fault in report["faults"]:
        print(f"fault: {fault}", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
