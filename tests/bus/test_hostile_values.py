"""State files and published values of any shape keep no other client waiting.

OP_DBUS_TEST_ARGUMENTS=all tries far more of each.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.light_calls import LightCaller
from harness.marshal import Variant
from harness.running import ROOT_PATH, STATE, STATE_PATH, VECTORIZER, Running, replace
from harness.wire import PATIENCE_SECONDS, Wire

MOST_SECONDS = 1.0
IS_ALL = os.environ.get("OP_DBUS_TEST_ARGUMENTS") == "all"
_MANY = 20_000 if IS_ALL else 1000
# Of values in one object.
_VALUES = 300_000 if IS_ALL else 10_000
_PUBLISH = "sa(sssa{sv})a{sv}"
# The longest of what answers: a busy machine takes far longer than a quiet one.
_ANSWER_SECONDS = 10 * PATIENCE_SECONDS


def _nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(levels):
        value = {"k": value}
    return value


def _one(**properties: Any) -> dict[str, Any]:
    return {"p": {"units": {"u": properties}}}


# The plugins of state files.
FILES: dict[str, Callable[[], Mapping[str, Any]]] = {
    "plugins": lambda: {f"p{n}": {"exclusive": True, "units": {"u": {}}} for n in range(_MANY)},
    "kinds": lambda: {"p": {f"k{n}": {"u": {"a": n}} for n in range(_MANY)}},
    "empty kinds": lambda: {"p": {"exclusive": True} | {f"k{n}": {} for n in range(_VALUES)}},
    "observed kind": lambda: {
        "systemd": {"exclusive": True, "units": {f"u{n}": {} for n in range(_MANY)}}
    },
    "keys": lambda: _one(**{f"key{n}": n for n in range(_VALUES)}),
    "keys of settings": lambda: {"sysctl": {f"net.key{n}": n for n in range(_VALUES)}},
    "levels": lambda: {"p": {"units": {f"u{n}": _nested(55) for n in range(_MANY // 10)}}},
    "words": lambda: _one(a="mail server of the office " * _VALUES),
    "letters": lambda: _one(a="a" * (100 * _VALUES)),
    "long names": lambda: {"p": {"units": {f"{n}" * 5000: {} for n in range(_MANY // 100)}}},
    "numbers": lambda: _one(a=[*range(3 * _VALUES)]),
    "texts of a list": lambda: _one(a=[f"text {n}" for n in range(_VALUES)]),
    "one name": lambda: {"p": {"units": [{"name": "u", "a": n} for n in range(_MANY)]}},
}
# The properties of published objects.
PUBLISHED: dict[str, Callable[[], Mapping[str, Variant]]] = {
    "keys": lambda: {f"key{n}": Variant("y", 1) for n in range(min(_VALUES, 60_000) // 2)},
    "numbers": lambda: {"a": Variant("ai", [*range(_VALUES // 10)])},
    "bytes": lambda: {"a": Variant("ay", bytes(_VALUES))},
    "text": lambda: {"a": Variant("s", "mail server of the office " * (_VALUES // 40))},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Declare nothing yet."""
    return replace(tmp_path_factory.mktemp("declared") / "state.json", _state({}))


@pytest.fixture(scope="module")
def caller(shared_daemons: Callable[..., Running], file: Path) -> Iterator[LightCaller]:
    """Run a daemon, and a client that makes light calls to it."""
    caller = LightCaller(shared_daemons(STATE_FILE=file).start().vectorized())
    yield caller
    caller.leave()


def _state(plugins: Mapping[str, Any]) -> str:
    return json.dumps({"version": 1, "plugins": plugins})


@pytest.mark.parametrize("kind", FILES)
def test_a_state_file_keeps_nobody_waiting(caller: LightCaller, file: Path, kind: str) -> None:
    """Answer light calls within a second's work while a file comes, and while it goes."""
    for plugins in (FILES[kind](), {}):
        replace(file, _state(plugins))
        with Wire(caller.bus) as wire:
            serial = wire.start(ROOT_PATH, f"{VECTORIZER}.Reload", "a{sv}", {})
            assert not wire.answer(serial, _ANSWER_SECONDS).error
    assert caller.take_worst() < MOST_SECONDS


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_value_keeps_nobody_waiting(caller: LightCaller, kind: str) -> None:
    """Answer light calls within a second's work while another client publishes."""
    objects = [("p", "k", "n", PUBLISHED[kind]())]
    with Wire(caller.bus) as wire:
        serial = wire.start(STATE_PATH, f"{STATE}.Publish", _PUBLISH, "s", objects, {})
        answer = wire.answer(serial, _ANSWER_SECONDS)
    assert answer.error in {"", "org.freedesktop.DBus.Error.InvalidArgs"}
    assert caller.take_worst() < MOST_SECONDS
