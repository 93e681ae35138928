"""Drift is a declared field that was observed with another value."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_drift_check_set import Checked, checking

from opdbus.bus.service.node import Caller
from opdbus.bus.service.options import MAX_LIMIT
from opdbus.bus.service.state import StateInterface
from opdbus.config import load
from opdbus.drift import table, versions
from opdbus.drift.compare import compare
from opdbus.drift.crossings import Crossing, Crossings, Drifted
from opdbus.drift.field import Field, Severity
from opdbus.drift.tell import MAX_FIELD, MAX_FIELDS, signalled
from opdbus.drift.tracker import Tracker
from opdbus.errors import InvalidArgs, StateFileError
from opdbus.index.declared import Declared
from opdbus.index.events import Claimed, Drift, Listed
from opdbus.index.finder import Finder
from opdbus.index.health import Health
from opdbus.index.memory import Memory
from opdbus.index.object_vectors import ObjectVectors
from opdbus.observe.supervisor import Supervisor
from opdbus.serving.serving import Serving
from opdbus.state.file import StateFile
from opdbus.state.leaves import leaves
from opdbus.state.object import FILE, Identity, StateObject, Thing

ANY = table.of_declared(("test", "thing"))
A, B = Thing("test", "thing", "a"), Thing("test", "thing", "b")


def names(declared: dict[str, Any], observed: dict[str, Any]) -> list[str]:
    """Give the names of the fields that differ, in order."""
    return sorted(field.name for field in compare(ANY, declared, observed))


def test_changed_fields_are_named() -> None:
    """Name each declared field that differs, with dots."""
    declared = {"z": 1, "ipv4": {"enabled": True, "dns": ["a", "b"]}, "same": "x", "l": [{"k": 1}]}
    observed = {"z": 2, "ipv4": {"enabled": False, "dns": ["c", "a"]}, "same": "x", "l": [{"k": 3}]}
    assert names(declared, observed) == ["ipv4.dns", "ipv4.enabled", "l", "z"]


def test_fields_of_one_side_are_no_drift() -> None:
    """Pass over what only the file or only the host says."""
    assert names({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}, "e": 3}) == []
    assert names({}, {"a": 1}) == []
    assert names({"a": 1}, {}) == []


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (1, "1"),
        (True, "true"),
        (True, "Yes"),
        (0, "off"),
        (False, "False "),
        ("Active", "active"),
        (1.5, "1.50"),
        ("1G", 1 << 30),
        ("512 MiB", 536870912),
        (None, ""),
        (None, []),
        ([1], [1]),
        ([80], ["80"]),
        ([1, 2], [2, 1]),
        ([True, "Up"], ["true", "up"]),
        ([80, [443, {"on": True}]], [["443", {"on": "TRUE"}], "80"]),
        ({"ports": [[80]]}, {"ports": [["80"]]}),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("02-1B-21-7A-00-01", "02:1b:21:7a:00:01"),
        ("/srv/", "/srv"),
    ],
)
def test_spelling_is_no_drift(declared: Any, observed: Any) -> None:
    """Take values as the same that people write differently."""
    assert names({"a": declared}, {"a": observed}) == []
    assert names({"a": observed}, {"a": declared}) == []


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (1, 2),
        (True, False),
        (True, 2),
        (None, "x"),
        ("a", "b"),
        ("1.10", "1.1"),
        ("/srv/a", "/srv/A"),
        ([1, 2], [1]),
        ([1, 1, 2], [1, 2, 2]),
        (["1, 2"], [1, 2]),
        ("1", [1]),
        (0, None),
        ("", "x"),
    ],
)
def test_other_value_is_drift(declared: Any, observed: Any) -> None:
    """Take values as drifted that mean something else."""
    assert names({"a": declared}, {"a": observed}) == ["a"]
    assert names({"a": observed}, {"a": declared}) == ["a"]


def test_commands_have_an_order() -> None:
    """Compare the words of a command in their order."""
    assert names({"command": ["cp", "a", "b"]}, {"command": ["cp", "b", "a"]}) == ["command"]


def test_leaves_are_named_with_dots() -> None:
    """Name scalars and lists of scalars by their way from the top."""
    value = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": None}, "f"], "g": {}, "h": []}
    assert list(leaves(value)) == [
        ("a.b", 1),
        ("a.c", [1, 2]),
        ("d.0.e", None),
        ("d.1", "f"),
        ("h", []),
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=3) | st.sampled_from(["ensure", "state", "enabled", "mode", "ipv4"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["absent", "active"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
            max_leaves=8,
        ),
    ),
    st.sampled_from([ANY, *table.ROWS]),
)
def test_nothing_drifts_from_itself(properties: dict[str, Any], row: table.Row) -> None:
    """Find no drift between equal properties, whatever they are, and fail on none."""
    assert compare(ANY, properties, properties) == []
    compare(row, properties, properties)
    compare(row, properties, None)
    compare(row, properties, {"addresses": properties, "status": properties})


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0-1"),
        ("1.0-1", "1.0-1+b1"),
        ("1.0-1~deb12u1", "1.0-1"),
        ("1.9", "1.10"),
        ("9", "1:1"),
        ("1.0a", "1.0b"),
        ("1.0a", "1.0+a"),
        ("3.0.15-1~deb12u1", "3.0.16-1~deb12u1"),
        ("2.36-9+deb12u4", "2.36-9+deb12u13"),
    ],
)
def test_versions_are_ordered_as_by_dpkg(older: str, newer: str) -> None:
    """Order versions as deb-version(7) says."""
    assert versions.compare(older, newer) < 0 < versions.compare(newer, older)
    assert versions.compare(newer, newer) == 0


def test_versions_are_as_wanted_or_not() -> None:
    """Take a bare version as the least one, with what it leaves out as it may be."""
    assert versions.satisfies("3.0.16", "1:3.0.16-1~deb12u1")
    assert versions.satisfies("3.0.15-1", "3.0.16-1")
    assert not versions.satisfies("3.0.17", "3.0.16-1")
    assert versions.satisfies(">= 1.2", "1.2")
    assert not versions.satisfies(">1.2", "1.2")
    assert versions.satisfies("< 2", "1.9-3")
    assert versions.satisfies("= 1.2-3", "1.2-3")
    assert versions.satisfies("1.2-3", "1.2-3", exactly=True)
    assert not versions.satisfies("1.2-3", "1.2-4", exactly=True)
    assert versions.satisfies("3.0.*", "3.0.16-1")
    assert not versions.satisfies("3.1.*", "3.0.16-1")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("libc6", "libc6"),
        ("libc6:amd64", "libc6"),
        ("libgtk-3-0:amd64", "libgtk-3-0"),
        ("gir1.2-gtk-3.0:amd64", "gir1.2-gtk-3.0"),
        ("kernel-core-5.14.0-1.el9:x86_64", "kernel-core"),
    ],
)
def test_packages_are_named_with_more_than_their_names(name: str, key: str) -> None:
    """Leave architecture and version out of the name that observers give a package."""
    assert table.of_observed(("packages", "package")).observed_key(name) == key


def test_what_cannot_be_compared_harms_nothing(tmp_path: Path) -> None:
    """Go on where a program published what no observer would."""

    async def work() -> None:
        async with checking(tmp_path) as checked:
            interface = {"name": "a", "ipv4": {"address": ["192.0.2.1/24"], "dhcp": True}}
            plugins = {"net": {"interfaces": [interface]}, **DECLARED}
            await checked.declare(plugins, tmp_path)
            odd = {"net/interface/a": {"addresses": ["x"]}, "net/address/x on a": {"dynamic": 7}}
            await checked.observe({**odd, **STOPPED}, [])
            await checked.until(1010.0)
            assert ["drift", NAME] in checked.crossings

    asyncio.run(work())


def drifted(*paths: str, severity: Severity = Severity.ERROR) -> list[Field]:
    """Make fields that differ."""
    return [Field((path,), 1, 2, severity) for path in paths]


def test_a_difference_counts_after_two_seconds_of_quiet() -> None:
    """Count what differs when it has lasted, once, and heal likewise."""
    crossings = Crossings({})
    crossings.compare(A, drifted("x"), 10.0)
    assert crossings.due == 12.0
    assert crossings.take(11.9, 0.0, 9) == []
    (found,) = crossings.take(12.0, 5.0, 9)
    assert (found.thing, found.before, found.began) == (A, None, drifted("x"))
    crossings.compare(A, drifted("x"), 20.0)
    assert crossings.take(30.0, 0.0, 9) == []
    crossings.compare(A, [], 30.0)
    (found,) = crossings.take(32.0, 0.0, 9)
    assert (found.after, found.ended) == (None, drifted("x"))
    assert not crossings.counted


def test_nothing_counts_before_its_time() -> None:
    """Count what differs while a host boots only if it still does afterwards."""
    crossings = Crossings({}, not_before=90.0)
    crossings.compare(A, drifted("x"), 10.0)
    crossings.compare(B, drifted("x"), 10.0)
    crossings.compare(B, [], 40.0)
    assert crossings.take(89.0, 0.0, 9) == []
    (found,) = crossings.take(90.0, 0.0, 9)
    assert found.thing == A


def test_a_short_difference_is_none() -> None:
    """Count nothing that is as declared again before its time, in either direction."""
    crossings = Crossings({B: Drifted("drift", 0.0, drifted("x"))})
    crossings.compare(A, drifted("x"), 10.0)
    crossings.compare(B, [], 10.0)
    crossings.compare(A, [], 11.0)
    crossings.compare(B, drifted("x"), 11.0)
    assert crossings.take(100.0, 0.0, 9) == []
    assert list(crossings.counted) == [B]


def test_fields_that_follow_each_other_are_one_crossing() -> None:
    """Wait for what comes within two seconds; a later field is a crossing of its own."""
    crossings = Crossings({})
    crossings.compare(A, drifted("x"), 10.0)
    crossings.compare(A, drifted("x", "y"), 11.5)
    assert crossings.take(12.5, 0.0, 9) == []
    (found,) = crossings.take(13.5, 0.0, 9)
    assert found.began == drifted("x", "y")
    crossings.compare(A, drifted("x", "y", "z"), 20.0)
    (found,) = crossings.take(22.0, 0.0, 9)
    assert (found.began, found.ended) == (drifted("z"), [])


def test_a_restless_field_keeps_no_other_from_being_counted() -> None:
    """Count what lasts although another field changes every second."""
    crossings = Crossings({})
    for second in range(20):
        crossings.compare(A, drifted("x", *["y"] * (second % 2)), float(second))
        for found in crossings.take(float(second), 0.0, 9):
            assert [field.name for field in found.began] == ["x"]
    assert [field.name for field in crossings.counted[A].fields] == ["x"]


def test_what_is_intended_becomes_drift() -> None:
    """Tell of what the host has not followed in time."""
    crossings = Crossings({})
    crossings.compare(A, drifted("x"), 10.0, intended_until=610.0)
    (found,) = crossings.take(12.0, 0.0, 9)
    assert found.after
    assert found.after.what == "intended"
    assert crossings.take(609.0, 0.0, 9) == []
    (found,) = crossings.take(610.0, 0.0, 9)
    assert found.after
    assert (found.after.what, found.began) == ("drift", drifted("x"))
    assert crossings.due == float("inf")


def crossing(before: list[Field], after: list[Field]) -> Crossing:
    """Make a crossing between two sets of fields."""
    sides = [Drifted("drift", 0.0, fields) if fields else None for fields in (before, after)]
    return Crossing(A, *sides)


def test_only_what_is_bad_enough_is_signalled() -> None:
    """Signal what comes to be at least as bad as the threshold, and when it no longer is."""
    notice, error = drifted("n", severity=Severity.NOTICE), drifted("e")
    least = Severity.WARNING
    assert signalled(crossing([], notice), least) is None
    assert signalled(crossing(notice, []), least) is None
    assert signalled(crossing(notice, error + notice), least) == Drift(
        A, "drift", "error", ["e", "n"]
    )
    assert signalled(crossing(error, error + notice), least) is None
    assert signalled(crossing(error + notice, notice), least) == Drift(A, "healed", "error", [])
    assert signalled(crossing(error, []), least) == Drift(A, "healed", "error", [])


def test_many_and_long_names_are_cut() -> None:
    """Name so many fields and so much of each that the signal stays small."""
    keys = [f"{'é' * MAX_FIELD}{n:05}" for n in range(9_000)]
    fields = compare(ANY, dict.fromkeys(keys, 1), dict.fromkeys(keys, 2))
    found = signalled(crossing([], fields), Severity.INFO)
    assert found
    assert len(found.fields) == MAX_FIELDS
    assert all(name.endswith("...") and len(name) == MAX_FIELD for name in found.fields)
    assert len("".join(found.fields).encode()) < 64 << 10


def _state(memory: Memory, tmp_path: Path) -> StateInterface:
    vectors = ObjectVectors(memory, Serving(load({})))
    declared = Declared(tmp_path / "state.json", memory)
    health, observers = Health(vectors, declared), Supervisor((), memory)
    return StateInterface(vectors, Finder(vectors), declared, health, observers, Tracker(memory))


def _drifts(tmp_path: Path, wanted: dict[str, Any]) -> Any:
    async def work() -> Any:
        async with Memory(tmp_path / "memory.db") as memory:
            return await _state(memory, tmp_path).drift_report(Caller(":1.1", 0), wanted)

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", 0),
        ("limit", -1),
        ("limit", MAX_LIMIT + 1),
        ("limit", "5"),
        ("limit", True),
        ("offset", -1),
        ("offset", 1.5),
        ("ofset", 1),
        ("source", "file"),
        ("kind", 7),
        ("severity", "worst"),
        ("class", "healed"),
    ],
)
def test_wrong_pages_of_drifts_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    """Refuse, by its name, an option that is out of bounds, of another type, or unknown."""
    with pytest.raises(InvalidArgs, match=key):
        _drifts(tmp_path, {key: value})


def test_pages_of_drifts_may_begin_anywhere(tmp_path: Path) -> None:
    """Accept the bounds of a page, and give nothing where there is nothing."""
    for wanted in ({}, {"limit": 1}, {"limit": MAX_LIMIT, "offset": 0}, {"offset": 1 << 31}):
        assert _drifts(tmp_path, dict(wanted)) == []


RUNNING = {"systemd/unit/a.service": {"active_state": "active", "unit_file_state": "enabled"}}
STOPPED = {"systemd/unit/a.service": {"active_state": "inactive", "unit_file_state": "enabled"}}
DECLARED = {"systemd": {"units": {"a": {"active_state": "active"}, "b": {"enabled": True}}}}
NAME = "systemd/unit/a"


async def _history(checked: Checked) -> list[tuple[str, ...]]:
    query = "SELECT what, name, cause, fields FROM history WHERE source = 'file' ORDER BY seq"
    rows = await checked.memory.archive.read(lambda store: list(store._database.execute(query)))
    return [row for row in rows if row[0] in {"drift", "intended", "healed"}]


def test_a_crossing_is_told_once_across_restarts(tmp_path: Path) -> None:
    """Tell of drift once, also to a daemon that was restarted, and of its end; keep both."""

    async def first() -> None:
        async with checking(tmp_path) as checked:
            await checked.declare(DECLARED, tmp_path)
            await checked.observe(STOPPED, ["systemd/unit"])
            await checked.until(1010.0)
            missing = ["drift", "systemd/unit/b"]
            assert sorted(checked.crossings) == [["drift", NAME], missing]

    async def second() -> None:
        async with checking(tmp_path) as checked:
            assert sorted(checked.fields) == [NAME, "systemd/unit/b"]
            await checked.declare(DECLARED, tmp_path)
            await checked.until(1010.0)
            # what nobody has listed yet is not missing, nor is it there
            await checked.observe(STOPPED, ["systemd/unit"])
            await checked.until(1020.0)
            assert checked.crossings == []
            assert checked.fields[NAME] == [["active_state", "active", "inactive", "error"]]
            await checked.observe(RUNNING, [])
            await checked.until(1030.0)
            assert checked.crossings == [["healed", NAME]]
            changed = '[[["active_state"],["active"],["inactive"]]]'
            rows = await _history(checked)
            assert ("drift", "a", "", changed) in rows
            assert rows[-1] == ("healed", "a", "", changed)

    asyncio.run(first())
    asyncio.run(second())


def test_what_was_just_declared_is_intended(tmp_path: Path) -> None:
    """A declaration that has changed is intended for ten minutes, and drift then."""

    async def work() -> None:
        async with checking(tmp_path) as checked:
            checked.memory._clock = lambda: checked.clock.now + 4e9
            await checked.observe(STOPPED, ["systemd/unit"])
            # the first time is no change
            await checked.declare({"systemd": {"units": {"a": {"enabled": False}}}}, tmp_path)
            await checked.until(1010.0)
            assert checked.crossings == [["drift", NAME]]
            await checked.observe(STOPPED, ["systemd/unit"])
            await checked.declare({"systemd": {"units": {"a": {"state": "active"}}}}, tmp_path)
            await checked.until(1500.0)
            assert checked.crossings[1:] == [["intended", NAME]]
            await checked.until(1700.0)
            assert checked.crossings[2:] == [["drift", NAME]]
            assert [row[:3] for row in await _history(checked)] == [
                ("drift", "a", ""),
                ("intended", "a", "state file"),
                ("healed", "a", ""),
                ("drift", "a", ""),
            ]

    asyncio.run(work())


def test_what_is_gone_with_its_source_is_no_drift(tmp_path: Path) -> None:
    """Count nothing as missing whose observer or publisher has left."""

    async def work() -> None:
        async with checking(tmp_path) as checked:
            await checked.declare({**DECLARED, "p": {"things": {"c": {}, "d": {}}}}, tmp_path)
            both = {**RUNNING, "systemd/unit/b.service": {"unit_file_state": "enabled"}}
            await checked.observe(both, ["systemd/unit"])
            told = [StateObject(Identity("publish:x", "p", "thing", n), {}) for n in "cd"]
            await checked.memory.publish(told, 0, holder=":1.5")
            await checked.until(1010.0)
            checked.memory.notify(Listed("live:test", frozenset()))
            gone = {Identity("live:systemd", *name.split("/")) for name in both}
            await checked.memory.observe([], gone, {})
            await checked.memory.release(":1.5")
            await checked.until(1030.0)
            assert checked.crossings == []

    asyncio.run(work())


def test_what_a_program_withdraws_of_several_is_missing(tmp_path: Path) -> None:
    """Count what was published and withdrawn, not what nobody ever published."""

    async def work() -> None:
        async with checking(tmp_path) as checked:
            await checked.declare({"p": {"things": {"c": {}, "d": {}, "e": {}}}}, tmp_path)
            told = [StateObject(Identity("publish:x", "p", "thing", n), {}) for n in "cd"]
            await checked.memory.publish(told, 0)
            await checked.until(1010.0)
            assert checked.crossings == []
            await checked.memory.withdraw([Thing("p", "thing", "c")], 0)
            await checked.until(1020.0)
            assert checked.crossings == [["drift", "p/thing/c"]]

    asyncio.run(work())


def test_a_claim_that_is_given_up_heals(tmp_path: Path) -> None:
    """What was not declared where all had to be is as declared once the file claims it no more."""

    async def work() -> None:
        async with checking(tmp_path) as checked:
            await checked.declare({"systemd": {"exclusive": True, "units": []}}, tmp_path)
            await checked.observe(RUNNING, ["systemd/unit"])
            await checked.until(1010.0)
            name = "systemd/unit/a.service"
            assert checked.fields == {name: [["presence", "not declared", "present", "warning"]]}
            checked.memory.notify(Claimed(frozenset()))
            await checked.until(1020.0)
            assert checked.crossings == [["drift", name], ["healed", name]]

    asyncio.run(work())


@pytest.mark.parametrize("claim", ["yes", 1, None, ["units", "typo"], [1], {"a": 1}])
def test_a_claim_that_makes_no_sense_is_refused(tmp_path: Path, claim: Any) -> None:
    """Refuse an `exclusive` that is neither a boolean nor names of lists beside it."""
    path = tmp_path / "state.json"
    path.write_text(
        json.dumps({"version": 1, "plugins": {"systemd": {"exclusive": claim, "units": {}}}})
    )
    with pytest.raises(StateFileError, match=r"\$\.plugins\.systemd\.exclusive.*keys beside it"):
        StateFile(path).read()


def test_a_claim_is_no_object(tmp_path: Path) -> None:
    """Make no settings of what only claims kinds."""
    path = tmp_path / "state.json"
    path.write_text('{"version": 1, "plugins": {"systemd": {"exclusive": true, "units": []}}}')
    file = StateFile(path)
    assert file.read() == (set(), [])
    assert file.claims == {("systemd", "unit")}


def test_many_declared_objects_hold_the_loop_shortly(tmp_path: Path) -> None:
    """Look at few things at a time, whatever number is declared."""

    async def work() -> None:
        async with checking(tmp_path) as checked:
            items = [StateObject(Identity(FILE, "p", "k", f"n{n}"), {"a": n}) for n in range(1000)]
            await checked.memory.replace(FILE, {item.identity for item in items}, items)
            seen = [StateObject(i.identity._replace(source="publish:x"), {"a": 7}) for i in items]
            await checked.memory.publish(seen, 0)
            turns = 0
            while await checked.tracker.work():
                turns += 1
            assert turns >= 5
            await checked.until(1010.0)
            assert len(checked.tracker.counted) == 999

    asyncio.run(work())
