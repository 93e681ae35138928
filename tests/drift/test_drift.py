"""Drift as a daemon tells of it: once, across restarts, with its history and in pages."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest
from harness.drifting import Checked, checking
from harness.observing import Clock
from harness.remembering import unit

from opdbus.drift import drift_report
from opdbus.drift.drift_report import announce
from opdbus.drift.field import MISSING, PRESENCE, Field, Severity
from opdbus.drift.transition_filter import DriftState
from opdbus.errors import StateFileError
from opdbus.history import row_filter
from opdbus.history.change import Cause, take_severity
from opdbus.index.state_store.events import Claimed, Listed
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.selection import select_observers
from opdbus.observe.supervisor import Supervisor
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity, ObjectId, StateObject, canonical

RUNNING = {"systemd/unit/a.service": {"active_state": "active", "unit_file_state": "enabled"}}
STOPPED = {"systemd/unit/a.service": {"active_state": "inactive", "unit_file_state": "enabled"}}
DECLARED = {"systemd": {"units": {"a": {"active_state": "active"}, "b": {"enabled": True}}}}
NAME = "systemd/unit/a"


async def _history(checked: Checked) -> list[tuple[str, ...]]:
    query = "SELECT what, name, cause, fields FROM history WHERE source = 'file' ORDER BY seq"
    rows = await checked.memory.archive.read(lambda store: list(store._database.execute(query)))
    # without the severity
    return [
        (*row[:3], canonical(take_severity(json.loads(row[3]))[0]))
        for row in rows
        if row[0] in {"drift", "intended", "healed", "undeclared"}
    ]


async def test_what_cannot_be_compared_harms_nothing(tmp_path: Path) -> None:
    """Go on where a program published what no observer would."""
    async with checking(tmp_path) as checked:
        interface = {"name": "a", "ipv4": {"address": ["192.0.2.1/24"], "dhcp": True}}
        plugins = {"net": {"interfaces": [interface]}, **DECLARED}
        await checked.declare(plugins, tmp_path)
        odd = {"net/interface/a": {"addresses": ["x"]}, "net/address/x on a": {"dynamic": 7}}
        await checked.observe({**odd, **STOPPED}, [])
        await checked.until(1010.0)
        assert ["drift", NAME] in checked.transitions


async def test_what_nothing_observes_is_named(tmp_path: Path) -> None:
    """Say what is declared and cannot be compared, and why; not what is missing, or meant to be."""
    async with checking(tmp_path) as checked:
        jobs = [{"name": "a b", "when": "daily"}, {"name": "c d", "ensure": "absent"}]
        plugins = {
            "openflow": {"flows": {f"f{n}": {"port": n} for n in range(12)}},
            "systm": {"units": {"x": {}, "y": {"mode": "observe-only"}}},
            "packages": {"packages": {"vim": {}}, "names": ["vim"]},
            "cron": {"jobs": jobs},
            "sysctl": {"vm.swappiness": 10, "net.ipv4.ip_forward": 1, "vm.no_such": 2},
            "systemd": {"units": {"a": {"actve_state": "failed", "foo": 1, "description": "x"}}},
            "apt": {"packages": {"vi": {"ensure": "absnt"}}},
            "system": {"locale": "de_DE.UTF-8"},
            # compared with whether they are there
            "users": {
                "accounts": [
                    {"name": "erin", "ensure": "present"},
                    {"name": "al", "presence": "Present"},
                ]
            },
        }
        await checked.declare(plugins, tmp_path)
        seen = {"vm.swappiness": {"value": "60"}, "vm.no_such": {"missing": True}}
        seen["net.ipv4.ip_forward"] = {"not_measured": "hidden"}
        listed = ["systemd/unit", "cron/job", "kernel/sysctl"]
        await checked.observe({f"kernel/sysctl/{k}": v for k, v in seen.items()}, listed)
        await checked.observe(RUNNING, [])
        vi = {"packages/package/vi": {"status": "installed"}}
        people = {f"users/account/{name}": {"shell": "/bin/sh"} for name in ("erin", "al")}
        await checked.observe({**vi, **people, "system/fact/locale": {"keymap": "de"}}, [])
        await checked.until(1010.0)
        supervisor = Supervisor(
            select_observers(["packages", "kernel", "systemd"], {}), checked.memory
        )
        supervisor._watched[0].set("absent", "no dpkg")
        found = await checked.tracker.unobserved(supervisor.why_not)
    nobody = "nothing observes such things, unless a program publishes them"
    meant = "did you mean active_state?"
    settings = "settings are compared of system and sysctl alone; objects are written as"
    settings += ' [{"name": ...}] or {NAME: {...}}'
    which = "`op-dbus list --plugin cron --kind job` has the others"
    flows = sorted(f"f{n}" for n in range(12))[:3]
    typo = "'absnt' is not a known value; did you mean absent?"
    no_field = "no such field is observed"
    assert found == [
        (("apt", "package"), 1, ["ensure of vi"], typo),
        (("cron", "job"), 1, ["a b"], f"none of this name is observed; {which}"),
        (("kernel", "sysctl"), 1, ["net.ipv4.ip_forward"], "hidden"),
        (("openflow", "flow"), 12, flows, nobody),
        (("packages", "package"), 1, ["vim"], "the observer packages is absent: no dpkg"),
        (("packages", "settings"), 1, ["packages"], settings),
        (("system", "settings"), 1, ["locale of system"], no_field),
        (("systemd", "unit"), 1, ["actve_state of a"], f"{no_field}; {meant}"),
        (("systemd", "unit"), 1, ["foo of a"], no_field),
        (("systm", "unit"), 1, ["x"], f"{nobody}; did you mean systemd/unit?"),
    ]
    left_out = "OP_DBUS_OBSERVE leaves out the observer users"
    assert supervisor.why_not(("users", "account")) == left_out
    assert supervisor.why_not(("systemd", "unit")) == "", "it may list them yet"


async def test_a_crossing_is_told_once_across_restarts(tmp_path: Path) -> None:
    """Tell of drift once, also to a daemon that was restarted, and of its end; keep both."""
    async with checking(tmp_path) as checked:
        await checked.declare(DECLARED, tmp_path)
        await checked.observe(STOPPED, ["systemd/unit"])
        await checked.until(1010.0)
        assert sorted(checked.transitions) == [["drift", NAME], ["drift", "systemd/unit/b"]]
    async with checking(tmp_path) as checked:
        assert sorted(checked.fields) == [NAME, "systemd/unit/b"]
        await checked.declare(DECLARED, tmp_path)
        await checked.until(1010.0)
        # what nobody has listed yet is not missing, nor is it there
        await checked.observe(STOPPED, ["systemd/unit"])
        await checked.until(1020.0)
        assert checked.transitions == []
        assert checked.fields[NAME] == [["active_state", "active", "inactive", "error"]]
        await checked.observe(RUNNING, [])
        await checked.until(1030.0)
        assert checked.transitions == [["healed", NAME]]
        differs = '[[["active_state"],[],["inactive"]],[["declared","active_state"],[],["active"]]]'
        rows = await _history(checked)
        assert ("drift", "a", "", differs) in rows
        assert rows[-1] == ("healed", "a", "", '[[["active_state"],["inactive"],["active"]]]')


async def test_what_was_just_declared_is_intended(tmp_path: Path) -> None:
    """A declaration that has changed is intended for ten minutes, and drift then."""
    async with checking(tmp_path, is_new=True) as checked:
        await checked.observe(STOPPED, ["systemd/unit"])
        # the first time is no change
        await checked.declare({"systemd": {"units": {"a": {"enabled": False}}}}, tmp_path)
        await checked.until(1010.0)
        assert checked.transitions == [["drift", NAME]]
        await checked.observe(STOPPED, ["systemd/unit"])
        await checked.declare({"systemd": {"units": {"a": {"state": "active"}}}}, tmp_path)
        await checked.until(1500.0)
        assert checked.transitions[1:] == [["intended", NAME]]
        await checked.until(1700.0)
        assert checked.transitions[2:] == [["drift", NAME]]
        assert [row[:3] for row in await _history(checked)] == [
            ("drift", "a", "state file"),
            ("intended", "a", "state file"),
            ("undeclared", "a", "state file"),
            ("drift", "a", "state file:not followed"),
        ]


@pytest.mark.parametrize(
    ("ahead", "jumps"),
    [
        (0, [0, 0]),
        # the clock was ahead when it was declared, and is set right later
        (365 * 86_400, [0, 0]),
        (365 * 86_400, [365 * 86_400, 0]),
        # it is set ahead, or back, after that
        (0, [365 * 86_400, 365 * 86_400]),
        (0, [-365 * 86_400, -365 * 86_400]),
        (0, [365 * 86_400, 0]),
    ],
)
async def test_a_declaration_is_intended_for_ten_minutes_of_any_clock(
    tmp_path: Path, ahead: int, jumps: list[int]
) -> None:
    """Count the time that has passed since a declaration, wherever the clock is set meanwhile."""
    async with checking(tmp_path, is_new=True) as checked:

        async def declare(**unit: object) -> None:
            await checked.declare({"systemd": {"units": {"a": unit}}}, tmp_path)

        await checked.observe(STOPPED, ["systemd/unit"])
        await declare(state="inactive")
        await checked.until(1010.0)
        checked.clock.ahead = ahead
        await declare(state="active")
        await checked.until(1020.0)
        for jump, now in zip(jumps, (1100.0, 1300.0), strict=True):
            checked.clock.ahead = jump
            # the object is compared again
            await declare(state="active", x=now)
            await checked.until(now)
        assert checked.transitions == [["intended", NAME]]
        await checked.until(1700.0)
        assert checked.transitions == [["intended", NAME], ["drift", NAME]]
        await declare(state="active", x=9)
        await checked.until(1800.0)
        assert checked.transitions == [["intended", NAME], ["drift", NAME]]


async def test_only_what_is_declared_anew_is_intended(tmp_path: Path) -> None:
    """What differed from an older declaration goes on as drift where another field changes."""
    async with checking(tmp_path, is_new=True) as checked:
        seen = {name: {**fields, "unit_file_state": "disabled"} for name, fields in STOPPED.items()}
        await checked.observe(seen, ["systemd/unit"])
        for declared in ({"enabled": False}, {"state": "active"}, {"state": "active", "x": 1}):
            await checked.declare({"systemd": {"units": {"a": declared}}}, tmp_path)
            await checked.until(checked.clock.now + 500)
        # the first one differed in nothing; of the last one, 500 s are left of 600
        assert checked.transitions == [["intended", NAME], ["drift", NAME]]
        unit = {"state": "active", "enabled": True}
        await checked.declare({"systemd": {"units": {"a": unit}}}, tmp_path)
        await checked.until(checked.clock.now + 10)
        assert checked.transitions[2:] == [["drift", NAME]]


async def test_drift_has_the_cause_of_the_change_that_led_to_it(tmp_path: Path) -> None:
    """Drift and its end have the cause of the row that fits; a new declaration heals by the file.

    Both have what was observed before and after, whatever is declared.
    """
    async with checking(tmp_path, is_new=True) as checked:

        async def turn(unit: dict[str, dict[str, Any]], cause: str) -> None:
            await checked.observe(unit, [], Cause(cause))
            await checked.until(checked.clock.now + 10)

        await checked.declare(DECLARED, tmp_path)
        await checked.observe(RUNNING, ["systemd/unit"])
        await turn(STOPPED, "job:5 stop")
        changed = {name: {**fields, "description": "A"} for name, fields in STOPPED.items()}
        await turn(changed, "reload")
        await turn(RUNNING, "job:6 start")
        await turn(STOPPED, "exit")
        await checked.declare({"systemd": {"units": {"a": {"active_state": "inactive"}}}}, tmp_path)
        await checked.until(checked.clock.now + 10)
        rows = [(row[0], row[2], *json.loads(row[3])[0][1:]) for row in await _history(checked)]
        assert [row for row in rows if ["missing"] not in row and ["present"] not in row] == [
            ("drift", "job:5 stop", ["active"], ["inactive"]),
            ("healed", "job:6 start", ["inactive"], ["active"]),
            ("drift", "exit", ["active"], ["inactive"]),
            ("healed", "state file", ["inactive"], ["inactive"]),
        ]


@pytest.mark.parametrize(
    ("declared", "part", "other"),
    [
        (
            {"ipv4": {"address": [{"ip": "10.0.0.5", "prefix": 24}]}},
            "address",
            "10.0.0.5/24 on lan0",
        ),
        ({"ipv4": {"gateway": "10.0.0.1"}}, "route", "default via 10.0.0.1 dev lan0"),
    ],
)
async def test_what_somebody_did_on_the_host_is_not_by_the_file(
    tmp_path: Path, declared: dict[str, Any], part: str, other: str
) -> None:
    """An address or a route that comes or goes soon after it was declared has its own cause."""
    link = {"type": "ether", "addresses": []}
    gateway = {"gateway": "10.0.0.1", "family": "ipv4", "interface": "lan0"}
    found = {"address": "10.0.0.5/24", "family": "ipv4", "interface": "lan0"}
    async with checking(tmp_path, is_new=True) as checked:
        await checked.observe(
            {"net/interface/lan0": link},
            ["net/interface", "net/address", "net/route"],
            Cause("first"),
        )
        interfaces = [{"name": "lan0", **declared}]
        await checked.declare({"net": {"interfaces": interfaces}}, tmp_path)
        await checked.until(checked.clock.now + 5)
        identity = Identity("live:net", "net", part, other)
        seen = {f"net/{part}/{other}": found if part == "address" else gateway}
        up = {**link, "addresses": ["10.0.0.5/24"]} if part == "address" else link
        await checked.observe({**seen, "net/interface/lan0": up}, [])
        await checked.until(checked.clock.now + 5)
        await checked.memory.observe([], {identity}, {}, lambda _: Cause())
        await checked.observe({"net/interface/lan0": link}, [])
        await checked.until(checked.clock.now + 5)
        told = [row[:3] for row in await _history(checked)]
        assert told == [
            ("drift", "lan0", "state file"),
            ("healed", "lan0", ""),
            ("drift", "lan0", ""),
        ]


async def test_what_changed_last_is_the_cause_of_what_is_not_declared(tmp_path: Path) -> None:
    """Of an object of a claimed kind, the newest change is the cause: the host's or the file's."""
    async with checking(tmp_path, is_new=True) as checked:

        async def declare(*names: str, exclusive: bool = True) -> None:
            accounts = {"accounts": {name: {} for name in names}, "exclusive": exclusive}
            await checked.declare({"users": accounts}, tmp_path)
            await checked.until(checked.clock.now + 5)

        async def come(name: str, cause: str) -> None:
            await checked.observe({f"users/account/{name}": {"uid": 0}}, [], Cause(cause))
            await checked.until(checked.clock.now + 5)

        await declare()
        await checked.observe({"users/account/a": {"uid": 0}}, ["users/account"], Cause("first"))
        await checked.until(checked.clock.now + 5)
        await come("b", "")
        await come("c", "dpkg:1")
        await declare("a", "b", "c")
        await declare("a", "b")
        await declare("a", "b", exclusive=False)
        await come("d", "")
        await declare("a", "b", "c")
        await checked.memory.observe([], {Identity("live:users", "users", "account", "d")}, {})
        await checked.until(checked.clock.now + 5)
        rows = [row[:3] for row in await _history(checked)]
    assert rows == [
        ("drift", "a", "state file"),
        ("drift", "b", ""),
        ("drift", "c", "dpkg:1"),
        *(("healed", name, "state file") for name in "abc"),
        ("drift", "c", "state file"),
        ("undeclared", "c", "state file"),
        ("drift", "d", "state file"),
        ("healed", "d", ""),
    ]


async def test_a_unit_that_waits_for_its_restart_heals_by_what_started_it(tmp_path: Path) -> None:
    """A fault that is told in other words than those of PID 1 has the cause of its own change."""
    waits = {"active_state": "activating", "sub_state": "auto-restart"}
    async with checking(tmp_path, is_new=True) as checked:
        await checked.observe(RUNNING, ["systemd/unit"])
        await checked.declare(DECLARED, tmp_path)
        for states, cause in ((waits, "exit"), ({"active_state": "active"}, "job:7 restart")):
            await checked.observe({"systemd/unit/a.service": states}, [], Cause(cause))
            await checked.until(checked.clock.now + 10)
        told = [row[:3] for row in await _history(checked) if row[1] == "a"]
        assert told == [("drift", "a", "exit"), ("healed", "a", "job:7 restart")]


async def test_what_is_declared_no_longer_does_not_heal(tmp_path: Path) -> None:
    """The end of a declaration is neither drift nor healing, of one field as of all."""
    async with checking(tmp_path, is_new=True) as checked:
        unit = {"active_state": "active", "enabled": True, "listen": ["a"]}
        a = {"active_state": "failed", "unit_file_state": "disabled", "listen": ["b"]}
        told: list[Any] = []
        checked.tracker._on_change = lambda one: announce(told.append, Severity.INFO, one)
        await checked.observe({"systemd/unit/a.service": a}, ["systemd/unit"])
        for declared in ({"a": unit}, {"a": {"enabled": True, "listen": ["a"]}}, {}):
            await checked.declare({"systemd": {"units": {"z": {}, **declared}}}, tmp_path)
            await checked.until(checked.clock.now + 10)
        ended = [row for row in await _history(checked) if row[0] in {"healed", "undeclared"}]
        assert ended == [
            ("undeclared", "a", "state file", '[[["declared","active_state"],["active"],[]]]'),
            (
                *("undeclared", "a", "state file"),
                '[[["declared","enabled"],[true],[]],[["declared","listen"],[["a"]],[]]]',
            ),
        ]
        assert told[-1].what == "undeclared"
        assert {one.what for one in told} == {"drift", "undeclared"}


async def test_what_is_gone_does_not_heal(tmp_path: Path) -> None:
    """The end of a thing ends what differed of it, but makes nothing as declared."""
    async with checking(tmp_path) as checked:
        package, job = "packages/package/p", "cron/job/j"
        declared = {"packages": {"packages": {"p": {"version": ">= 2.0"}}}}
        await checked.declare({**declared, "cron": {"jobs": {"j": {"user": "a"}}}}, tmp_path)
        seen = {package: {"version": "1.0", "status": "installed"}, job: {"user": "b"}}
        await checked.observe(seen, ["packages/package", "cron/job"])
        await checked.until(1010.0)
        gone = {Identity(f"live:{n.split('/')[0]}", *n.split("/")) for n in (package, job)}
        await checked.memory.observe([], gone, {})
        await checked.until(1020.0)
        assert [(row[0], row[1], json.loads(row[3])) for row in await _history(checked)] == [
            ("drift", "p", [[["version"], [], ["1.0"]], [["declared", "version"], [], [">= 2.0"]]]),
            ("drift", "j", [[["user"], [], ["b"]], [["declared", "user"], [], ["a"]]]),
            (
                *("drift", "p"),
                [[["presence"], [], ["missing"]], [["declared", "presence"], [], ["present"]]],
            ),
        ]


async def test_what_is_declared_of_a_claimed_kind_is_missing(tmp_path: Path) -> None:
    """A port that closes is missing, and so is a job once the file claims all jobs."""
    port = "tcp 0.0.0.0:22"
    async with checking(tmp_path) as checked:
        plugins = {
            "cron": {"jobs": {"j": {"user": "root"}}, "exclusive": True},
            "kernel": {"sysctls": {"a.b": {"value": 1}}, "exclusive": True},
            "net": {"listeners": {port: {"user": "root"}}},
        }
        await checked.declare(plugins, tmp_path)
        seen = {f"net/listener/{port}": {"user": "root"}, "cron/job/j": {"user": "root"}}
        await checked.observe(seen, ["net/listener", "cron/job", "kernel/sysctl"])
        await checked.until(1010.0)
        assert checked.fields == {}
        gone = {Identity(f"live:{n.split('/')[0]}", *n.split("/", 2)) for n in seen}
        await checked.memory.observe([], gone, {})
        await checked.until(1020.0)
        missing = [["presence", "present", "missing", "error"]]
        assert checked.fields == dict.fromkeys(seen, missing)
        assert await checked.tracker.unobserved(lambda _kind_id: "") == []
        plugins["cron"]["exclusive"] = False
        await checked.declare(plugins, tmp_path)
        await checked.until(1030.0)
        assert checked.fields == {f"net/listener/{port}": missing}


async def test_files_are_claimed_where_a_folder_is_complete(tmp_path: Path) -> None:
    """A file that comes into a folder of parts or leaves it is drift; those of packages are not."""
    async with checking(tmp_path) as checked:
        names = ("/etc/sudoers.d/a", "/etc/motd")
        files = {name: {"mode": "0644"} for name in names}
        await checked.declare({"files": {"files": files, "exclusive": ["files"]}}, tmp_path)
        await checked.observe(
            {f"files/file/{name}": {"mode": "0644"} for name in names}, ["files/file"]
        )
        new = {"/etc/x.service.d/b.conf": {}, "/etc/issue": {}, "/etc/cron.d/p": {"package": "p"}}
        new |= {"/etc/op-dbus/c.d/d": {}}
        seen = {f"files/file/{name}": {"mode": "0644", **more} for name, more in new.items()}
        await checked.observe(seen, [])
        gone = {Identity("live:files", "files", "file", name) for name in names}
        await checked.memory.observe([], gone, {})
        await checked.until(1010.0)
        assert checked.fields == {
            "files/file//etc/sudoers.d/a": [["presence", "present", "missing", "error"]],
            "files/file//etc/x.service.d/b.conf": [
                ["presence", "not declared", "present", "warning"]
            ],
        }


@pytest.mark.parametrize(
    ("said", "absent", "end"),
    [
        ("ensure", "absent", "absent"),
        ("state", "absent", "absent"),
        ("presence", "absent", "missing"),
        ("installed", False, "absent"),
    ],
)
async def test_what_is_declared_absent_heals_when_it_goes(
    tmp_path: Path, said: str, absent: Any, end: str
) -> None:
    """An object that must not be there, and leaves, is as declared, with a row and a signal."""
    async with checking(tmp_path) as checked:
        await checked.declare({"users": {"accounts": {"toor": {said: absent}}}}, tmp_path)
        await checked.observe({"users/account/toor": {"uid": 0}}, ["users/account"])
        await checked.until(1010.0)
        await checked.memory.observe([], {Identity("live:users", "users", "account", "toor")}, {})
        await checked.until(1020.0)
        began, ended = await _history(checked)
        assert (began[0], ended[0]) == ("drift", "healed")
        assert json.loads(ended[3]) == [[[said], ["present"], [end]]]
        assert checked.transitions[-1] == ["healed", "users/account/toor"]
        declarations = checked.tracker.declarations
        object_id = ObjectId("users", "account", "toor")
        assert declarations.absence(object_id, {said: absent}) == "declared absent, and not there"


async def test_a_thing_of_two_names_has_both_sides(tmp_path: Path) -> None:
    """Give what is declared of what is observed under another name, and the other way round."""
    async with checking(tmp_path) as checked:
        await checked.declare({**DECLARED, "net": {"interfaces": [{"name": "e0"}]}}, tmp_path)
        address = {"net/address/192.0.2.1/24 on e0": {}, "systemd/unit/c.service": {}}
        await checked.observe({**RUNNING, **address}, ["systemd/unit"])
        await checked.until(1001.0)
        for name in ("a", "a.service"):
            declared, observed = checked.tracker.pairs.joined(ObjectId("systemd", "unit", name))
            assert declared
            assert (declared.identity.name, declared.identity.source) == ("a", FILE)
            assert [one.identity.name for one in observed] == ["a.service"]
        for name in address:
            assert checked.tracker.pairs.joined(ObjectId(*name.split("/", 2))).declared is None


async def test_an_interface_is_declared_by_another_name(tmp_path: Path) -> None:
    """Find an interface, its addresses and ports also by the other names that the kernel knows."""
    address = {"address": "192.0.2.1", "prefix": 24, "family": "ipv4", "interface": "ens3"}
    observed = {
        "net/interface/ens3": {
            "aliases": ["enp0s3", "uplink0"], "addresses": ["192.0.2.1/24"], "mtu": 1500,
            "master": "br0",
        },
        "net/interface/br0": {"type": "bridge", "addresses": []},
        "net/address/192.0.2.1/24 on ens3": address,
    }  # fmt: skip
    uplink = {"name": "uplink0", "mtu": 1500, "ipv4": {"address": ["192.0.2.1/24"]}}
    async with checking(tmp_path) as checked:

        async def drifted(*interfaces: dict[str, Any]) -> list[str]:
            await checked.declare({"net": {"interfaces": list(interfaces)}}, tmp_path)
            await checked.observe(observed, ["net/interface", "net/address", "net/route"])
            await checked.until(checked.clock.now + 100)
            return [field[0] for fields in checked.fields.values() for field in fields]

        assert await drifted(uplink, {"name": "br0", "ports": ["enp0s3"]}) == []
        other = {**uplink, "mtu": 9000, "ipv4": {"address": ["192.0.2.2/24"]}}
        assert sorted(await drifted(other, {"name": "br0", "ports": ["eth9"]})) == [
            "ipv4.address", "mtu", "ports",
        ]  # fmt: skip
        assert await drifted({"name": "enp0s4"}) == ["presence"]


async def test_an_interface_names_another_one_by_any_of_its_names(tmp_path: Path) -> None:
    """Take the bridge of an interface, and that on which it is, by other names, when they come."""
    plain: dict[str, dict[str, Any]] = {
        "net/interface/ens3": {"addresses": [], "type": "ethernet", "master": "br0"},
        "net/interface/ens3.5": {"addresses": [], "type": "vlan", "parent": "ens3"},
        "net/interface/br0": {"type": "bridge", "addresses": []},
        "net/interface/ens4": {"type": "ethernet", "addresses": []},
    }
    other_names = {"ens3": ["enp0s3"], "br0": ["lan"], "ens4": ["enp0s4"]}
    named = {f"net/interface/{name}": {"aliases": each} for name, each in other_names.items()}
    interfaces = [
        {"name": "enp0s3", "controller": "lan"},
        {"name": "ens3.5", "parent": "enp0s3", "ports": ["enp0s3"]},
        {"name": "lan", "ports": ["enp0s3"]},
    ]
    async with checking(tmp_path) as checked:

        async def drifted(observed: dict[str, dict[str, Any]]) -> list[str]:
            await checked.observe(observed, ["net/interface", "net/address", "net/route"])
            await checked.until(checked.clock.now + 100)
            return sorted(f"{one} {f[0]}" for one, found in checked.fields.items() for f in found)

        await checked.declare({"network": {"interfaces": interfaces}}, tmp_path)
        with_names = {name: {**has, **named.get(name, {})} for name, has in plain.items()}
        found = "network/interface"
        assert await drifted(plain) == [
            f"{found}/enp0s3 presence", f"{found}/ens3.5 parent", f"{found}/ens3.5 ports",
            f"{found}/lan presence",
        ]  # fmt: skip
        assert await drifted(with_names) == []
        interfaces[0]["controller"], interfaces[1]["parent"] = "wan", "enp0s4"
        await checked.declare({"network": {"interfaces": interfaces}}, tmp_path)
        assert await drifted({}) == [f"{found}/enp0s3 controller", f"{found}/ens3.5 parent"]
        on_other = with_names["net/interface/ens3.5"] | {"parent": "ens4"}
        assert await drifted({"net/interface/ens3.5": on_other}) == [
            f"{found}/enp0s3 controller", f"{found}/ens3.5 ports",
        ]  # fmt: skip


async def test_what_was_not_compared_since_the_start_is_not_listed(tmp_path: Path) -> None:
    """After a restart nothing is said of drift whose values are not known yet."""
    async with checking(tmp_path) as checked:
        await checked.declare(DECLARED, tmp_path)
        await checked.observe({}, ["systemd/unit"])
        await checked.until(1010.0)
        assert len(await checked.tracker.report({}, "info", "")) == 2

    def waits(observers: dict[str, str], *, is_up: bool = False) -> list[str]:
        return checked.tracker.awaits(
            lambda plugins, unlisted: [
                name for name, of in observers.items() if of in (unlisted if is_up else plugins)
            ]
        )

    async with checking(tmp_path) as checked:
        assert waits({}) == ["comparison"]
        await checked.until(1010.0)
        assert await checked.tracker.report({}, "info", "") == []
        assert waits({"units": "systemd", "packages": "packages"}) == ["observer units"]
        # what is loaded is reported before the files that are not, and these two are not there
        await checked.observe({"systemd/unit/c.service": {}}, [])
        await checked.until(1010.0)
        assert waits({"units": "systemd", "packages": "packages"}, is_up=True) == ["observer units"]
        await checked.observe({}, ["systemd/unit"])
        assert waits({"units": "systemd"}, is_up=True) == ["comparison"]
        assert waits({}) == ["comparison"]
        await checked.until(1020.0)
        assert waits({}) == []
        assert len(await checked.tracker.report({}, "info", "")) == 2


async def test_a_declaration_that_changes_while_nothing_runs(tmp_path: Path) -> None:
    """A later run knows of the first declaration, also where nothing ever differed from that."""
    async with checking(tmp_path, is_new=True) as checked:
        await checked.observe(RUNNING, ["systemd/unit"])
        await checked.declare({"systemd": {"units": {"a": {"state": "active"}}}}, tmp_path)
        await checked.until(1010.0)
        assert checked.transitions == []
    async with StateStore(tmp_path / "memory.db", clock=lambda: 4e9 + 1010) as memory:
        checked = Checked(memory, Clock())
        # the file is read before it is compared
        await checked.declare({"systemd": {"units": {"a": {"state": "inactive"}}}}, tmp_path)
        await checked.tracker.begin()
        await checked.observe(RUNNING, ["systemd/unit"])
        await checked.until(1010.0)
        assert checked.transitions == [["intended", NAME]]


async def test_what_left_while_nothing_ran_is_drift(tmp_path: Path) -> None:
    """What was declared lately and is gone since is drift, also where it left between two runs."""
    lee = "users/account/lee"
    async with checking(tmp_path, is_new=True) as checked:
        await checked.observe({lee: {"uid": 1000}}, ["users/account"])
        await checked.declare(DECLARED, tmp_path)
        await checked.until(1010.0)
        await checked.declare({**DECLARED, "users": {"accounts": [{"name": "lee"}]}}, tmp_path)
        await checked.until(1020.0)
    async with StateStore(tmp_path / "memory.db", clock=lambda: 4e9 + 1030) as memory:
        gone = {Identity("live:users", *lee.split("/"))}
        await memory.observe([], gone, {}, lambda _: Cause("start"))
        checked = Checked(memory, Clock())
        checked.clock.now = 1030.0
        await checked.tracker.begin()
        memory.notify(Listed("live:test", frozenset({("users", "account")})))
        await checked.until(1040.0)
        assert checked.transitions == [["drift", lee]]
        assert (await _history(checked))[-1][:3] == ("drift", "lee", "start")


async def test_what_follows_a_declaration_slowly_is_intended(tmp_path: Path) -> None:
    """A declared package that takes long to be installed is intended until that is done."""
    async with checking(tmp_path, is_new=True) as checked:
        package = "packagekit/package/b"
        await checked.declare(DECLARED, tmp_path)
        await checked.observe({"packages/package/a": {"status": "installed"}}, ["packages/package"])
        await checked.until(1010.0)
        wanted = {"b": {"ensure": "installed", "version": "2"}}
        await checked.declare({**DECLARED, "packagekit": {"packages": wanted}}, tmp_path)
        await checked.until(1020.0)
        assert checked.transitions == [["intended", package]]
        for status, version in (("unpacked", "1"), ("half-configured", "1")):
            observed = {"packages/package/b": {"status": status, "version": version}}
            await checked.observe(observed, [])
            await checked.until(checked.clock.now + 10)
        assert {transition[0] for transition in checked.transitions} == {"intended"}
        observed = {"packages/package/b": {"status": "installed", "version": "1"}}
        await checked.observe(observed, [])
        await checked.until(checked.clock.now + 10)
        assert checked.transitions[-1] == ["drift", package]
        assert checked.fields == {package: [["version", "2", "1", "warning"]]}


async def test_what_is_not_yet_as_declared_ends_without_drift(tmp_path: Path) -> None:
    """Tell only of the end where the host follows, or the file declares it no longer."""
    async with checking(tmp_path, is_new=True) as checked:
        await checked.declare(DECLARED, tmp_path)
        await checked.observe(RUNNING, ["systemd/unit", "users/group"])
        await checked.until(1010.0)
        groups = {"groups": {"devs": {}, "ops": {}}}
        await checked.declare({**DECLARED, "users": groups}, tmp_path)
        await checked.until(1100.0)
        await checked.observe({"users/group/devs": {"gid": 7}}, [])
        await checked.declare({**DECLARED, "users": {"groups": {"devs": {}}}}, tmp_path)
        await checked.until(1110.0)
        rows = [row[:2] for row in await _history(checked) if row[1] in groups["groups"]]
        begun, ended = rows[:2], rows[2:]
        assert sorted(begun) == [("intended", "devs"), ("intended", "ops")]
        assert sorted(ended) == [("healed", "devs"), ("undeclared", "ops")]


async def test_what_is_gone_with_its_source_is_no_drift(tmp_path: Path) -> None:
    """Count nothing as missing whose observer or publisher has left."""
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
        assert checked.transitions == []


async def test_what_a_program_withdraws_of_several_is_missing(tmp_path: Path) -> None:
    """Count what was published and withdrawn, not what nobody ever published."""
    async with checking(tmp_path) as checked:
        await checked.declare({"p": {"things": {"c": {}, "d": {}, "e": {}}}}, tmp_path)
        told = [StateObject(Identity("publish:x", "p", "thing", n), {}) for n in "cd"]
        await checked.memory.publish(told, 0)
        await checked.until(1010.0)
        assert checked.transitions == []
        await checked.memory.withdraw([ObjectId("p", "thing", "c")], 0)
        await checked.until(1020.0)
        assert checked.transitions == [["drift", "p/thing/c"]]


async def test_a_claim_that_is_given_up_heals(tmp_path: Path) -> None:
    """What was not declared where all had to be is as declared once the file claims it no more."""
    async with checking(tmp_path) as checked:
        await checked.declare({"systemd": {"exclusive": True, "units": []}}, tmp_path)
        await checked.observe(RUNNING, ["systemd/unit"])
        await checked.until(1010.0)
        name = "systemd/unit/a.service"
        assert checked.fields == {name: [["presence", "not declared", "present", "warning"]]}
        checked.memory.notify(Claimed(frozenset()))
        await checked.until(1020.0)
        assert checked.transitions == [["drift", name], ["healed", name]]


@pytest.mark.parametrize("is_looked_for", [True, False])
async def test_what_was_not_declared_and_goes_is_missing_then(
    tmp_path: Path, *, is_looked_for: bool
) -> None:
    """The row of an undeclared object that is gone says that it is not there any more."""
    name = "files/file//etc/nginx/conf.d/a.conf"
    async with checking(tmp_path) as checked:
        await checked.declare({"files": {"exclusive": ["files"], "files": {}}}, tmp_path)
        await checked.observe({name: {"mode": "0644"}}, ["files/file"])
        await checked.until(1010.0)
        if is_looked_for:
            await checked.observe({name: {"missing": True}}, [])
        else:
            await checked.memory.observe([], {Identity("live:files", *name.split("/", 2))}, {})
        await checked.until(1020.0)
        began, ended = await _history(checked)
        assert (began[0], ended[0]) == ("drift", "healed")
        assert json.loads(ended[3]) == [[["presence"], ["present"], ["missing"]]]


@pytest.mark.parametrize("claim", ["yes", 1, None, ["units", "typo"], [1], {"a": 1}])
def test_a_claim_that_makes_no_sense_is_refused(tmp_path: Path, claim: Any) -> None:
    """Refuse an `exclusive` that is neither a boolean nor names of lists beside it."""
    path = tmp_path / "state.json"
    path.write_text(
        json.dumps({"version": 1, "plugins": {"systemd": {"exclusive": claim, "units": {}}}})
    )
    with pytest.raises(StateFileError, match=r"\$\.plugins\.systemd\.exclusive.*keys beside it"):
        StateFile(path).read()
    path.write_text('{"version": 1, "plugins": {"systemd": {"exclusive": true, "units": []}}}')
    file = StateFile(path)
    # which makes no settings
    assert file.read() == (set(), [])
    assert file.claims == {("systemd", "unit")}


async def test_many_declared_objects_hold_the_loop_shortly(tmp_path: Path) -> None:
    """Look at few things at a time, whatever number is declared."""
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
        assert len(checked.tracker.transitions.counted) == 999


def test_drift_reads_the_beginning_of_a_question() -> None:
    """Read no more of what drift is asked about than the first 2000 characters."""
    field = Field(("state",), "active", "failed", Severity.ERROR)
    rows = [
        (ObjectId("systemd", "unit", name), DriftState("drift", 0.0, [field]))
        for name in ("mail.service", "web.service")
    ]
    for padding, first in ((500, rows[1]), (1000, rows[0])):
        assert drift_report.order_by_question(rows, "x " * padding + "web")[0] == first


@pytest.mark.parametrize(
    "question",
    [
        "which declared service does not exist?",
        "which declared units are missing",
        "what service of the state file is not there",
    ],
)
def test_what_does_not_exist_is_listed_first_where_it_is_asked_for(question: str) -> None:
    """Of the kind that a question for missing objects names, the missing ones come first."""
    stopped = Field(("active_state",), "active", "inactive", Severity.ERROR)
    missing = Field(PRESENCE, "present", MISSING, Severity.ERROR)
    rows = [
        (ObjectId("systemd", "unit", "declared.service"), DriftState("drift", 0.0, [stopped])),
        (ObjectId("packages", "package", "p"), DriftState("drift", 0.0, [missing])),
        (ObjectId("systemd", "unit", "acme"), DriftState("drift", 0.0, [missing])),
    ]
    ordered = [row[0].name for row in drift_report.order_by_question(rows, question)]
    assert ordered == ["acme", "declared.service", "p"]
    plain = drift_report.order_by_question(rows, "which declared service is stopped?")
    assert plain[0][0].name == "declared.service"


async def test_the_change_that_made_each_field_differ(tmp_path: Path) -> None:
    """Of each drifting field, name the newest change that gave it its value, and no other."""
    file = "files/file//etc/a"
    declared = {"systemd": {"units": {"a": {"active_state": "active", "enabled": True}}}}
    declared["files"] = {"files": [{"name": "/etc/a", "mode": "0644"}]}
    enabled = {"systemd/unit/a.service": {"active_state": "active", "enabled": True}}
    disabled = {"systemd/unit/a.service": {"active_state": "active", "enabled": False}}
    stopped = {"systemd/unit/a.service": {"active_state": "inactive", "enabled": False}}
    started = {"systemd/unit/a.service": {**stopped["systemd/unit/a.service"], "exec": "/x"}}
    kinds = ["systemd/unit", "files/file"]
    async with checking(tmp_path, is_new=True) as host:
        await host.observe({**enabled, file: {"mode": "0644"}}, kinds, Cause("first"))
        await host.declare(declared, tmp_path)
        await host.until(2000)
        await host.observe({**disabled, file: {"missing": True}}, kinds, Cause("reload"))
        await host.until(2005)
        await host.observe({**stopped, file: {"missing": True}}, kinds, Cause("job:9 stop"))
        await host.until(2010)
        # another field of the unit
        await host.observe({**started, file: {"missing": True}}, kinds, Cause("job:10 reload"))
        await host.until(2020)
        object_ids = [ObjectId("systemd", "unit", "a"), ObjectId("files", "file", "/etc/a")]
        assert host.tracker.transitions.counted.keys() == {*object_ids}
        found = await host.tracker.origins([*object_ids, ObjectId("systemd", "unit", "none")])
        causes = {t: {name: row.cause for name, row in rows.items()} for t, rows in found.items()}
        assert causes == {
            object_ids[0]: {"active_state": "job:9 stop", "enabled": "reload"},
            object_ids[1]: {"presence": "reload"},
        }
        ats = [found[object_ids[0]][name].at for name in ("enabled", "active_state")]
        assert 4 < (ats[1] - ats[0]) / 1e6 < 6


async def test_origins_let_others_read_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read all history of the parts of objects in steps, between which others read."""
    monkeypatch.setattr(row_filter, "_SCANNED", 16)
    address = {"address": "10.0.0.5/24", "family": "ipv4", "interface": "lan0"}
    link = {"net/interface/lan0": {"type": "ether", "addresses": ["10.0.0.5/24"]}}
    part = "net/address/10.0.0.5/24 on lan0"
    ipv4 = {"address": [{"ip": "10.0.0.6", "prefix": 24}]}
    async with checking(tmp_path, is_new=True) as host:
        await host.declare({"net": {"interfaces": [{"name": "lan0", "ipv4": ipv4}]}}, tmp_path)
        await host.observe(link, ["net/interface", "net/address"], Cause("first"))
        await host.observe({part: address}, [], Cause("job:1 start"))
        await host.until(1020)
        for number in range(300):
            await host.memory.publish([unit("busy", number=number)], 0)
        ended: list[str] = []
        asked = asyncio.create_task(host.tracker.origins([ObjectId("net", "interface", "lan0")]))
        asked.add_done_callback(lambda _: ended.append("origins"))
        while "origins" not in ended:
            await host.memory.archive.read(lambda store: store.fact("any"))
            ended.append("other")
        assert [one.name for one in asked.result()] == ["lan0"]
    assert ended.count("other") > 10


