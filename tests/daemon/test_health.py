"""The daemon's State: what it says of serving, the state file, and faults."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opdbus.errors import NoModel, ProviderError
from opdbus.index.health import Health
from opdbus.serving.states import Phase, State

LOST = ProviderError("the provider stopped working")


def health(
    phase: Phase,
    *,
    file_error: str = "",
    store_fault: str = "",
    vectors_fault: str = "",
    tried: bool = True,
    level: str = "medium",
    settled: bool = True,
    checking: str = "",
) -> Health:
    """Give the health of a daemon that is like this."""
    archive = SimpleNamespace(fault=store_fault)
    eraser = SimpleNamespace(sentence=lambda: checking)
    memory = SimpleNamespace(
        archive=archive,
        catalogue=[1, 2],
        stale=asyncio.Event(),
        is_settled=settled,
        eraser=eraser,
    )
    serving = SimpleNamespace(phase=phase, config=SimpleNamespace(vector_level=level))
    vectors = SimpleNamespace(memory=memory, serving=serving, fault=vectors_fault)
    declared = SimpleNamespace(attempted=tried, last_error=file_error)
    return Health(cast("Any", vectors), cast("Any", declared))


READY, LOADING = Phase(State.READY), Phase(State.LOADING)
DEGRADED, FAILED = Phase(State.DEGRADED), Phase(State.FAILED, error=LOST)


@pytest.mark.parametrize(
    ("phase", "more", "expected"),
    [
        (READY, {}, "ready"),
        (LOADING, {}, "loading"),
        (READY, {"tried": False}, "loading"),
        (READY, {"settled": False}, "loading"),
        (READY, {"settled": False, "store_fault": "no room"}, "degraded"),
        (FAILED, {"settled": False}, "failed"),
        (DEGRADED, {}, "degraded"),
        (DEGRADED, {"tried": False}, "loading"),
        (DEGRADED, {"settled": False}, "loading"),
        (READY, {"file_error": "line 1: not JSON"}, "degraded"),
        (READY, {"store_fault": "no room"}, "degraded"),
        (READY, {"vectors_fault": "no room"}, "degraded"),
        (FAILED, {}, "failed"),
        (FAILED, {"file_error": "line 1"}, "failed"),
    ],
)
def test_state(phase: Phase, more: dict[str, Any], expected: str) -> None:
    """Say failed where nothing can be computed, degraded where something is less than asked."""
    assert health(phase, **more).state == expected


def test_what_failed_is_in_the_sentence() -> None:
    """Say in one sentence what still works and why no more does."""
    assert health(FAILED, file_error="line 1").sentence() == (
        "Failed: 2 objects, search without the model; the provider stopped working; line 1"
    )


def test_the_sentence_names_no_object() -> None:
    """Leave the place in the file's structure out of what everybody may read."""
    fault = '/etc/op-dbus/state.json: line 5 column 3 ($.plugins.vault["shop"]): given twice'
    sentence = health(READY, file_error=fault).sentence()
    assert sentence.endswith("; /etc/op-dbus/state.json: line 5 column 3")


def test_level_none_is_ready() -> None:
    """Be ready without an engine where the level is none."""
    without = health(Phase(State.READY, error=NoModel("none")), level="none")
    assert without.state == "ready"
    assert without.sentence() == "Ready: 2 objects, lexical search only"


@pytest.mark.parametrize("level", ["none", "medium"])
def test_the_sentence_tells_of_rows_to_check(level: str) -> None:
    """Say how much of history is still to be looked through, at every level."""
    left = "Looking for secrets in history: 7 rows are left, hidden till then"
    assert health(READY, level=level, settled=False, checking=left).sentence() == left
    assert "Reading the words" in health(READY, level="none", settled=False).sentence()
