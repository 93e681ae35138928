"""Played outages: the cause is among the first three answers, of those looked at and those held."""

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from harness import outages

from opdbus import config

# Half of them were never looked at while answers were made better.
SETS = {"held": 0, "looked at": 1}
SHARE = 0.85
FIRST = 3


@cache
def answers() -> dict[int, dict[str, Any]]:
    """Play every outage, each on a store of its own, and ask for its cause."""
    told = outages.read()
    found = {}
    for outage in told["outages"]:
        with TemporaryDirectory() as folder:
            given = {"OP_DBUS_STATE_DIR": folder, "OP_DBUS_VECTOR_LEVEL": "none"}
            settings = config.load({"HOME": "/nonexistent", **given})
            asked = outages.measure(Path(folder), told["units"], outage, settings)
            found[outage["n"]] = asyncio.run(asked)
    return found


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ask", ["before", "around"])
def test_the_cause_is_among_the_first_three(name: str, ask: str) -> None:
    """Rank what led to a failure before what else happened then, whatever its kind."""
    places = [found[ask] for n, found in answers().items() if n % 2 == SETS[name]]
    assert len(places) >= 15
    assert sum(0 < place <= FIRST for place in places) >= SHARE * len(places)


def test_other_changes_are_asked_of() -> None:
    """Each outage has noise beside its cause: an answer is chosen, and not all there is."""
    told = outages.read()
    assert len({outage["kind"] for outage in told["outages"]}) >= 9
    assert all(found["total"] >= 10 for found in answers().values())