WISHED: Final = {"systemd": {"units": {"a": {"active_state": "active"}}}}
CLAIMED: Final = {"systemd": {"units": {"b": {}}, "exclusive": True}}


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (WISHED, {}),
        (WISHED, {"systemd": {"units": {"b": {}}}}),
        (WISHED, {"systemd": {"units": {"a": {}}}}),
        (WISHED, {"systemd": {"units": {"a": {"active_state": "inactive"}}}}),
        (WISHED, {"systemd": {"units": {"a": {"active_state": "inactive", "enabled": True}}}}),
        (CLAIMED, {"systemd": {"units": {"b": {}}}}),
        (CLAIMED, {"systemd": {"units": {"a": {}, "b": {}}, "exclusive": True}}),
    ],
)
async def test_what_the_file_ends_is_no_drift_any_more(
    tmp_path: Path, first: Any, later: Any
) -> None:
    """End drift at once where the file drops the object or field, or takes over what there is."""
    async with checking(tmp_path) as checked:
        await checked.observe(STOPPED, ["systemd/unit"])
        await checked.declare(first, tmp_path)
        await checked.until(1010.0)
        # what is undeclared has its observed name
        names = {NAME, f"{NAME}.service"}
        assert names & {*checked.fields}
        await checked.declare(later, tmp_path)
        await checked.until(checked.clock.now)
        assert not names & {*checked.fields}
        # what the host does counts after a while, as ever
        await checked.declare(WISHED, tmp_path)
        await checked.until(1020.0)
        await checked.observe(RUNNING, [])
        await checked.until(checked.clock.now)
        assert [*checked.fields] == [NAME]
