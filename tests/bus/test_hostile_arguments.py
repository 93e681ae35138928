"""Hostile arguments to every method of every interface keep no other client waiting.

The methods, their arguments and their options are read from the interfaces' XML, so that a new
method is covered. A wait is measured by what the daemon itself works meanwhile, not by a clock:
other programs on a busy machine do not count. OP_DBUS_TEST_ARGUMENTS=all tries far more.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from harness import marshal
from harness.light_calls import LightCaller
from harness.marshal import Variant
from harness.running import (
    FIXED,
    OBJECT,
    STATE_PATH,
    Running,
    state_file,
)
from harness.wire import Wire

# Each waits for less than a sixth of it.
MOST_SECONDS = 1.0
_PROPERTIES = "org.freedesktop.DBus.Properties"
_MIB = 1 << 20
IS_ALL = os.environ.get("OP_DBUS_TEST_ARGUMENTS") == "all"
_COUNT = 100_000 if IS_ALL else 4000
# Kinds of values that are tried of each type.
_FIRST = None if IS_ALL else 2
_OBJECT_PATH = f"{STATE_PATH}/systemd/unit/u1_2eservice"
_OPTION = re.compile(r"\b([a-z_]+) (s|as|o|ao)\b(?=[,:;.]| \()")
WORDS = {
    "conditions": "a.b=c, " * (_MIB // 8),
    "words of one letter": "a " * (_MIB // 3),
    "words": "mail server of the office " * (_MIB // 27),
    "letters": "a" * (_MIB - 100),
    "digits": "9" * (_MIB - 100),
    "words of few letters": "a b " * (_MIB // 5),
    "brackets": "([{" * (_MIB // 4),
    "lines": "x\n" * (_MIB // 3),
    "letters of two bytes": "İ" * (_MIB // 3),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A call with a hostile argument, whose body is encoded when it is needed."""

    name: str
    interface: str
    member: str
    signature: str
    body: Callable[[], bytes]

    @property
    def path(self) -> str:
        """The object that is called."""
        return FIXED.get(self.interface, _OBJECT_PATH)


def _deep(levels: int) -> Variant:
    value = Variant("s", "x")
    for _ in range(levels):
        value = Variant("v", value)
    return value


