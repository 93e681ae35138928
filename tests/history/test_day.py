"""Days of hosts: what changed is found by meaning, with the model that is shipped.

`day` was recorded on a booted host on 2026-11-23: 53 acts of an administrator. `school` is made up,
with declarations and drift, too. Nothing was changed after its questions of the set `held` had been
asked.
"""

import asyncio
import json
from pathlib import Path

import pytest
from harness.days import DATA, lived, ranks

from opdbus.history.row_filter import Filter

# So many questions must be answered right in the first three rows. Those about the school were made
# for one look at them: 74 of 81 are right.
SHARES = {"day": 0.9, "school": 0.85}
# What has nothing to do with the days; a school prints.
PRINTING = "printer jam"
FOREIGN = (
    PRINTING,
    "pizza with mushrooms",
    "how do I bake bread",
    "weather in Berlin",
    "football world cup",
    "GPU overheating",
    "poems about autumn",
    "touchpad gestures",
)


@pytest.mark.model
@pytest.mark.usefixtures("medium_model")
@pytest.mark.parametrize("name", SHARES)
def test_questions_about_a_day_are_answered_in_three_rows(name: str, tmp_path: Path) -> None:
    """Answer most questions, in each wording, and none about other things."""

    async def work() -> list[list[int]]:
        async with lived(tmp_path, name) as (finder, acts):
            questions = json.loads((DATA / f"{name}_questions.json").read_text())
            foreign = {*FOREIGN} - ({PRINTING} if name == "school" else set())
            assert not any([await finder.about(asked, Filter(), 3) for asked in foreign])
            assert await finder.about("what changed?", Filter(), 3)
            return [await ranks(finder, question, acts) for question in questions]

    found = asyncio.run(work())
    assert len(found) >= 30
    for wording in zip(*found, strict=True):
        assert sum(map(bool, wording)) >= SHARES[name] * len(wording)
