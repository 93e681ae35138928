"""Words that name values: which are read in a question, and which objects have them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.value_host import objects
from numpy.typing import NDArray

from opdbus.index.ranking.scores import VALUE_WEIGHT, Boosts, Similarity, rank, value_shares
from opdbus.language.vocabulary import TRAIT_BYTES, Reader, negated_words, rows, values_in
from opdbus.state.conditions import AllOf, parse
from opdbus.state.object import Identity

QUESTIONS = Path(__file__).parents[1] / "data" / "value_questions.json"


def has(question: str, kind: str = "unit", **properties: Any) -> bool:
    """Return whether an object of a kind has a value that a question names."""
    traits = Reader().traits(Identity("live:x", "systemd", kind, "a"), properties)
    return any(traits & bits for bits in values_in(question))


def test_the_vocabulary_fits() -> None:
    """Keep one bit for each row, in a signed number of 64."""
    assert len(rows()) <= 8 * TRAIT_BYTES


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("which services run but are not enabled?", {"enabled"}),
        ("which files can't be read?", set()),
        ("which services are enabled?", set()),
    ],
)
def test_what_is_denied_is_not_looked_for(question: str, words: set[str]) -> None:
    """Give the words of a denial that name the opposite of what is asked for."""
    assert negated_words(question) == words


@pytest.mark.parametrize(
    ("question", "properties"),
    [
        ("what has failed?", {"active_state": "failed"}),
        ("is it running", {"sub_state": "running"}),
        ("what is not running", {"active_state": "inactive"}),
        ("which ones aren't running?", {"active_state": "inactive"}),
        ("what is no longer running", {"active_state": "inactive"}),
        ("isn\u2019t enabled", {"enabled": False}),
        ("not currently enabled", {"enabled": False}),
        ("what cannot be written", {"read_only": True}),
        ("what can't I write to?", {"read_only": True}),
        ("nearly full disks", {"used_percent": 90}),
        ("masked", {"masked": True}),
        ("edited files", {"modified": True}),
        ("what is failing?", {"active_state": "failed"}),
        ("which one fails", {"active_state": "failed"}),
        ("did it crash?", {"active_state": "failed"}),
        ("does the mail server run?", {"sub_state": "running"}),
        ("services that do not run", {"active_state": "inactive"}),
        ("isn't the old printer running?", {"active_state": "inactive"}),
        ("which files can't the backup program read", {"readable": False}),
        ("services that run but are not enabled", {"sub_state": "running"}),
        ("what restarts all the time?", {"sub_state": "auto-restart"}),
        ("which washer is defective?", {"state": "out of order"}),
        ("inverters that have a fault", {"state": "isolation fault"}),
        ("which disk can be pulled out?", {"removable": True}),
        ("what is on another server", {"network": True, "kind": "mount"}),
        ("jobs on working days", {"schedule": "at 07:00, Monday to Friday"}),
    ],
)
def test_words_name_values(question: str, properties: dict[str, Any]) -> None:
    """Read phrases and their denials, in any spelling, as the value that they name."""
    assert has(question, **properties)


@pytest.mark.parametrize(
    ("question", "properties"),
    [
        ("what is not running", {"active_state": "active"}),
        ("not masked", {"masked": True}),
        ("how full is it?", {"used_percent": 99}),
        ("root file system", {"user": "root"}),
        ("what has failed?", {"active_state": "active"}),
        ("nearly full", {"used_percent": 50}),
        ("", {"active_state": "failed"}),
        ("what removes packages", {"removed": True}),
        ("what runs at night", {"sub_state": "running"}),
        ("jobs that run every night", {"sub_state": "running"}),
        ("services not of bob that are running", {"active_state": "inactive"}),
        ("exited with status 3", {"sub_state": "exited"}),
    ],
)
def test_other_words_name_none(question: str, properties: dict[str, Any]) -> None:
    """Take nothing for a value that is denied, or that only shares a word with one."""
    assert not has(question, **properties)


ODD: tuple[dict[str, Any], ...] = (
    *({"state": value} for value in ("UP", "Failed", "", "yes", True, 5, None, ["x", "failed"])),
    {"ActiveState": ["active"], "unit": {"result": "timeout", "Enabled": "ON"}, "running": "off"},
    {"used_percent": "85%", "options": ["ro", "x"], "address": "::", "user": 0},
)


def test_no_value_is_overlooked() -> None:
    """Find just the values whose conditions an object meets, one after the other."""
    kind_ids = (
        ("net", "listener", "x"),
        ("systemd", "unit", "x.service"),
        ("users", "group", "sudo"),
    )
    odd = [(Identity("live:x", *kind_id), properties) for kind_id in kind_ids for properties in ODD]
    reader = Reader()
    for identity, properties in [*((o.identity, o.properties) for o in objects()), *odd]:
        met = [any(AllOf(p).hold(identity, properties) for p in r.alternatives) for r in rows()]
        assert reader.traits(identity, properties) == sum(
            1 << n for n, is_met in enumerate(met) if is_met
        )


def test_rare_values_count_most() -> None:
    """Raise what few have more than what many have, and nothing for what all have."""
    rare, common = value_shares([_having(0)], 4), value_shares([_having(0, 1, 2)], 4)
    assert rare is not None
    assert common is not None
    assert rare[0] > common[0] > 0 == rare[1] == common[3]
    everywhere = value_shares([_having(0, 1, 2, 3)], 4)
    assert everywhere is not None
    assert not everywhere.any()
    assert value_shares([], 4) is None


def test_to_have_all_values_counts_as_a_value_that_so_few_have() -> None:
    """Raise what is running and disabled by as much as one value that only this has."""
    both, alone = value_shares([_having(0, 1), _having(0, 2)], 4), value_shares([_having(0)], 4)
    assert both is not None
    assert alone is not None
    assert both[0] == alone[0]
    assert both[0] > both[1] == both[2] > 0


def _having(*places: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(4), places)


def test_values_raise_and_do_not_filter() -> None:
    """Yield every entry, those with the value before equals without it."""
    shares, values = np.zeros(3, np.float32), np.array([0, 0, 1], np.float32)
    cosines = np.array([0.5, 0.5 + VALUE_WEIGHT + 0.1, 0.5], np.float32)
    boost = Boosts(values, np.zeros(3, np.float32))
    ranked = list(rank(Similarity(cosines), shares, boost))
    assert [index for index, _ in ranked] == [1, 2, 0]
    assert ranked[1][1].values == 1


def test_every_question_about_values_has_an_answer() -> None:
    """Ask only what the host of the check set can answer, in many ways."""
    asked_ = json.loads(QUESTIONS.read_text())
    host = objects()
    assert len(host) >= 390
    assert len({row["question"] for row in asked_}) == len(asked_) >= 60
    for row in asked_:
        where = parse(row["where"])
        assert any(AllOf(where).hold(o.identity, o.properties) for o in host), row