@cache
def _hostile(kind: str) -> dict[str, Any]:
    """Give hostile values of a type; arrays as the bytes of their items."""
    if kind == "s":
        return WORDS
    if kind == "as":
        names = b"".join(marshal.encode("s", [f"n{n:06d}"]) for n in range(_COUNT))
        return {"many strings": names, "a long string": [WORDS["words"][: 10 * _COUNT]]}
    if kind == "ao":
        paths = (f"{STATE_PATH}/systemd/unit/u{n:07d}" for n in range(_COUNT // 2))
        encoded = b"".join(marshal.encode("o", [path]) for path in paths)
        return {"many paths": encoded, "a long path": ["/a" * 50_000]}
    if kind == "o":
        return {"a long path": "/a" * (_MIB // 2), "a path of an object": STATE_PATH + "/a" * 5000}
    if kind == "a{sv}":
        return _hostile_options()
    if kind == "a(sssa{sv})":
        return _hostile_objects()
    if kind == "v":
        return {"deep variants": _deep(55), "a long string": Variant("s", WORDS["words"])}
    limits = {"u": (1 << 32) - 1, "t": (1 << 64) - 1, "b": 1, "d": 1e300}
    return {"most": limits[kind]} if kind in limits else {}


def _hostile_options() -> dict[str, Any]:
    keys = bytearray()
    for number in range(_COUNT):
        keys += bytes(-len(keys) % 8) + marshal.encode("sv", [f"limit{number}", Variant("y", 1)])
    long = [(f"{name}{n}", Variant("s", "x")) for n, name in enumerate(["k" * 100_000] * 20)]
    return {"many keys": bytes(keys), "deep variants": {"where": _deep(60)}, "long keys": long}


def _hostile_objects() -> dict[str, Any]:
    many = {f"key{n}": Variant("s", f"value {n}") for n in range(_COUNT * 3 // 5)}
    return {
        "many keys": [("p", "k", "n", many)],
        "many objects": [("p", "k", f"n{n}", {"a": Variant("u", n)}) for n in range(_COUNT // 10)],
        "many kinds": [("p", f"k{n}", "n", {}) for n in range(_COUNT // 10)],
        "long values": [("p", "k", f"n{n}", {"a": Variant("s", WORDS["words"])}) for n in range(3)],
        "a long name": [("p", "k", WORDS["letters"], {})],
        "deep": [("p", "k", "n", {"a": _deep(55)})],
        "a long list": [("p", "k", "n", {"a": Variant("as", _hostile("as")["many strings"])})],
    }


def _harmless(kind: str) -> Any:
    values = {"s": "mail", "u": 10, "t": 1, "b": 0, "d": 0.5, "o": _OBJECT_PATH, "a{sv}": {}}
    values["v"] = Variant("u", 1)
    return values.get(kind, [] if kind[0] == "a" else 0)


def _interfaces() -> Iterator[tuple[str, ET.Element]]:
    room = resources.files("opdbus.bus")
    for file in [*(room / "interfaces").iterdir(), room / "service" / "standard.xml"]:
        for interface in ET.fromstring(file.read_text(encoding="utf-8")).iter("interface"):  # noqa: S314 -- our own
            if interface.attrib["name"] in {*FIXED, OBJECT, _PROPERTIES}:
                yield interface.attrib["name"], interface


def cases() -> Iterator[Case]:
    """Give a case for each argument and each documented option with each hostile value."""
    for name, interface in _interfaces():
        for method in interface.iter("method"):
            types = [a.attrib["type"] for a in method.iter("arg") if a.attrib["direction"] == "in"]
            if "h" in types:  # attacks on files are in tests of bulk calls
                continue
            arguments = [(place, kind, "") for place, kind in enumerate(types)]
            if "a{sv}" in types:
                text = " ".join(each.attrib["value"] for each in method.iter("annotation"))
                options = dict(_OPTION.findall(text)).items()
                arguments += [(types.index("a{sv}"), kind, option) for option, kind in options]
            for place, kind, option in arguments:
                for what in [*_hostile(kind)][: 1 if option and not IS_ALL else _FIRST]:
                    body = partial(_body, types, place, kind, what, option)
                    member = method.attrib["name"]
                    title = f"{name.rpartition('.')[2]}.{member} {option or place}: {what}"
                    yield Case(title, name, member, "".join(types), body)


def _body(types: Sequence[str], place: int, kind: str, what: str, option: str) -> bytes:
    values = [_harmless(each) for each in types]
    value = _hostile(kind)[what]
    values[place] = {option: Variant(kind, value)} if option else value
    return marshal.encode("".join(types), values)


@pytest.fixture(scope="module")
def daemon(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Run a daemon with some objects."""
    units = {f"u{n}.service": f"mail server {n} for the office" for n in range(300)}
    file = state_file(tmp_path_factory.mktemp("declared") / "state.json", units)
    return shared_daemons(STATE_FILE=file, LOG_LEVEL="info").start().vectorized()


def test_hostile_arguments_keep_nobody_waiting(daemon: Running) -> None:
    """Answer light calls of one client within a second's work, whatever another one asks for."""
    friend, waits = LightCaller(daemon), {}
    try:
        for case in cases():
            waits[case.name] = _attack(daemon, case, friend)
    finally:
        friend.leave()
    late = {name: seconds for name, seconds in waits.items() if seconds > MOST_SECONDS}
    assert len({name.partition(" ")[0] for name in waits}) > 30
    assert not late


def _attack(daemon: Running, case: Case, friend: LightCaller) -> float:
    with Wire(daemon.bus) as wire:
        fields = marshal.call_fields(case.path, case.interface, case.member, case.signature)
        serial = wire.serial()
        wire.send(marshal.message(fields, case.body(), serial))
        wire.answer(serial)
    return friend.take_worst()
