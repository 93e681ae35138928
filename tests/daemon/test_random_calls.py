"""Random calls and damaged messages: each call has a reply of its type or an error that is listed.

Methods, arguments and options are read from the interfaces' XML, so that a new method is covered;
attacks on files are in tests of bulk calls. HYPOTHESIS_PROFILE=explore makes other calls.
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

import pytest
from harness import marshal
from harness.health import Health
from harness.marshal import Variant, split
from harness.running import FIXED, ROOT_PATH, STATE, STATE_PATH, Running
from harness.wire import Gone, Silence, Wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from opdbus import errors
from opdbus.bus.service import contract, standard
from opdbus.bus.service.contract import MethodInfo

_FILES = (resources.files("opdbus.bus") / "interfaces").iterdir()
NAMES = sorted(file.name.removesuffix(".xml") for file in _FILES if file.name.endswith(".xml"))
METHODS = [
    (name, method)
    for name in NAMES
    for method in contract.interface(name).methods.values()
    if "h" not in method.inputs
]
# What dispatch itself may answer, whatever the method.
GENERAL = {
    kind.dbus_name
    for kind in (
        errors.InvalidArgs,
        errors.LimitsExceeded,
        errors.UnknownInterface,
        errors.UnknownMethod,
        errors.UnknownObject,
    )
}
_OPTION = re.compile(r"\b([a-z_]+) (a?[sobutd])\b(?=[,:;.]| \()")
LIMITS = {"b": (0, 1), "y": (0, (1 << 8) - 1)}
LIMITS |= {kind: (0, (1 << bits) - 1) for kind, bits in (("q", 16), ("u", 32), ("t", 64))}
LIMITS |= {
    kind: (-(1 << bits), (1 << bits) - 1) for kind, bits in (("n", 15), ("i", 31), ("x", 63))
}
WORDS = [
    *("", "a", "mail server", "systemd", "unit", "publish:a", "medium", "none", "high", "cpu"),
    *("auto", "hybrid", "int8", "newest", "state=failed", "port>1", 'x~"', "a==b", "not ", "1h"),
    *("%s", "{}", "../etc", "password=x1y2", "\n", "\x7f", "\u202e", "\ufeff", "e\u0301" * 40),
    "\U0010ffff",
]
LONG = st.sampled_from(["mail ", "(", "\\", "\u00e9"]).map(lambda text: text * 20_000)
# No NUL and no half of a pair: the bus ends the connection of whoever sends these.
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
TEXTS = st.sampled_from(WORDS) | st.text(_CHARACTERS, max_size=30) | LONG
ELEMENTS = st.sampled_from(["org", "opdbus", "state", "job", "systemd", "unit", "_2e", "_ff", "9"])
PATHS = st.lists(ELEMENTS, max_size=6).map(lambda parts: "/" + "/".join(parts))
SIGNATURES = ["s", "u", "x", "d", "b", "as", "ay", "o", "a{sv}", "(su)", "av", "v", "a(sa{sv})"]


@cache
def values(kind: str) -> SearchStrategy[Any]:
    """Return the values of one complete type."""
    if kind in LIMITS:
        low, high = LIMITS[kind]
        return st.integers(0, min(high, 20)) | st.integers(low, high) | st.just(high)
    if kind == "v":
        return st.sampled_from(SIGNATURES).flatmap(
            lambda one: values(one).map(lambda value: Variant(one, value))
        )
    if kind.startswith("a{"):
        key, item = split(kind[2:-1])
        return st.dictionaries(values(key), st.deferred(lambda: values(item)), max_size=3)
    if kind.startswith("a"):
        return st.lists(st.deferred(lambda: values(kind[1:])), max_size=3)
    if kind.startswith("("):
        return st.tuples(*map(values, split(kind[1:-1])))
    return {"d": st.floats(), "o": PATHS, "g": st.sampled_from(SIGNATURES), "s": TEXTS}[kind]


def mostly(right: SearchStrategy[Any], wrong: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Return what is right in four of five cases."""
    return st.integers(1, 5).flatmap(lambda number: wrong if number == 5 else right)


def options(interface: str) -> SearchStrategy[dict[str, Variant]]:
    """Return options that the interface's text names, with their types, and others."""
    known = {
        key: values(kind).map(lambda value, kind=kind: Variant(kind, value))
        for key, kind in _OPTION.findall(contract.interface(interface).xml)
    }
    few = st.sets(st.sampled_from(sorted(known)), max_size=3) if known else st.just(set())
    right = few.flatmap(lambda keys: st.fixed_dictionaries({key: known[key] for key in keys}))
    return mostly(right, st.dictionaries(TEXTS, values("v"), max_size=2))


