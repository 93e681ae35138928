"""The check set of drift: declared and observed objects, and the fields that differ.

Most observed objects are what observers reported of a booted Debian 12. Where it is said what is
observed `then`, in seconds, the `crossings` are what is to be told, and `expected` what is left.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import ROOT
from harness.drifting import checking

CASES: Final = json.loads((ROOT / "tests" / "data" / "drift.json").read_text("utf-8"))


def _id(case: dict[str, Any]) -> str:
    return str(case["name"])


def test_half_of_the_set_is_without_drift() -> None:
    """The set has at least 40 pairs, half of them without drift, each under a name of its own."""
    none = [case for case in CASES if not case["expected"] and not case.get("crossings")]
    assert len(CASES) >= 40
    assert 2 * len(none) >= len(CASES)
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=_id)
async def test_exactly_what_differs_is_drift(case: dict[str, Any], tmp_path: Path) -> None:
    """Find just the fields that differ, with both values, and tell of each crossing once."""
    async with checking(tmp_path) as checked:
        start = checked.clock.now
        await checked.declare(case["declared"], tmp_path)
        await checked.observe(case["observed"], case["listed"])
        await checked.until(start + 4)
        for seconds, objects in case.get("then", []):
            await checked.until(start + seconds)
            await checked.observe(objects, [])
        await checked.until(checked.clock.now + 12)
        assert checked.fields == case["expected"]
        if "crossings" in case:
            assert checked.transitions == case["crossings"]
