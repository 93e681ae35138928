"""The daemon's State: what it says of engines, the state file, and faults."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opdbus.bus.service.vectorizer import VectorizerInterface
from opdbus.config import Config
from opdbus.engine.chain import Fallback
from opdbus.errors import ProviderError

FELL = Fallback("cuda", "cuda cannot run: there is no NVIDIA driver here")
LOST = ProviderError("the provider stopped working")


def state(
    settings: Config,
    *,
    engine: bool = True,
    fallbacks: tuple[Fallback, ...] = (),
    fault: ProviderError | None = None,
    file_error: str = "",
    memory_fault: str = "",
    tried: bool = True,
) -> str:
    """Give the State of a daemon that is like this."""
    proven = SimpleNamespace(fallbacks=fallbacks)
    ready = SimpleNamespace(embedder=SimpleNamespace(proven=proven)) if engine else None
    engines = SimpleNamespace(fault=fault, config=settings)
    memory = SimpleNamespace(ready=ready, last_fault=memory_fault)
    declared = SimpleNamespace(tried=tried, last_error=file_error)
    unused = cast("Any", None)
    given = (cast("Any", part) for part in (engines, memory, declared))
    return VectorizerInterface(*given, unused, unused, unused).state()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "ready"),
        ({"engine": False}, "loading"),
        ({"tried": False}, "loading"),
        ({"fallbacks": (FELL,)}, "degraded"),
        ({"file_error": "line 1: not JSON"}, "degraded"),
        ({"memory_fault": "no room"}, "degraded"),
        ({"engine": False, "fault": LOST}, "failed"),
        ({"engine": False, "fault": LOST, "file_error": "line 1"}, "failed"),
    ],
)
def test_state(settings: Config, how: dict[str, Any], expected: str) -> None:
    """Say failed where nothing can be computed, degraded where something is less than asked."""
    assert state(settings, **how) == expected


def test_state_without_a_model(settings: Config) -> None:
    """Be ready without an engine where the level is none."""
    assert state(replace(settings, vector_level="none"), engine=False) == "ready"