def body(interface: str, method: MethodInfo, objects: list[str]) -> SearchStrategy[tuple[Any, ...]]:
    """Return what a method may be given."""
    special = {"a{sv}": options(interface), "o": mostly(st.sampled_from(objects), PATHS)}
    return st.tuples(
        *(special[kind] if kind in special else values(kind) for kind in split(method.inputs))
    )


def paths(interface: str, objects: list[str]) -> SearchStrategy[str]:
    """Return paths that mostly have the interface."""
    here = FIXED.get(interface, "/" + interface.replace(".", "/"))
    right = st.sampled_from(objects) if interface.endswith("Object1") else st.just(here)
    return mostly(right, PATHS)


def fault(interface: str, method: MethodInfo, answer: marshal.Message) -> str:
    """Return what is wrong about an answer, or nothing."""
    if not answer.error:
        is_right = answer.signature == method.outputs
        return "" if is_right else f"the reply's type is {answer.signature!r}"
    listed = {
        f"org.opdbus.{name}" if name.startswith("Error.") else f"org.freedesktop.DBus.Error.{name}"
        for name in method.errors
    }
    if answer.error not in GENERAL | listed:
        return f"{interface}.{method.name} does not list {answer.error}: {answer.body()}"
    return "" if answer.body()[0].strip() else f"{answer.error} without a sentence"


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running]) -> Iterator[Running]:
    """Run a daemon that is as well at the end as at the beginning."""
    with shared_daemons(LOG_LEVEL="info").start().vectorized() as running:
        health = Health(running)
        yield running
        assert health.faults() == []
        health.close()
        assert running.stop() == 0


@pytest.fixture(scope="module")
def objects(daemon: Running) -> list[str]:
    """List some objects."""
    with Wire(daemon.bus) as wire:
        answer = wire.call(STATE_PATH, f"{STATE}.List", "a{sv}uu", {}, 0, 50)
        return [path for path, *_ in answer.body()[1]]


_SETTINGS = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    ("interface", "method"), METHODS, ids=lambda each: getattr(each, "name", None)
)
def test_random_calls_find_no_fault(
    daemon: Running, objects: list[str], interface: str, method: MethodInfo
) -> None:
    """Answer each call with a reply of its type or a listed error that has a sentence."""
    with Wire(daemon.bus) as wire:

        @_SETTINGS
        @given(paths(interface, objects), body(interface, method, objects))
        def call(path: str, values: tuple[Any, ...]) -> None:
            answer = wire.call(path, f"{interface}.{method.name}", method.inputs, *values)
            assert fault(interface, method, answer) == ""

        call()


@pytest.mark.parametrize("interface", NAMES)
def test_properties_of_any_name_are_answered(daemon: Running, interface: str) -> None:
    """Read and set each property, and others, with values of any type."""
    listed = sorted(contract.interface(interface).properties)
    allowed = GENERAL | {errors.UnknownProperty.dbus_name, errors.PropertyReadOnly.dbus_name}
    path = FIXED.get(interface, ROOT_PATH)
    with Wire(daemon.bus) as wire:

        @_SETTINGS
        @given(st.sampled_from([*listed, "None"]) | TEXTS, st.none() | values("v"))
        def call(name: str, value: Variant | None) -> None:
            if value is None:
                answer = wire.call(path, f"{standard.PROPERTIES}.Get", "ss", interface, name)
            else:
                answer = wire.call(
                    path, f"{standard.PROPERTIES}.Set", "ssv", interface, name, value
                )
            assert answer.error in allowed | {""}

        call()


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(METHODS).flatmap(
        lambda row: st.tuples(st.just(row), values(f"({row[1].inputs}s)"))
    ),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3),
    st.integers(1, 2000),
)
def test_damaged_messages_do_no_harm(
    daemon: Running,
    call: tuple[tuple[str, MethodInfo], tuple[Any, ...]],
    changes: list[tuple[int, int]],
    end: int,
) -> None:
    """Outlive calls whose bytes are changed, which are cut, or which are no calls any more."""
    (interface, method), values = call
    path = FIXED.get(interface, ROOT_PATH)
    fields = marshal.call_fields(path, interface, method.name, method.inputs)
    data = bytearray(marshal.message(fields, marshal.encode(method.inputs, values[:-1]), 9))
    for place, byte in changes:
        data[place % len(data)] = byte
    with Wire(daemon.bus) as wire, suppress(Gone, Silence, OSError):
        wire.send(bytes(data[:end] if not changes else data))
        # what is whole is delivered, and then the bus ends the connection
        wire.socket.shutdown(socket.SHUT_WR)
        while wire.socket.recv(1 << 16):
            pass
