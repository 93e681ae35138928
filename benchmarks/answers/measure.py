"""How well answers are found and refused, on the half of the check sets that nothing was fitted to.

`OP_DBUS_MODEL_DIR=... python benchmarks/answers/measure.py --json FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog
from asking import DESCRIBED, HOSTS, Answer, answers
from fit import LEVELS

from opdbus.bench import machine
from opdbus.index.ranking.confidence import rate
from opdbus.index.ranking.scores import MODES

_TENTHS: Final = np.linspace(0, 1, 11)
_HITS: Final = 5
# An answer of such a score looks right to people.
_SURE: Final = 0.5
# Shares of answerable questions that may be refused, for the curve of those taken out.
_POINTS: Final = (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


def confidences(answer: Answer) -> list[float]:
    """Return how likely each hit is right."""
    return [rating.confidence for rating in rate(answer.scores, answer.mode)]


def best(answer: Answer) -> float:
    """Return how likely the best hit is right, 0 where nothing was found."""
    return next(iter(confidences(answer)), 0.0)


def is_refused(answer: Answer) -> bool:
    """Return whether the answer is empty."""
    return not answer.scores or rate(answer.scores, answer.mode)[0].is_weak


def of(found: Sequence[Answer], **wanted: str) -> list[Answer]:
    """Return the answers with these fields."""
    return [a for a in found if all(getattr(a, key) == value for key, value in wanted.items())]


def ranks(found: Sequence[Answer]) -> dict[str, Any]:
    """Return how well answers were found; one that is refused was not."""
    ranked = [0 if is_refused(each) else each.rank for each in found]
    return {
        "questions": len(found),
        "MRR": _mean(1 / rank if rank else 0 for rank in ranked),
        "recall@10": _mean(map(bool, ranked)),
        "MRR, none refused": _mean(1 / each.rank if each.rank else 0 for each in found),
    }


def _mean(values: Any) -> float:  # noqa: ANN401 -- any numbers
    numbers = [float(value) for value in values]
    return round(sum(numbers) / max(1, len(numbers)), 4)


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return how often one is larger than another, by pairs; half for equal ones."""
    first, second = np.array(positive)[:, None], np.array(negative)[None]
    return round(float(((first > second) + 0.5 * (first == second)).mean()), 4)


def curve(answerable: Sequence[float], taken_out: Sequence[float]) -> list[tuple[float, float]]:
    """Return (share of answerable questions refused, share of those taken out) at some cuts."""
    cuts = [float(np.quantile(answerable, point)) for point in _POINTS]
    return [
        (point, _mean(confidence < cut for confidence in taken_out))
        for point, cut in zip(_POINTS, cuts, strict=True)
    ]


def calibration(found: Sequence[Answer]) -> list[dict[str, float]]:
    """Return for each tenth of the score how many of the best hits have it, and are right."""
    rows = [
        row
        for each in found
        for row in list(zip(confidences(each), each.right, strict=True))[:_HITS]
    ]
    table = []
    for low, high in pairwise(_TENTHS):
        right = [
            is_right for confidence, is_right in rows if low <= confidence < high + (high == 1)
        ]
        said = [confidence for confidence, _ in rows if low <= confidence < high + (high == 1)]
        mean = {"score": _mean(said), "right": _mean(right)} if right else {}
        table.append({"from": round(float(low), 1), "hits": len(right), **mean})
    return table


def figures(found: Sequence[Answer]) -> dict[str, Any]:
    """Return the figures of one level and mode: of the half that nothing was fitted to."""
    told = of(found, half="told")
    answerable = of(told, kind="answerable")
    described = [best(each) for each in answerable if each.host in DESCRIBED]
    out = [best(each) for each in of(told, kind="taken out")]
    return {
        "found": {host: ranks(of(answerable, host=host)) for host in HOSTS},
        "found, with typing errors": ranks(of(told, kind="typos")),
        "refused": {
            kind: {
                host: _mean(map(is_refused, some))
                for host in HOSTS
                if (some := of(told, kind=kind, host=host))
            }
            | {"all": _mean(map(is_refused, of(told, kind=kind)))}
            for kind in ("answerable", "typos", "foreign", "taken out", "absent")
        },
        "absent, sure": _mean(
            best(each) >= _SURE and not is_refused(each) for each in of(told, kind="absent")
        ),
        "taken out": {
            "questions": len(out),
            "AUC": auc(described, out),
            "curve": curve(described, out),
        },
        "calibration": calibration([each for each in told if each.kind != "typos"]),
    }


def measure(level: str, scratch: Path) -> dict[str, Any]:
    """Return the figures of a level in each mode."""
    found = [each for host in HOSTS for each in asyncio.run(answers(host, level, scratch))]
    return {mode: figures(of(found, mode=mode)) for mode in MODES}


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", default=LEVELS)
    parser.add_argument("--scratch", type=Path, help="where vectors are kept for the next time")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        report = {
            "date": f"{datetime.now(UTC):%F}",
            "machine": machine.describe().line,
            "levels": {each: measure(each, given.scratch or Path(folder)) for each in given.levels},
        }
    text = json.dumps(report, indent=1)
    (given.json or Path("/dev/stdout")).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
