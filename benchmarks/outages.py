"""Asks for the causes of played outages, and counts those among the first three answers.

`python benchmarks/outages.py [--level LEVEL] [--json FILE] [--misses]` plays each outage of
tests/data/outages.json on a store of its own (see tests/harness/outages.py) and asks
`changes --before "UNIT failed"` and `changes --around UNIT`. Even outages are held: they are only
counted, and `--misses` shows the others.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opdbus import config
from opdbus.bench.machine import describe

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import outages

FIRST = 3
_SETS = {"held": 0, "looked at": 1}


def main() -> None:
    """Play all, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="none")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    told = outages.read()
    found: dict[str, Counter[str]] = {name: Counter() for name in _SETS}
    for outage in told["outages"]:
        name = next(name for name, rest in _SETS.items() if outage["n"] % 2 == rest)
        answer = _asked(told["units"], outage, options.level)
        found[name]["outages"] += 1
        for ask in ("before", "around"):
            found[name][f"{ask}: in the first three"] += 0 < answer[ask] <= FIRST
            found[name][f"{ask}: first"] += answer[ask] == 1
            found[name][f"{ask}: found"] += bool(answer[ask])
        is_missed = not all(0 < answer[ask] <= FIRST for ask in ("before", "around"))
        if options.misses and is_missed and name != "held":
            print(outage["n"], outage["unit"], outage["cause"], answer, file=sys.stderr)
    report: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%F}",
        "machine": describe().line,
        "level": options.level,
        **found,
    }
    (options.json or Path("/dev/stdout")).write_text(json.dumps(report, indent=1) + "\n")


def _asked(units: dict[str, Any], outage: dict[str, Any], level: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given = {"OP_DBUS_STATE_DIR": folder, "OP_DBUS_VECTOR_LEVEL": level}
        settings = config.load({"HOME": "/nonexistent", "OP_DBUS_PRECISION": "fp32", **given})
        return asyncio.run(outages.measure(Path(folder), units, outage, settings))


if __name__ == "__main__":
    main()
