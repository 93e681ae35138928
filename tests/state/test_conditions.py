"""Conditions: what the grammar accepts, what it refuses and how, and which objects hold."""

import re
import time
from contextlib import suppress
from typing import Any

import pytest

from opdbus.errors import InvalidArgs
from opdbus.state.conditions import MAX_CHARACTERS, MAX_CONDITIONS, AllOf, number, parse
from opdbus.state.fields import split
from opdbus.state.object import Identity

UNIT = Identity("live:systemd", "systemd", "unit", "sshd.service")
FIELDS: dict[str, Any] = {
    "ActiveState": "failed",
    "sub_state": "dead",
    "enabled": False,
    "Persistent": "no",
    "used_percent": 95,
    "load": 0.5,
    "size": "4G",
    "gecos": None,
    "groups": ["wheel", "adm"],
    "listen": [],
    "description": "Network name resolution, cached",
    "vm.swappiness": 10,
    "interval": "1min 30s",
    "TimeoutStopUSec": 300_000_000,
    "runtime_max_usec": 2**64 - 1,
    "ipv4": {"dhcp": False, "address": [{"ip": "10.20.0.1", "prefix": 24}, {"ip": "10.20.0.2"}]},
}


def holds(text: str) -> bool:
    """Return whether the unit of this file meets conditions."""
    return AllOf(parse(text)).hold(UNIT, FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "active_state=failed",
        "ActiveState=FAILED",
        "active-state = Failed",
        "active_state!=active",
        "enabled=false",
        "enabled=no",
        "enabled=OFF",
        "enabled!=true",
        "persistent=false",
        "used_percent>90",
        "used_percent>=95",
        "used_percent<95.5",
        "used_percent<=95%",
        "used_percent=95.0",
        "load<1",
        "size>3G",
        "size<=4GiB",
        "size=4g",
        "groups=wheel",
        "groups~WHE",
        'gecos=""',
        'listen=""',
        "gecos!=x",
        "description~resolution",
        'description~"resolution, cached"',
        "ipv4.address.ip=10.20.0.2",
        "address.ip~10.",
        "ip=10.20.0.1",
        "address~10.20",
        "prefix>=24",
        "vm.swappiness=10",
        "swappiness>5",
        "plugin=systemd",
        "KIND=unit",
        "name~sshd",
        "source~live:",
        "interval=90s",
        "interval!=91s",
        "interval~30s",
        'timeout_stop_usec="5min"',
        "timeout_stop_usec=300s",
        "timeout_stop_usec=300000000",
        "runtime_max_usec=infinity",
    ],
)
def test_what_meets_a_condition(text: str) -> None:
    """Compare numbers as numbers, text in any case, and lists by any member."""
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "active_state=active",
        "active_state=fail",
        "active_state!=failed",
        "groups!=wheel",
        "enabled=1",
        "enabled>0",
        "used_percent>95",
        "used_percent=9",
        "size>4G",
        "description>1",
        "description~.*",
        "missing=x",
        "missing!=x",
        'missing=""',
        "tive_state=failed",
        "kind=service",
        "interval=90",
        "interval!=90s",
        "timeout_stop_usec=300",
        "runtime_max_usec=90s",
    ],
)
def test_what_does_not(text: str) -> None:
    """Hold of no object that lacks the field, or has another value of it."""
    assert not holds(text)


def test_a_field_is_named_by_the_words_that_it_ends_in() -> None:
    """Take `state` for every field that ends in it, where no field is called just that."""
    assert holds("state=failed")
    assert holds("state=dead")
    assert not holds("state!=dead")
    assert not AllOf(parse("state=dead")).hold(UNIT, {**FIELDS, "state": "up"})
    assert AllOf(parse("state=up")).hold(UNIT, {**FIELDS, "State": "up"})


def test_all_conditions_must_be_met() -> None:
    """Join conditions with commas or `and`, outside of quotes."""
    assert holds("active_state=failed,kind=unit")
    assert holds("active_state=failed and used_percent>90 AND groups=adm")
    assert not holds("active_state=failed, kind=service")
    (only,) = parse("description=stop and go")
    assert only.value == "stop and go"
    assert [c.value for c in parse("a=\"x, y\" and b=z, c~'and'")] == ["x, y", "z", "and"]
    assert parse("") == parse("  ") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("failed", "'failed' is no condition: a condition is FIELD=VALUE"),
        ("options~rw,noatime", "'noatime' is no condition"),
        ("=failed", "'=failed' is no condition"),
        ("_=failed", "'_=failed' names no field"),
        ("state==failed", "there is no operator '=='"),
        ("state=~fail", "there is no operator '=~'"),
        ("state=", "'state=' lacks a value"),
        ("state='failed", "lacks a value"),
        ('state="failed"x', "lacks a value"),
        ("used_percent>much", "needs a number such as 90 or 4G, and 'much' is not one"),
        ("used_percent>=", "lacks a value"),
        ("a=b," * MAX_CONDITIONS + "a=b", f"at most {MAX_CONDITIONS}"),
        ("a" * MAX_CHARACTERS + "=b", f"at most {MAX_CHARACTERS} characters"),
    ],
)
def test_bad_grammar_is_refused(text: str, said: str) -> None:
    """Refuse what is no condition, with what is accepted."""
    with pytest.raises(InvalidArgs, match=re.escape(said)):
        parse(text)


@pytest.mark.parametrize(
    "text", ["a=" + " " * 990, "a=" + " and" * 240, "a" * 999, "a=b and " * 120]
)
def test_no_text_takes_long(text: str) -> None:
    """Read any text that is short enough in little time, whatever it repeats."""
    began = time.process_time()
    with suppress(InvalidArgs):
        parse(text)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("-3", -3),
        ("0.5", 0.5),
        ("95%", 95),
        ("4G", 4 << 30),
        ("4 GiB", 4 << 30),
        ("1.5k", 1536.0),
        ("x", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("0x10", 16),
        ("1" * 5000, None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    """Read numbers with a percent sign or a binary unit, and nothing that only looks like one."""
    assert number(text) == value


def test_an_object_may_have_any_number_of_keys() -> None:
    """Find a field among more keys than are remembered, again and again."""
    many = {"list": [{f"k{n}": n} for n in range(9000)], **{f"key{n}": n for n in range(9000)}}
    wanted = AllOf(parse("k8999=8999,key8999=8999,list=8999"))
    for _ in range(3):
        assert wanted.hold(UNIT, many)
        assert not wanted.hold(UNIT, FIELDS)


@pytest.mark.parametrize(
    "name", ["active_state", "active-state", "ActiveState", "activeState", "Active State"]
)
def test_names_are_words(name: str) -> None:
    """Take all spellings of a name for the same words."""
    assert split(name) == ("active", "state")
    assert split("IPAddress") == ("ip", "address")
    assert split("IPv4Address") == ("ipv4", "address")
