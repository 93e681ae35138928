"""The report on a static table: its ranks beside those of other levels.

Ranks are of op-dbus' own search, over the check set and over packages that no training text was
made of (test.json, see training/corpus.py). Intervals are from 2,000 samples of the questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog

sys.path.insert(0, str(Path(__file__).parents[1]))
from quality import opened, reciprocal_ranks

from opdbus import config
from opdbus.bench import machine
from opdbus.engine import check_set

ROOT: Final = Path(__file__).parents[2]
LEVELS_COMPARED: Final = ("medium", "low")
_SEED: Final = 14

Question = dict[str, Any]


def interval(values: Sequence[float]) -> list[float]:
    """Return the mean of values and the ends of its 95% bootstrap interval."""
    return [round(value, 4) for value in check_set.interval(np.asarray(values), _SEED)]


def check_sets(corpus: Path, scratch: Path) -> dict[str, tuple[Path, list[Question]]]:
    """Return each set's state file and questions; that of the packages is written."""
    ours = json.loads((ROOT / "tests/data/questions.json").read_text(encoding="utf-8"))
    test = json.loads((corpus / "test.json").read_text(encoding="utf-8"))
    items = [
        {"name": name, "description": short}
        for name, short in zip(test["names"], test["shorts"], strict=True)
    ]
    state = scratch / "packages.json"
    state.write_text(json.dumps({"version": 1, "plugins": {"packages": {"packages": items}}}))
    asked = [
        {"question": question, "object": f"packages/package/{name}"}
        for question, name in zip(test["questions"], test["names"], strict=True)
    ]
    return {"check set": (ROOT / "state.example.json", ours), "packages": (state, asked)}


async def ranks(
    level: str, state: Path, asked: list[Question], scratch: Path
) -> dict[str, list[float]]:
    """Return the reciprocal ranks of all questions, by way of searching."""
    settings = config.load(
        {**os.environ, "OP_DBUS_STATE_DIR": str(scratch), "OP_DBUS_VECTOR_LEVEL": level}
    )
    async with opened(state, settings, scratch) as finder:
        found = {
            mode: await reciprocal_ranks(finder, asked, mode)
            for mode in ("lexical", "vector", "hybrid")
        }
        if level == "static":
            found["re-scored by medium"] = await reciprocal_ranks(finder, asked, "hybrid", "medium")
        return found


def quality(corpus: Path) -> dict[str, Any]:
    """Return the ranks of all levels that are here, and how far static is from each."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (state, asked) in check_sets(corpus, Path(scratch)).items():
            found = {}
            for level in ("static", *LEVELS_COMPARED):
                place = Path(scratch) / f"{name} {level}"
                place.mkdir()
                found[level] = asyncio.run(ranks(level, state, asked, place))
                means = {mode: interval(values) for mode, values in found[level].items()}
                print(name, level, means, file=sys.stderr, flush=True)
            figures[name] = {"questions": len(asked)} | {
                level: {mode: interval(values) for mode, values in modes.items()}
                for level, modes in found.items()
            }
            for level in LEVELS_COMPARED:
                apart = np.subtract(found["static"]["hybrid"], found[level]["hybrid"])
                figures[name][f"static - {level}, hybrid"] = interval(apart.tolist())
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="what corpus.py wrote")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    figures = {"machine": asdict(machine.describe()), "quality": quality(given.corpus)}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
